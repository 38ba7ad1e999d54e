"""RoCE v2 packets over IPv4, built from scratch: enough to be a stranger or a scripted peer.

Shares no code with the stack under test. A plain UDP socket with "path MTU probe" sends DF and
identification 0, so that is what the invariant CRC is computed over; frames whose IP and UDP lengths
disagree go through a raw socket.
"""
import socket
import struct
import time
import zlib

PORT = 4791
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3

SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY = 0x00, 0x01, 0x02, 0x04
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY = 0x06, 0x07, 0x08, 0x0A
READ_REQUEST, ACK, CMP_SWAP, FETCH_ADD, ATOMIC_WRITE = 0x0C, 0x11, 0x13, 0x14, 0x1D


def bth(opcode, qpn, psn, pad=0, ack=True, flags=0x40, tver=0, pkey=0xFFFF):
    """12 bytes of base transport header."""
    word = flags & 0xC0 | (pad & 3) << 4 | tver
    return struct.pack("!BBHII", opcode, word, pkey, qpn & 0xFFFFFF, (0x80000000 if ack else 0) | psn & 0xFFFFFF)


def reth(va, rkey, length):
    """16 bytes: virtual address, key, length."""
    return struct.pack("!QII", va, rkey, length)


def atomic_eth(va, rkey, swap_add, compare=0):
    """28 bytes: virtual address, key, swap or add value, compare value."""
    return struct.pack("!QIQQ", va, rkey, swap_add, compare)


def icrc(src, dst, sport, dport, ib, ident=0, flags=0x4000):
    """The invariant CRC of `ib` (BTH up to the pad) behind these IPv4 and UDP headers."""
    total = 20 + 8 + len(ib) + 4
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0xFF, total, ident, flags, 0xFF, 17, 0xFFFF,
                     socket.inet_aton(src), socket.inet_aton(dst))
    udp = struct.pack("!HHHH", sport, dport, total - 20, 0xFFFF)
    masked = ib[:4] + b"\xff" + ib[5:]
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + ip + udp + masked))


class Sender:
    """A UDP socket at an address of ours, and a raw one for frames that lie."""

    def __init__(self, src, dst, sport=PORT, bind=True):
        self.src, self.dst, self.sport = src, dst, sport
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        if bind:
            self.udp.bind((src, sport))
        self.raw = None

    def send(self, ib, good=True, ident=0):
        """One packet: `ib`, then its ICRC, or that with a bit flipped."""
        crc = icrc(self.src, self.dst, self.sport, PORT, ib, ident) if len(ib) >= 5 else b"\0\0\0\0"
        if not good:
            crc = bytes([crc[0] ^ 1]) + crc[1:]
        self.udp.sendto(ib + crc, (self.dst, PORT))

    def send_bytes(self, payload):
        """A UDP payload as it is."""
        self.udp.sendto(payload, (self.dst, PORT))

    def send_lying(self, ib, udp_length, good=True):
        """An IPv4 packet whose UDP length field is `udp_length` whatever follows."""
        if self.raw is None:
            self.raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        crc = icrc(self.src, self.dst, self.sport, PORT, ib)
        if not good:
            crc = b"\0\0\0\0"
        body = struct.pack("!HHHH", self.sport, PORT, udp_length, 0) + ib + crc
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 0, 0x4000, 64, 17, 0,
                         socket.inet_aton(self.src), socket.inet_aton(self.dst))
        self.raw.sendto(ip + body, (self.dst, 0))

    def receive(self, timeout=0.5):
        """The next UDP payload that comes back, or None. Of what is for the general services (queue pair 1)
        only connection management is one: the other host asks there who we are, and gets no answer."""
        end = time.monotonic() + timeout
        while True:
            self.udp.settimeout(max(0.0001, end - time.monotonic()))
            try:
                packet = self.udp.recv(65536)
            except (socket.timeout, BlockingIOError):
                return None
            if packet[5:8] != b"\0\0\1" or packet[21] == 7:
                return packet


def is_nak(packet, code=None):
    """Is this an acknowledge packet with a negative syndrome (of this code)?"""
    return (packet is not None and len(packet) >= 16 and packet[0] == ACK and packet[12] & 0xE0 == 0x60
            and (code is None or packet[12] & 0x1F == code))
