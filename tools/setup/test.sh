#!/bin/bash
# Every test of the tree, one group after the other; a failing group does not hide the next.
set -u
cd "$(dirname "$0")/../.."
status=0
group() {
    echo "--- $*"
    "$@" || status=1
}
bench() {
    if tools/setup/packages.sh bench && tools/bench/bench.py --quick; then
        echo "bench: 1 passed, 0 failed, 0 skipped"
    else
        echo "bench: 0 passed, 1 failed, 0 skipped"
        return 1
    fi
}

# crates: unit, property and golden tests, 200 fresh seeds of the simulator, tidy
group cargo test --workspace --no-fail-fast
# planted faults prove the simulator's checkers; the feature is enabled nowhere else
group cargo test -p rocebud-sim --features planted --test planted
# the C ABI from outside: symbols, layouts, the boundary, events, the preload shim
group tests/abi/run.sh
# rdma-core's own test-suite, each test's outcome compared with the list in the tree
group tests/abi/conformance/run.py
# unmodified programs and data-verifying ones between namespaces; says what it left out
group cargo test -p rocebud-peer --test peer
# every row of the benchmark runs to its end; no figure is judged. Namespaces need root.
if [ "$(id -u)" = 0 ]; then
    group bench
else
    echo "bench: 0 passed, 0 failed, 1 skipped (needs root)"
fi
# the wire's proof: the short matrix between two of ours, and against Linux's own RoCE in a guest
if [ "$(id -u)" = 0 ]; then
    group build/bin/rocebud interop --target rocebud --short
    group build/bin/rocebud interop --target rxe --short --boot 400
    # rxe through its own libibverbs, rocebud beside it: verbs:DEVICE as for a real RNIC
    group build/bin/rocebud interop --target inside --boot 400
    # another machine's agent: a namespace with a daemon of its own
    group tools/interop/host.sh
    # guests, packages, disks, devices and agents that fail: named, counted, nothing left
    group tools/interop/broken.sh
else
    echo "interop: 0 passed, 0 failed, 5 skipped (the targets rocebud, rxe, inside and host, and what breaks, need root)"
fi
exit $status
