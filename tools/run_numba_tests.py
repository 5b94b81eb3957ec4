"""Runs numba-cuda's own tests in the simulator: `python tools/run_numba_tests.py [--list] [--json FILE] [module ...]`.

The tests are those of the installed package, each module in a process of its own. A test counts if it launches a kernel, passes or not; a
test that looks at a driver, compiled code or a cache on disk fails whether or not the simulator is right, and is in DRIVER with the reason.
"""

import argparse
import collections
import importlib
import io
import json
import pkgutil
import signal
import subprocess
import sys
import types
import unittest
from pathlib import Path

SECONDS = 60  # per test
MODULE_SECONDS = 600
PACKAGES = ("numba.cuda.tests.cudapy", "numba.cuda.tests.doc_examples")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--inside", action="store_true", help="run one module in this process, and print its results as JSON")
    parser.add_argument("--list", action="store_true", help="list the tests that do not pass")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--least", type=int, default=0, help="fail if fewer tests pass")
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(results_of(options.modules[0])))
        return 0
    results = {}
    for module in options.modules or modules():
        results |= run_module(module)
    launching = {name: result for name, result in results.items() if result["launches"]}
    passed = sum(result["outcome"] == "passed" for result in launching.values())
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.list:
        for name, result in launching.items():
            if result["outcome"] != "passed":
                print(f"{name.removeprefix('numba.cuda.tests.')}: {result['message']}")
    others = collections.Counter(result["outcome"] for result in results.values() if not result["launches"])
    print(f"{passed} of {len(launching)} launching tests pass; without a launch: {dict(others)}")
    return int(passed < options.least)


def modules():
    """The names of all modules of tests."""
    found = []
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        found += [f"{package}.{module.name}" for module in pkgutil.iter_modules(path) if module.name.startswith("test_")]
    return found


def run_module(module):
    """{test: its result} of one module, run in a process of its own."""
    command = [sys.executable, __file__, "--inside", module]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MODULE_SECONDS)
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError) as error:
        return {module: {"outcome": "broken", "launches": 0, "message": str(error)[:200]}}


def results_of(module):
    """Run one module's tests here, with every launch simulated."""
    without_filecheck()
    from minllm.sim import numba_launches

    results, counted = {}, []
    numba_launches.launches.append(counted.append)
    sys.stdout, output = io.StringIO(), sys.stdout
    signal.signal(signal.SIGALRM, too_long)
    with numba_launches.simulated_launches(detect=False):
        for test in tests_of(unittest.defaultTestLoader.loadTestsFromName(module)):
            counted.clear()
            result = unittest.TestResult()
            signal.alarm(SECONDS)
            test.run(result)
            signal.alarm(0)
            problems = result.errors + result.failures
            skipped = "skipped" if result.skipped else "passed"
            message = problems[0][1].strip().splitlines()[-1][:200] if problems else ""
            results[test.id()] = {"outcome": "failed" if problems else skipped, "launches": len(counted), "message": message}
    sys.stdout = output
    return results


def tests_of(suite):
    """The single tests of a suite."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def too_long(number, frame):
    raise TimeoutError(f"no end after {SECONDS} seconds")


def without_filecheck():
    """numba.cuda.testing imports filecheck, which only tests of compiled code use."""
    names = {"matcher": ["Matcher"], "options": ["Options"], "parser": ["Parser", "pattern_for_opts"], "finput": ["FInput"]}
    for name, contents in names.items():
        module = types.ModuleType(f"filecheck.{name}")
        for thing in contents:
            setattr(module, thing, None)
        sys.modules.setdefault(f"filecheck.{name}", module)
    sys.modules.setdefault("filecheck", types.ModuleType("filecheck"))


if __name__ == "__main__":
    sys.exit(main())
