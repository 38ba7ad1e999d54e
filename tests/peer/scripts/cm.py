"""Messages of the connection manager, built and read from scratch: enough to be a client that lies.

Shares no code with the stack under test. A message is a management datagram of 256 bytes in a datagram to
queue pair 1.
"""
import socket
import struct
import time

from roce import Sender, bth

UD_SEND_ONLY, QP1, QKEY = 0x64, 1, 0x80010000
CLASS_CM, CLASS_VERSION, METHOD_SEND = 7, 2, 3
REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR = range(0x10, 0x1B)
CONSUMER, INVALID_SERVICE, INVALID_ID, STALE, BAD_TRANSPORT, BAD_MTU = 28, 8, 6, 10, 9, 26


def service(port):
    """The service id of a port of RDMA_PS_TCP."""
    return 0x01060000 + port


def mad(kind, body, tid, base=1, mclass=CLASS_CM, version=CLASS_VERSION, method=METHOD_SEND):
    """A whole datagram of management."""
    head = struct.pack("!BBBBIQHHI", base, mclass, version, method, 0, tid, kind, 0, 0)
    return (head + body).ljust(256, b"\0")


def gid(address):
    """An IPv4 address as a GID."""
    return b"\0" * 10 + b"\xff\xff" + socket.inet_aton(address)


def req(local_id, src, dst, port, qpn=0x4321, guid=0x1122334455667788, psn=0x654321, **lies):
    """The body of a REQ for RDMA_PS_TCP. `lies` are fields that are not as they should be."""
    service_id, mtu = lies.get("service", service(port)), lies.get("mtu", 3)
    body = struct.pack("!II QQ II", local_id, 0, service_id, guid, 0, 0)
    body += qpn.to_bytes(3, "big") + bytes([1]) + bytes(3) + bytes([1]) + bytes(3)
    body += bytes([20 << 3 | lies.get("transport", 0) << 1]) + psn.to_bytes(3, "big") + bytes([20 << 3 | 7])
    body += struct.pack("!HBBHH", 0xFFFF, mtu << 4 | 7, 15 << 4 | lies.get("extended", 0), 0xFFFF, 0xFFFF)
    body += gid(src) + gid(dst) + bytes(5) + bytes([64, 0, 14 << 3]) + bytes(44)
    header = bytes([lies.get("cma_version", 0), lies.get("ip", 4) << 4]) + struct.pack("!H", 7)
    header += bytes(12) + socket.inet_aton(lies.get("ip_src", src)) + bytes(12) + socket.inet_aton(lies.get("ip_dst", dst))
    assert len(body) == 140
    return body + header


def pair(local_id, remote_id, rest=b""):
    """The body of a message that names both ids."""
    return struct.pack("!II", local_id, remote_id) + rest


def rep(local_id, remote_id, qpn=0x4321):
    """The body of a REP."""
    return pair(local_id, remote_id, bytes(4) + qpn.to_bytes(3, "big") + bytes(9) + bytes([1, 1, 0x78, 0xE0]) + b"\x55" * 8)


def dreq(local_id, remote_id, remote_qpn):
    """The body of a DREQ."""
    return pair(local_id, remote_id, remote_qpn.to_bytes(3, "big"))


def rej(local_id, remote_id, reason, message=0):
    """The body of a REJ."""
    return pair(local_id, remote_id, bytes([message << 6, 0]) + struct.pack("!H", reason))


class Message:
    """What came: its kind, ids, and what else is wanted of it."""

    def __init__(self, bytes_):
        self.kind, = struct.unpack("!H", bytes_[16:18])
        body = bytes_[24:]
        self.local_id, self.remote_id = struct.unpack("!II", body[:8])
        self.reason, = struct.unpack("!H", body[10:12])
        self.qpn, self.psn = (int.from_bytes(body[at:at + 3], "big") for at in (12, 20))


class Client:
    """Queue pair 1 of a host that runs no stack: whatever it likes, at its own address."""

    def __init__(self, src, dst):
        self.src, self.dst, self.psn, self.tid = src, dst, 0, 0x1000
        self.out = Sender(src, dst)

    def datagram(self, payload, qkey=QKEY, good=True, opcode=UD_SEND_ONLY, qpn=QP1):
        """Any bytes to queue pair 1; they are padded to four."""
        pad = -len(payload) % 4
        head = bth(opcode, qpn, self.psn, pad, ack=False) + struct.pack("!II", qkey, QP1)
        self.psn += 1
        self.out.send(head + payload + bytes(pad), good)

    def say(self, kind, body, tid=None, **header):
        """A message; its own transaction unless there is one."""
        if tid is None:
            tid = self.tid = self.tid + 1
        self.datagram(mad(kind, body, tid, **header))

    def hear(self, timeout=5.0):
        """The next message of the connection manager, or None."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            packet = self.out.receive(left)
            if packet and len(packet) == 280 and packet[0] == UD_SEND_ONLY and packet[21] == CLASS_CM:
                return Message(packet[20:276])
        return None

    def hear_all(self, silence=0.3):
        """What comes until it is silent for a while."""
        all_ = []
        while (message := self.hear(silence)) is not None:
            all_.append(message)
        return all_

    def connect(self, port, local_id, qpn=0x4321):
        """A connection as it should be: the REP that came."""
        self.say(REQ, req(local_id, self.src, self.dst, port, qpn=qpn))
        answer = self.hear(20)
        assert answer and answer.kind == REP, f"no REP: {answer and vars(answer)}"
        self.say(RTU, pair(local_id, answer.local_id))
        return answer
