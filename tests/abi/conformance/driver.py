"""Runs tests of rdma-core's suite in this process and reports each on a descriptor of its own.

    python3 driver.py --suite DIR --report FD --seed N -- --dev DEV --port 1 --gid N  < ids

One JSON list a line: ["suite", [ids of all tests there are]], ["start", id, bytes printed before], ["done", id, outcome, text],
["end"]. Started by run.py under `rocebud run`, with the suite's own arguments behind `--`.
"""
import argparse
import importlib.util
import json
import os
import random
import sys
import traceback
import unittest


def vendor(module):
    """Tests of one vendor's hardware."""
    return module.startswith(("test_mlx5", "test_efa", "test_cuda"))


class Reporter(unittest.TestResult):
    """Tells the parent what happened as it happens, so that a hang or a crash is its test's own."""

    def __init__(self, say):
        super().__init__()
        self.say = say
        self.verdict = None

    def startTest(self, test):
        super().startTest(test)
        self.verdict = ("ok", "")
        sys.stdout.flush()
        self.say("start", test.id(), os.fstat(1).st_size)

    def addSkip(self, test, reason):
        self.verdict = ("skipped", str(reason))

    def addFailure(self, test, err):
        self.verdict = ("failed", "".join(traceback.format_exception(*err)))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addFailure(test, err)

    def stopTest(self, test):
        super().stopTest(test)
        sys.stdout.flush()
        self.say("done", test.id(), *self.verdict)


def load(suite_dir, suite_args):
    """The suite as a package named `tests`, as its own run_tests.py loads it. Vendors' modules are only
    there to be imported by the general ones."""
    sys.path.insert(0, suite_dir)
    from args_parser import parser
    sys.argv[1:] = suite_args
    parser.parse_args()
    spec = importlib.util.spec_from_file_location(
        "tests", os.path.join(suite_dir, "__init__.py"), submodule_search_locations=[suite_dir])
    package = importlib.util.module_from_spec(spec)
    sys.modules["tests"] = package
    spec.loader.exec_module(package)
    loader = unittest.TestLoader()
    cases = {}
    for module in package.__test_modules__:
        if not vendor(module.__name__.rsplit(".", 1)[1]):
            for group in loader.loadTestsFromModule(module):
                cases.update((case.id(), case) for case in group)
    return cases


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--suite", required=True)
    args.add_argument("--report", type=int, required=True)
    args.add_argument("--seed", type=int, required=True)
    args.add_argument("rest", nargs="*")
    args = args.parse_args()
    # Children of the tests must not write here, nor keep it open.
    os.set_inheritable(args.report, False)
    owner = os.getpid()

    def say(*words):
        if os.getpid() == owner:
            os.write(args.report, (json.dumps(words) + "\n").encode())

    wanted = sys.stdin.read().split()
    cases = load(args.suite, args.rest)
    say("suite", sorted(cases))
    for name in wanted:
        if name in cases:
            # Each test draws the same numbers whichever ran before it.
            random.seed(f"{args.seed} {name}")
            cases[name].run(Reporter(say))
    say("end")


if __name__ == "__main__":
    main()
