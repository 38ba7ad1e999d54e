#!/bin/bash
# A program as in a container: read-only files everywhere, 64 KiB of lockable memory.
#
#   container.sh PROGRAM ARGUMENTS...
#
# Run as (its own) root in a mount namespace of its own: `unshare --mount`.
set -eu
mount --make-rprivate /
mount -o remount,bind,ro /
for place in /tmp /var/tmp /run /home; do
    if mountpoint -q $place; then mount -o remount,bind,ro $place; fi
done
for place in / /tmp /var/tmp /run; do
    if touch "$place/rocebud-can-write" 2>/dev/null; then
        rm -f "$place/rocebud-can-write"
        echo "container.sh: $place can be written to"
        exit 90
    fi
done
ulimit -l 64
exec "$@"
