#!/bin/sh
# Everything about the C ABI that needs no peer.
#
#   tests/abi/run.sh BUILD [DEVICE]        BUILD holds lib/ and bin/, as `make build` leaves it
#
# Without a device (no daemon can be had here) the parts that open one are left out, and it says so.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
device=${2:-}
lib=$build/lib
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH="$lib"
failed=0

step() { # NAME COMMAND...
    name=$1
    shift
    if "$@" >"$work/out" 2>&1; then
        echo "ok   $name: $(tail -n 1 "$work/out")"
    else
        echo "FAIL $name:"
        sed 's/^/     /' "$work/out"
        failed=1
    fi
}
compile() {
    ${CC:-cc} -Wall -o "$work/$1" "$here/$1.c" -libverbs -lrdmacm -lpthread -ldl
}
same_words() {
    "$work/words" | diff "$here/words.expected" - && echo "as rdma-core 44"
}
# Every installed program that was linked with verbs must bind all its symbols at load.
binds() {
    count=0
    for program in /usr/bin/ib_* /usr/bin/ibv_* /usr/bin/rping /usr/bin/ucmatose /usr/bin/udaddy \
        /usr/bin/raw_ethernet_* /usr/bin/rdma_* /usr/bin/qperf /usr/bin/ucx_info; do
        ldd "$program" 2>/dev/null | grep -q 'libibverbs\|librdmacm' || continue
        if ldd -r "$program" 2>&1 | grep -E 'undefined|not found'; then
            echo "in $program"
            return 1
        fi
        count=$((count + 1))
    done
    echo "$count programs bind"
    [ "$count" -gt 0 ]
}

for program in words nodes private events boundary; do compile $program; done
step exports "$here/check_exports.sh" "$lib"
step layouts "$here/check_layouts.sh"
step nodes "$work/nodes"
step words same_words
step binding binds
step "private symbols, refused" env ROCEBUD_REAL=off "$work/private"
step "private symbols, passed on" "$work/private" on
step shim "$here/shim.sh" "$lib/rocebud-shim.so"
if ibv_devices 2>"$work/why" | grep -q rb_; then
    step boundary "$work/boundary" $device
    step events "$work/events" $device
    step "real devices" "$here/real.sh"
else
    echo "left out: boundary, events, real devices: $(cat "$work/why")"
fi
exit $failed
