#!/usr/bin/env bash
# The include direction: a file may include its own folder and lower floors only.
#   schemas <- ipc, persistent <- client, service <- tests, bench
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

status=0
for folder in schemas ipc persistent client service tests bench; do
    [ -d "$folder" ] || continue
    pattern=" $(allowed "$folder") "
    while IFS=: read -r file line text; do
        path=$(sed -n 's/.*#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' <<<"$text")
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
    done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$folder" \
        --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' || true)
done
# What an engine links must not see the daemon's half of ipc; the allocator for unpacking is both's.
if grep -nE '#include "ipc/(loop|admit)' client/*.c client/*.h 2>/dev/null | grep -v 'admit_alloc\.h'; then
    echo "client/ may not include the daemon's part of ipc/"
    status=1
fi
exit $status
