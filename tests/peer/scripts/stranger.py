#!/usr/bin/env python3
"""Throws packets at a live queue pair from an address that is not its peer's.

    stranger.py --src ADDR --dst ADDR --qpn N [--psn N] {opcodes|lengths|lying|noise}

Prints 'sent N' with the number of datagrams that reach the UDP socket of the receiver, so that the
counters can be compared. Exit status 0.
"""
import argparse
import random
import time

from roce import FETCH_ADD, READ_REQUEST, SEND_ONLY, WRITE_ONLY, Sender, atomic_eth, bth, reth


def opcodes(out, args):
    """All 256 opcodes with 0..64 bytes behind them, the ICRC once right and once wrong."""
    n = 0
    for good in (True, False):
        for opcode in range(256):
            out.send(bth(opcode, args.qpn, args.psn) + random.randbytes(random.randrange(17) * 4), good)
            n += 1
            pace(n)
    return n


def lengths(out, args):
    """Payloads of every length from 0 to 1500, of real operations, with good and bad ICRC."""
    heads = [bth(SEND_ONLY, args.qpn, args.psn), bth(WRITE_ONLY, args.qpn, args.psn) + reth(4096, 1, 64),
             bth(READ_REQUEST, args.qpn, args.psn) + reth(4096, 1, 64),
             bth(FETCH_ADD, args.qpn, args.psn) + atomic_eth(4096, 1, 1)]
    n = 0
    for length in range(0, 1473):
        head = heads[length % len(heads)]
        body = (head + random.randbytes(1473))[:length]
        if length < 5:
            out.send_bytes(body)
        else:
            out.send(body[:max(5, length - 4)], good=length % 2 == 0)
        n += 1
        pace(n)
    return n


def lying(out, args):
    """UDP lengths longer and shorter than the IP length. Most die in the receiver's kernel."""
    n = 0
    for size in (0, 4, 60, 1000):
        ib = bth(SEND_ONLY, args.qpn, args.psn) + random.randbytes(size)
        for lie in (-100, -20, -8, -4, -1, 1, 4, 8, 100, 60000):
            length = 8 + len(ib) + 4 + lie
            if 0 <= length < 65536:
                out.send_lying(ib, length)
                n += 1
                pace(n)
    return n


def noise(out, args):
    """Random bytes of random length."""
    for n in range(2000):
        out.send_bytes(random.randbytes(random.randrange(1, 1400)))
        pace(n)
    return 2000


def pace(n):
    """No faster than a default socket buffer is drained."""
    if n % 50 == 0:
        time.sleep(0.005)


def main():
    number = lambda text: int(text, 0)
    p = argparse.ArgumentParser()
    p.add_argument("--src", required=True)
    p.add_argument("--dst", required=True)
    p.add_argument("--qpn", type=number, required=True)
    p.add_argument("--psn", type=number, default=0)
    p.add_argument("--sport", type=int, default=0xC123)
    p.add_argument("what", choices=["opcodes", "lengths", "lying", "noise"])
    args = p.parse_args()
    random.seed(args.qpn)
    print("sent", globals()[args.what](Sender(args.src, args.dst, args.sport), args))


if __name__ == "__main__":
    main()
