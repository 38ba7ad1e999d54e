#!/bin/sh
# Links the static library of this crate into what programs load.
#
#   src/abi/link.sh STATICLIB OUTDIR
#
# makes OUTDIR/libibverbs.so.1 (everything, rdma_* and r* too), OUTDIR/librdmacm.so.1 (version
# nodes and a NEEDED entry: the dynamic linker binds by name and version, not by file) and the
# names without a number, which programs that dlopen() ask for first.
#
# Why not a cdylib: rustc passes a version script of its own, which clashes with ours (lld drops
# the versions with a warning, bfd refuses). The version nodes are a must, so cc links.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
staticlib=$1
out=$2
symbols=$here/symbols.txt
work=$out/.link
mkdir -p "$work"

# The version script: a chain of public nodes, then the private nodes on their own. Symbols of
# several nodes come by .symver from the trampoline file.
awk -v family=IBVERBS -f "$here/versions.awk" "$symbols" >"$work/libibverbs.map"
awk -v family=RDMACM -f "$here/versions.awk" "$symbols" >>"$work/libibverbs.map"
awk -v family=PRIVATE -f "$here/versions.awk" "$symbols" >>"$work/libibverbs.map"
awk -v family=RDMACM -v empty=1 -f "$here/versions.awk" "$symbols" >"$work/librdmacm.map"
awk -f "$here/trampolines.awk" "$symbols" >"$work/private.S"
${CC:-cc} -c -o "$work/private.o" "$work/private.S"

# The order of functions. A linker that cannot do this (mold, gold) lays them as it likes, at the price
# of some per cent of a small message's way.
awk '!/^#/ && NF { gsub("::", "*"); print "*(.text.*" $0 "17h*)" }' "$here/order.txt" |
    (echo 'SECTIONS { .text.small_messages : {'; cat; echo '} } INSERT BEFORE .text;') >"$work/order.ld"
order=-Wl,-T,$work/order.ld
echo 'int probe;' >"$work/probe.c"
${CC:-cc} -shared -fPIC -o "$work/probe.so" "$work/probe.c" "$order" 2>/dev/null || order=

link() { # SONAME MAP OBJECTS...: replaces the old file in one step, for programs that run
    soname=$1 map=$2
    shift 2
    ${CC:-cc} -shared -o "$work/$soname" -Wl,-soname,"$soname" -Wl,--version-script="$map" \
        -Wl,-z,defs -Wl,-z,now -Wl,-z,nodelete -Wl,-z,relro -Wl,-z,noexecstack "$@"
    mv -f "$work/$soname" "$out/$soname"
    ln -sfn "$soname" "$out/${soname%.1}"
}

link libibverbs.so.1 "$work/libibverbs.map" "$work/private.o" ${order:+"$order"} \
    -Wl,--whole-archive "$staticlib" -Wl,--no-whole-archive -Wl,--gc-sections \
    -lgcc_s -lpthread -ldl -lm -lc

printf 'const char rocebud_shell[] = "everything is in libibverbs.so.1";\n' >"$work/shell.c"
${CC:-cc} -c -fPIC -o "$work/shell.o" "$work/shell.c"
link librdmacm.so.1 "$work/librdmacm.map" "$work/shell.o" \
    -Wl,--no-as-needed -L"$out" -l:libibverbs.so.1
