#!/bin/sh
# Somebody listens at the system's control socket in one network namespace and never answers. What do
# programs of this namespace and of another one say, and after how many seconds?
#
#   deaf_daemon.sh ROCEBUD NAMESPACE-OF-THE-LISTENER OTHER-NAMESPACE
#
# Run in a mount namespace of its own (`unshare -m`): /run is replaced there, and nowhere else.
set -eu
rocebud=$1 here=$2 other=$3
keep=$(mktemp -d)
mount --make-rprivate /
mount --rbind /run/netns "$keep"
mount -t tmpfs none /run
mkdir -p /run/netns /run/rocebud
mount --rbind "$keep" /run/netns

ip netns exec "$here" /usr/bin/python3 -c '
import socket, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind("/run/rocebud/control")
s.listen(4)
kept = []
while True:
    kept.append(s.accept())
' &
deaf=$!
trap 'kill $deaf; umount -l "$keep"; rmdir "$keep"' EXIT
while [ ! -S /run/rocebud/control ]; do sleep 0.05; done

ask() { # NAMESPACE WORDS...: what is said, the exit status, the seconds
    namespace=$1
    shift
    start=$(date +%s%N)
    rc=0
    ip netns exec "$namespace" "$rocebud" "$@" 2>&1 || rc=$?
    echo "== $namespace $1: status $rc after $((($(date +%s%N) - start) / 1000000)) ms"
}
echo "listener $deaf"
ask "$other" devices
ask "$other" status
ask "$here" status
ask "$here" devices
ask "$here" run -- true
