#!/usr/bin/env python3
"""Checks every RoCE packet of packet captures, with no code of the stack that made them.

    icrc_pcap.py [-v] [--at-least N] [--no-df] [--offload] FILE.pcap...
    icrc_pcap.py --self-test tests/golden/*.pcap tests/golden/packets.txt

Needs nothing but Python 3. Reads classic pcap (either byte order, micro- or nanoseconds) of
Ethernet with or without VLAN tags, Linux cooked (v1, v2) and raw IP. Recomputes the invariant
CRC from the bytes with zlib, and checks IP and UDP lengths, the IPv4 checksum and "don't
fragment", the UDP checksum where there is one, opcode, header lengths, pad count and pad bytes.
Prints the number of packets per opcode. Exit status: 0 all right, 1 a wrong packet (or fewer than
N, default 1, in a file), 2 unreadable file.
"""
import argparse
import collections
import struct
import sys
import zlib

PORT = 4791
RETH, ATOMIC, AETH, ATOMIC_ACK, IMM, IETH, FETH = 16, 28, 4, 8, 4, 4, 4
# Operation: name, bytes of headers after the BTH in RC, payload ("full", "some", "any", or bytes).
OPERATIONS = {
    0x00: ("SEND_FIRST", 0, "full"), 0x01: ("SEND_MIDDLE", 0, "full"),
    0x02: ("SEND_LAST", 0, "some"), 0x03: ("SEND_LAST_IMM", IMM, "some"),
    0x04: ("SEND_ONLY", 0, "any"), 0x05: ("SEND_ONLY_IMM", IMM, "any"),
    0x06: ("WRITE_FIRST", RETH, "full"), 0x07: ("WRITE_MIDDLE", 0, "full"),
    0x08: ("WRITE_LAST", 0, "some"), 0x09: ("WRITE_LAST_IMM", IMM, "some"),
    0x0A: ("WRITE_ONLY", RETH, "any"), 0x0B: ("WRITE_ONLY_IMM", RETH + IMM, "any"),
    0x0C: ("READ_REQUEST", RETH, 0), 0x0D: ("READ_RESPONSE_FIRST", AETH, "full"),
    0x0E: ("READ_RESPONSE_MIDDLE", 0, "full"), 0x0F: ("READ_RESPONSE_LAST", AETH, "some"),
    0x10: ("READ_RESPONSE_ONLY", AETH, "any"), 0x11: ("ACKNOWLEDGE", AETH, 0),
    0x12: ("ATOMIC_ACKNOWLEDGE", AETH + ATOMIC_ACK, 0), 0x13: ("CMP_SWAP", ATOMIC, 0),
    0x14: ("FETCH_ADD", ATOMIC, 0), 0x16: ("SEND_LAST_INV", IETH, "some"),
    0x17: ("SEND_ONLY_INV", IETH, "any"), 0x1C: ("FLUSH", FETH + RETH, 0),
    0x1D: ("ATOMIC_WRITE", RETH, 8),
}
RESPONSES = {0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12}
PMTUS = {256, 512, 1024, 2048, 4096}


class Wrong(Exception):
    """A packet that breaks a rule."""


class Unreadable(Exception):
    """Not a capture that this program reads."""


def opcode_info(op):
    """(name, header bytes after the BTH, payload rule), or None."""
    kind, operation = op >> 5, op & 0x1F
    if op == 0x81:
        return "CNP", 0, 16
    if kind == 3:
        extra = {0x04: 8, 0x05: 8 + IMM}.get(operation)
        return None if extra is None else ("UD_" + OPERATIONS[operation][0], extra, "any")
    if operation not in OPERATIONS:
        return None
    name, extra, payload = OPERATIONS[operation]
    if kind == 0:
        return "RC_" + name, extra, payload
    if kind == 1 and operation <= 0x0B:
        return "UC_" + name, extra, payload
    if kind == 5 and operation != 0x1D:
        return "XRC_" + name, extra + (0 if operation in RESPONSES else 4), payload
    return None


def records(data):
    """Yields (link type, captured bytes, length on the wire) of a pcap file."""
    magics = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<",
              b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}
    if data[:4] == b"\x0a\x0d\x0d\x0a":
        raise Unreadable("pcapng; write classic pcap (tcpdump -w does)")
    order = magics.get(data[:4])
    if order is None or len(data) < 24:
        raise Unreadable("not a pcap file")
    link = struct.unpack_from(order + "I", data, 20)[0] & 0x0FFFFFFF
    at = 24
    while at < len(data):
        if at + 16 > len(data):
            raise Unreadable("cut in a record header")
        captured, length = struct.unpack_from(order + "8xII", data, at)
        at += 16
        if at + captured > len(data):
            raise Unreadable("cut in a packet")
        yield link, data[at:at + captured], length
        at += captured


def network(link, frame):
    """(Ethernet type, bytes from the network header on); type 0 for none."""
    if link in (12, 101, 228, 229):  # raw IP
        return ({4: 0x0800, 6: 0x86DD}.get(frame[0] >> 4, 0) if frame else 0), frame
    if link == 1:
        at = 12
    elif link == 113:  # Linux cooked
        at = 14
    elif link == 276:  # Linux cooked v2: the protocol comes first, then 18 bytes more
        if len(frame) < 20:
            return 0, b""
        kind, rest = struct.unpack_from(">H", frame)[0], frame[20:]
        return untag(kind, rest)
    else:
        raise Unreadable("link type %d" % link)
    if len(frame) < at + 2:
        return 0, b""
    return untag(struct.unpack_from(">H", frame, at)[0], frame[at + 2:])


def untag(kind, rest):
    """Drops VLAN tags."""
    while kind in (0x8100, 0x88A8, 0x9100) and len(rest) >= 4:
        kind, rest = struct.unpack_from(">H", rest, 2)[0], rest[4:]
    return kind, rest


def checksum(data):
    """Internet checksum; 0 over data that contains a right one."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(">%dH" % (len(data) // 2), data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def icrc(head, ib):
    """CRC over eight bytes of ones, the masked headers and the packet; as four wire bytes."""
    masked = bytearray(ib)
    masked[4] = 0xFF  # FECN, BECN and reserved bits of the BTH
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(head) + bytes(masked)))


def check_v4(packet, want_df):
    """Returns (masked IPv4 header, pseudo header, UDP datagram); None if it is not for us."""
    if len(packet) < 20:
        return None
    if packet[9] != 17:
        return None
    words = (packet[0] & 15) * 4
    udp = packet[words:]
    if len(udp) < 8 or struct.unpack_from(">H", udp, 2)[0] != PORT:
        return None
    if packet[0] != 0x45:
        raise Wrong("IPv4 version or options: first byte %#x" % packet[0])
    total, flags = struct.unpack_from(">H2xH", packet, 2)
    if flags & 0x3FFF:
        raise Wrong("a fragment")
    if flags & 0x8000:
        raise Wrong("reserved IPv4 flag")
    if want_df and not flags & 0x4000:
        raise Wrong("DF is not set")
    if checksum(packet[:20]) != 0:
        raise Wrong("IPv4 header checksum")
    if total > len(packet):
        raise Wrong("IPv4 length %d, but %d bytes" % (total, len(packet)))
    head = bytearray(packet[:20])
    head[1] = head[8] = 0xFF
    head[10:12] = b"\xff\xff"
    udp = packet[20:total]
    return head, packet[12:20] + struct.pack(">HH", 17, len(udp)), udp


def check_v6(packet, next_header):
    """Returns (masked header, pseudo header, what follows); None if it is not for us."""
    if len(packet) < 40 or packet[6] != next_header:
        return None
    if next_header == 17 and (len(packet) < 48 or struct.unpack_from(">H", packet, 42)[0] != PORT):
        return None
    if packet[0] >> 4 != 6:
        raise Wrong("IP version %d" % (packet[0] >> 4))
    length = struct.unpack_from(">H", packet, 4)[0]
    if 40 + length > len(packet):
        raise Wrong("IPv6 length %d, but %d bytes" % (length, len(packet) - 40))
    head = bytearray(packet[:40])
    head[0:4] = b"\x6f\xff\xff\xff"
    head[7] = 0xFF
    rest = packet[40:40 + length]
    return head, packet[8:40] + struct.pack(">IHH", len(rest), 0, 17), rest


offload = False  # --offload: a checksum that holds only the pseudo header is the device's to finish


def check_udp(pseudo, udp):
    """Returns the masked header and the payload."""
    if len(udp) < 8:
        raise Wrong("IP length leaves no room for UDP")
    length, given = struct.unpack_from(">HH", udp, 4)
    if length != len(udp):
        raise Wrong("UDP length %d, but IP leaves %d" % (length, len(udp)))
    if given and checksum(pseudo + udp) != 0 and not (offload and given == checksum(pseudo) ^ 0xFFFF):
        raise Wrong("UDP checksum %04x" % given)
    return udp[:6] + b"\xff\xff", udp[8:]


def check_ib(ib):
    """Checks BTH to pad; returns the opcode's name."""
    if len(ib) < 16:
        raise Wrong("%d bytes are no packet" % len(ib))
    info = opcode_info(ib[0])
    if info is None:
        raise Wrong("undefined opcode %#04x" % ib[0])
    name, extra, rule = info
    if ib[1] & 15:
        raise Wrong("%s: transport version %d" % (name, ib[1] & 15))
    pad = ib[1] >> 4 & 3
    payload = len(ib) - 12 - extra - pad - 4
    if payload < 0:
        raise Wrong("%s: %d bytes are too few" % (name, len(ib)))
    if (payload + pad) % 4:
        raise Wrong("%s: pad count %d after %d bytes" % (name, pad, payload))
    if any(ib[len(ib) - 4 - pad:len(ib) - 4]):
        raise Wrong("%s: pad bytes are not zero" % name)
    if ib[4] & 0x3F or ib[8] & 0x7F:
        raise Wrong("%s: reserved bits of the BTH" % name)
    if payload > 4096:
        raise Wrong("%s: %d bytes of payload; was this captured before segmentation? "
                    "(ethtool -K IF tx-udp-segmentation off)" % (name, payload))
    fits = {"full": payload in PMTUS, "some": payload > 0, "any": True}
    if not fits.get(rule, payload == rule):
        raise Wrong("%s: %d bytes of payload" % (name, payload))
    return name


def check(link, frame, want_df):
    """Name of the opcode of a right RoCE packet, None for other traffic; raises Wrong."""
    kind, packet = network(link, frame)
    if kind == 0x0800:
        found = check_v4(packet, want_df)
    elif kind == 0x86DD:
        found = check_v6(packet, 17)
    elif kind == 0x8915:
        found = check_v6(packet, 0x1B)
        if found is None:
            raise Wrong("RoCE v1 type without a GRH")
    else:
        return None
    if found is None:
        return None
    head, pseudo, rest = found
    if kind == 0x8915:
        ib = rest
    else:
        udp, ib = check_udp(pseudo, rest)
        head = bytes(head) + udp
    name = check_ib(ib)
    right = icrc(head, ib[:-4])
    if right != ib[-4:]:
        raise Wrong("%s: ICRC %s on the wire, %s computed" % (name, ib[-4:].hex(), right.hex()))
    return name


def check_file(path, options):
    """Prints a line for the file; returns the number of wrong packets."""
    with open(path, "rb") as file:
        data = file.read()
    counts, wrong, other = collections.Counter(), 0, 0
    for number, (link, frame, length) in enumerate(records(data), 1):
        try:
            name = check(link, frame, not options.no_df)
            if name and len(frame) < length:
                raise Wrong("captured in part (tcpdump -s 0 takes all)")
        except Wrong as reason:
            wrong += 1
            print("%s: packet %d: %s" % (path, number, reason), file=sys.stderr)
            continue
        if name is None:
            other += 1
            continue
        counts[name] += 1
        if options.verbose:
            print("%s: packet %d: %s" % (path, number, name))
    total = sum(counts.values()) + wrong
    listed = ", ".join("%s %d" % pair for pair in sorted(counts.items()))
    print("%s: %d RoCE packets, %d wrong, %d other; %s" % (path, total, wrong, other, listed))
    if total < options.at_least:
        print("%s: fewer than %d RoCE packets" % (path, options.at_least), file=sys.stderr)
        wrong += 1
    return wrong


def load(path):
    """Yields (is right, link type, frame) of a capture or of a packets.txt."""
    with open(path, "rb") as file:
        data = file.read()
    if not path.endswith(".txt"):
        for link, frame, _ in records(data):
            yield True, link, frame
        return
    lines = [x for x in data.decode().splitlines() if x and not x.startswith("#")]
    for head, text in zip(lines[0::2], lines[1::2]):
        name, layer = [x.strip() for x in head.split("|")][:2]
        yield not name.startswith("BAD-"), 1 if layer == "eth" else 101, bytes.fromhex(text)


def verdict(link, frame):
    try:
        return check(link, frame, False)
    except Wrong:
        return "wrong"


def self_test(paths):
    """Right packets pass, and one flipped bit in any byte that is not variant is noticed."""
    failures = packets = flips = 0
    for path in paths:
        for number, (right, link, frame) in enumerate(load(path), 1):
            packets += 1
            # Names that start with BAD- are wrong, or not for our port at all.
            if (verdict(link, frame) in ("wrong", None)) == right:
                print("%s: packet %d: verdict %s" % (path, number, verdict(link, frame)))
                failures += 1
            if not right or number > 40:
                continue
            kind, packet = network(link, frame)
            start = len(frame) - len(packet)
            four = kind == 0x0800
            # Variant: IPv4 TOS and TTL (under the header's checksum), IPv6 class, label and hops.
            udp = 0 if kind == 0x8915 else 8
            length = 20 if four else 40
            variant = {length + udp + 4}
            variant |= set() if four else {0, 1, 2, 3, 7}
            variant |= {length + 6, length + 7} if udp else set()
            for at in range(len(packet)):
                if at in variant:
                    continue
                bad = bytearray(frame)
                bad[start + at] ^= 1 << (at % 8)
                flips += 1
                # A flip may also make it another protocol's packet: then it is not counted as right.
                if verdict(link, bytes(bad)) not in ("wrong", None):
                    print("%s: packet %d: a flip in byte %d was not noticed" % (path, number, at))
                    failures += 1
            cooked = b"\0" * 14 + struct.pack(">H", kind) + packet
            cooked2 = struct.pack(">H", kind) + b"\0" * 18 + packet
            tagged = b"\0" * 12 + struct.pack(">HHH", 0x8100, 7, kind) + packet
            for link2, again in ((113, cooked), (276, cooked2), (1, tagged)):
                if verdict(link2, again) != verdict(link, frame):
                    print("%s: packet %d: link type %d" % (path, number, link2))
                    failures += 1
    print("%d packets, %d flips, %d failures" % (packets, flips, failures))
    return failures


def main():
    parser = argparse.ArgumentParser(description="checks every RoCE packet of packet captures")
    parser.add_argument("-v", "--verbose", action="store_true", help="name every packet")
    parser.add_argument("--at-least", type=int, default=1, metavar="N",
                        help="wrong if a file has fewer RoCE packets (default 1)")
    parser.add_argument("--no-df", action="store_true", help="IPv4 without DF is right too")
    parser.add_argument("--self-test", action="store_true", help="test this program on right files")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--offload", action="store_true",
                        help="a UDP checksum left to the sending device (veth never makes it) is right too")
    options = parser.parse_args()
    global offload
    offload = options.offload
    try:
        if options.self_test:
            return 1 if self_test(options.files) else 0
        return 1 if sum([check_file(path, options) for path in options.files]) else 0
    except (Unreadable, OSError) as reason:
        print("icrc_pcap.py: %s" % reason, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
