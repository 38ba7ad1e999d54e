#!/usr/bin/env python3
"""A peer that writes its packets itself: in sequence, good ICRC, but bytes that lie.

    scripted_peer.py --src ADDR --dst ADDR [--port TCPPORT]

`victim` (tests/peer/c) runs at DST. For every case: a fresh queue pair there, one or a few packets from
here, then a look at its completions and memory. Prints one line per case and 'N passed, N failed'.
"""
import argparse
import socket
import struct
import sys
import time

from roce import (ACK, ATOMIC_WRITE, CMP_SWAP, FETCH_ADD, READ_REQUEST, SEND_FIRST, SEND_LAST, SEND_MIDDLE,
                  SEND_ONLY, WRITE_FIRST, WRITE_LAST, WRITE_MIDDLE, WRITE_ONLY, Sender, atomic_eth, bth, is_nak,
                  reth)

OUR_QPN, OUR_PSN = 0x4321, 0xFFFFFE
NAK_INVALID, NAK_ACCESS = 1, 2
MTU = 1024


# Cases that Linux 6.1 rdma_rxe answers otherwise, and how.
KERNEL_RXE = {
    "c002_read_with_payload": "takes the READ, ignores the payload, judges the key",
    "c002_send_over_mtu": "NAK remote operational: it compares with the receive only",
    "first_shorter_than_mtu": "acknowledges it",
    "reth_over_2_31": "NAK remote access: it has no rule for the length as such",
    "send_too_long": "NAK remote operational",
}


class Peer:
    """One fresh connection."""

    def __init__(self, out, args):
        self.out, self.psn = out, OUR_PSN
        self.tcp = socket.create_connection((args.dst, args.port), timeout=20)
        self.file = self.tcp.makefile("rw")
        self.file.write(f"{args.src} {OUR_QPN:#x} {OUR_PSN:#x}\n")
        self.file.flush()
        qpn, _, rkey, va, length = self.file.readline().split()
        self.qpn, self.rkey, self.va, self.length = (int(x, 0) for x in (qpn, rkey, va, length))
        while out.receive(0.002) is not None:
            pass  # late answers of the case before

    def send(self, opcode, rest=b"", pad=0, good=True, step=1, **more):
        """A packet at the PSN that the victim expects next."""
        self.out.send(bth(opcode, self.qpn, self.psn, pad, **more) + rest, good)
        self.psn = (self.psn + step) & 0xFFFFFF

    def answer(self, timeout=1.0):
        """The next packet for us, or None."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            packet = self.out.receive(max(0.01, end - time.monotonic()))
            if packet and struct.unpack("!I", packet[4:8])[0] & 0xFFFFFF == OUR_QPN:
                return packet
        return None

    def verdict(self):
        """(state, [(status, byte_len)], touched, received)"""
        self.file.write("look\n")
        self.file.flush()
        words = self.file.readline().split()
        self.tcp.close()
        pairs = words[3].split(",") if words[3] != "touched" else []
        wcs = [tuple(map(int, p.split(":"))) for p in pairs if p]
        at = words.index("touched")
        return int(words[1]), wcs, int(words[at + 1]), int(words[at + 3])


def untouched(peer, successes=0):
    """Nothing written, and no more good completions than this."""
    state, wcs, touched, received = peer.verdict()
    good = [w for w in wcs if w[0] == 0]
    assert touched == -1, f"region changed at {touched}"
    assert received == -1, f"memory beside the receives changed at {received}"
    assert len(good) == successes, f"completions {wcs}"
    assert all(0 <= w[1] <= 64 for w in good), f"wild byte_len {wcs}"
    return state


def case_works(p):
    """The scripted peer itself: a good SEND and a good WRITE pass."""
    p.send(SEND_ONLY, b"hello wd")
    assert (a := p.answer()) and a[0] == ACK and a[12] & 0xE0 == 0, f"no ACK: {a}"
    p.send(WRITE_ONLY, reth(p.va + 5, p.rkey, 4) + b"abcd")
    assert (a := p.answer()) and a[0] == ACK and a[12] & 0xE0 == 0, f"no ACK: {a}"
    state, wcs, touched, _ = p.verdict()
    assert state == 3 and wcs == [(0, 8)] and touched == 5, (state, wcs, touched)


def malformed(opcode, rest=b"", pad=0):
    """Dropped or refused; either way no completion and no byte written."""
    def run(p):
        p.send(opcode, rest, pad)
        a = p.answer(0.3)
        assert a is None or is_nak(a, NAK_INVALID), f"answered {a[:16].hex()}"
        untouched(p)
    return run


def refused(code, *packets):
    """Well-formed packets of which the last must draw this NAK, with the region untouched."""
    def run(p):
        for opcode, rest in packets:
            rest = rest(p) if callable(rest) else rest
            pad = -len(rest) % 4
            p.send(opcode, rest + b"\0" * pad, pad)
        a = p.answer()
        while a and not is_nak(a):
            a = p.answer()
        assert is_nak(a, code), f"answered {a and a[:16].hex()}, wanted NAK {code}"
        state, _, touched, _ = p.verdict()
        assert state == 6, f"state {state} after a NAK"
        assert touched == -1, f"region changed at {touched}"
    return run


def runt(length):
    """Fewer bytes than a BTH and an ICRC."""
    def run(p):
        p.out.send_bytes(bth(SEND_ONLY, p.qpn, p.psn)[:length].ljust(length, b"\0"))
        assert p.answer(0.15) is None, "a runt was answered"
        assert untouched(p) == 3
    return run


def case_wrong_icrc(p):
    p.send(SEND_ONLY, b"hello wd", good=False)
    assert p.answer(0.3) is None, "a packet with a wrong ICRC was answered"
    assert untouched(p) == 3


def case_reserved_opcodes(p):
    """Reserved opcodes of the RC class, in sequence: dropped."""
    for opcode in [0x15, 0x18, 0x19, 0x1A, 0x1B, 0x1E, 0x1F]:
        p.send(opcode, b"\0" * 16, step=0)
    assert p.answer(0.3) is None, "a reserved opcode was answered"
    assert untouched(p) == 3


def case_future_psn(p):
    """One NAK for a gap, then silence until the gap is filled."""
    p.psn = (p.psn + 3) & 0xFFFFFF
    p.send(SEND_ONLY, b"hello wd")
    p.send(SEND_ONLY, b"hello wd")
    a = p.answer()
    assert is_nak(a, 0), f"answered {a and a[:16].hex()}"
    assert struct.unpack("!I", a[8:12])[0] & 0xFFFFFF == OUR_PSN, "the NAK names another PSN"
    assert p.answer(0.2) is None, "a second NAK for one gap"
    assert untouched(p) == 3


def case_duplicate_atomic(p):
    """C007: a duplicate gets the stored result, the word is added to once."""
    rest = atomic_eth(p.va + 64, p.rkey, 1)
    p.send(FETCH_ADD, rest, step=0)
    first = p.answer()
    p.send(FETCH_ADD, rest, step=0)
    second = p.answer()
    assert first and second and first[0] == 0x12 and first[16:24] == second[16:24] == b"\xa5" * 8, (first, second)
    state, _, touched, _ = p.verdict()
    assert state == 3 and touched == 64


def case_changed_duplicate_read(p):
    """C054: a READ sent again with the same PSN but another address is not served from there."""
    p.send(READ_REQUEST, reth(p.va, p.rkey, 16), step=0)
    assert (a := p.answer()) and a[0] == 0x10, f"no response: {a}"
    p.send(READ_REQUEST, reth(p.va - 16384, p.rkey, 16), step=0)
    assert p.answer(0.3) is None, "a changed duplicate READ was answered"
    p.send(READ_REQUEST, reth(p.va, p.rkey ^ 0x100, 16), step=0)
    assert p.answer(0.3) is None, "a duplicate READ with another key was answered"
    assert untouched(p) == 3


def bounds(opcode, va, length):
    """C054: (va, length) outside the region: NAK remote access."""
    def rest(p):
        where = va(p)
        if opcode == WRITE_ONLY:
            return reth(where, p.rkey, length) + b"w" * length
        return reth(where, p.rkey, length)
    return refused(NAK_ACCESS, (opcode, rest))


def cases():
    full = b"x" * MTU
    yield "works", case_works
    yield "wrong_icrc", case_wrong_icrc
    yield "reserved_opcodes", case_reserved_opcodes
    yield "future_psn", case_future_psn
    yield "duplicate_atomic", case_duplicate_atomic
    yield "changed_duplicate_read", case_changed_duplicate_read
    for n in range(8, 20):
        yield f"c002_runt_{n}", runt(n) if n < 16 else malformed(WRITE_ONLY, b"\0" * (n - 16))
    yield "c002_pad_3_no_payload", malformed(SEND_ONLY, b"", 3)
    yield "c002_pad_3_payload_1", malformed(SEND_ONLY, b"x", 3)
    yield "c002_pad_3_payload_2", malformed(SEND_ONLY, b"xy", 3)
    yield "c002_short_reth", malformed(WRITE_ONLY, b"\0" * 15)
    yield "c002_atomic_write_length_0", malformed(ATOMIC_WRITE, reth(0, 0, 0) + b"\0" * 8)
    yield "c002_atomic_write_no_payload", malformed(ATOMIC_WRITE, reth(0, 0, 8))
    yield "c002_short_atomic", malformed(CMP_SWAP, b"\0" * 24)
    yield "c002_read_with_payload", malformed(READ_REQUEST, reth(0, 0, 8) + b"\0" * 8)
    yield "c002_send_over_mtu", malformed(SEND_ONLY, b"x" * (MTU + 4))
    yield "first_shorter_than_mtu", malformed(SEND_FIRST, b"x" * 60)
    yield "middle_first", refused(NAK_INVALID, (SEND_MIDDLE, full))
    yield "last_first", refused(NAK_INVALID, (SEND_LAST, b"abcd"))
    yield "write_longer_than_reth", refused(NAK_INVALID, (WRITE_ONLY, lambda p: reth(p.va, p.rkey, 4) + b"12345678"))
    yield "write_shorter_than_reth", refused(NAK_INVALID, (WRITE_ONLY, lambda p: reth(p.va, p.rkey, 64) + b"1234"))
    yield "reth_over_2_31", refused(NAK_INVALID, (WRITE_FIRST, lambda p: reth(p.va, p.rkey, 0x80000001) + full))
    yield "misaligned_atomic", refused(NAK_INVALID, (FETCH_ADD, lambda p: atomic_eth(p.va + 4, p.rkey, 1)))
    yield "wrong_rkey_write", refused(NAK_ACCESS, (WRITE_ONLY, lambda p: reth(p.va, p.rkey ^ 0x5A00, 4) + b"1234"))
    yield "wrong_rkey_read", refused(NAK_ACCESS, (READ_REQUEST, lambda p: reth(p.va, p.rkey ^ 0x5A00, 4)))
    yield "send_too_long", refused(NAK_INVALID, (SEND_ONLY, b"x" * 65))
    for op, name in ((WRITE_ONLY, "write"), (READ_REQUEST, "read")):
        yield f"c054_{name}_wraps", bounds(op, lambda p: 2**64 - 1024, 1024)
        yield f"c054_{name}_before", bounds(op, lambda p: p.va - 1, 2)
        yield f"c054_{name}_after", bounds(op, lambda p: p.va + p.length - 1, 2)
        yield f"c054_{name}_high", bounds(op, lambda p: 2**63, 64)
    yield "c054_read_2_31_at_2_63", bounds(READ_REQUEST, lambda p: 2**63, 2**31)
    yield "c054_read_2_31_at_start", bounds(READ_REQUEST, lambda p: p.va, 2**31)
    yield "c054_write_first_2_31", refused(NAK_ACCESS, (WRITE_FIRST, lambda p: reth(p.va, p.rkey, 2**31) + full))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--src", required=True)
    p.add_argument("--dst", required=True)
    p.add_argument("--port", type=int, default=18800)
    p.add_argument("--kernel-rxe", action="store_true", help="leave out what it answers otherwise")
    p.add_argument("only", nargs="*")
    args = p.parse_args()
    out = Sender(args.src, args.dst, bind=True)
    passed = failed = 0
    for name, run in cases():
        if (args.kernel_rxe and name in KERNEL_RXE) or (args.only and name not in args.only):
            continue
        try:
            run(Peer(out, args))
            passed += 1
            print("ok", name, flush=True)
        except (AssertionError, OSError, ValueError, IndexError) as e:
            failed += 1
            print("FAILED", name, repr(e), flush=True)
    with socket.create_connection((args.dst, args.port), timeout=5) as s:
        s.sendall(b"quit\n")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0 or not passed)


if __name__ == "__main__":
    main()
