#!/usr/bin/python3
"""How many BPF programs of these names the machine has: bpf_named.py NAME..."""
import ctypes, os, platform, struct, sys

PROG_GET_NEXT_ID, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD = 11, 13, 15
CALL = {"x86_64": 321, "aarch64": 280}[platform.machine()]
NAME_AT = 64  # in struct bpf_prog_info
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attr):
    got = libc.syscall(CALL, command, attr, len(attr))
    return got, ctypes.get_errno()


def name_of(number):
    fd, errno = bpf(PROG_GET_FD_BY_ID, ctypes.create_string_buffer(struct.pack("=III", number, 0, 0), 12))
    if fd < 0:
        return None  # it has just gone
    info = ctypes.create_string_buffer(128)
    bpf(OBJ_GET_INFO_BY_FD, ctypes.create_string_buffer(struct.pack("=IIQ", fd, len(info), ctypes.addressof(info)), 16))
    os.close(fd)
    return info.raw[NAME_AT:NAME_AT + 16].rstrip(b"\0").decode()


count, last = 0, 0
while True:
    attr = ctypes.create_string_buffer(struct.pack("=III", last, 0, 0), 12)
    got, errno = bpf(PROG_GET_NEXT_ID, attr)
    if got < 0:
        if errno == 2:
            break
        sys.exit(f"bpf: {os.strerror(errno)}")
    last = struct.unpack_from("=I", attr.raw, 4)[0]
    count += name_of(last) in sys.argv[1:]
print(count)
