#compdef attnd attnctl attnd-replay attnd-variant
# Completion of attnd, attnctl, attnd-replay and attnd-variant for zsh. tests/operators holds the options against
# what each --help prints.

local -a help=(
    '(-? -h --help)'{-\?,-h,--help}'[print the options]'
    '--usage[print a short usage message]'
)
local -a version=('(-V --version)'{-V,--version}'[print the version]')
local -a at=('(-s --socket)'{-s,--socket=}'[where the service listens]:socket:_files')
local -a as_json=('(-j --json)'{-j,--json}'[print JSON]')

_attnd_sessions() {
    local -a sessions
    sessions=(${(f)"$(attnctl status --json 2>/dev/null | grep -o '"session":[0-9]*' | grep -o '[0-9]*')"})
    compadd -a sessions
}

_attnd_daemon() {
    _arguments -s $help $version $at \
        '*--allow-uid=[serve this user]:user:_users' \
        '(-b --backend)'{-b,--backend=}'[what computes]:backend:(auto cpu cuda)' \
        '--cascade=[common leading pages are read once]:mode:(off hint auto)' \
        '--check-config[print the values that would be in force]' \
        '--config=[read options from this file]:file:_files' \
        "--daemon-memory-max=[the daemon's own memory]:size" \
        '--device=[GPU of the CUDA worker]:number' \
        '--device-memory-max=[memory of the GPU for one session]:size' \
        '--execute=[who executes launched runs]:who:(auto engine service)' \
        '--fusion=[both classes of work at once]:mode:(off sm-split auto)' \
        '--heap=[memory for plans]:size' \
        '--host-cache=[host memory below the prefix trees]:size' \
        '--host-memory-max=[host memory of all sessions]:size' \
        '--isa=[instruction set of the worker]:name:(avx512 avx2 portable sm_90a sm_80)' \
        '--log-level=[what is logged]:level:(error warning info debug)' \
        '--loop=[kind of event loop]:kind:(auto io_uring epoll)' \
        '--memory-max=[host memory of one session]:size' \
        '*--peer=[bring pages from this service]:name=path or name=host\:port: ' \
        '--peer-interface=[network interface of pages]:name:_net_interfaces' \
        '--peer-key=[file of the key of all hosts]:file:_files' \
        '--peer-listen=[services of other hosts may claim here]:host\:port: ' \
        '--metrics=[serve metrics there]:path or 127.0.0.1\:port:_files' \
        '--modules=[kernels that the CUDA worker was built without]:directory:_files -/' \
        '--prefix-blocks=[blocks of all prefix trees]:number' \
        '(-q --quiet)'{-q,--quiet}'[log warnings and errors only]' \
        '--rates=[what plans are made with]:auto or four numbers' \
        '--reserve=[SMs that an elastic worker keeps]:SMs' \
        '--residency=[how the CUDA worker lives]:mode:(auto elastic shared exclusive)' \
        '--scratch=[memory for partial results]:size' \
        '--sms=[SMs of a shared worker]:number' \
        '(-t --threads)'{-t,--threads=}'[threads of the CPU worker]:number' \
        '--trust[take GPU memory by legacy handles]' \
        '(-v --verbose)'{-v,--verbose}'[log more]' \
        '--watchdog=[seconds until a worker that stands still is killed]:seconds' \
        '--worker=[the worker program]:program:_files'
}

_attnd_replay() {
    _arguments -s $help $version $at \
        '--attnd=[the attnd to start]:program:_files' \
        '--batch=[requests that run at once in an engine]:number' \
        '--cache=[where prompts find what was computed]:cache:(service engine none)' \
        '--chunk=[prompt tokens a step]:tokens' \
        '--compare=[replay again with this cache]:cache:(service engine none)' \
        '--dtype=[type of elements]:type:(fp16 bf16)' \
        '(-e --engines)'{-e,--engines=}'[engine processes]:number' \
        '--head-dim=[head dimension]:dimension:(64 128 256)' \
        '--heads=[query and KV heads]:Q/KV' \
        '--json=[write figures as JSON]:file:_files' \
        '(-l --layers)'{-l,--layers=}'[layers a step runs through]:number' \
        '(-n --limit)'{-n,--limit=}'[only the first requests]:number' \
        '--max-context=[clip requests]:tokens' \
        '(-m --mode)'{-m,--mode=}'[who prefills and who decodes]:mode:(shared disaggregated)' \
        '--page-size=[tokens a page holds]:tokens' \
        '--pool-mib=[size of the KV pool]:MiB' \
        '--prefill-engines=[engines that prefill]:number' \
        '--route=[which engine gets a request]:route:(prefix turns)' \
        '--samples=[rows of every step that are checked]:number' \
        '--seed=[of all that is drawn]:number' \
        '--services=[one, or two of which one brings pages from the other]:number:(1 2)' \
        '--skip-bad[leave out lines that cannot be read]' \
        '--spawn[start a private attnd]' \
        "--time-scale=[stretch the trace's time]:factor" \
        '(-t --trace)'{-t,--trace=}'[requests to replay]:file:_files'
}

_attnctl_command() {
    case $words[1] in
    status | latency | ping | prefix | peers | doctor) _arguments -s $help $at $as_json ;;
    metrics) _arguments -s $help $at ;;
    kill) _arguments -s $help $at '1:session:_attnd_sessions' ;;
    weight) _arguments -s $help $at '1:session:_attnd_sessions' '2:weight' ;;
    top)
        _arguments -s $help $at $as_json \
            '(-i --interval)'{-i,--interval=}'[between two looks]:seconds' \
            '(-o --once)'{-o,--once}'[look twice and leave]'
        ;;
    monitor)
        _arguments -s $help $at $as_json \
            '(-c --count)'{-c,--count=}'[leave after so many events]:number' \
            '(-f --faults)'{-f,--faults}'[leave out what went well]' \
            '(-S --session)'{-S,--session=}'[of this session only]:session:_attnd_sessions'
        ;;
    trace)
        _arguments -s $help $at \
            '(-n --seconds)'{-n,--seconds=}'[how long]:seconds' \
            '(-o --output)'{-o,--output=}'[where to]:file:_files' \
            '(-S --session)'{-S,--session=}'[of this session only]:session:_attnd_sessions'
        ;;
    esac
}

_attnctl() {
    local -a commands=(
        'status:what the service is and what its sessions do'
        'top:what sessions do now'
        'latency:how long runs took'
        'ping:round trip of a call, and whether the worker moves'
        'monitor:operations and faults as they happen'
        'trace:what the worker executes, for Perfetto'
        'kill:end a session'
        'metrics:numbers as text for Prometheus'
        'weight:how much of the worker a session gets'
        'prefix:the prefix trees'
        'peers:other services that pages are brought from, or lent to'
        'doctor:what this machine lacks for the service'
    )
    if ((CURRENT == 2)); then
        _arguments $help $version
        _describe -t commands command commands
    else
        shift words
        ((CURRENT--))
        _attnctl_command
    fi
}

_attnd_variant() {
    _arguments '(-h --help)'{-h,--help}'[print the options]' '--version[print the version]' \
        '--list[name all kernels]' '--modules=[where the files go]:directory:_files -/' \
        '--arch=[for which GPUs]:name:(sm_90a sm_80)' \
        '*:kernel:($(attnd-variant --list 2>/dev/null))'
}

case $service in
attnd-variant) _attnd_variant ;;
attnd) _attnd_daemon ;;
attnd-replay) _attnd_replay ;;
attnctl) _attnctl ;;
esac
