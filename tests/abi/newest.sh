#!/bin/bash
# Programs compiled with the newest rdma-core headers that can be had (Debian testing's), run on our library;
# and whether every symbol that testing's own programs and providers import is there.
#
#   tests/abi/newest.sh BUILD fetch        gets them; status 77, with the reason on the last line: not to be had here
#   tests/abi/newest.sh BUILD [DEVICE]     compiles and runs
#
# Packages come through apt with lists of its own below BUILD/tests/newest: nothing on the machine changes. They are
# fetched again after a week.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
device=${2:-rb_lo}
keep=$build/tests/newest
root=$keep/root
keys=/usr/share/keyrings/debian-archive-keyring.gpg
packages="libibverbs-dev librdmacm-dev libibverbs1 ibverbs-utils ibverbs-providers"

leave_out() {
    echo "left out: $1"
    exit 77
}

fetch() { # into $root
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || leave_out "no apt-get or dpkg-deb"
    [ -e $keys ] || leave_out "no keys of Debian's archive ($keys)"
    rm -rf "$keep"
    mkdir -p "$keep"/lists/partial "$keep"/archives/partial "$root" "$keep"/parts
    : >"$keep/status"
    echo "deb [arch=amd64 signed-by=$keys] http://deb.debian.org/debian testing main" >"$keep/sources.list"
    apt=(timeout 120 apt-get -q -o Dir::Etc::sourcelist="$keep/sources.list" -o Dir::Etc::sourceparts="$keep/parts"
        -o Dir::Etc::preferencesparts="$keep/parts" -o Dir::State::lists="$keep/lists" -o Dir::State::status="$keep/status"
        -o Dir::Cache::archives="$keep/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
        -o Acquire::http::Timeout=15 -o Acquire::Retries=1)
    "${apt[@]}" update >"$keep/log" 2>&1 && ! grep -q '^[WE]:' "$keep/log" ||
        leave_out "Debian testing cannot be reached: $(grep '^[WE]:' "$keep/log" | head -n 1)"
    # shellcheck disable=SC2086
    (cd "$keep/archives" && "${apt[@]}" download $packages) >>"$keep/log" 2>&1 ||
        leave_out "the packages cannot be fetched: $(tail -n 1 "$keep/log")"
    for package in "$keep"/archives/*.deb; do
        dpkg-deb -x "$package" "$root" || leave_out "$package cannot be unpacked"
    done
    rm -rf "$keep/lists"
    touch "$keep/complete"
}

imports() { # name and node of every symbol of the two libraries that a file imports
    objdump -T "$1" 2>/dev/null | awk '/\*UND\*/ && match($0, /(IBVERBS|RDMACM)_[A-Z0-9_.]+/) {
        print $NF, substr($0, RSTART, RLENGTH) }'
}
exports() {
    objdump -T "$1" | awk '$0 !~ /\*UND\*/ && match($0, /(IBVERBS|RDMACM)_[A-Z0-9_.]+/) {
        print $NF, substr($0, RSTART, RLENGTH) }'
}

if [ "$device" = fetch ]; then
    [ -n "$(find "$keep/complete" -mtime -7 2>/dev/null)" ] || fetch
    exit 0
fi
version=$(sed -n 's/^Version: 1\.[0-9]*\.//p' "$root"/usr/lib/*/pkgconfig/libibverbs.pc)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
note() { # WHAT OUTPUT
    echo "FAIL $1:"
    sed 's/^/    /' "$2"
    status=1
}

"$here/check_layouts.sh" layouts-v64.txt "$root/usr/include" >"$work/out" 2>&1 || note "structures" "$work/out"
exports "$build/lib/libibverbs.so.1" | sort -u >"$work/ours"
find "$root/usr" -type f \( -path '*/bin/*' -o -name '*.so*' \) | while read -r file; do
    imports "$file"
done | sort -u >"$work/wanted"
comm -13 "$work/ours" "$work/wanted" >"$work/missing"
[ -s "$work/wanted" ] && [ ! -s "$work/missing" ] || note "imported by its programs and providers, not exported" "$work/missing"

run() { # NAME COMMAND...
    local name=$1
    shift
    timeout 120 "$@" >"$work/out" 2>&1 || note "$name" "$work/out"
}
compiled=0
for source in "$here"/{words,events,boundary}.c "$here"/../peer/c/{cqex,qpex,domains,badargs,edges}.c; do
    name=$(basename "$source" .c)
    # The library to link with is ours: what it lacks is an error here.
    if ${CC:-cc} -Wall -pthread -I"$root/usr/include" -o "$work/$name" "$source" -L"$build/lib" \
        -libverbs -lrdmacm -ldl >"$work/out" 2>&1; then
        compiled=$((compiled + 1))
    else
        note "$name.c" "$work/out"
    fi
done
export LD_LIBRARY_PATH=$build/lib
for name in cqex qpex domains badargs; do
    [ -x "$work/$name" ] && run "$name" "$work/$name" -d "$device"
done
for name in events boundary; do
    [ -x "$work/$name" ] && run "$name" "$work/$name" "$device"
done
echo "rdma-core $version: $compiled programs, $(wc -l <"$work/wanted") imported symbols"
exit $status
