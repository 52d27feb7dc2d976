#!/usr/bin/env bash
# clang-tidy of one file, unless it has been found clean with all that it reads as it is now.
#
#   .ci/tidy.sh CACHE TOOL FILE FLAG...
#
#   TOOL    what clang-tidy this is, and what it is to look for
#
# What decides: the bytes of the file and of every header that it includes, those of the system too,
# the flags, and TOOL. In the folder CACHE stands an empty file for each such state that was clean;
# one that was not is looked at again. So is one that changed while it was looked at. The cache needs
# no cleaning: it has a hundred bytes a state, and `make clean` takes it away.
set -euo pipefail
cache=$1 tool=$2 file=$3
shift 3

state() {
    local reads # the file is the first of them
    mapfile -t reads < <(clang -M "$@" "$file" | tr -s ' \\' '\n' | grep -v ':$' | grep .)
    [ ${#reads[@]} -gt 0 ] || return 1
    {
        printf '%s\n' "$tool" "$file" "$@"
        sha256sum "${reads[@]}"
    } | sha256sum | cut -d ' ' -f 1
}

key=$(state "$@")
known=$cache/$key
[ -e "$known" ] && exit 0
clang-tidy --quiet --warnings-as-errors='*' "$file" -- "$@" 2>/dev/null
[ "$(state "$@")" = "$key" ] || exit 0
mkdir -p "$cache"
: >"$known"
