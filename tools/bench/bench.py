#!/usr/bin/env python3
"""Bulk and latency over one veth pair, beside what the sockets below give.

    tools/bench/bench.py [--rounds 7] [--mtu 4300] [--seconds 3] [--json FILE]

Rounds are interleaved: each measures every row once, so that a machine whose speed drifts is unfair
to all alike. Nothing is pinned. Prints medians and ratios; the JSON has every single figure.

  bulk     ib_write_bw -s 65536 and -s 1048576     against iperf3, one TCP stream
  latency  ib_send_lat -s 64 (typical)             against a raw UDP ping-pong that spins

Root: it makes two namespaces and removes them.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROCEBUD = os.environ.get("ROCEBUD_BIN", str(ROOT / "build/bin/rocebud"))
A, B = f"rbbench{os.getpid()}a", f"rbbench{os.getpid()}b"
ADDR_A, ADDR_B = "10.79.0.1", "10.79.0.2"


def sh(*words):
    subprocess.run(words, check=True)


def in_ns(ns, words):
    return ["ip", "netns", "exec", ns, *words]


def wire(mtu):
    """Two namespaces and a veth pair between them."""
    for ns in (A, B):
        sh("ip", "netns", "add", ns)
        sh("ip", "-n", ns, "link", "set", "lo", "up")
    sh("ip", "link", "add", "ve0", "netns", A, "type", "veth", "peer", "name", "ve0", "netns", B)
    for ns, address in ((A, ADDR_A), (B, ADDR_B)):
        sh("ip", "-n", ns, "link", "set", "ve0", "mtu", str(mtu), "up")
        sh("ip", "-n", ns, "addr", "add", f"{address}/24", "dev", "ve0")


def unwire():
    """Ends what the programs started in the namespaces (the daemons), and removes them."""
    for ns in (A, B):
        pids = subprocess.run(["ip", "netns", "pids", ns], capture_output=True, text=True).stdout.split()
        if pids:
            subprocess.run(["kill", *pids])
        subprocess.run(["ip", "netns", "del", ns])


def listening(ns, port, udp):
    flags = "-Hlun" if udp else "-Hltn"
    for _ in range(200):
        out = subprocess.run(in_ns(ns, ["ss", flags, f"sport = :{port}"]), capture_output=True, text=True)
        if out.stdout.strip():
            return
        time.sleep(0.02)
    raise SystemExit(f"nothing listens on port {port} in {ns}")


def duo(server, client, port, udp=False, limit=120):
    """Server in A, client in B; the client's output."""
    s = subprocess.Popen(in_ns(A, server), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        listening(A, port, udp)
        c = subprocess.run(in_ns(B, client), capture_output=True, text=True, timeout=limit)
        if c.returncode:
            raise SystemExit(f"{' '.join(client)}: exit {c.returncode}\n{c.stdout}{c.stderr}")
        s.wait(timeout=20)
        return c.stdout
    finally:
        if s.poll() is None:
            s.kill()
        s.wait()


def gid_index(ns, address):
    out = subprocess.run(in_ns(ns, [ROCEBUD, "run", "--", "ibv_devinfo", "-v", "-d", "rb_ve0"]),
                         capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        m = re.match(r"\s*GID\[\s*(\d+)\]:\s*(\S+?),", line)
        if m and m[2] == f"::ffff:{address}":
            return m[1]
    raise SystemExit(f"no GID for {address} in\n{out}")


def perftest(program, *options):
    """One run of a perftest program between A and B; its client's output."""
    base = [ROCEBUD, "run", "--", program, "-F", "-d", "rb_ve0", *options]
    return duo(base + ["-x", GIDS[A]], base + ["-x", GIDS[B], ADDR_A], 18515)


def write_bw(size, seconds):
    """Gbit/s, average."""
    out = perftest("ib_write_bw", "-s", str(size), "-D", str(seconds), "--report_gbits")
    for line in out.splitlines():
        fields = line.split()
        if fields and fields[0] == str(size):
            return float(fields[3])
    raise SystemExit(f"no figure in\n{out}")


def send_lat():
    """Microseconds, typical (perftest's figures are half round trips)."""
    out = perftest("ib_send_lat", "-s", "64", "-n", "20000")
    for line in out.splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[0] == "64":
            return float(fields[4])
    raise SystemExit(f"no figure in\n{out}")


def iperf(seconds):
    """Gbit/s received, one TCP stream."""
    out = duo(["iperf3", "-s", "-1"], ["iperf3", "-c", ADDR_A, "-t", str(seconds), "-J"], 5201)
    return json.loads(out)["end"]["sum_received"]["bits_per_second"] / 1e9


def udp_pingpong():
    """Microseconds, half round trip of 64 bytes between two spinning sockets."""
    program = str(ROOT / "build/tests/udp_pingpong")
    out = duo([program, "4999"], [program, "4999", ADDR_A], 4999, udp=True)
    m = re.search(r"median\s+([\d.]+)", out)
    if not m:
        raise SystemExit(f"no figure in\n{out}")
    return float(m[1])


def measure(seconds):
    return {
        "iperf3_gbps": iperf(seconds),
        "write_bw_64k_gbps": write_bw(65536, seconds),
        "write_bw_1m_gbps": write_bw(1048576, seconds),
        "udp_half_rtt_us": udp_pingpong(),
        "send_lat_64_us": send_lat(),
    }


def summary(rounds):
    m = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    return m, {
        "write_bw_64k / iperf3": m["write_bw_64k_gbps"] / m["iperf3_gbps"],
        "write_bw_1m / iperf3": m["write_bw_1m_gbps"] / m["iperf3_gbps"],
        "send_lat_64 / udp": m["send_lat_64_us"] / m["udp_half_rtt_us"],
    }


GIDS = {}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--mtu", type=int, default=4300)
    p.add_argument("--seconds", type=int, default=3)
    p.add_argument("--json", default=str(ROOT / "build/bench.json"))
    args = p.parse_args()
    if os.getuid() != 0:
        raise SystemExit("bench: needs root, for two network namespaces")
    (ROOT / "build/tests").mkdir(parents=True, exist_ok=True)
    sh("cc", "-O2", "-o", str(ROOT / "build/tests/udp_pingpong"), str(ROOT / "tools/bench/udp_pingpong.c"))
    wire(args.mtu)
    try:
        GIDS.update({A: gid_index(A, ADDR_A), B: gid_index(B, ADDR_B)})
        rounds = []
        for i in range(args.rounds):
            rounds.append(measure(args.seconds))
            print(f"round {i + 1}:", "  ".join(f"{k} {v:.2f}" for k, v in rounds[-1].items()), flush=True)
    finally:
        unwire()
    medians, ratios = summary(rounds)
    for name, value in {**medians, **ratios}.items():
        print(f"{name:28} {value:8.2f}")
    Path(args.json).write_text(json.dumps({"mtu": args.mtu, "rounds": rounds, "medians": medians, "ratios": ratios}, indent=1))
    print("written:", args.json)


if __name__ == "__main__":
    sys.exit(main())
