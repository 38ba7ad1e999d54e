#!/bin/sh
# Compares what our libraries export with rdma-core's lists, by name and version node.
#
#   tests/abi/check_exports.sh LIBDIR
#
# Everything in the lists of releases 44 and 65 (libibverbs-*-exports.txt, librdmacm-*) must be there, less the
# hidden duplicates with layouts of 2006 (single @) that nothing imports any more. The lists of
# what programs import at load time (loadtime-private, minimal-union, pyverbs-only) must be
# there too. Nothing beyond src/abi/symbols.txt may be exported.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
lib=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# "name node" a line; objdump prints a hidden version as (NODE).
objdump -T "$lib/libibverbs.so.1" | awk '
    $0 !~ /\*UND\*/ && match($0, /(IBVERBS|RDMACM)_[A-Z0-9_.]+\)?/) {
        node = substr($0, RSTART, RLENGTH); sub(/\)/, "", node)
        if ($NF != node) print $NF, node
    }' | sort -u >"$work/ours"

{
    sed -n 's/ @@/ /p' "$here"/libibverbs-*-exports.txt "$here"/librdmacm-*-exports.txt
    sed 's/[ \t].*//; s/@/ /' "$here/loadtime-private.txt" "$here/minimal-union.txt" \
        "$here/pyverbs-only.txt"
} | sort -u >"$work/wanted"

grep -v '^#' "$here/../../src/abi/symbols.txt" | awk 'NF {
    n = split($3, nodes, ","); for (i = 1; i <= n; i++) print $1, nodes[i] }' |
    sort -u >"$work/listed"

status=0
report() { # TEXT FILE
    if [ -s "$2" ]; then
        echo "$1:"
        sed 's/^/    /' "$2"
        status=1
    fi
}
comm -13 "$work/ours" "$work/wanted" >"$work/missing"
comm -23 "$work/ours" "$work/listed" >"$work/extra"
comm -13 "$work/ours" "$work/listed" >"$work/unlinked"
report "imported or exported by rdma-core 44 or 65, not exported by us" "$work/missing"
report "exported by us, not in symbols.txt" "$work/extra"
report "in symbols.txt, not exported" "$work/unlinked"

for node in $(seq -f 'RDMACM_1.%g' 0 5); do
    objdump -p "$lib/librdmacm.so.1" | grep -q "$node" || { echo "shell lacks $node"; status=1; }
done
for pair in "libibverbs.so.1 libc.so.6" "librdmacm.so.1 libibverbs.so.1"; do
    set -- $pair
    objdump -p "$lib/$1" | grep -q "NEEDED *$2" || { echo "$1 does not need $2"; status=1; }
    objdump -p "$lib/$1" | grep -q "SONAME *$1" || { echo "$1 has another soname"; status=1; }
    [ "$(readlink "$lib/${1%.1}")" = "$1" ] || { echo "${1%.1} is no link to $1"; status=1; }
done
echo "$(wc -l <"$work/ours") symbols exported, $(wc -l <"$work/wanted") wanted"
exit $status
