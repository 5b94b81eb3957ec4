"""Run every kernel under NVIDIA's compute-sanitizer: invalid accesses, races in shared memory, uninitialised reads, misused barriers.

    python tools/check_memory.py                    all four tools
    python tools/check_memory.py --tool memcheck    one of them; may be repeated

The kernels are those of a few hundred small tests of tests/gpu: a sanitizer slows a kernel down a hundredfold. A first run without one
compiles the kernels. Needs a GPU, and compute-sanitizer from the CUDA toolkit. Exit code 1 if anything was found or a test failed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from minllm.runtime.device import is_available

ROOT = Path(__file__).resolve().parents[1]
TOOLS = {
    "memcheck": "accesses out of bounds, misaligned, or after the memory was freed",
    "racecheck": "threads of a block that read and write shared memory without a barrier between",
    "initcheck": "reads of memory that nobody wrote",
    "synccheck": "barriers that not all threads of a block or warp reach",
}
# Every kernel, at the sizes of the simulator's cases. A pattern names one file of tests/gpu.
SELECTED = (
    r"test_against_simulator.py::",
    r"test_benchmarked_kernels.py::test_results_are_right",
    r"test_attention_kernels.py::.*heads2x",
    r"test_launches.py::.*attention\(.*heads=2, kv_heads=\d, head_dim=\d{1,2},",
    r"test_launches.py::.*matmul/product\(.*m=\d{1,2}, n=\d{1,2}, k=\d{1,3},.*exact=True",
    r"test_launches.py::.*\(tokens=[23],.*(hidden|intermediate|features|head_dim)=\d{2,3}, dtype=bfloat16",
    r"test_launches.py::.*quantized\(tokens=[23],.* name=",
    r"test_sampling_kernels.py::test_(philox|advance|penalties\[3-)",
    r"test_sampling_kernels.py::.*\[111-(normal|ties|masked)\]",
)
FOUND_SOMETHING = 86  # the exit code that the sanitizer is told to use; pytest does not use it
SUMMARY = re.compile(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)$", re.MULTILINE)
SECONDS = 600
LINES_SHOWN = 60  # lines of a sanitizer's output that are shown
PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/extras/compute-sanitizer")


def find_sanitizer() -> str | None:
    """The path of compute-sanitizer: on the PATH, in the toolkit of CUDA_HOME, or where toolkits are installed."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    in_home = [str(Path(home) / "bin"), str(Path(home) / "compute-sanitizer")] if home else []
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join([*in_home, *PLACES]))


def pytest_command(*arguments: str) -> list[str]:
    """A pytest command in this Python; tests have no time limit."""
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=0", *arguments]


def selected_tests() -> list[str]:
    """The ids of the tests to run."""
    files = sorted({f"tests/gpu/{pattern.partition('::')[0]}" for pattern in SELECTED})
    done = subprocess.run(pytest_command("--collect-only", "--exhaustive", *files), cwd=ROOT, capture_output=True, text=True)
    ids = [line for line in done.stdout.splitlines() if line.startswith("tests/gpu/")]
    return [test for test in ids if any(re.search(pattern, test) for pattern in SELECTED)]


def run(tests: Path, prefix: list[str]) -> tuple[int, str]:
    """(exit code, output) of the tests listed in a file, with `prefix` before the command; exit code -1 on timeout."""
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    try:
        done = subprocess.run(
            [*prefix, *pytest_command(f"@{tests}")], cwd=ROOT, env=environment, timeout=SECONDS, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return -1, f"{output}\nnot finished after {SECONDS} s"
    return done.returncode, done.stdout


def verdict(code: int, output: str) -> tuple[bool, str]:
    """(success, summary) of a run under a sanitizer: it has to report success itself, and the tests have to pass."""
    summaries = SUMMARY.findall(output)
    tests = next((line.strip("= ") for line in reversed(output.splitlines()) if " passed" in line or " failed" in line), "no test ran")
    words = f"{'; '.join(summaries) or 'no summary: the sanitizer did not run to its end'}; {tests}"
    return code == 0 and bool(summaries), words


def main() -> int:
    """Return 0 if no tool found anything, 1 if one did, 2 if they cannot run here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", action="append", choices=list(TOOLS), help="may be repeated; default: all")
    options = parser.parse_args()
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print("compute-sanitizer was not found: install the CUDA toolkit, and put its bin folder on the PATH", file=sys.stderr)
        return 2
    if not is_available():
        print("no usable NVIDIA GPU was found: this check runs kernels on one; `minllm doctor` shows what is missing", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        tests = Path(folder) / "tests.txt"
        chosen = selected_tests()
        tests.write_text("\n".join(chosen) + "\n", encoding="utf-8")
        start = time.monotonic()
        print(f"{len(chosen)} tests, first without a sanitizer", flush=True)
        code, output = run(tests, [])
        if code != 0:
            print(output[-8000:], "the tests fail without a sanitizer already: mend them first", sep="\n", file=sys.stderr)
            return 1
        print(f"passed in {time.monotonic() - start:.0f} s", flush=True)
        return max([check(sanitizer, tool, tests) for tool in options.tool or TOOLS])


def check(sanitizer: str, tool: str, tests: Path) -> int:
    """Run one tool and print its line of the table; returns 1 if it found anything."""
    start = time.monotonic()
    arguments = ["--tool", tool, "--target-processes", "all", "--error-exitcode", str(FOUND_SOMETHING), "--report-api-errors", "no"]
    code, output = run(tests, [sanitizer, *arguments])
    well, words = verdict(code, output)
    print(f"{tool:<10} {'ok' if well else 'FAILED':<7} {time.monotonic() - start:6.0f} s   {words}", flush=True)
    if not well:
        found = [line for line in output.splitlines() if line.startswith("=====")] or output.splitlines()
        print(f"           looks for {TOOLS[tool]}", *found[:LINES_SHOWN], sep="\n", flush=True)
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
