#!/usr/bin/env bash
# Everything that looks at the text: format, include direction, file sizes, ABI dialects, clang-tidy,
# cppcheck, the README's engine and figures. BUILD names a folder where the sources have been built
# (generated headers). Run by `make lint`.
set -uo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
status=0
step() { printf 'lint: %s\n' "$1"; }
fail() { printf 'lint: FAILED: %s\n' "$1" >&2; status=1; }

mapfile -t sources < <(git ls-files '*.c' '*.h' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
# What includes cuda.h is looked at where there is one.
cuda=
for folder in /usr/local/cuda/include /usr/include; do [ -e "$folder/cuda.h" ] && cuda=$folder && break; done
if [ -z "$cuda" ]; then
    mapfile -t sources < <(printf '%s\n' "${sources[@]}" | grep -v '^client/cuda/\|^client/examples/graph.c\|^tests/gpu/\|^bench/gpu/\|^bench/mixed/')
fi
mapfile -t units < <(printf '%s\n' "${sources[@]}" | grep '\.c$' | grep -v '^tests/abi/')
flags=(-std=c11 -D_GNU_SOURCE -I. "-I$build/gen" -Iclient)
[ -n "$cuda" ] && flags+=(-Iclient/cuda -isystem "$cuda")

step 'clang-format'
mapfile -t device < <(git ls-files '*.cu' '*.cuh')
clang-format --dry-run -Werror "${sources[@]}" "${device[@]}" || fail 'clang-format (make format mends it)'

step 'include direction, rooms, circles'
.ci/includes.sh || fail 'include direction, rooms or circles'

step 'file sizes'
long=$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.proto' '*.sh' | xargs wc -l | awk '$2 != "total" && $1 > 600')
[ -z "$long" ] || { echo "$long"; fail 'files over 600 lines'; }

step 'memory orders only in schemas/atomics.h'
if grep -nE '__atomic_|__ATOMIC_|stdatomic|__sync_' $(printf '%s\n' "${sources[@]}" | grep -v '^schemas/atomics.h$'); then
    fail 'memory order outside schemas/atomics.h'
fi

step 'device memory orders only in persistent/cuda/machine/atomics.cuh'
orders='\b(ld|st|red|atom)\.(async\.)?(acquire|release|relaxed|acq_rel|volatile|mmio)|(?<!wgmma\.)\bfence\.\w|\bmembar\.'
orders+='|\batomic(Add|Sub|Exch|Min|Max|Inc|Dec|CAS|And|Or|Xor)|__threadfence|cuda::(std::)?atomic'
if git ls-files 'persistent/cuda/*.cu' 'persistent/cuda/*.cuh' | grep -v '/machine/atomics\.cuh$' |
    xargs grep -nP "$orders"; then
    fail 'device memory order outside persistent/cuda/machine/atomics.cuh'
fi

step 'abi.h in every dialect, every header alone'
for std in c11 c17; do
    gcc -std=$std -Wall -Wextra -Werror -I. -fsyntax-only tests/abi/abi_$std.c || fail "abi.h as $std"
done
g++ -std=c++17 -Wall -Wextra -Werror -I. -fsyntax-only tests/abi/abi_cxx17.cpp || fail 'abi.h as c++17'
if command -v nvcc >/dev/null; then
    nvcc -std=c++17 -I. -c tests/abi/abi_cuda.cu -o /dev/null || fail 'abi.h as CUDA'
fi
# That one with which a file begins does, that file shows, which clang-tidy compiles.
begins=$(awk 'FNR == 1 { seen = 0 }
    !seen && /^#/ { seen = 1; gsub(/"/, "", $2); if ($1 == "#include") print $2 }' "${units[@]}")
for header in $(printf '%s\n' "${sources[@]}" | grep '\.h$' | grep -v '_impl\.h$\|/vec_' |
    grep -vxF "$begins"); do
    gcc "${flags[@]}" -Wall -Wextra -Werror -fsyntax-only -x c - <<<"#include \"$header\"" ||
        fail "$header does not compile alone"
done

step 'cppcheck'
cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,portability,performance --inline-suppr \
    --suppress=missingIncludeSystem -j2 -I. "-I$build/gen" -Iclient -D_GNU_SOURCE -D__x86_64__ \
    --suppressions-list=.ci/cppcheck.suppressions "${units[@]}" || fail 'cppcheck'

# A process for each file: the analyser of clang 14 keeps pointers to names of the file before, so what
# it says of a file (va_list that leaks where there is none) would depend on where addresses fall.
# With the warnings of the build, for clang's opinion of each file: it is all that clang compiles of
# most of them (Makefile). A file that was clean and is as it was, with its headers, is not looked at
# again (tidy.sh). Of a function with very many paths the analyser follows as many as come to
# so many nodes. By default it takes 225,000, which `make check-long` gives it: a few dozen functions
# need more than a third of that, and then take most of the time of all.
nodes=${ATTND_ANALYSER_NODES:-75000}
warnings=$(make -s BUILD="$build" print-warnings)
tool=$(clang-tidy --version; cat .clang-tidy tests/.clang-tidy)
read -r -a warned <<<"$warnings"
step 'clang-tidy'
printf '%s\n' "${units[@]}" | xargs -P2 -I{} .ci/tidy.sh "$build/lint/tidy" "$tool" {} \
    "${flags[@]}" "${warned[@]}" -Xclang -analyzer-config -Xclang "max-nodes=$nodes" ||
    fail 'clang-tidy'

# Debian 12 has no package of it: .ci/deps.sh puts it into build/lint.
step 'ruff'
PATH=$PATH:$PWD/build/lint/bin
mapfile -t modules < <(git ls-files '*.py')
if command -v ruff >/dev/null; then
    ruff check --quiet --no-cache --config .ci/ruff.toml "${modules[@]}" || fail 'ruff'
else
    echo 'lint: ruff is not there, so Python is only compiled: `pip install ruff` brings it'
    PYTHONDONTWRITEBYTECODE=1 python3 - "${modules[@]}" <<'END' || fail 'Python that does not compile'
import sys
for name in sys.argv[1:]:
    with open(name) as module:
        compile(module.read(), name, "exec")
END
fi

step 'the limits in SECURITY.md are those of the code'
.ci/limits.py "$build" || fail 'limits'

step 'the options that README.md lists are those of schemas/options.def'
.ci/options.py || fail 'options'

step 'files and functions that texts name'
.ci/names.py || fail 'a text names what is not there'

# same_as_readme MARKER FILE LINES: what README.md prints is the file, which is no longer than that
same_as_readme() {
    step "the README's $1 is $2"
    sed -n "/<!-- $1:begin -->/,/<!-- $1:end -->/p" README.md | grep -v '^<!--\|^```' | diff - "$2" ||
        fail "the README's $1"
    local lines
    lines=$(wc -l <"$2")
    echo "readme.$1_lines $lines"
    [ "$lines" -le "$3" ] || fail "$2 has $lines lines, more than $3"
}
same_as_readme engine client/examples/engine.c 30
same_as_readme python client/python/examples/engine.py 12
step "the README's length and its figures"
lines=$(wc -l <README.md)
echo "house.readme_lines $lines"
[ "$lines" -le 170 ] || fail "README.md has $lines lines, more than 170"
.ci/headline.py || fail 'headline figures (make figures-update mends it)'
step 'the tables of bench/results are those of its records'
make -s BUILD="$build" "$build/bench/figures" && "$build/bench/figures" --check bench/results/README.md ||
    fail 'figures (make figures-update mends it)'
step 'the tables of features and families are what tests say'
tests/features --check || fail 'features (tests/features --update mends it)'

[ $status -eq 0 ] && echo 'lint: ok'
exit $status
