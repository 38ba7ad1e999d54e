#!/bin/sh
# Installs what is missing for a purpose (demo, test, bench) with apt-get, as root; as an ordinary user
# says what to install. Asks for programs, not packages, so that any distribution's will do.
set -eu
purpose=${1:-test}
export PATH="$PATH:/usr/sbin:/sbin"
missing=

want() { # PACKAGE TEST...: the package, unless the test holds
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
has() { command -v "$1"; }

want perftest has ib_write_bw
want ibverbs-utils has ibv_rc_pingpong
want ibverbs-providers ls /etc/libibverbs.d
want gcc has cc
want libc6-dev test -e /usr/include/stdio.h
want iproute2 has ip
if [ "$purpose" != demo ]; then
    want libibverbs-dev test -e /usr/include/infiniband/verbs.h
    want python3 test -x /usr/bin/python3
    want ethtool has ethtool
    want procps has sysctl
fi
if [ "$purpose" = test ]; then
    want tcpdump has tcpdump
    want tshark has tshark
    want nftables has nft
    want libfabric-bin has fi_info
    want valgrind has valgrind
    want rdmacm-utils has rstream
    want librdmacm-dev test -e /usr/include/rdma/rsocket.h
    want netcat-traditional has nc.traditional
    want iperf3 has iperf3
    want ucx-utils has ucx_perftest
    want libucx-dev test -e /usr/include/ucp/api/ucp.h
    want qperf has qperf
    want fio has fio
    want openmpi-bin has mpirun
    want libopenmpi-dev has mpicc
    # the kernel peer (tools/interop)
    want qemu-system-x86 has qemu-system-x86_64
    want busybox-static has busybox
    want cpio has cpio
    want xz-utils has xz
    want zstd has zstd
    want util-linux has setpriv
    want python3-pyverbs /usr/bin/python3 -c 'import pyverbs.device'
    want python3-pyverbs test -e /usr/share/doc/rdma-core/tests/run_tests.py
fi
if [ "$purpose" = bench ]; then
    want iperf3 has iperf3
    want ucx-utils has ucx_perftest
fi

[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
    echo "not installed:$missing" >&2
    echo "as root: apt-get install --no-install-recommends$missing" >&2
    # tests do without, and say so; the demo needs its programs
    [ "$purpose" = test ] && exit 0
    exit 1
fi
command -v apt-get >/dev/null || { echo "please install:$missing" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
echo "installing:$missing"
install() { # rdma-core's test-suite counts as documentation, which small images leave out
    # shellcheck disable=SC2086
    apt-get install -qq -y --no-install-recommends --reinstall \
        -o 'DPkg::Options::=--path-include=/usr/share/doc/rdma-core/*' $missing >/dev/null
}
install 2>/dev/null || {
    apt-get update -qq
    install
}
