#!/usr/bin/env python3
"""A host that sends what no connection manager should: nonsense, lies, repetitions, floods.

    mads.py --src ADDR [--third ADDR] --dst ADDR --port PORT [--deaf PORT] WHAT

At PORT somebody accepts whoever asks; at DEAF somebody listens and never reads. Prints a line for every
check, and "counter NAME N" for what the other side must have counted.
"""
import argparse
import sys
import time

from cm import (APR, BAD_MTU, BAD_TRANSPORT, CONSUMER, DREP, DREQ, INVALID_ID, INVALID_SERVICE, LAP, MRA, REJ, REP, REQ,
                RTU, SIDR_REP, STALE, Client, dreq, mad, pair, rej, rep, req, service)
from roce import ACK, SEND_ONLY

DONE = []


def check(name, holds, what=""):
    """A line about one check."""
    DONE.append(holds)
    print("ok" if holds else "FAILED", name, "" if holds else what, flush=True)


def said(message):
    """For people."""
    return vars(message) if message else "nothing"


def refused(client, name, reason, **lies):
    """A REQ that lies is refused for this reason, and names nobody."""
    client.say(REQ, req(0x7000, client.src, client.dst, client.port, **lies))
    answer = client.hear()
    right = answer and (answer.kind, answer.reason, answer.remote_id) == (REJ, reason, 0x7000)
    check(name, right, said(answer))


def nonsense(c):
    """What is no message at all: counted, and nothing else."""
    good = mad(REQ, req(0x6000, c.src, c.dst, c.port), 1)
    lengths = [0, 1, 4, 23, 24, 63, 128, 252, 255, 260, 512]
    for n in lengths:
        c.datagram(good.ljust(n, b"\0")[:n])
    for qkey in (0, 0x80010001, 0x01234567, 0xFFFFFFFF):
        c.datagram(good, qkey=qkey)
    c.datagram(good, opcode=SEND_ONLY)
    c.datagram(good, opcode=ACK)
    print("counter drop_malformed", len(lengths) + 6)
    for _ in range(3):
        c.datagram(good, good=False)
    print("counter rx_icrc_encapsulated 3")
    headers = [dict(base=0), dict(base=2), dict(version=1), dict(version=3), dict(method=1), dict(method=0x83),
               dict(mclass=4), dict(mclass=0x81)]
    for header in headers:
        c.say(REQ, good[24:], **header)
    attributes = [0, 1, 0x0F, 0x1B, 0x20, 0x110, 0xFFFF]
    for kind in attributes:
        c.say(kind, good[24:])
    print("counter malformed", len(headers) + len(attributes))
    check("nobody answers", not (all_ := c.hear_all()), [vars(m) for m in all_])


def lies(c):
    """Requests that are inconsistent in themselves, or with their packets: each is refused by its name."""
    for port in (1, 6999, 65535):
        refused(c, f"nobody is at port {port}", INVALID_SERVICE, service=service(port))
    for other in (0, 0x0000000001FF0000 + c.port, 0x1000000000000000, 2**64 - 1):
        refused(c, f"nobody offers service {other:#x}", INVALID_SERVICE, service=other)
    print("counter no_listener 7")
    for name, lie in (("its source", dict(ip_src="10.77.0.200")), ("its destination", dict(ip_dst="10.77.0.200")),
                      ("IP version 5", dict(ip=5)), ("no IP version", dict(ip=0)), ("a header of version 1",
                                                                                   dict(cma_version=0x10))):
        refused(c, f"an IP header with {name}", CONSUMER, **lie)
    print("counter bad_address 5")
    for mtu in (0, 6, 15):
        refused(c, f"path MTU {mtu}", BAD_MTU, mtu=mtu)
    for transport in (2, 3):
        refused(c, f"transport {transport}", BAD_TRANSPORT, transport=transport, extended=7)


def unasked(c):
    """Answers to nothing, and messages about nobody."""
    c.say(REP, rep(0x7100, 0x1234567))
    answer = c.hear()
    right = answer and (answer.kind, answer.reason, answer.remote_id) == (REJ, INVALID_ID, 0x7100)
    check("a REP that nobody asked for is refused", right, said(answer))
    c.say(DREQ, dreq(0x7100, 0x1234567, 0x99))
    answer = c.hear()
    right = answer and (answer.kind, answer.local_id, answer.remote_id) == (DREP, 0x1234567, 0x7100)
    check("a DREQ about nobody is agreed to", right, said(answer))
    silent = [(RTU, pair(0x7100, 0x1234567)), (MRA, pair(0x7100, 0x1234567, b"\0\0")), (DREP, pair(0x7100, 0x1234567)),
              (REJ, rej(0x7100, 0x1234567, STALE)), (LAP, pair(0x7100, 0x1234567)), (SIDR_REP, pair(0x7100, 0))]
    for kind, body in silent:
        c.say(kind, body)
    c.say(APR, pair(0x7100, 0x1234567))
    print("counter unknown_id", len(silent) + 2)
    print("counter out_of_place 1")
    check("nobody answers the others", not (all_ := c.hear_all()), [vars(m) for m in all_])


def replay(c):
    """All that a connection said, again and again: one request reaches the program, one end."""
    ask, tid = req(0x7200, c.src, c.dst, c.port), 0x7777
    for _ in range(100):
        c.say(REQ, ask, tid)
    answers = c.hear_all(1.0)
    reps = [m for m in answers if m.kind == REP]
    same = len({(m.local_id, m.qpn, m.psn) for m in reps}) == 1
    check("one connection, whatever comes again", reps and same and all(m.kind in (REP, MRA) for m in answers),
          [vars(m) for m in answers])
    print("counter duplicate 100")
    theirs = reps[0]
    for _ in range(100):
        c.say(RTU, pair(0x7200, theirs.local_id), tid)
    c.say(REQ, ask, tid)
    for _ in range(100):
        c.say(DREQ, dreq(0x7200, theirs.local_id, theirs.qpn), tid)
    answers = c.hear_all(1.0)
    dreps = [m for m in answers if m.kind == DREP]
    check("every DREQ is agreed to", len(dreps) == 100, f"{len(dreps)} DREPs")
    # an hour later, somebody who recorded it
    for kind, body in ((RTU, pair(0x7200, theirs.local_id)), (DREP, pair(0x7200, theirs.local_id)),
                       (REP, rep(0x7200, theirs.local_id)), (REJ, rej(0x7200, theirs.local_id, CONSUMER))):
        c.say(kind, body, tid)
    late = c.hear_all()
    check("an old answer begins nothing", all(m.kind == REJ for m in late), [vars(m) for m in late])


def strangers(c, third):
    """C057: a third address that knows every id and number of a connection."""
    theirs = c.connect(c.port, 0x7300)
    ids = (0x7300, theirs.local_id)
    c.hear_all()
    messages = [(DREQ, dreq(*ids, theirs.qpn)), (DREP, pair(*ids)), (REJ, rej(*ids, CONSUMER)), (RTU, pair(*ids)),
                (MRA, pair(*ids, b"\x40\xa0")), (REP, rep(*ids))]
    for kind, body in messages:
        third.say(kind, body)
    heard = c.hear_all() + third.hear_all()
    check("c057 a third address is not answered", not heard, [vars(m) for m in heard])
    print("counter stranger", len(messages))
    # its own, but with a queue pair that it is not
    c.say(DREQ, dreq(*ids, theirs.qpn ^ 1))
    check("c057 a DREQ for another queue pair", not (all_ := c.hear_all()), [vars(m) for m in all_])
    print("counter out_of_place 1")
    c.say(DREQ, dreq(*ids, theirs.qpn))
    answer = c.hear()
    check("c057 the connection lived until its own end", answer and answer.kind == DREP, said(answer))


def again(c):
    """C026: a peer that died without a word and comes again with its queue pair: stale once, then let in."""
    first = c.connect(c.port, 0x7400, qpn=0x4444)
    c.say(REQ, req(0x7401, c.src, c.dst, c.port, qpn=0x4444))
    answers = [m for m in (c.hear(), c.hear()) if m]
    kinds = {m.kind: m for m in answers}
    refused = REJ in kinds and (kinds[REJ].reason, kinds[REJ].remote_id) == (STALE, 0x7401)
    check("c026 stale, and the old one is torn down", refused and DREQ in kinds, [vars(m) for m in answers])
    c.say(DREP, pair(0x7400, first.local_id), tid=0)
    second = c.connect(c.port, 0x7402, qpn=0x4444)
    check("c026 let in at the second try", second.local_id != first.local_id)
    c.say(DREQ, dreq(0x7402, second.local_id, second.qpn))
    check("c026 and out again", (m := c.hear()) and m.kind == DREP, said(m))
    print("counter stale 1")


def numbers(c):
    """C057: ids and first PSNs of a few hundred connections are no counters."""
    seen = []
    for n in range(300):
        theirs = c.connect(c.port, 0x8000 + n, qpn=0x5000 + n)
        seen.append((theirs.local_id, theirs.psn, theirs.qpn))
        c.say(DREQ, dreq(0x8000 + n, theirs.local_id, theirs.qpn))
        assert c.hear(20), "no DREP"
    # none of the other side's queue pairs has the number of one in time-wait
    check("c026 no queue pair number comes again", len({s[2] for s in seen}) == 300)
    for name, at, size in (("ids", 0, 32), ("PSNs", 1, 24)):
        values = [s[at] for s in seen]
        steps = [(b - a) % (1 << size) for a, b in zip(values, values[1:])]
        ups = sum(step < 1 << (size - 1) for step in steps)
        check(f"c057 {name} cannot be guessed", len(set(values)) == 300 and len(set(steps)) > 295 and 100 < ups < 200,
              f"{len(set(values))} values, {len(set(steps))} steps, {ups} upwards")


def flood(c, count=100_000):
    """So many different REQs at somebody who never reads, as fast as they go."""
    bodies = mad(REQ, req(0, c.src, c.dst, c.deaf), 1)
    start = time.monotonic()
    first = int(start * 100_000) & 0x3FFFFFFF  # none of an earlier flood
    for n in range(first, first + count):
        # another id and another queue pair each
        c.datagram(bodies[:24] + n.to_bytes(4, "big") + bodies[28:56] + (n & 0xFFFFFF).to_bytes(3, "big") + bodies[59:])
        if n % 2000 == 0:
            c.out.receive(0.001)
    print(f"sent {count} in {time.monotonic() - start:.1f} s", flush=True)


def main():
    p = argparse.ArgumentParser()
    for name in ("--src", "--third", "--dst"):
        p.add_argument(name)
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--deaf", type=int, default=0)
    p.add_argument("what", choices=["nonsense", "lies", "unasked", "replay", "strangers", "again", "numbers", "flood"])
    args = p.parse_args()
    client = Client(args.src, args.dst)
    client.port, client.deaf = args.port, args.deaf
    more = [Client(args.third, args.dst)] if args.what == "strangers" else []
    globals()[args.what](client, *more)
    print(f"{sum(map(bool, DONE))} passed, {len(DONE) - sum(map(bool, DONE))} failed")
    sys.exit(not all(DONE))


if __name__ == "__main__":
    main()
