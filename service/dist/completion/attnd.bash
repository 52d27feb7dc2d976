# Completion of attnd, attnctl, attnd-replay and attnd-variant for bash. Options that take a value end in "=".
# tests/operators holds the lists against what each --help prints.

_attnd_options() { # PROGRAM, or "attnctl COMMAND"
    local help='--help --usage'
    case $1 in
    attnd)
        echo "--allow-uid= --backend= --cascade= --check-config --config= --daemon-memory-max= --device=" \
            "--device-memory-max= --execute= --fusion= --heap= --host-cache= --host-memory-max= --isa=" \
            "--log-level= --loop=" \
            "--memory-max= --metrics= --modules= --peer= --peer-interface= --peer-key= --peer-listen= --prefix-blocks= --quiet --rates= --reserve= --residency= --scratch= --sms=" \
            "--socket= --threads= --trust --verbose --version --watchdog= --worker= $help"
        ;;
    attnd-replay)
        echo "--attnd= --batch= --cache= --chunk= --compare= --dtype= --engines= --head-dim=" \
            "--heads= --json= --layers= --limit= --max-context= --mode= --page-size= --pool-mib=" \
            "--prefill-engines= --route= --samples= --seed= --services= --skip-bad --socket= --spawn" \
            "--time-scale= --trace= --version $help"
        ;;
    attnd-variant) echo "--arch= --help --list --modules= --version" ;;
    attnctl) echo "--help --version" ;;
    'attnctl top') echo "--interval= --json --once --socket= $help" ;;
    'attnctl monitor') echo "--count= --faults --json --session= --socket= $help" ;;
    'attnctl trace') echo "--output= --seconds= --session= --socket= $help" ;;
    'attnctl kill' | 'attnctl metrics' | 'attnctl weight') echo "--socket= $help" ;;
    attnctl\ *) echo "--json --socket= $help" ;;
    esac
}

_attnd_commands='status top latency ping monitor trace kill metrics weight prefix peers doctor'

_attnd_sessions() {
    attnctl status --json 2>/dev/null | grep -o '"session":[0-9]*' | grep -o '[0-9]*'
}

# The values of an option: words, or nothing where file names are as good.
_attnd_values() { # PROGRAM OPTION
    case $2 in
    --backend | -b) echo 'auto cpu cuda' ;;
    --isa) echo 'avx512 avx2 portable sm_90a sm_80' ;;
    --arch) echo 'sm_90a sm_80' ;;
    --residency) echo 'auto elastic shared exclusive' ;;
    --cascade) echo 'off hint auto' ;;
    --execute) echo 'auto engine service' ;;
    --fusion) echo 'off sm-split auto' ;;
    --loop) echo 'auto io_uring epoll' ;;
    --log-level) echo 'error warning info debug' ;;
    --allow-uid) cut -d: -f1 /etc/passwd ;;
    --mode | -m) echo 'shared disaggregated' ;;
    --cache | --compare) echo 'service engine none' ;;
    --route) echo 'prefix turns' ;;
    --dtype) echo 'fp16 bf16' ;;
    --head-dim) echo '64 128 256' ;;
    --session | -S) _attnd_sessions ;;
    esac
}

_attnd_takes_file() { # PROGRAM OPTION
    case $2 in
    --socket | --config | --worker | --metrics | --trace | --attnd | --output | --modules) return 0 ;;
    --json) [ "$1" = attnd-replay ] ;;
    -s) return 0 ;;
    -t) [ "$1" = attnd-replay ] ;;
    *) return 1 ;;
    esac
}

_attnd() {
    local program=${1##*/} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local key=$program words
    COMPREPLY=()

    [ "$program" = attnctl ] && [ "$COMP_CWORD" -gt 1 ] && key="attnctl ${COMP_WORDS[1]}"
    # `--option=value` comes as three words, because = breaks words in bash.
    if [ "$before" = = ]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    elif [ "$word" = = ]; then
        word=''
    fi
    if words=$(_attnd_values "$program" "$before") && [ "$words" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    elif _attnd_takes_file "$program" "$before"; then
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        compopt -o filenames 2>/dev/null
    elif [ "$key" = attnctl ] && [[ $word != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$_attnd_commands" -- "$word")
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_attnd_options "$key")" -- "$word")
        [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
    elif [ "$COMP_CWORD" -eq 2 ] && [[ $key == 'attnctl kill' || $key == 'attnctl weight' ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_attnd_sessions)" -- "$word")
    elif [ "$key" = attnd-variant ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(attnd-variant --list 2>/dev/null)" -- "$word")
    fi
    return 0
}

complete -F _attnd attnd attnctl attnd-replay attnd-variant
