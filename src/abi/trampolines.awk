# Makes the assembly of the private symbols from symbols.txt (x86-64 and AArch64, GNU as).
#
# Each private function jumps through a slot. The slot first points at code that asks
# rocebud_private_resolve(name) for the real library's function, keeps the answer in the slot
# and goes on there with the arguments untouched: the caller never knows. Each symbol has one
# body; where it has several nodes .symver gives it its name under each, otherwise the version
# script does.
function symver(body, name, list,    n, nodes, i) {
    n = split(list, nodes, ",")
    for (i = 1; i <= n && n > 1; i++)
        printf ".symver %s, %s%s%s\n", body, name, i == 1 ? "@@" : "@", nodes[i]
}
BEGIN {
    print "#if !defined(__x86_64__) && !defined(__aarch64__)"
    print "#error \"private symbols need trampolines for this machine\""
    print "#endif"
    print ".section .note.GNU-stack,\"\",%progbits"
    print ".text"
}
/^[ \t]*(#|$)/ { next }
$2 == "public" || ($2 == "own" && $3 !~ /,/) { next }
$2 == "data" {
    body = $3 ~ /,/ ? "rocebud_data_" $1 : $1
    printf ".data\n.globl %s\n.type %s, %%object\n.size %s, 1\n%s: .byte 0\n.text\n", body, body, body, body
    symver(body, $1, $3)
    next
}
$2 == "own" {
    body = "rocebud_also_" $1
    printf ".globl %s\n.type %s, %%function\n%s:\n", body, body, body
    printf "#ifdef __x86_64__\n    endbr64\n    jmp rocebud_%s\n", $1
    printf "#else\n    b rocebud_%s\n#endif\n.size %s, . - %s\n", $1, body, body
    symver(body, $1, $3)
    next
}
{
    body = $3 ~ /,/ ? "rocebud_private_" $1 : $1
    printf ".data\n.balign 8\n.Lslot_%s: .quad .Llazy_%s\n", $1, $1
    printf ".section .rodata\n.Lname_%s: .asciz \"%s\"\n.text\n", $1, $1
    printf ".balign 16\n.globl %s\n.type %s, %%function\n%s:\n", body, body, body
    print "#ifdef __x86_64__"
    printf "    endbr64\n    jmp *.Lslot_%s(%%rip)\n", $1
    printf ".Llazy_%s:\n    endbr64\n", $1
    printf "    leaq .Lname_%s(%%rip), %%r10\n    leaq .Lslot_%s(%%rip), %%r11\n", $1, $1
    printf "    pushq $%d\n    jmp .Lresolve\n", $2 == "null" ? 1 : 0
    print "#else"
    printf "    adrp x16, .Lslot_%s\n    ldr x16, [x16, :lo12:.Lslot_%s]\n    br x16\n", $1, $1
    printf ".Llazy_%s:\n", $1
    printf "    adrp x16, .Lname_%s\n    add x16, x16, :lo12:.Lname_%s\n", $1, $1
    printf "    adrp x17, .Lslot_%s\n    add x17, x17, :lo12:.Lslot_%s\n", $1, $1
    printf "    mov x15, #%d\n    b .Lresolve\n", $2 == "null" ? 1 : 0
    print "#endif"
    printf ".size %s, . - %s\n", body, body
    symver(body, $1, $3)
}
END {
    # void *rocebud_private_resolve(const char *name, int answers_null)
    print "#ifdef __x86_64__"
    print ".Lresolve:"
    # On the stack: [flag] [return address]. Save what carries arguments (al counts the vector
    # registers of a variadic call), keep the stack aligned to 16.
    print "    pushq %rax\n    pushq %rdi\n    pushq %rsi\n    pushq %rdx\n    pushq %rcx"
    print "    pushq %r8\n    pushq %r9\n    pushq %r11"
    print "    subq $128, %rsp"
    for (i = 0; i < 8; i++) printf "    movups %%xmm%d, %d(%%rsp)\n", i, i * 16
    print "    movq %r10, %rdi\n    movq 192(%rsp), %rsi"
    print "    call rocebud_private_resolve"
    print "    movq %rax, %r10"
    for (i = 0; i < 8; i++) printf "    movups %d(%%rsp), %%xmm%d\n", i * 16, i
    print "    addq $128, %rsp"
    print "    popq %r11\n    popq %r9\n    popq %r8\n    popq %rcx\n    popq %rdx\n    popq %rsi"
    print "    popq %rdi\n    popq %rax\n    addq $8, %rsp"
    print "    movq %r10, (%r11)\n    jmp *%r10"
    print "#else"
    print ".Lresolve:"
    print "    stp x29, x30, [sp, #-224]!\n    mov x29, sp"
    print "    stp x0, x1, [sp, #16]\n    stp x2, x3, [sp, #32]\n    stp x4, x5, [sp, #48]"
    print "    stp x6, x7, [sp, #64]\n    stp x8, x17, [sp, #80]"
    print "    stp q0, q1, [sp, #96]\n    stp q2, q3, [sp, #128]\n    stp q4, q5, [sp, #160]"
    print "    stp q6, q7, [sp, #192]"
    print "    mov x0, x16\n    mov x1, x15\n    bl rocebud_private_resolve\n    mov x16, x0"
    print "    ldp q6, q7, [sp, #192]\n    ldp q4, q5, [sp, #160]\n    ldp q2, q3, [sp, #128]"
    print "    ldp q0, q1, [sp, #96]\n    ldp x8, x17, [sp, #80]\n    ldp x6, x7, [sp, #64]"
    print "    ldp x4, x5, [sp, #48]\n    ldp x2, x3, [sp, #32]\n    ldp x0, x1, [sp, #16]"
    print "    ldp x29, x30, [sp], #224"
    print "    str x16, [x17]\n    br x16"
    print "#endif"
}
