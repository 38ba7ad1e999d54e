#!/bin/bash
# Runs ib_write_bw, ib_read_lat and ibv_rc_pingpong, unmodified, between two processes over rocebud, and
# prints their own output and a short summary.
#
# As root in a network namespace of its own, so that nothing on this host is touched; as an ordinary user
# over 127.0.0.1 where we are (UDP port 4791 must be free).
set -u
cd "$(dirname "$0")/../.."
rocebud=$PWD/build/bin/rocebud
logs=$(mktemp -d)
ns=
cleanup() {
    if [ -n "$ns" ]; then
        # the daemon that the programs started ends with its namespace
        ip netns pids "$ns" 2>/dev/null | xargs -r kill 2>/dev/null
        ip netns del "$ns" 2>/dev/null
    fi
    rm -rf "$logs"
}
trap cleanup EXIT
in_place() { "$@"; }
if [ "$(id -u)" = 0 ] && ip netns add "rbdemo$$" 2>/dev/null; then
    ns=rbdemo$$
    in_place() { ip netns exec "$ns" "$@"; }
    ip -n "$ns" link set lo up
fi

bold='' plain=''
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

say "Kernel RDMA on this machine: $(ls -d /dev/infiniband /sys/class/infiniband/* 2>/dev/null | tr '\n' ' ' | grep . || echo none)"
say '$ rocebud devices'
in_place "$rocebud" devices || exit 1
gid=$(in_place "$rocebud" run -- ibv_devinfo -v -d rb_lo | sed -n 's/.*GID\[ *\([0-9]*\)\].*::ffff:127\.0\.0\.1.*/\1/p' | head -1)
: "${gid:=0}"

fails=0
summary=
run() { # NAME SERVER-ARGS... : the same arguments on both sides, and 127.0.0.1 on the client
    local name=$1
    shift
    say "\$ rocebud run -- $name $*  &   rocebud run -- $name $* 127.0.0.1"
    in_place timeout 60 "$rocebud" run -- "$name" "$@" >"$logs/server" 2>&1 &
    local server=$! i
    for i in $(seq 200); do
        in_place ss -Hltn 'sport = :18515' 2>/dev/null | grep -q . && break
        kill -0 $server 2>/dev/null || break
        sleep 0.05
    done
    in_place timeout 60 "$rocebud" run -- "$name" "$@" 127.0.0.1 >"$logs/client" 2>&1
    local rc=$?
    wait $server
    local rs=$?
    cat "$logs/client"
    if [ $rc = 0 ] && [ $rs = 0 ]; then
        summary="$summary\n  ok      $name: $(result "$name")"
    else
        echo "--- server (exit $rs):"
        cat "$logs/server"
        summary="$summary\n  FAILED  $name (client exit $rc, server exit $rs)"
        fails=$((fails + 1))
    fi
}
result() { # the figure that the program itself printed
    case $1 in
    ib_write_bw) awk '$1 == 65536 { printf "%s MB/s on average, %s-byte messages\n", $4, $1 }' "$logs/client" ;;
    ib_read_lat) awk '$1 == 2 { printf "%s us typical, 2-byte READs\n", $5 }' "$logs/client" ;;
    *) grep 'iters in' "$logs/client" ;;
    esac
}

run ib_write_bw -d rb_lo -x "$gid" -F
run ib_read_lat -d rb_lo -x "$gid" -F
run ibv_rc_pingpong -d rb_lo -g "$gid" -c

say "Summary: unmodified programs of this distribution, RoCE v2 packets made by rocebud"
printf '%b\n' "$summary"
exit $((fails != 0))
