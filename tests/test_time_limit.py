"""The time limit of tests/gpu ends a test that no signal interrupts, and the others run."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMPORT = "from tests.gpu.time_limit import pytest_runtest_protocol"
TESTS = """
import signal, time

def test_that_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # as in a driver's call, pytest-timeout's signal has no effect
    time.sleep(60)

def test_that_runs():
    pass
"""


def test_a_test_that_no_signal_interrupts_fails_and_the_next_one_runs(tmp_path, forked_python):
    (tmp_path / "test_two.py").write_text(TESTS)
    (tmp_path / "limits.py").write_text("from tests.gpu import time_limit\ntime_limit.GRACE_SECONDS = 0.2\n" + IMPORT)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 0.3\n")
    command = [sys.executable, "-m", "pytest", "-p", "limits", "-p", "xdist", "-p", "pytest_timeout", "-n", "1", "-q"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT))), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "crashed while running 'test_two.py::test_that_hangs'" in done.stdout and "1 failed, 1 passed" in done.stdout
    assert "Timeout (0:00:00.500000)!" in done.stderr and "in test_that_hangs" in done.stderr
