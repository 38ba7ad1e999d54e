#!/usr/bin/env python3
"""Sends packets whose invariant CRC is none of the right one, as a path that spoils packets would.

    spoiler.py --src ADDR --dst ADDR --qpn N --rounds N --spoiled N

A round is N packets whose CRC fits no IPv4 identification, then one whose CRC fits 0x1234: of spoiled
packets one in 2^15 fits some identification, and a receiver that does not see it cannot tell.
Prints 'sent N'. Exit status 0.
"""
import argparse
import time

from roce import SEND_ONLY, Sender, bth


def main():
    number = lambda text: int(text, 0)
    p = argparse.ArgumentParser()
    p.add_argument("--src", required=True)
    p.add_argument("--dst", required=True)
    for name in ("--qpn", "--rounds", "--spoiled"):
        p.add_argument(name, type=number, required=True)
    args = p.parse_args()
    out = Sender(args.src, args.dst, 0xC123)
    body = bth(SEND_ONLY, args.qpn, 0) + bytes(32)
    sent = 0
    for _ in range(args.rounds):
        for n in range(args.spoiled + 1):
            last = n == args.spoiled
            out.send(body, good=last, ident=0x1234 if last else 0)
            sent += 1
            if sent % 50 == 0:
                time.sleep(0.005)  # no faster than a default socket buffer is drained
        if args.spoiled:
            time.sleep(0.05)  # one that fits is rare
    print("sent", sent)


if __name__ == "__main__":
    main()
