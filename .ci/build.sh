#!/usr/bin/env bash
# Builds, and says how far it is: on a terminal one line that is drawn over, elsewhere a line now and
# then. Warnings and errors of the compilers go to standard error as they are.
#
#   .ci/build.sh WHAT ARGUMENT...    WHAT is a title, ARGUMENTs are make's
#
#   MAKE=program       default: make
#   HIDE=PATTERN       lines of the compilers that are not shown (grep -E)
#
# Each recipe that makes a file says `+ FILE` when PROGRESS is set (`say` in the Makefile). How many
# there will be, a dry run tells.
set -uo pipefail
what=$1
shift
make=${MAKE:-make}
width=60
[ -t 1 ] && terminal=1 || terminal=
period=${ATTND_BUILD_PERIOD:-15} # seconds between lines where there is no terminal

total=$("$make" --no-print-directory -n PROGRESS=1 "$@" 2>/dev/null | grep -c "^echo '+ ")
[ "$total" -eq 0 ] || printf '== %s: %d steps\n' "$what" "$total"

show() {
    local line
    line=$(printf '[%d/%d] %d s %s' "$number" "$total" "$SECONDS" "$file")
    if [ "$terminal" ]; then
        printf '\r\033[K%.*s' "$width" "$line"
    else
        printf '%s\n' "$line"
    fi
}

# Counts what make says. What is no step is printed as it is.
follow() {
    local line status number=0 file="" shown=$SECONDS
    while :; do
        IFS= read -r -t 1 line
        status=$?
        if [ $status -eq 0 ] && [[ $line == '+ '* ]]; then
            number=$((number + 1)) file=${line#+ }
        elif [ $status -eq 0 ]; then
            [ "$terminal" ] && printf '\r\033[K'
            printf '%s\n' "$line"
        elif [ $status -le 128 ]; then
            break # the end, and not the second that is over
        fi
        [ "$file" ] || continue
        if [ "$terminal" ] || [ $((SECONDS - shown)) -ge "$period" ]; then
            show
            shown=$SECONDS
        fi
    done
    [ "$terminal" ] && printf '\r\033[K'
    return 0
}

SECONDS=0
{
    "$make" --no-print-directory -s PROGRESS=1 "$@" 2>&3 | follow
    status=${PIPESTATUS[0]}
} 3> >(grep -vE "${HIDE:-^\$a}" >&2)
wait $! 2>/dev/null # what is left of standard error is shown before this ends
if [ "$status" -ne 0 ]; then
    printf '== %s: FAILED\n' "$what" >&2
elif [ "$total" -ne 0 ]; then
    printf '== %s: done in %d s\n' "$what" "$SECONDS"
fi
exit "$status"
