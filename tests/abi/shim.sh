#!/bin/sh
# The preload shim under real programs: they see the tree where they look for sysfs, and without
# the variable, or for any other path, the machine as it is.
#
#   tests/abi/shim.sh SHIM        (build/lib/rocebud-shim.so)
set -eu
shim=$(readlink -f "$1")
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
class=$tree/sys/class/infiniband
mkdir -p "$class/rb_t/ports/1/gid_attrs/types" "$class/rb_t/device/net/t0" \
    "$tree/sys/class/infiniband_verbs/uverbs0" "$tree/dev/infiniband"
echo "RoCE v2" >"$class/rb_t/ports/1/gid_attrs/types/0"
echo "4: ACTIVE" >"$class/rb_t/ports/1/state"
echo rb_t >"$tree/sys/class/infiniband_verbs/uverbs0/ibdev"
ln -s /dev/null "$tree/dev/infiniband/uverbs0"

failed=0
expect() { # WHAT WANTED GOT
    if [ "$2" != "$3" ]; then
        echo "FAIL $1: wanted '$2', got '$3'"
        failed=1
    else
        echo "ok   $1"
    fi
}
with() { LD_PRELOAD=$shim ROCEBUD_SYSFS=$tree "$@"; }
without() { LD_PRELOAD=$shim "$@"; }

expect "cat reads a file of the tree" "4: ACTIVE" \
    "$(with cat /sys/class/infiniband/rb_t/ports/1/state)"
expect "ls lists a directory of the tree" "rb_t" "$(with ls /sys/class/infiniband)"
expect "a related class is in the tree too" "rb_t" \
    "$(with cat /sys/class/infiniband_verbs/uverbs0/ibdev)"
expect "stat sees a character device" "character special file" \
    "$(with stat -L -c %F /dev/infiniband/uverbs0)"
expect "test -w sees that it may be written" yes \
    "$(with sh -c 'test -c /dev/infiniband/uverbs0 && test -w /dev/infiniband/uverbs0 && echo yes')"
expect "readlink -e walks the tree" /sys/class/infiniband/rb_t/device \
    "$(with readlink -e /sys/class/infiniband/rb_t/device)"
expect "python: open, listdir, stat, realpath, a child of its own" "RoCE v2 ['t0'] True True 0" \
    "$(with /usr/bin/python3 -c '
import os, stat, subprocess
d = "/sys/class/infiniband/rb_t"
print(open(d + "/ports/1/gid_attrs/types/0").read().strip(), os.listdir(d + "/device/net"),
      stat.S_ISCHR(os.stat("/dev/infiniband/uverbs0").st_mode), os.path.isdir(d),
      subprocess.call(["test", "-d", d]))')"
expect "what the tree lacks is looked up at its true path" "No such file or directory" \
    "$(with cat /sys/class/infiniband/none 2>&1 | sed 's/.*: //')"
expect "other paths are left alone" "$(cat /sys/class/net/lo/address)" \
    "$(with cat /sys/class/net/lo/address)"
expect "without the variable nothing is redirected" "$(ls /sys/class/infiniband 2>&1 | sed 's/.*: //')" \
    "$(without ls /sys/class/infiniband 2>&1 | sed 's/.*: //')"
complaint='rocebud: ROCEBUD_SYSFS is "tmp", which counts as not set: it wants a whole path of at most 1024 bytes'
expect "a relative root is named, and not followed" "$complaint
$(ls /sys/class/infiniband 2>&1)" "$(LD_PRELOAD=$shim ROCEBUD_SYSFS=tmp ls /sys/class/infiniband 2>&1)"
exit $failed
