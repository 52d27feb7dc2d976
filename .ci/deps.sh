#!/usr/bin/env bash
# Installs what the build (demo), the bundle for a GPU (bundle), or build, lint and tests (check) need
# from Debian's packages, and says so first. Nothing is installed when nothing is missing. Of ruff
# Debian 12 has no package: check puts it into build/lint from PyPI, and goes on where that fails.
set -euo pipefail
cd "$(dirname "$0")/.."

build=(gcc make protobuf-c-compiler libprotobuf-c-dev liburing-dev libjansson-dev
       libncurses-dev libinih-dev)
# UCX and libcrypto are for attnd-mover, which a build leaves out where they are not.
check=("${build[@]}" libucx-dev libssl-dev iproute2 clang clang-format clang-tidy cppcheck libcmocka-dev git g++
       libclang-rt-14-dev pkg-config python3 python3-venv python3-numpy python3-hypothesis spin scdoc
       abigail-tools zsh)
bundle=("${build[@]}" libcmocka-dev git)
python=(python3 python3-venv python3-pip)

case "${1:-check}" in
demo | build) wanted=("${build[@]}") ;;
bundle) wanted=("${bundle[@]}") ;;
check) wanted=("${check[@]}") ;;
python) wanted=("${python[@]}") ;;
*) echo "usage: $0 demo|bundle|check|python" >&2; exit 2 ;;
esac

command -v dpkg-query >/dev/null || {
    echo "deps: not a Debian system; these must be there: ${wanted[*]}" >&2
    exit 0
}

# A tool that is on the PATH from elsewhere is as good as its package.
has() {
    case "$1" in
    gcc | make | git | g++ | pkg-config | python3 | clang | clang-format | clang-tidy | cppcheck | \
        spin | scdoc | zsh)
        command -v "$1" >/dev/null && return 0 ;;
    protobuf-c-compiler) command -v protoc-c >/dev/null && return 0 ;;
    abigail-tools) command -v abidiff >/dev/null && return 0 ;;
    esac
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

install_ruff() {
    type -P ruff >/dev/null && return
    [ -x build/lint/bin/ruff ] && return
    echo 'deps: installing ruff 0.17.6 from PyPI into build/lint'
    local folder=build/lint python
    for python in python3 /usr/bin/python3; do # one that is built by hand may lack ensurepip
        "$python" -m venv --clear $folder 2>/dev/null &&
            $folder/bin/pip install --quiet --disable-pip-version-check ruff==0.17.6 && return
    done
    echo 'deps: ruff could not be installed: Python will only be compiled' >&2
}

missing=()
for package in "${wanted[@]}"; do
    has "$package" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    [ "${1:-check}" != check ] || install_ruff
    exit 0
fi

install="apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -eq 0 ]; then
    as_root=()
elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    as_root=(sudo)
else
    echo "deps: missing packages and neither root nor sudo; run this as root, then try again:" >&2
    echo "  apt-get update && $install" >&2
    exit 1
fi
echo "deps: installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive $install
[ "${1:-check}" != check ] || install_ruff
