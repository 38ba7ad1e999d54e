#!/bin/bash
# Everything about the C ABI that needs no peer.
#
#   tests/abi/run.sh [BUILD [DEVICE]]      BUILD holds lib/ and bin/, as `make build` leaves it
#
# Programs that open a device run in a network namespace of their own, where only loopback exists;
# without the right to make one they use the machine's. Where no device can be had they are left
# out, and it says so.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-$here/../../build}" && pwd) || { echo "run \`make build\` first"; exit 1; }
device=${2:-}
lib=$build/lib
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 left_out=0

step() { # NAME COMMAND...
    local name=$1
    shift
    if LD_LIBRARY_PATH=$lib "$@" >"$work/out" 2>&1; then
        echo "ok   $name: $(tail -n 1 "$work/out")"
        passed=$((passed + 1))
    else
        echo "FAIL $name:"
        sed 's/^/     /' "$work/out"
        failed=$((failed + 1))
    fi
}
compile() { # NAME
    ${CC:-cc} -Wall -o "$work/$1" "$here/$1.c" -libverbs -lrdmacm -lpthread -ldl
}
same_words() {
    "$work/words" | diff "$here/words.expected" - && echo "as rdma-core 44"
}
# Every installed program that was linked with verbs must bind all its symbols at load.
binds() {
    local program count=0
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
# What small messages go through lies together (src/abi/order.txt): most of the functions named there,
# and little else.
in_order() {
    local named start bytes from to functions
    named=$(grep -c '^[^#]' "$here/../../src/abi/order.txt")
    read -r start bytes < <(readelf -SW "$lib/libibverbs.so.1" |
        sed -n 's/.* \.text\.small_messages *PROGBITS *\([0-9a-f]*\) [0-9a-f]* \([0-9a-f]*\) .*/0x\1 0x\2/p')
    [ -n "${bytes:-}" ] || { echo "no section .text.small_messages: does this linker know INSERT?"; return 1; }
    from=$(printf %016x $((start))) to=$(printf %016x $((start + bytes)))
    functions=$(nm "$lib/libibverbs.so.1" | awk -v from="$from" -v to="$to" '$1 >= from && $1 < to' |
        cut -d' ' -f3 | sort -u | wc -l)
    echo "$functions functions in $((bytes / 1024)) KiB, $named named"
    [ "$functions" -ge $((named / 2)) ] && [ $((bytes)) -lt 262144 ]
}
# A namespace of one's own, if that is allowed.
root=
[ "$(id -u)" = 0 ] || root=-r
alone=()
if unshare $root -n true 2>/dev/null; then
    # shellcheck disable=SC2016
    alone=(unshare $root -n sh -c 'ip link set lo up; "$@"' sh)
fi
with_device() { "${alone[@]}" "$@"; }
# The corpus of the fuzz target verbs_args. A panic in the library is a failure though the program lives on.
odd_arguments() {
    local fuzz=$here/../../fuzz
    ${CC:-cc} -O1 -Wall -Wextra -Werror -DREPLAY -o "$work/verbs_args" "$fuzz"/verbs_args/*.c -libverbs || return 1
    ROCEBUD_REAL=off with_device "$work/verbs_args" "$fuzz"/corpus/verbs_args/* 2>&1 | tee "$work/odd" | tail -n 3
    [ "${PIPESTATUS[0]}" = 0 ] && ! grep -A 3 panicked "$work/odd"
}

for program in words nodes private events boundary memory xrc; do
    compile $program || { echo "FAIL $program.c does not compile"; failed=$((failed + 1)); }
done
step exports "$here/check_exports.sh" "$lib"
step "order of functions" in_order
step layouts "$here/check_layouts.sh"
step nodes "$work/nodes"
step words same_words
step binding binds
step "private symbols, refused" env ROCEBUD_REAL=off "$work/private"
step "private symbols, passed on" "$work/private" on
step shim "$here/shim.sh" "$lib/rocebud-shim.so"
if LD_LIBRARY_PATH=$lib with_device ibv_devices 2>"$work/why" | grep -q rb_; then
    # shellcheck disable=SC2086
    step boundary with_device "$work/boundary" $device
    # shellcheck disable=SC2086
    step memory with_device "$work/memory" $device
    # shellcheck disable=SC2086
    step xrc with_device "$work/xrc" $device
    # shellcheck disable=SC2086
    step events with_device "$work/events" $device
    step "real devices" with_device "$here/real.sh"
    step "odd arguments" odd_arguments
    if "$here/newest.sh" "$build" fetch >"$work/why"; then
        step "newest rdma-core" with_device "$here/newest.sh" "$build"
    else
        echo "left out: newest rdma-core: $(tail -n 1 "$work/why")"
        left_out=$((left_out + 1))
    fi
else
    echo "left out: boundary, memory, xrc, events, real devices, odd arguments, newest rdma-core: $(cat "$work/why")"
    left_out=7
fi
word=ok
[ "$failed" = 0 ] || word=FAILED
echo "test result: $word. $passed passed; $failed failed; $left_out ignored"
[ "$failed" = 0 ]
