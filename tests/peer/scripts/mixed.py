#!/usr/bin/env python3
"""Sends UD datagrams for queue pairs of several processes, mixed within one segmentation batch.

    mixed.py --src ADDR --dst ADDR --count N --size BYTES --pattern {turns|runs|singles} [--pause S] QPN...

Each queue pair gets `count` datagrams, numbered as `flow sink` wants them. A batch leaves by one send with
UDP_SEGMENT, so the kernel numbers its packets 0, 1, 2 ...; the receiver steers by the first of them.
Prints 'batches N behind N': behind = datagrams whose batch began with another process's.
"""
import argparse
import itertools
import socket
import struct
import time

from roce import PORT, Sender, bth, icrc

SOL_UDP, UDP_SEGMENT = 17, 103
UD_SEND_ONLY, QKEY = 0x64, 0x11111111
SEGMENTS_MAX, BATCH_BYTES_MAX = 60, 65000


def datagram(qpn, number, size):
    """BTH, DETH and payload of one datagram."""
    payload = struct.pack("!I", number) + bytes([number & 0xFF]) * (size - 4)
    return bth(UD_SEND_ONLY, qpn, number, ack=False) + struct.pack("!II", QKEY, 0x123) + payload


def order(qpns, count, pattern, length):
    """(qpn, number) of every datagram, batch by batch."""
    if pattern != "runs":
        every = [(q, n) for n in range(count) for q in qpns]
    else:
        run = length // len(qpns)
        every = [(q, n) for at in range(0, count, run) for q in qpns for n in range(at, min(at + run, count))]
    it = iter(every)
    while batch := list(itertools.islice(it, length)):
        yield batch


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--src", required=True)
    p.add_argument("--dst", required=True)
    p.add_argument("--count", type=int, required=True)
    p.add_argument("--size", type=int, default=1000)
    p.add_argument("--pattern", choices=["turns", "runs", "singles"], required=True)
    p.add_argument("--pause", type=float, default=0.0, help="seconds between two batches")
    p.add_argument("qpn", type=lambda text: int(text, 0), nargs="+")
    args = p.parse_args()
    out = Sender(args.src, args.dst, 0xC123)
    frame = 12 + 8 + args.size + 4
    length = 1 if args.pattern == "singles" else min(SEGMENTS_MAX, BATCH_BYTES_MAX // frame)
    batches = behind = 0
    for batch in order(args.qpn, args.count, args.pattern, length):
        frames = b""
        for i, (qpn, number) in enumerate(batch):
            ib = datagram(qpn, number, args.size)
            frames += ib + icrc(args.src, args.dst, 0xC123, PORT, ib, i)
            behind += qpn >> 12 != batch[0][0] >> 12
        segment = [(SOL_UDP, UDP_SEGMENT, struct.pack("H", frame))] if length > 1 else []
        out.udp.sendmsg([frames], segment, 0, (args.dst, PORT))
        batches += 1
        time.sleep(args.pause)
    print(f"batches {batches} behind {behind}")


if __name__ == "__main__":
    main()
