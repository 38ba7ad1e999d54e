#!/usr/bin/env python3
"""C057: a third address that knows the queue pair, the packet sequence number and the key of a connection.

    third_address.py --src ADDR --third ADDR --dst ADDR [--port TCPPORT]

`victim` (tests/peer/c) runs at DST, and SRC is its peer (scripted_peer.py). Whatever THIRD sends is ignored:
no answer, no byte changed, no completion, and the connection goes on where it was. Prints a line for every
packet and "counter NAME N" for what the victim's side must have counted.
"""
import argparse
import socket
import struct
import sys

from roce import (ACK, ATOMIC_WRITE, CMP_SWAP, FETCH_ADD, READ_REQUEST, SEND_ONLY, WRITE_FIRST, WRITE_ONLY, Sender,
                  atomic_eth, bth, reth)
from scripted_peer import OUR_PSN, Peer

CNP, PSN_OF_VICTIM, PSN_SEQUENCE, REMOTE_ACCESS, RNR = 0x81, 0x123456, 0x60, 0x62, 0x20


def packets(p):
    """What a stranger would try: all of it right but for the address that it comes from."""
    yield "WRITE", WRITE_ONLY, reth(p.va, p.rkey, 4) + b"evil"
    yield "first of a WRITE", WRITE_FIRST, reth(p.va, p.rkey, 2048) + b"e" * 1024
    yield "SEND", SEND_ONLY, b"evil"
    yield "READ", READ_REQUEST, reth(p.va, p.rkey, 64)
    yield "fetch and add", FETCH_ADD, atomic_eth(p.va, p.rkey, 1)
    yield "compare and swap", CMP_SWAP, atomic_eth(p.va, p.rkey, 1, 0)
    yield "ATOMIC WRITE", ATOMIC_WRITE, reth(p.va, p.rkey, 8) + b"evilevil"
    for name, syndrome in (("ACK", 0x1F), ("RNR NAK", RNR), ("NAK sequence", PSN_SEQUENCE), ("NAK access", REMOTE_ACCESS)):
        yield name, ACK, struct.pack("!I", syndrome << 24 | 1)
    yield "CNP", CNP, bytes(16)


def main():
    p = argparse.ArgumentParser()
    for name in ("--src", "--third", "--dst"):
        p.add_argument(name, required=True)
    p.add_argument("--port", type=int, default=18800)
    args = p.parse_args()
    failed = 0
    out, third = Sender(args.src, args.dst), Sender(args.third, args.dst)
    peer = Peer(out, args)
    tried = list(packets(peer))
    for name, opcode, rest in tried:
        psn = PSN_OF_VICTIM if opcode == ACK else OUR_PSN
        third.send(bth(opcode, peer.qpn, psn) + rest)
        heard = third.receive(0.2), out.receive(0.05)
        good = heard == (None, None)
        failed += not good
        print("ok" if good else f"FAILED {heard}", name, flush=True)
    print("counter drop_wrong_peer", len(tried))
    # the connection is where it was: the next packet of its peer is the one that it waits for
    peer.send(SEND_ONLY, b"hello wd")
    answer = peer.answer()
    state, wcs, touched, received = peer.verdict()
    good = answer and answer[0] == ACK and answer[12] & 0xE0 == 0 and (state, wcs, touched) == (3, [(0, 8)], -1)
    failed += not good
    print("ok" if good else "FAILED", "the connection goes on", (answer, state, wcs, touched, received))
    with socket.create_connection((args.dst, args.port), timeout=5) as s:
        s.sendall(b"quit\n")
    print(f"{len(tried) + 1 - failed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
