#!/usr/bin/env python3
"""Bulk and latency over one veth pair, beside what the sockets below give.

    tools/bench/bench.py [--rounds 7] [--mtu 4300] [--seconds 3] [--quick] [--json FILE]

Rounds are interleaved: each measures every row once, so that a machine whose speed drifts is unfair
to all alike. Nothing is pinned. Prints medians with their spread, then the ratios beside their
goals; the JSON has every single figure. A missed goal is printed, and is no failure: on a busy
machine it says nothing. `--quick` is one short round and judges nothing: it shows that all of it
runs.

A core of a virtual machine may be half of one, whose other half is a neighbour's: while that one
works, code takes twice as long, here for seconds at a time. So each latency is measured where a
piece of arithmetic takes, on every core just before and just after, what it takes at best
(cores.c); otherwise again, many times if need be. How often that was is printed, and how often
something takes a core away altogether: each time that is a microsecond or three, and often costs the
processor its address translations, so that the next message takes twice as long.

  bulk     ib_write_bw -s 65536 and -s 1048576     against iperf3, one TCP stream
           ib_write_bw -s 4096                     against ucx_perftest, put over TCP
  latency  ib_send_lat -s 64, ib_write_lat -s 64   against a raw UDP ping-pong that spins
           (typical values)

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
ROCEBUD = os.environ.get("ROCEBUD_BIN") or str(ROOT / "build/bin/rocebud")
TESTS = ROOT / "build/tests"
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


def latency(program, count):
    """Microseconds, typical (perftest's figures are half round trips)."""
    out = perftest(program, "-s", "64", "-n", str(count))
    for line in out.splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[0] == "64":
            return float(fields[4])
    raise SystemExit(f"no figure in\n{out}")


def ucx_put(count):
    """Gbit/s of 4 KiB puts over TCP, the whole run."""
    base = ["env", "UCX_TLS=tcp", "UCX_NET_DEVICES=ve0", "ucx_perftest", "-p", "13337"]
    out = duo(base, [*base, ADDR_A, "-t", "ucp_put_bw", "-s", "4096", "-n", str(count), "-f", "-v"], 13337)
    lines = [line.split(",") for line in out.splitlines() if line.count(",") >= 6]
    names = [i for i, line in enumerate(lines) if "overall_bw" in line]
    if not names:
        raise SystemExit(f"no figure in\n{out}")
    header, figures = lines[names[-1]], lines[-1]
    # Its megabytes are powers of two.
    return float(figures[header.index("overall_bw")]) * 2**20 * 8 / 1e9


def iperf(seconds):
    """Gbit/s received, one TCP stream."""
    out = duo(["iperf3", "-s", "-1"], ["iperf3", "-c", ADDR_A, "-t", str(seconds), "-J"], 5201)
    return json.loads(out)["end"]["sum_received"]["bits_per_second"] / 1e9


def udp_pingpong():
    """Microseconds, half round trip of 64 bytes between two spinning sockets."""
    program = str(TESTS / "udp_pingpong")
    out = duo([program, "4999"], [program, "4999", ADDR_A], 4999, udp=True)
    m = re.search(r"median\s+([\d.]+)", out)
    if not m:
        raise SystemExit(f"no figure in\n{out}")
    return float(m[1])


class Cores:
    """Whether every core does as much as it can."""

    # Of what a piece of arithmetic takes at best. A neighbour makes it 1.3 to 2.5, and little else does.
    ENOUGH = 1.15
    # Longest waits for such a moment, and runs, for one figure.
    WAIT_S = 20
    TRIES = 40

    def __init__(self):
        self.best = float("inf")
        self.repeated = self.disturbed = 0
        # Of the core that is taken away most, each time that was looked.
        self.taken = []

    def are_ours(self):
        out = subprocess.run([str(TESTS / "cores"), "40"], capture_output=True, text=True, check=True).stdout
        best, taken, typical = (int(out.split(word)[1].split()[0]) for word in ("best", "taken", "typical"))
        self.best = min(self.best, best)
        self.taken.append(taken)
        return typical <= self.ENOUGH * self.best

    def wait(self):
        until = time.monotonic() + self.WAIT_S
        while not (ours := self.are_ours()) and time.monotonic() < until:
            time.sleep(0.2)
        return ours

    def undisturbed(self, run):
        """The figure of a run with the cores to itself; of the last one, if there was none."""
        for _ in range(self.TRIES):
            before = self.wait()
            figure = run()
            if before and self.are_ours():
                return figure
            if not before:
                break
            self.repeated += 1
        self.disturbed += 1
        return figure


def measure(seconds, count, cores):
    """One round: every row once. `count` = messages of the rows that count."""
    latencies = {
        "udp_half_rtt_us": udp_pingpong,
        "send_lat_64_us": lambda: latency("ib_send_lat", count),
        "write_lat_64_us": lambda: latency("ib_write_lat", count),
    }
    return {
        "iperf3_gbps": iperf(seconds),
        "write_bw_64k_gbps": write_bw(65536, seconds),
        "write_bw_1m_gbps": write_bw(1048576, seconds),
        "ucx_put_4k_gbps": ucx_put(10 * count),
        "write_bw_4k_gbps": write_bw(4096, seconds),
        **{name: cores.undisturbed(run) if cores else run() for name, run in latencies.items()},
    }


# What is judged: the ratio of two medians, and its goal.
GOALS = (
    ("write_bw_64k_gbps", "iperf3_gbps", ">=", 0.6),
    ("write_bw_1m_gbps", "iperf3_gbps", ">=", 0.6),
    ("write_bw_4k_gbps", "ucx_put_4k_gbps", ">=", 1.5),
    ("send_lat_64_us", "udp_half_rtt_us", "<=", 1.8),
    ("write_lat_64_us", "udp_half_rtt_us", "<=", 4.0),
)


def spread(values):
    low, high = min(values), max(values)
    quarters = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [low, low, high]
    return {"median": statistics.median(values), "min": low, "q1": quarters[0], "q3": quarters[2], "max": high}


def summary(rounds):
    rows = {name: spread([r[name] for r in rounds]) for name in rounds[0]}
    ratios = []
    for of, to, sense, goal in GOALS:
        ratio = rows[of]["median"] / rows[to]["median"]
        met = ratio >= goal if sense == ">=" else ratio <= goal
        ratios.append({"of": of, "to": to, "ratio": ratio, "goal": f"{sense} {goal}", "met": met})
    return rows, ratios


def show(rows, ratios, judged):
    print(f"{'':20} {'median':>8} {'min':>8} {'quartiles':>17} {'max':>8}")
    for name, r in rows.items():
        print(f"{name:20} {r['median']:8.2f} {r['min']:8.2f} {r['q1']:8.2f} {r['q3']:8.2f} {r['max']:8.2f}")
    print()
    for r in ratios:
        verdict = "" if not judged else "met" if r["met"] else "MISSED"
        print(f"{r['of'] + ' / ' + r['to']:40} {r['ratio']:6.2f}   goal {r['goal']:7} {verdict}")


GIDS = {}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--mtu", type=int, default=4300)
    p.add_argument("--seconds", type=int, default=3)
    p.add_argument("--quick", action="store_true", help="one short round, nothing is judged")
    p.add_argument("--json", default=str(ROOT / "build/bench.json"))
    args = p.parse_args()
    count = 20000
    if args.quick:
        args.rounds, args.seconds, count = 1, 1, 2000
    if os.getuid() != 0:
        raise SystemExit("bench: needs root, for two network namespaces")
    if not os.access(ROCEBUD, os.X_OK):
        raise SystemExit(f"bench: {ROCEBUD} is no program: run `make build`, or let ROCEBUD_BIN name one")
    TESTS.mkdir(parents=True, exist_ok=True)
    for program in ("udp_pingpong", "cores"):
        sh("cc", "-O2", "-pthread", "-o", str(TESTS / program), str(ROOT / f"tools/bench/{program}.c"))
    cores = None if args.quick else Cores()
    wire(args.mtu)
    try:
        GIDS.update({A: gid_index(A, ADDR_A), B: gid_index(B, ADDR_B)})
        rounds = []
        for i in range(args.rounds):
            rounds.append(measure(args.seconds, count, cores))
            print(f"round {i + 1}:", "  ".join(f"{k} {v:.2f}" for k, v in rounds[-1].items()), flush=True)
    finally:
        unwire()
    rows, ratios = summary(rounds)
    show(rows, ratios, judged=not args.quick)
    result = {"mtu": args.mtu, "rounds": rounds, "rows": rows, "ratios": ratios}
    if cores:
        taken = round(statistics.median(cores.taken))
        result |= {"latencies_repeated": cores.repeated, "latencies_disturbed": cores.disturbed,
                   "core_taken_away_per_s": taken}
        print(f"\nlatency: {cores.repeated} runs were disturbed by a neighbour on the cores, and repeated;"
              f" {cores.disturbed} of {3 * args.rounds} figures are of a disturbed run\n"
              f"a core was taken away {taken} times a second")
    Path(args.json).write_text(json.dumps(result, indent=1))
    print("written:", args.json)


if __name__ == "__main__":
    sys.exit(main())
