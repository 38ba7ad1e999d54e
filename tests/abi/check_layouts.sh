#!/bin/sh
# Compares the structures in headers with a list:
#
#   tests/abi/check_layouts.sh [LIST [DIR]]      layouts-v44.txt, and the installed headers
#
# With the defaults it proves that the list is what programs of this distribution were compiled
# with. (The library's own structures are compared with layouts-v64.txt by src/abi/build.rs.) Fields
# of anonymous unions are named through the union, as C does.
set -eu
list=${1:-layouts-v44.txt}
dir=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk '
BEGIN {
    print "#define _GNU_SOURCE\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>"
    print "#include <rdma/rdma_cma.h>\n#include <stddef.h>\n#include <stdio.h>"
    print "int main(void) { int bad = 0, n = 0;"
    print "#define SAME(what, is, want) do { n++; if ((size_t)(is) != (want)) { bad++; \\"
    print "    printf(\"%s is %zu, listed %d\\n\", what, (size_t)(is), want); } } while (0)"
}
/^struct / { name = $2; next }
/^\t\/\* size: / {
    size = $3; sub(/,/, "", size)
    printf "SAME(\"sizeof %s\", sizeof(struct %s), %s);\n", name, name, size
    next
}
/^\t[^\t].*;.*\/\*/ {
    split($0, part, ";")
    decl = part[1]
    if (match(decl, /\(\*[a-zA-Z_0-9]+\)/)) field = substr(decl, RSTART + 2, RLENGTH - 3)
    else { k = split(decl, w, /[ \t*]+/); field = w[k]; sub(/\[.*/, "", field) }
    if (field == "}" || field == "") next
    n = split($0, c, "/\\*"); split(c[n], num, " ")
    printf "SAME(\"%s.%s\", offsetof(struct %s, %s), %s);\n", name, field, name, field, num[1]
}
END { print "printf(\"%d sizes and offsets compared, %d differ\\n\", n, bad); return bad != 0; }" }
' "$here/$list" >"$work/layouts.c"
${CC:-cc} ${dir:+-I"$dir"} -Wall -Wno-deprecated-declarations -o "$work/layouts" "$work/layouts.c"
"$work/layouts"
