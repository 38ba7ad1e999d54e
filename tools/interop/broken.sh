#!/bin/bash
# What breaks under `rocebud interop`, tried for real: a guest that does not boot, packages that are not there, a full
# disk, devices and agents that vanish. Each must end in time with a line that says what is wrong and what to do, a
# status that is not 0, and nothing left running; what could not run is "not run". Root; leaves the machine as it was
# (files are hidden in mount namespaces, the cache is a copy).
#   broken.sh [WORD]    only the cases with this word in their names
# Last line: 'interop: N passed, N failed, N skipped'.
set -u
cd "$(dirname "$0")/../.."
rocebud=$PWD/build/bin/rocebud only=${1:-}
export ROCEBUD_INTEROP_CASE="broken-$$" # whoever has this in its environment is ours
work=$(mktemp -d)
home=${ROCEBUD_INTEROP_CACHE:-${XDG_CACHE_HOME:+$XDG_CACHE_HOME/rocebud/interop}}
home=${home:-$HOME/.cache/rocebud/interop}
passed=0 failed=0

left() { # processes of a case that still run, but for this script
    local p
    for p in /proc/[0-9]*; do
        [ "${p#/proc/}" != $$ ] && [ "${p#/proc/}" != "$BASHPID" ] || continue
        grep -qzx "ROCEBUD_INTEROP_CASE=$ROCEBUD_INTEROP_CASE" "$p/environ" 2>/dev/null || continue
        grep -q '^State:.Z' "$p/status" 2>/dev/null || echo "${p#/proc/}"
    done
}
end() {
    for ns in $a $b; do ip netns del "$ns" 2>/dev/null; done
    for pid in $(left); do kill -9 "$pid" 2>/dev/null; done
    rm -rf "$work"
}
a=rbb$$a b=rbb$$b
trap end EXIT
trap 'exit 130' INT TERM

wrong() {
    failed=$((failed + 1))
    echo "FAILED: $name: $1"
    sed 's/^/    /' "$work/said" | tail -n 25
}
# What a run has said is in $work/said, its status is $is; $1 is the status that it must have, the others are words
# that it must have said. Nothing of it may be left.
ends() {
    local want=$1 word p
    shift
    [ "$is" = "$want" ] || { wrong "exit status $is, expected $want"; return; }
    for word; do
        grep -qF -- "$word" "$work/said" || { wrong "it does not say \"$word\""; return; }
    done
    for _ in $(seq 30); do
        p=$(left)
        [ -n "$p" ] || break
        sleep 0.1
    done
    [ -z "$p" ] || { wrong "still running: $(for q in $p; do tr '\0' ' ' <"/proc/$q/cmdline"; echo "($q)"; done)"; return; }
    p=$(ip netns list | grep -o "^rbi${pid:-none}n[0-9]*" || true)
    [ -z "$p" ] || { wrong "namespaces are left: $p"; return; }
    [ ! -e "${TMPDIR:-/tmp}/rocebud-interop-${pid:-none}" ] || { wrong "its files in ${TMPDIR:-/tmp} are left"; return; }
    passed=$((passed + 1))
    echo "ok $name ($((SECONDS - begun)) s)"
}
begin() { # NAME: false where this case is not asked for
    name=$1 begun=$SECONDS pid=
    case "$name" in *"$only"*) return 0 ;; esac
    return 1
}
run() { # COMMAND...: to its end
    "$@" >"$work/said" 2>&1 &
    pid=$!
    { wait $pid; } 2>/dev/null # bash would say that it was killed
    is=$?
}
start() { # COMMAND...: goes on
    : >"$work/said" # now, or what the case before said is taken for its words
    "$@" >>"$work/said" 2>&1 &
    pid=$!
}
ended() {
    { wait $pid; } 2>/dev/null # bash would say that it was killed
    is=$?
}
cache() { # a copy of the cache that costs nothing and may be spoiled; ARGUMENTS: what is not in it
    rm -rf "$work/cache"
    mkdir -p "$work/cache"
    cp -al "$home/." "$work/cache/" 2>/dev/null || cp -a "$home/." "$work/cache/"
    for not; do rm -rf "$work/cache/"$not; done
    export ROCEBUD_INTEROP_CACHE=$work/cache
}
hidden() { # FILE PUT COMMAND...: with PUT in the place of FILE, for this command only
    local file=$1 put=$2
    shift 2
    exec unshare -m sh -c 'mount --bind "$1" "$2" && shift 2 && exec "$@"' sh "$put" "$file" "$@"
}
until_says() { # WORDS: the run has said them
    for _ in $(seq 600); do
        grep -qF -- "$1" "$work/said" && return
        kill -0 $pid 2>/dev/null || return
        sleep 0.1
    done
}
script() { # NAME TEXT: an executable
    printf '#!/bin/bash\n%s\n' "$2" >"$work/$1"
    chmod 755 "$work/$1"
}
qemu=$(command -v qemu-system-x86_64) || { echo "qemu-system-x86 is missing"; exit 2; }
rxe=("$rocebud" interop --target rxe --lanes 1)
own=("$rocebud" interop --target rocebud --lanes 1)
one="rdma_cm read v6 rocebud>" # one cell
long=$work/long.toml # four thousand cells
cat >"$long" <<EOF
[[group]]
name = "long"
types = ["rc"]
ops = ["write", "read"]
sizes = [$(seq -s, 1 1000 | sed 's/[0-9]*/"&"/g')]
mtus = [1024]
families = ["v4"]
requesters = ["ours", "theirs"]
EOF
# everything that the cases below take from the cache
"${rxe[@]}" --only "$one" >"$work/said" 2>&1 || { cat "$work/said"; exit 2; }
cache

# --- the guest
begin "qemu is not installed" && {
    run hidden "$qemu" /dev/null "${rxe[@]}"
    ends 2 "qemu-system-x86_64 is missing: apt-get install qemu-system-x86"
}
begin "qemu refuses" && {
    script qemu 'echo "qemu: this machine has no such thing" >&2; exit 1'
    run hidden "$qemu" "$work/qemu" "${rxe[@]}"
    ends 2 "the guest ended before it was ready" "qemu: this machine has no such thing"
}
begin "no memory for the guest" && {
    run bash -c 'ulimit -v 800000; exec "$@"' sh "${rxe[@]}"
    ends 2 "the guest ended before it was ready" "qemu: " "emory"
}
begin "the guest says nothing" && {
    script qemu 'exec sleep 1000'
    run hidden "$qemu" "$work/qemu" "${rxe[@]}" --accel tcg --boot 2
    ends 2 "did not get ready within 2 s (--boot gives it more time)"
}
begin "the guest's kernel panics" && {
    cp "$qemu" "$work/qemu-real"
    script qemu "export QEMU_MODULE_DIR=$(dirname "$(ls /usr/lib/*/qemu/accel-tcg-x86_64.so | head -1)"); exec -a qemu-system-x86_64 $work/qemu-real -L /usr/share/qemu -L /usr/share/seabios \"\${@//initrd.cpio/version}\""
    run hidden "$qemu" "$work/qemu" "${rxe[@]}" --accel tcg
    ends 2 "the guest ended before it was ready" "Kernel panic"
}
begin "the kernel in the cache is spoiled" && {
    cache
    for image in "$work"/cache/image-*; do
        rm "$image/kernel"
        head -c 1000000 "$home/${image##*/}/kernel" >"$image/kernel"
    done
    run "${rxe[@]}" --only "$one"
    ends 0 "is spoiled: it is made anew" "interop: 1 passed, 0 failed"
}
begin "the guest dies while cells run" && {
    start "${rxe[@]}" --matrix "$long" --only "!probes !programs" --json "$work/json"
    until_says "rdma_rxe of Linux"
    sleep 1
    kill -9 $(left | while read -r p; do grep -qz '^qemu-system' "/proc/$p/cmdline" && echo "$p"; done)
    ended
    ends 2 "the guest ended by itself" "not run: "
    grep -q '"not_run"' "$work/json" || wrong "the JSON file does not say what was not run"
}

# --- packages and the disk
begin "a package is missing" && {
    cache "image-*"
    run hidden "$(command -v rping)" /dev/null "${rxe[@]}"
    ends 2 "missing for the kernel peer: apt-get install --no-install-recommends rdmacm-utils"
}
begin "the kernel's package cannot be fetched" && {
    cache "image-*" kernel
    run unshare -n "${rxe[@]}"
    ends 2 "cannot download linux-image-" "apt-get download"
}
begin "the kernel's package is another one" && {
    cache "image-*" kernel
    script apt-get 'case " $* " in *" download "*) echo something else >a.deb ;; esac'
    run hidden "$(command -v apt-get)" "$work/apt-get" "${rxe[@]}"
    ends 2 "has not the digest that apt names"
    [ -z "$(ls "$work"/cache/kernel/*.deb 2>/dev/null)" ] || wrong "the wrong package is kept"
}
begin "the cache's disk is full" && {
    cache "image-*"
    mkdir "$work/small"
    run unshare -m sh -c 'mount -t tmpfs -o size=150m none "$1"; cp -a "$2/." "$1/"; ROCEBUD_INTEROP_CACHE=$1; shift 2; exec "$@"' \
        sh "$work/small" "$work/cache" "${rxe[@]}"
    ends 2 "the cache $work/small (ROCEBUD_INTEROP_CACHE names another place)" "No space left on device"
}
begin "the disk for temporary files is full" && {
    cache
    mkdir "$work/tiny"
    run unshare -m sh -c 'mount -t tmpfs -o size=4k,nr_inodes=2 none "$1"; export TMPDIR=$1; shift; exec "$@"' \
        sh "$work/tiny" "${rxe[@]}" --only "programs rping"
    ends 2 "No space left on device"
}
begin "the disk for temporary files is full, and nothing that commands say can be kept" && {
    mkdir -p "$work/tiny"
    run unshare -m sh -c 'mount -t tmpfs -o size=4k none "$1"; head -c 5000 /dev/zero >"$1/x" 2>/dev/null; export TMPDIR=$1; shift; exec "$@"' \
        sh "$work/tiny" "${own[@]}" --only "$one"
    ends 2 "is there room in $work/tiny, which TMPDIR names?"
}
begin "the disk for the result is full" && {
    run "${own[@]}" --only "$one" --json /dev/full
    ends 2 "--json /dev/full: No space left on device"
}
begin "the cache is read-only and has everything" && {
    cache
    run unshare -m sh -c 'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; exec "$@"' \
        sh "$work/cache" "${rxe[@]}" --only "$one"
    ends 0 "1 passed, 0 failed"
}
begin "the cache is read-only and lacks something" && {
    cache "image-*"
    run unshare -m sh -c 'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; exec "$@"' \
        sh "$work/cache" "${rxe[@]}" --only "$one"
    ends 2 "the cache $work/cache (ROCEBUD_INTEROP_CACHE names another place)" "Read-only file system"
}
begin "the matrix has no end" && {
    run bash -c 'ulimit -v 4000000; exec "$@"' sh "${own[@]}" --matrix /dev/zero
    ends 2 "--matrix /dev/zero" "1 MiB"
}
begin "the matrix is no text" && {
    printf '\377\376' >"$work/matrix"
    run "${own[@]}" --matrix "$work/matrix"
    ends 2 "--matrix $work/matrix"
}
begin "no root" && {
    run setpriv --reuid 65534 --clear-groups "${rxe[@]}"
    ends 2 "by root only: use sudo"
}

# --- devices and agents
begin "the tap is removed while cells run" && {
    start "${own[@]}" --matrix "$long" --only "!probes !programs" --json "$work/json"
    until_says "rocebud in two namespaces"
    sleep 1
    ip -n "rbi${pid}n1" link del wire0
    ended
    ends 2 "the target (rocebud): its end of the wire was removed" "not run: "
    grep -q '"not_run"' "$work/json" || wrong "the JSON file does not say what was not run"
}
begin "a device of verbs:DEVICE vanishes while cells run" && {
    for ns in $a $b; do ip netns add $ns && ip -n $ns link set lo up; done
    ip -n $a link add wire0 type veth peer name wire1 netns $b
    n=1
    for ns in $a $b; do
        ip netns exec $ns sysctl -qw net.ipv6.conf.all.disable_ipv6=1
        ip -n $ns link set wire$((n - 1)) mtu 4200 up
        ip -n $ns addr add 10.98.2.$n/24 dev wire$((n - 1))
        n=$((n + 1))
    done
    # what this machine's own libibverbs is for the runner is rocebud's, so there is a device to remove
    start ip netns exec $b "$rocebud" run -- "$rocebud" interop --target verbs:rb_wire1 --namespace $a \
        --addresses 10.98.2.1,10.98.2.2 --matrix "$long" --only "!probes !programs"
    until_says "rb_wire1 of this machine"
    sleep 1
    ip -n $b link del wire1
    ended
    for ns in $a $b; do
        for p in $(ip netns pids $ns); do kill -9 "$p"; done # rocebud's daemons stay, as everywhere
        ip netns del $ns
    done
    ends 2 "rb_wire1" "not run: "
}
begin "an agent is killed while cells run" && {
    start "${own[@]}" --matrix "$long" --only "!probes !programs"
    until_says "rocebud in two namespaces"
    sleep 1
    for p in $(left); do
        grep -qz 'rocebud-interop-agent$' "/proc/$p/cmdline" && kill -9 "$p" && break
    done
    ended
    ends 1 "the agent ended" "1 failed, 0 skipped"
}
begin "the responder's agent is killed while the requester waits for it" && {
    sed -i 's/requesters = .*/requesters = ["ours"]/' "$long"
    start "${own[@]}" --matrix "$long" --only "!probes !programs"
    until_says "rocebud in two namespaces"
    sleep 1
    for p in $(left); do
        grep -qz 'rocebud-interop-agent$' "/proc/$p/cmdline" || continue
        [ "$(ip netns identify "$p")" = "rbi${pid}n1" ] || continue
        kill -STOP "$p"
        sleep 1
        kill -9 "$p"
        at=$SECONDS
        break
    done
    until_says "the agent ended"
    told=$((SECONDS - at))
    kill $pid
    ended
    ends 143 "the agent ended"
    [ $told -le 5 ] || wrong "it was told after $told s"
}
begin "the guest's agent is killed while cells run" && {
    start "${rxe[@]}" --matrix "$long" --only "!probes !programs"
    until_says "rdma_rxe of Linux"
    "$rocebud" interop guest "rbi${pid}n0" -- "kill -9 \$(pidof rocebud-interop-agent)" >/dev/null 2>&1
    ended
    ends 2 "the guest ended by itself" "interop: the agent ended" "not run: "
}
begin "an agent of another version" && {
    script agent 'read -r line; echo "error agent version 9, runner version ${line#rocebud-interop }: build both from one tree"'
    run env ROCEBUD_INTEROP_AGENT="$work/agent" "${own[@]}"
    ends 2 "agent version 9" "build both from one tree"
}

# --- the end that somebody wants
begin "SIGTERM while programs run" && {
    start "${rxe[@]}" --only "programs ib_write_bw -a"
    until_says "rdma_rxe of Linux"
    sleep 1
    kill $pid
    ended
    ends 143 "interrupted by SIGTERM"
}

begin "SIGKILL while cells run, and the next run" && {
    start "${own[@]}" --matrix "$long" --only "!probes !programs"
    until_says "rocebud in two namespaces"
    sleep 1
    kill -9 $pid
    ended
    before=$pid
    run "${own[@]}" --only "$one"
    ends 0 "0 failed"
    [ -z "$(ip netns list | grep "^rbi${before}n")" ] || wrong "the next run does not remove the namespaces of the killed one"
    [ ! -e "${TMPDIR:-/tmp}/rocebud-interop-$before" ] || wrong "the next run does not remove the files of the killed one"
}

echo "interop: $passed passed, $failed failed, 0 skipped (what breaks)"
[ $failed = 0 ]
