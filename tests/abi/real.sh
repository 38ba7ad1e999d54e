#!/bin/sh
# Runs real.c beside fake_real.so in a mount namespace whose sysfs lists a foreign device.
# Without the right to make one (neither root nor user namespaces) it says so and passes.
#
#   tests/abi/real.sh            (LD_LIBRARY_PATH names our libraries)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${CC:-cc} -w -shared -fPIC -o "$work/fake_real.so" "$here/fake_real.c"
${CC:-cc} -Wall -o "$work/real" "$here/real.c" -libverbs -ldl
libraries=${LD_LIBRARY_PATH%%:*}
${CC:-cc} -Wall -o "$work/plain" -Wl,-rpath,"$libraries" -x c - -libverbs <<'EOF'
#include <infiniband/verbs.h>
#include <stdio.h>
int main(void)
{
	for (struct ibv_device **list = ibv_get_device_list(NULL); list && *list; list++)
		puts(ibv_get_device_name(*list));
}
EOF
user=
[ "$(id -u)" = 0 ] || user=-r
unshare $user -m true 2>/dev/null || { echo "left out: no right to make a mount namespace"; exit 0; }
unshare $user -m sh -eu -c '
    mkdir -p "$1/class/infiniband_verbs/uverbs9" "$1/class/net"
    echo real0 >"$1/class/infiniband_verbs/uverbs9/ibdev"
    [ ! -d /sys/class/net ] || mount --rbind /sys/class/net "$1/class/net"
    mount --bind "$1/class" /sys/class
    ROCEBUD_REAL=$1/fake_real.so "$1/real"
    ROCEBUD_REAL=off ibv_devices | grep -q real0 && { echo "listed though switched off"; exit 1; }
    says() { # VALUE PATTERN: the devices of our own are listed, and one line says why no others are
        ROCEBUD_REAL=$1 ibv_devices >"$work/list" 2>"$work/said" || { echo "$1: exit status $?"; exit 1; }
        grep -q rb_ "$work/list" && [ "$(wc -l <"$work/said")" = 1 ] && grep -q "$2" "$work/said" ||
            { echo "$1: not $2:"; cat "$work/list" "$work/said"; exit 1; }
    }
    work=$1
    says "$1/real" "rocebud: ROCEBUD_REAL names $1/real, which cannot be loaded (.*: .* are left out$"
    says "${LD_LIBRARY_PATH%%:*}/libibverbs.so.1" "which is rocebud.s own: .* are left out$"
    # A program with rights that its user lacks loads no library of that user'"'"'s choice.
    [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null || exit 0
    chmod 755 "$1"
    ROCEBUD_REAL=$1/fake_real.so "$1/plain" | grep -q real0 || { echo "plain: no real0"; exit 1; }
    chmod 4755 "$1/plain"
    ROCEBUD_REAL=$1/fake_real.so setpriv --reuid 65534 --regid 65534 --clear-groups "$1/plain" >"$work/list.txt" || true
    grep -q rb_ "$work/list.txt" || { echo "left out: no setuid programs here"; exit 0; }
    grep -q real0 "$work/list.txt" && { echo "a setuid program loads what its user names"; exit 1; }
    exit 0' sh "$work"
