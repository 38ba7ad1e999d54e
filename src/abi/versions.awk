# Makes version nodes of one family (IBVERBS, RDMACM or PRIVATE) from symbols.txt.
# With empty=1 the nodes hold no symbol. IBVERBS_1.2 to 1.4 never existed.
/^[ \t]*(#|$)/ { next }
{
    n = split($3, nodes, ",")
    for (i = 1; i <= n; i++) {
        node = nodes[i]
        kind = node ~ /_PRIVATE_/ ? "PRIVATE" : node ~ /^RDMACM/ ? "RDMACM" : "IBVERBS"
        if (kind != family) continue
        if (!(node in seen)) { seen[node] = 1; order[++count] = node }
        if (n == 1 && !empty)
            members[node] = members[node] "        " $1 ";\n"
    }
}
END {
    for (i = 1; i <= count; i++) {
        node = order[i]
        printf "%s {\n", node
        if (members[node] != "") printf "    global:\n%s", members[node]
        if (i == 1 && family == (empty ? "RDMACM" : "IBVERBS")) printf "    local: *;\n"
        printf "}%s;\n\n", (family != "PRIVATE" && i > 1) ? " " order[i - 1] : ""
    }
}
