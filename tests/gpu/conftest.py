"""The tests of this folder need a CUDA device; without one they are skipped with a reason. Processes share the GPU:

    python -m pytest tests/gpu -n auto --dist=worksteal --compile-only      the kernels, on all cores, into the disk cache
    python -m pytest tests/gpu -n auto --dist=loadgroup -m "not alone"
    python -m pytest tests/gpu -n 1 -m alone                                what needs the GPU to itself

`make test-gpu` runs all three. A test alone compiles what it lacks, so the first is never necessary. Tests that allocate gigabytes are a
group, so that one process runs them one after another.
"""

import gc
import os
import shutil
import subprocess

import pytest

from minllm import LLM, held_out_text
from minllm.errors import OutOfMemoryError
from minllm.machine import host
from minllm.runtime import compile_ahead
from minllm.runtime.device import is_available
from tests.gpu.time_limit import pytest_runtest_protocol  # noqa: F401 - a hook

BYTES_PER_PROCESS = 9 << 29  # context, weights, KV cache and temporaries of a test; tests that need more are a group
CACHED_BYTES = 64 << 20  # freed memory that a process may keep for its next test
USED_BYTES = 256 << 20  # memory in use after a test from which cycles of dropped objects are likely to hold it


def pytest_xdist_auto_num_workers(config):
    """The number of processes of `-n auto`: one per core, as far as the GPU's memory goes."""
    if not is_available():
        return 1
    if config.option.compile_only:
        return host.available_cores()
    from minllm.runtime.device import current_device

    free, _ = current_device().memory_info()
    return max(1, min(host.available_cores(), free // BYTES_PER_PROCESS))


def pytest_configure(config):
    """Compile only, if asked to. A process of xdist compiles an engine's kernels in one process: the others have the other cores."""
    if not is_available():
        return
    if config.option.compile_only:
        from tests.gpu.compile_only import CompileOnly

        config.pluginmanager.register(CompileOnly())
    if hasattr(config, "workerinput"):
        compile_ahead.available_cores = lambda: 1


@pytest.fixture(autouse=True)
def return_memory():
    """Gives a test's freed memory back to the driver, so that other processes can allocate it."""
    yield
    if is_available():
        from minllm.runtime.memory import device_memory

        if device_memory().bytes_in_use > USED_BYTES:
            gc.collect()
        if device_memory().bytes_cached > CACHED_BYTES:
            device_memory().trim()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Adds to the report of a test without enough memory which processes hold the GPU's."""
    report = yield
    if call.excinfo and call.excinfo.errisinstance(OutOfMemoryError) and shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=30)
        report.sections.append((f"GPU memory by process; this is {os.getpid()}", listed.stdout + listed.stderr))
    return report


class Skipped(pytest.Module):
    """A file of tests that is not even imported."""

    def collect(self):
        """Skip, instead of the tests in the file."""
        pytest.skip("no CUDA device: these tests run kernels on a GPU")


def pytest_pycollect_makemodule(module_path, parent):
    """Without a GPU files are skipped as a whole, which takes no time; --collect-only still lists their tests."""
    if not (parent.config.option.collectonly or is_available()):
        return Skipped.from_parent(parent, path=module_path)


class Gpu:
    """Arrays are copied to the device and back."""

    name = "gpu"

    def array(self, host):
        """A device copy of `host`."""
        from minllm.runtime.memory import to_device

        return to_device(host)

    def host(self, array):
        """A NumPy copy of a device array."""
        return array.copy_to_host()


@pytest.fixture
def device():
    """The GPU in place of the simulator."""
    return Gpu()


@pytest.fixture(scope="module")
def token_ids():
    """300 tokens of text that the bundled model has not seen."""
    with LLM(device="cpu", max_num_seqs=1, max_model_len=320) as llm:
        return llm.tokenizer.encode(held_out_text()[4000:5000])[:300]
