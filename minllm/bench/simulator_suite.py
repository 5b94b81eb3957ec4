"""Times the suite of simulated kernels: every kernel at odd shapes, under all detectors, and the tests of the simulator itself.

    pytest --exhaustive tests/kernels tests/sim tests/ptx        in two processes; at most ten minutes

With --exhaustive tests/conftest.py turns the detectors on for every test. The budget is wall-clock time on two otherwise idle cores; CPU
seconds are recorded too, because other load increases only the former. Needs a clone of the repository and the packages that `make test`
installs.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from minllm.bench.record import Row
from minllm.errors import InvalidOptionError

try:
    import resource
except ImportError:  # only Unix reports the CPU seconds of child processes
    resource = None

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tests/kernels", "tests/sim", "tests/ptx")
PACKAGES = {"pytest": "pytest", "xdist": "pytest-xdist", "pytest_timeout": "pytest-timeout", "hypothesis": "hypothesis", "torch": "torch"}
PROCESSES = 2
STANDARD_ERROR = 2
ALLOWED_SECONDS = 600.0
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


def has_tests(root: Path = ROOT) -> bool:
    """Whether minllm runs from a clone, with its tests beside it."""
    return all((root / folder).is_dir() for folder in FOLDERS)


@contextlib.contextmanager
def tests_importable() -> Iterator[None]:
    """A context in which `import tests...` finds the tests of the clone."""
    sys.path.insert(0, str(ROOT))
    try:
        yield
    finally:
        sys.path.remove(str(ROOT))


def require_suite(root: Path = ROOT) -> None:
    """Raise InvalidOptionError if the tests, or the packages that run them, are missing."""
    if not has_tests(root):
        raise InvalidOptionError(f"--suite runs the tests, and there are none in {root}: run it from a clone of the repository.")
    missing = [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise InvalidOptionError(f"--suite runs the tests, and {', '.join(missing)} is not installed: `make test` installs it.")


def command(folders: tuple[str, ...] = FOLDERS) -> list[str]:
    """The command line of the suite, to run in the repository's root."""
    return [sys.executable, "-m", "pytest", "--exhaustive", *folders, "-q", "-n", str(PROCESSES), "--dist=worksteal"]


def child_seconds() -> float | None:
    """User-mode CPU seconds of this process's finished children; None except on Unix."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime if resource else None


def measure(folders: tuple[str, ...] = FOLDERS) -> tuple[list[Row], bool]:
    """Run the suite: (rows of wall-clock seconds with their budget and of CPU seconds, whether all tests passed).

    Shows progress on standard error.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    words = command(folders)
    print(f"running {' '.join(words[1:])}: some minutes", file=sys.stderr, flush=True)
    started, worked = time.monotonic(), child_seconds()
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, **ONE_THREAD, "PYTHONPATH": path}, stdout=STANDARD_ERROR)
    seconds = time.monotonic() - started
    case, variant = "the suite: every kernel at odd shapes", f"detectors on, {PROCESSES} processes"
    rows = [Row("simulator", case, variant, round(seconds, 1), "s", limit=ALLOWED_SECONDS, of_limit=seconds / ALLOWED_SECONDS)]
    if worked is not None:
        rows.append(Row("simulator", case, "of which processors worked", round(child_seconds() - worked, 1), "s"))
    return rows, done.returncode == 0
