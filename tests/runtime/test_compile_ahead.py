"""Kernels compiled in other processes: what arrives in the disk cache, what failures leave, and that no process remains."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest

from minllm.engine.build.cache_format import cache_shape
from minllm.engine.kernels_needed import EngineShape, kernels_needed
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.machine import host
from minllm.models.config_reader import parse_model_config
from minllm.runtime import compile_ahead, compiler, disk_cache
from minllm.runtime.compile_ahead import WORKER_BYTES, available_cores, keys_of
from tests.runtime import kernels_to_compile
from tests.runtime.h200 import H200

TARGET = (9, 0)
SECONDS = 60  # time limit for what takes one or two


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch, forked_python):
    monkeypatch.setenv("MINLLM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compile_ahead, "available_cores", lambda: 2)


@pytest.fixture
def no_compiler(monkeypatch):
    """This process compiles nothing."""
    monkeypatch.setattr(compiler, "compile_fresh", lambda *_: pytest.fail("compiled in this process"))


def start(find, *arguments, processes=2):
    return compile_ahead.compile_ahead(find, arguments, TARGET, processes)


def is_running(pid):
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.02)


def test_kernels_arrive_in_the_disk_cache_and_are_counted(no_compiler):
    reports = []
    with start(kernels_to_compile.scales, 5) as work:
        work.wait(lambda *counts: reports.append(counts))
    assert reports[0] == (0, 5) and reports[-1] == (5, 5) and reports == sorted(set(reports))
    for signature in kernels_to_compile.scales(5):
        assert signature.kernel.compile(*signature.types, compute_capability=TARGET).target == "sm_90a"
    with start(kernels_to_compile.scales, 5) as again:
        assert not again.keys and not again.workers
        again.wait(lambda *_: pytest.fail("there was nothing to report"))


def test_two_programs_share_the_work(no_compiler):
    with start(kernels_to_compile.scales, 6, processes=1) as one, start(kernels_to_compile.scales, 6, processes=1) as other:
        one.wait()
        other.wait()
    assert one.done == other.done == 6


def test_a_kernel_that_does_not_compile_is_left_out(no_compiler):
    with start(kernels_to_compile.one_of_them_is_wrong, 2) as work:
        work.wait()
    assert len(work.keys) == 3 and work.done == 2


def test_workers_that_fail_are_reported_and_this_process_compiles():
    with start(kernels_to_compile.fails_in_workers, 2) as work, pytest.warns(RuntimeWarning, match="2 of 2.*LookupError: nothing is found"):
        work.wait()
    assert work.done == 0
    kernel, types = kernels_to_compile.scales(1)[0]
    assert kernel.compile(*types, compute_capability=TARGET).registers


@pytest.mark.parametrize("workers, number", [(100, 40), (40.5, 40), (3.9, 3), (0.5, 1)])
def test_processes_fit_in_cores_and_free_memory(workers, number, monkeypatch):
    monkeypatch.setattr(host, "available_cores", lambda: 40)
    monkeypatch.setattr(host, "available_host_bytes", lambda: int(workers * WORKER_BYTES))
    assert available_cores() == number


def test_tasks_are_sent_after_all_processes_have_started(monkeypatch):
    """A long task fills the pipe, and waits until its process reads it."""
    events = []
    process = Mock(stdin=Mock(write=lambda task: events.append(len(task) > 8)))
    monkeypatch.setattr(compile_ahead, "start_worker", lambda errors: events.append("started") or process)
    start(kernels_to_compile.scales, 3).close()
    assert events == ["started", "started", True, True]


def test_without_processes_nothing_happens(monkeypatch):
    def refuse(*_):
        raise BlockingIOError("fork: retry: Resource temporarily unavailable")

    monkeypatch.setattr(compile_ahead, "start_worker", refuse)
    with start(kernels_to_compile.scales, 2) as work:
        work.wait()
    assert not work.workers and work.done == 0


def test_without_a_writable_cache_nothing_is_compiled_twice(monkeypatch):
    monkeypatch.setenv("MINLLM_CACHE_DIR", "/proc/nowhere")
    with start(kernels_to_compile.scales, 2) as work:
        assert not work.keys and not work.workers


def test_the_context_ends_its_processes():
    with pytest.raises(ZeroDivisionError), start(kernels_to_compile.takes_forever_in_workers, 2) as work:
        pids = [worker.pid for worker in work.workers]
        assert all(map(is_running, pids))
        raise ZeroDivisionError
    assert len(pids) == 2 and not any(map(is_running, pids))


SCRIPT = """
    import signal
    import sys
    signal.signal(signal.SIGINT, signal.default_int_handler)
    beside = sys.path.pop(0)
    from minllm.runtime.compile_ahead import compile_ahead
    from tests.runtime import kernels_to_compile
    sys.path.insert(0, beside)
    print("started", flush=True)
    with compile_ahead(kernels_to_compile.{find}, (2,), (9, 0), 2) as work:
        print(*(worker.pid for worker in work.workers), flush=True)
        work.wait()
    print("done", flush=True)
"""


def run_script(tmp_path, find):
    """A script without an `if __name__ == "__main__"`, in a process group of its own; it obeys SIGINT, which a shell may have it ignore."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT.format(find=find)))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    return subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True)


def test_a_script_needs_no_main_guard(tmp_path):
    (tmp_path / "random.py").write_text("raise ImportError")  # beside the script, and no part of Python
    script = run_script(tmp_path, "scales")
    out, errors = script.communicate(timeout=SECONDS)
    started, pids, done = out.decode().splitlines()
    assert (started, done) == ("started", "done") and pids.split() and not errors


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_an_interrupted_script_leaves_no_process(tmp_path, how):
    script = run_script(tmp_path, "takes_forever_in_workers")
    script.stdout.readline()
    pids = [int(pid) for pid in script.stdout.readline().split()]
    assert pids
    os.killpg(script.pid, how)
    _, errors = script.communicate(timeout=SECONDS)
    assert script.returncode and (how != signal.SIGINT or b"KeyboardInterrupt" in errors)
    wait_until(lambda: not any(map(is_running, pids)))


@pytest.mark.covering("head_dim")  # the first case: kernels of a few seconds
@pytest.mark.parametrize(
    ("head_dim", "dtype", "variants"),
    [(40, np.float32, {"attention": "flash_attention_1", "matmul": "naive"}), (40, ml_dtypes.bfloat16, None)],
)
def test_a_model_of_an_unusual_shape_compiles_in_parallel(no_compiler, head_dim, dtype, variants):
    config = parse_model_config(
        dict(
            model_type="llama", vocab_size=1003, hidden_size=200, intermediate_size=344, num_hidden_layers=3, num_attention_heads=5,
            num_key_value_heads=1, head_dim=head_dim, max_position_embeddings=512,
        )
    )  # fmt: skip
    cache = cache_shape(config, np.dtype(dtype), block_size=16)
    shape = EngineShape(
        H200, config, cache, weight_format=None, kernel_variants=variants, virtual_cache=False, uses_graphs=True, max_num_seqs=1,
        max_num_batched_tokens=1, max_model_len=512, kinds=(SamplingKind.GREEDY,),
    )  # fmt: skip
    found = keys_of(kernels_needed(shape), TARGET)
    with start(kernels_needed, shape) as work:
        assert set(work.keys) == set(found)
        work.wait()
    assert len(found) > 5 and all(map(disk_cache.is_cached, found))
