#!/usr/bin/env python3
"""rdma-core's own test-suite, as the distribution ships it, against our devices.

    tests/abi/conformance/run.py [--build DIR] [--update] [--seed N] [WORD...]

Runs the tests whose ids contain one of the words (all without words) and
compares each test's outcome with outcomes.tsv: a test that stops being `ok`, or
does better than the list says, is a failure. `--update` writes what was seen
into the list. Makes a network namespace of its own with a veth pair; as an
ordinary user inside a user namespace, if the machine allows those.
"""
import argparse
import gzip
import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIST = HERE / "outcomes.tsv"
SUITE = Path("/usr/share/doc/rdma-core/tests")
PYTHON = "/usr/bin/python3"
# A path MTU of 4096 fits, and the suite's tests of it run.
MTU = 4300
# Most tests take well under a second; a busy machine is no reason to call one hung.
TEST_SECONDS_MAX = 60
HUGE_PAGES = 64
HUGE_PAGES_A_TEST = 4
INSIDE = "ROCEBUD_CONFORMANCE_INSIDE"


class Promise:
    """A line of the list."""

    def __init__(self, group, needs, outcome, reason):
        self.group, self.needs, self.outcome, self.reason = group, needs, outcome, reason


def read_list():
    promises = {}
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            group, name, needs, outcome, reason = (line.split("\t") + [""])[:5]
            promises[name] = Promise(group, needs, outcome, reason)
    return promises


def write_list(promises, seen):
    head = [line for line in LIST.read_text().splitlines() if line.startswith("#")]
    lines = []
    for name, promise in promises.items():
        outcome, reason = seen.get(name, (promise.outcome, promise.reason))
        reason = first_line(reason) if outcome == "skipped" and promise.needs != "gpu" else ""
        lines.append("\t".join([promise.group, name, promise.needs, outcome, reason]).rstrip("\t"))
    LIST.write_text("\n".join(head + lines) + "\n")


def first_line(text):
    return text.strip().splitlines()[0] if text.strip() else ""


def left_out(why):
    """The whole suite cannot run here; says so, counts as one skip, and is a failure on CI."""
    print(f"left out: conformance: {why}")
    strict = os.environ.get("CI") == "true"
    print(f"conformance: 0 passed, {int(strict)} failed, {int(not strict)} skipped")
    sys.exit(int(strict))


def unpack(to):
    """The distribution ships the larger files compressed."""
    for file in SUITE.iterdir():
        if file.suffix == ".gz":
            with gzip.open(file) as packed:
                (to / file.stem).write_bytes(packed.read())
        else:
            shutil.copy(file, to / file.name)


def enter_namespaces(argv):
    """This program again, as the first process of its own namespaces: whatever it leaves ends with it."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", *root, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        left_out("needs root, or user namespaces (kernel.unprivileged_userns_clone, user.max_user_namespaces)")
    # As the first process of the namespace it is not ended by Ctrl-C's default action.
    os.execvpe(unshare[0], [*unshare, sys.executable, str(Path(__file__).resolve()), *argv],
               {**os.environ, INSIDE: "1"})


def make_wire():
    """Two interfaces, the other one in a namespace of its own. GID 1 of ours is the IPv4 address."""
    peer = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    own = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{peer.pid}/ns/net") == own:
        time.sleep(0.01)
    far = ["nsenter", "--target", str(peer.pid), "--net"]
    for words in [
        "ip link set lo up",
        f"ip link add ve0 mtu {MTU} type veth peer name ve1 mtu {MTU}",
        f"ip link set ve1 netns {peer.pid}",
        "ip addr add 10.78.0.1/24 dev ve0",
        "ip addr add fd78::1/64 dev ve0 nodad",
        "ip link set ve0 up",
    ]:
        subprocess.run(words.split(), check=True)
    for words in [
        "ip link set lo up",
        "ip addr add 10.78.0.2/24 dev ve1",
        "ip addr add fd78::2/64 dev ve1 nodad",
        "ip link set ve1 up",
    ]:
        subprocess.run([*far, *words.split()], check=True)


def huge_pages():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("HugePages_Free:"):
            return int(line.split()[1])
    return 0


class Run:
    """One process that runs some tests, and what it says."""

    def __init__(self, build, suite, seed, names, log):
        self.log = log
        self.reader, writer = os.pipe()
        command = [build / "bin/rocebud", "run", "--", PYTHON, HERE / "driver.py", "--suite", suite,
                   "--report", str(writer), "--seed", str(seed), "--", "--dev", "rb_ve0", "--port", "1", "--gid", "1"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[writer],
            cwd=suite, start_new_session=True, env={**os.environ, "XDG_RUNTIME_DIR": str(suite.parent)})
        os.close(writer)
        self.process.stdin.write("\n".join(names).encode())
        self.process.stdin.close()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.reader, selectors.EVENT_READ)
        self.rest = b""

    def next(self, deadline):
        """The next message; None: the process ended, or nothing came in time."""
        while b"\n" not in self.rest:
            left = deadline - time.monotonic()
            if left <= 0 or not self.selector.select(left):
                return None
            data = os.read(self.reader, 65536)
            if not data:
                return None
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)

    def end(self):
        """Waits a moment for it to leave by itself; returns how it ended."""
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.selector.close()
        os.close(self.reader)
        code = self.process.returncode
        return f"signal {-code}" if code < 0 else f"status {code}"


class Outcomes:
    """What was seen: id to (outcome, text), and what the test printed."""

    def __init__(self):
        self.seen, self.said, self.took, self.known = {}, {}, {}, set()
        # Ids of tests that ended when huge pages were short: they are the whole machine's, and come and go.
        self.short_of_pages = set()

    def run(self, build, suite, seed, names):
        """Runs tests in one process; when one of them hangs or crashes, the rest in another."""
        while names:
            with tempfile.TemporaryFile() as log:
                names = self.attempt(Run(build, suite, seed, names, log), names)

    def attempt(self, run, names):
        current, began, printed = None, time.monotonic(), 0
        while True:
            message = run.next(began + TEST_SECONDS_MAX)
            if message is None or message[0] == "end":
                break
            kind, *words = message
            if kind == "suite":
                self.known = set(words[0])
                names = [name for name in names if name in self.known]
            elif kind == "start":
                (current, printed), began = words, time.monotonic()
            else:
                self.finish(run, words[0], (words[1], words[2]), began, printed)
                current, began = None, time.monotonic()
        hung = time.monotonic() - began >= TEST_SECONDS_MAX
        ended = run.end()
        if current is not None:
            verdict = ("hung", f"no end after {TEST_SECONDS_MAX} s") if hung else ("crashed", ended)
            self.finish(run, current, verdict, began, printed)
        elif message is None:
            # Between tests, or before the first: nothing to blame but the whole.
            self.finish(run, names[0], ("crashed", f"outside of any test: {ended}"), began, printed)
        elif ended != "status 0":
            self.finish(run, names[-1], ("crashed", f"after its last test: {ended}"), began, printed)
        return [name for name in names if name not in self.seen]

    def finish(self, run, name, verdict, began, printed):
        self.seen[name] = verdict
        self.took[name] = time.monotonic() - began
        if huge_pages() < HUGE_PAGES_A_TEST:
            self.short_of_pages.add(name)
        text = os.pread(run.log.fileno(), 65536, printed)
        self.said[name] = text.decode(errors="replace")


def judge(promises, outcomes, names, has_huge_pages):
    """Prints every difference; returns passed, failed, skipped."""
    passed, failed, skipped, excused = 0, 0, 0, []
    for name in names:
        promise = promises[name]
        outcome, text = outcomes.seen.get(name, ("missing", "this suite has no such test"))
        compared = outcome == "skipped" and promise.needs != "gpu"
        same = outcome == promise.outcome and (not compared or first_line(text) == promise.reason)
        if same:
            passed += outcome == "ok"
            skipped += outcome != "ok"
        elif promise.needs == "huge" and (name in outcomes.short_of_pages or outcome == "skipped" and not has_huge_pages):
            skipped += 1
            excused.append(name)
        else:
            failed += 1
            promised = f"{promise.outcome} {promise.reason}".strip()
            print(f"DIFFERS {name} ({outcomes.took.get(name, 0):.1f} s): {outcome}, the list says: {promised}")
            if outcome == "ok":
                print("    better than the list: run with --update and commit outcomes.tsv")
            for line in (text + "\n" + outcomes.said.get(name, "")).strip().splitlines()[-40:]:
                print(f"    {line}")
    for name in excused:
        print(f"left out: {name}: no {HUGE_PAGES} huge pages (/proc/sys/vm/nr_hugepages)")
    return passed, failed, skipped


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--build", type=Path, default=HERE / "../../../build")
    args.add_argument("--update", action="store_true")
    args.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    args.add_argument("words", nargs="*")
    args = args.parse_args()
    args.build = args.build.resolve()
    if not (args.build / "bin/rocebud").exists():
        left_out("run `make build` first")
    if not (SUITE / "run_tests.py").exists() or subprocess.run(
            [PYTHON, "-c", "import pyverbs.device"], capture_output=True).returncode != 0:
        left_out("rdma-core's suite is not installed (packages rdma-core and python3-pyverbs)")
    if INSIDE not in os.environ:
        enter_namespaces(sys.argv[1:])
    start = time.monotonic()
    promises = read_list()
    names = [n for n in promises if not args.words or any(word in n for word in args.words)]
    make_wire()
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory() as directory:
        suite = Path(directory) / "tests"
        suite.mkdir()
        unpack(suite)
        # A process a module: as few as keep one module's remains from the next.
        for module in dict.fromkeys(n.split(".")[1] for n in names):
            outcomes.run(args.build, suite, args.seed, [n for n in names if n.split(".")[1] == module])
    if args.update:
        write_list(promises, outcomes.seen)
        promises = read_list()
    passed, failed, skipped = judge(promises, outcomes, names, huge_pages() >= HUGE_PAGES)
    for name in sorted(outcomes.known - set(promises)):
        print(f"not in the list: {name}")
        failed += 1
    if failed:
        print(f"seed {args.seed}")
    slow = sorted(outcomes.took.items(), key=lambda item: -item[1])[:3]
    print(f"{time.monotonic() - start:.0f} s, the slowest: " + ", ".join(f"{n.split(chr(46))[-1]} {t:.1f} s" for n, t in slow))
    print(f"conformance: {passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(int(failed != 0))


if __name__ == "__main__":
    main()
