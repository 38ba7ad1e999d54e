#!/bin/bash
# `--target host:…` against a second machine: a network namespace with a daemon of its own, /run and /tmp of its own,
# and the agent on rocebud's devices in it. Then what must not work: nobody there, somebody else there, an agent of
# another version, one that answers another address only. Root. Last line: 'interop: N passed, N failed, N skipped'.
set -u
cd "$(dirname "$0")/../.."
rocebud=$PWD/build/bin/rocebud
here=rbh$$a there=rbh$$b
work=$(mktemp -d)
end() {
    for ns in $here $there; do
        for pid in $(ip netns pids $ns 2>/dev/null); do kill -9 "$pid"; done
        ip netns del $ns 2>/dev/null
    done
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

for ns in $here $there; do ip netns add $ns && ip -n $ns link set lo up; done
ip -n $here link add wire0 type veth peer name wire0 netns $there || exit 2
n=1
for ns in $here $there; do
    ip netns exec $ns sysctl -qw net.ipv6.conf.wire0.accept_dad=0
    ip -n $ns link set wire0 mtu 4200 up
    ip -n $ns addr add 10.98.1.$n/24 dev wire0
    ip -n $ns -6 addr add fd98:0:0:2::$n/64 dev wire0 nodad
    n=$((n + 1))
done
machine() { # NAMESPACE SHELL-COMMAND: with a /run of its own
    ip netns exec "$1" unshare -m sh -c "mount -t tmpfs none /run; $2"
}
agent() { # ARGUMENTS: an agent there, ready
    : >"$work/agent"
    # This tree may lie in /tmp itself.
    machine $there "mount --bind '$PWD' /mnt && mount -t tmpfs none /tmp && mkdir -p '$PWD' && mount --bind /mnt '$PWD'
        exec '$rocebud' run -- '$rocebud' interop agent $*" >>"$work/agent" 2>&1 &
    disown
    for _ in $(seq 300); do
        grep -q '^AGENT READY' "$work/agent" && return
        sleep 0.1
    done
    cat "$work/agent"
    echo "interop: 0 passed, 1 failed, 0 skipped (host: no agent)"
    exit 2
}
passed=0 failed=0
refused() { # WHAT STATUS WORDS COMMAND...: it fails with this status and says these words
    local what=$1 status=$2 words=$3
    shift 3
    "$@" >"$work/said" 2>&1
    local is=$?
    if [ $is = "$status" ] && grep -qF -- "$words" "$work/said"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $what: exit status $is (expected $status), without \"$words\":"
        cat "$work/said"
    fi
}
run() { machine $here "'$rocebud' interop $*"; }
listener() { # PORT TEXT: what answers with this text and is no agent
    : >"$work/listener"
    ip netns exec $there python3 -c '
import socket, sys
s = socket.create_server(("10.98.1.2", int(sys.argv[1])))
print("AGENT READY", flush=True)
while True:
    c, _ = s.accept()
    c.sendall(sys.argv[2].encode() + b"\n")
    c.recv(4096)
    c.close()' "$1" "$2" >>"$work/listener" &
    disown
    for _ in $(seq 100); do
        [ -s "$work/listener" ] && return
        sleep 0.1
    done
}

agent --listen 10.98.1.2 --from 10.98.1.1
machine $here "exec '$rocebud' interop --target host:10.98.1.2 --short --only '!duplicate !reorder !corrupt !probes' \
    --addresses 10.98.1.1,10.98.1.2,fd98:0:0:2::1,fd98:0:0:2::2"
status=$?
# losses of programs are made in our end too
machine $here "exec '$rocebud' interop --target host:10.98.1.2 --only 'verify lost v4'" || status=1

agent --listen 10.98.1.2:7472 --from 10.98.1.9
refused "an address that --from does not name" 2 "answers nobody else" run --target host:10.98.1.2:7472
refused "a port where nobody listens" 2 "Connection refused" run --target host:10.98.1.2:9
refused "an agent's port in use" 2 "cannot listen on 10.98.1.2 port 7471: Address already in use" \
    ip netns exec $there "$rocebud" interop agent --listen 10.98.1.2
refused "an address that the device does not have" 2 "has a GID for the address 10.98.1.77" \
    run --target host:10.98.1.2 --addresses 10.98.1.1,10.98.1.77
listener 7473 "220 mail"
refused "somebody who is no agent" 2 "no agent of rocebud interop" run --target host:10.98.1.2:7473
listener 7474 "error agent version 9, runner version 1: build both from one tree"
refused "an agent of another version" 2 "version 9" run --target host:10.98.1.2:7474
refused "a runner of another version" 0 "error agent version" ip netns exec $here bash -c \
    'exec 3<>/dev/tcp/10.98.1.2/7471; echo "rocebud-interop 9 verbs" >&3; head -n 1 <&3'

agent --listen 10.98.1.2:7475
agents() { for p in $(ip netns pids $there); do grep -qz "rocebud-interop-agent$" "/proc/$p/cmdline" && echo "$p"; done; }
killed_in_mid_run() { # what the case before said is gone: `refused` has emptied the file
    run --target host:10.98.1.2:7475 --only "'!programs !probes !duplicate !reorder !corrupt'" &
    local me=$!
    for _ in $(seq 100); do
        grep -q "^the agent at" "$work/said" && break
        sleep 0.1
    done
    sleep 0.3
    kill -9 $(agents)
    wait $me
}
refused "an agent that is killed while cells run" 2 "start it there: rocebud interop agent" killed_in_mid_run
grep -q "^not run: .* more: " "$work/said" || { failed=$((failed + 1)); cat "$work/said"; }

echo "interop: $passed passed, $failed failed, 0 skipped (host: what must not work)"
[ "$status" = 0 ] && [ $failed = 0 ]
