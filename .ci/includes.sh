#!/usr/bin/env bash
# The include direction: a file may include its own folder and lower floors only.
#   schemas <- ipc, persistent <- client, service <- tests, bench
# Within service/ and persistent/cuda/ every room says which others it may include; what is not in
# the table may not be.
# Last, .ci/circles.py counts the files that need each other in a loop.
set -euo pipefail
cd "$(dirname "$0")/.."

allowed() {
    case "$1" in
    schemas) echo "schemas" ;;
    ipc) echo "schemas ipc" ;;
    persistent) echo "schemas persistent" ;;
    client) echo "schemas ipc client" ;;
    service) echo "schemas ipc persistent service" ;;
    tests | bench) echo "schemas ipc persistent client service tests bench" ;;
    esac
}

# The rooms of service/ and of persistent/cuda/, from the ground up: a room, then the rooms or
# single headers that it may include. service.h, the daemon's state, stands in base. README.md of
# the folder has a line on each.
service_rooms='
args
admission
base
supervise  base
objects    admission base supervise
prefix     base supervise objects
peers      base supervise objects prefix
prepared   base supervise objects
sched      admission base supervise objects prefix peers prepared
session    base supervise objects prefix sched
rpc        base supervise objects prefix peers prepared sched session
daemon     base args supervise objects prefix peers prepared sched session rpc
worker     base args supervise/worker_abi.h
mover      base args peers/message.h peers/mover_abi.h
ctl        base args
dist
'
cuda_rooms='
machine
state      machine
items      machine state
policy     machine state items
loops      machine state items
worker     machine state items policy loops
dispatch   machine state
engine     machine state items dispatch
host       machine state dispatch/dispatcher.cuh
journal
'

status=0
# Prints file:line:path of every include of ours in a folder.
includes_of() {
    grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$1" \
        --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' |
        sed 's/^\([^:]*:[^:]*\):.*#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1:\2/' || true
}

for folder in schemas ipc persistent client service tests bench; do
    [ -d "$folder" ] || continue
    pattern=" $(allowed "$folder") "
    while IFS=: read -r file line path; do
        top=${path%%/*}
        # The public headers are included by their installed names, in examples and in each other.
        [[ "$path" == attnd*.h && "$folder" = client ]] && continue
        if [ "$top" = "$path" ]; then
            echo "$file:$line: include \"$path\" from the repository's root"
            status=1
        elif [[ "$pattern" != *" $top "* ]]; then
            echo "$file:$line: $folder/ may not include $top/ (\"$path\")"
            status=1
        fi
    done < <(includes_of "$folder")
done

# check_rooms FOLDER TABLE
check_rooms() {
    local folder room row pattern file line path place to
    for folder in "$1"/*/; do
        room=$(basename "$folder")
        if ! row=$(grep -E "^$room( |\$)" <<<"$2"); then
            echo "$folder: no such room in the table of .ci/includes.sh"
            status=1
            continue
        fi
        pattern=" $(tr -s ' ' <<<"$row") "
        while IFS=: read -r file line path; do
            [[ "$path" == "$1"/* ]] || continue
            place=${path#"$1"/}
            to=${place%%/*}
            [ "$to" = service.h ] && to=base
            if [[ "$pattern" != *" $to "* && "$pattern" != *" $place "* ]]; then
                echo "$file:$line: $1/$room/ may not include \"$path\""
                status=1
            fi
        done < <(includes_of "$folder")
    done
}
check_rooms service "$service_rooms"
check_rooms persistent/cuda "$cuda_rooms"

# What an engine links must not see the daemon's half of ipc.
if grep -nE '#include "ipc/loop' client/*.c client/*.h 2>/dev/null; then
    echo "client/ may not include the daemon's part of ipc/"
    status=1
fi
python3 .ci/circles.py || status=1
exit $status
