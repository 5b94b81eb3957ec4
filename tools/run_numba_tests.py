"""Runs numba-cuda's own tests in the simulator: `python tools/run_numba_tests.py [--list] [--json FILE] [module ...]`.

The tests are those of the installed package, each module in a process of its own. A test counts if it launches a kernel, passes or not;
a module that does not end in time counts as one that fails. As many modules run at once as there are cores.
Those that look at something else than what a kernel computes are in NOT_SIMULATED, with the reason; every other one has to pass.
"""

import argparse
import collections
import fnmatch
import importlib
import io
import json
import os
import pkgutil
import signal
import subprocess
import sys
import types
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SECONDS = 60  # of CPU time, per test: other work on the machine changes no result
MODULE_SECONDS = 900

MILLIONS = "millions of threads, which take more than a minute"  # they are not run
# Tests that no simulator passes, by what they look at: module.class.test, without test_ at the beginning of the module.
NOT_SIMULATED = {
    "what a compilation at the launch leaves behind: debug output, launch configurations, FileCheck": """
        cuda_array_interface.*.test_from_dtype_caching_dist* debug.TestDebugOutput.* debuginfo.*.test_D* debuginfo.*.test_debuginfo_asm
        debuginfo.*.test_llvm_inliner_flag_conflict debuginfo.*.test_missing_source dispatcher.TestDispatcher.test_capture_compile_config
        dispatcher.TestDispatcher.*launch_config* dispatcher.TestDispatcher.test_explicit_signatures_device inspect.*
        launch_config_sensitive.*""",
    "the cache of compiled code on disk": "caching.*",
    "arrays of CuPy, which is not among the requirements": "cupy_bfloat16_interop",
    "the compiler's refusal or warning": """
        analysis.*.test_attr_not_len device_func.*.test_cpu_dispatcher_invalid
        dispatcher.TestDispatcher.test_explicit_signatures_ambiguous_resolution errors.*.test_typing_error
        extending.*.test_typing_vs_impl_signature_mismatch_handling* extending_types.*.test_overload_float_error_msg
        gufunc.*.test_inefficient_launch_configuration gufunc_scalar.*.test_gufunc_scalar_cast
        gufunc.*.test_not_supported_call_from_jit ssa.*.test_undefined_var warning.*_on_host_array warp_ops.*_type_validation""",
    "the driver: resources, streams, addresses, its errors": """
        array_alignment.* cache_hints.*.test_loads cache_hints.*.test_stores cpointer.* cuda_array_interface.*.test_gufunc_arg
        cuda_array_interface.*.test_launch_sync* dispatcher.TestDispatcherKernelProperties.* dispatcher.TestLaunchBounds.*
        dispatcher.*.test_dispatcher_cpointer_arguments""",
    "functions and types that are written in CUDA C++ or LLVM": """
        cffi.* device_func.TestDeclareDevice* extending.TestLowLevelExtending.* extending.TestIntrinsic.* extending.TestExtendingLinkage.*
        ffi.* localmem.*.test_struct_model_type_arr cooperative_groups.*.test_external_cooperative_func""",
    "exceptions of kernels compiled for debugging": """
        exception.*.test_exception exception.*.test_zero_division_error_in_debug fastmath.*.test_divf_exception userexc.*""",
    MILLIONS: "intrinsics.*.test_issue_9229 laplace.TestLaplace.* montecarlo.*.test_ex_montecarlo random.*.test_ex_3d_grid",
}
PACKAGES = ("numba.cuda.tests.cudapy", "numba.cuda.tests.doc_examples")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--inside", action="store_true", help="run one module in this process, and print its results as JSON")
    parser.add_argument("--list", action="store_true", help="also list the tests that are not simulated")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--least", type=int, default=0, help="fail if fewer tests pass")
    parser.add_argument("--failing", type=int, default=0, help="the number of further tests that may fail")
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(results_of(options.modules[0])))
        return 0
    results = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for of_module in pool.map(run_module, options.modules or modules()):
            results |= of_module
    launching = {name: result for name, result in results.items() if result["launches"] or result["outcome"] == "broken"}
    failed = {name for name, result in launching.items() if result["outcome"] != "passed"}
    excused = {name: reason for name in failed if (reason := reason_against(name))}
    passed = len(launching) - len(failed)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    for name in sorted(failed):
        if options.list or name not in excused:
            what = f"not simulated: {excused[name]}" if name in excused else launching[name]["message"]
            print(f"{name.removeprefix('numba.cuda.tests.')}: {what}")
    others = collections.Counter(result["outcome"] for result in results.values() if not result["launches"])
    print(
        f"{passed} of {len(launching)} launching tests pass, {len(excused)} are not simulated, {len(failed) - len(excused)} fail; "
        f"without a launch: {dict(others)}"
    )
    return int(passed < options.least or len(failed) > len(excused) + options.failing)


def reason_against(name):
    """Why a test is not simulated, None if it should pass."""
    short = name.split(".test_", 1)[-1]
    for reason, patterns in NOT_SIMULATED.items():
        if any(fnmatch.fnmatchcase(short, pattern) for pattern in patterns.split()):
            return reason
    return None


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
    from minllm.sim import numba_launches
    from minllm.sim.options import DETECT, variables

    results, counted = {}, []
    numba_launches.launches.append(counted.append)
    sys.stdout, output = io.StringIO(), sys.stdout
    os.environ[DETECT] = "0"
    os.environ.update(variables(None))  # some tests start Python
    signal.signal(signal.SIGPROF, too_long)
    with numba_launches.simulated_launches(detect=False):
        for test in tests_of(unittest.defaultTestLoader.loadTestsFromName(module)):
            if reason_against(test.id()) == MILLIONS:
                results[test.id()] = {"outcome": "not run", "launches": 1, "message": ""}
                continue
            counted.clear()
            result = unittest.TestResult()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            test.run(result)
            signal.setitimer(signal.ITIMER_PROF, 0)
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


class TooLong(BaseException):
    """A test's time is over. No Exception: the simulator would take one for a mistake of the kernel."""


def too_long(number, frame):
    raise TooLong(f"no end after {SECONDS} seconds of CPU time")


def without_filecheck():
    """numba.cuda.testing imports filecheck, which only tests of compiled code use; in processes that tests spawn too, which import this."""
    names = {"matcher": ["Matcher"], "options": ["Options"], "parser": ["Parser", "pattern_for_opts"], "finput": ["FInput"]}
    for name, contents in names.items():
        module = types.ModuleType(f"filecheck.{name}")
        for thing in contents:
            setattr(module, thing, None)
        sys.modules.setdefault(f"filecheck.{name}", module)
    sys.modules.setdefault("filecheck", types.ModuleType("filecheck"))


without_filecheck()
if __name__ == "__main__":
    sys.exit(main())
