"""`pytest tests/gpu --compile-only`: launches compile and do not run, engines compile, and every test counts as compiled."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from minllm import LLM
from minllm.engine.build import plan, precompile
from minllm.kernels.activation.silu import silu_and_multiply
from minllm.kernels.all_reduce.one_shot import one_shot
from minllm.kernels.all_reduce.peers import Peers, allocate
from minllm.ops.dry_run_ops import DryRunOps
from minllm.runtime.device import Device
from minllm.runtime.dry_run import Addresses, dry_run
from minllm.runtime.memory import DeviceMemory
from minllm.runtime.peer_devices import PeerDevices
from tests.engine.models import model_directory
from tests.gpu import compile_only

ROOT = Path(__file__).parent.parent
H200 = Device(0, "NVIDIA H200", (9, 0), 132, 141 << 30, 50 << 20)


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that are compiled, on an H200 that is not there."""
    names = []
    monkeypatch.setattr(compile_only, "seen", set())
    monkeypatch.setattr(compile_only, "compile_one", lambda signature, key, *_, wait: names.append(signature.kernel.__name__))
    monkeypatch.setattr(compile_only, "is_cached", lambda key: False)
    with dry_run(H200) as launches:
        yield names
    assert not launches


def test_a_launch_compiles_once_for_its_types_and_a_result_ends_the_test(compiled):
    memory = DeviceMemory(Addresses())
    with compile_only.compiling():
        for dtype, tokens in ((np.float32, 3), (np.float32, 5), (np.float16, 3)):
            out = memory.empty((tokens, 128), dtype)
            silu_and_multiply(memory.empty((tokens, 256), dtype), out)
        with pytest.raises(compile_only.Compiled):
            out.copy_to_host()
    assert compiled == ["silu_and_multiply_vector_kernel"] * 2


def test_ranks_of_one_process_take_no_memory_and_load_no_kernel(compiled):
    devices, x = object.__new__(PeerDevices), np.ones(64, np.float32)
    devices.devices, devices.streams, devices.most_blocks = [MagicMock()] * 2, [None] * 2, None
    with compile_only.compiling():
        peers = [Peers(rank, (allocate(2, 1 << 50, lambda size, dtype: devices.zeros(0, size, dtype)),) * 2) for rank in range(2)]
        launches = [one_shot(devices.array(rank, x), devices.zeros(rank, x.shape, x.dtype), peers[rank]) for rank in range(2)]
        devices.load(launches)
        devices.launch(launches)
    assert compiled == ["one_shot_kernel"]


@pytest.fixture
def shapes(compiled, monkeypatch):
    """The EngineShapes whose kernels are compiled."""
    found = []
    monkeypatch.setattr(precompile, "kernels_needed", lambda shape: found.append(shape) or [])
    monkeypatch.setattr("minllm.runtime.device.is_available", lambda: True)
    monkeypatch.setattr(plan, "make_ops", lambda device, dtype, options: DryRunOps(dtype))
    return found


def test_an_engine_compiles_the_kernels_of_graphs_and_of_eager_steps(shapes):
    """Its options reach compile_engine in a shape; no weight is read."""
    with compile_only.compiling(), pytest.raises(compile_only.Compiled):
        LLM(model_directory("llama3"), device="cuda", max_num_seqs=5)
    assert [shape.uses_graphs for shape in shapes] == [True, False] and {shape.max_num_seqs for shape in shapes} == {5}


def test_the_kernels_of_all_ranks_are_compiled_without_ranks(shapes):
    with compile_only.compiling(), pytest.raises(compile_only.Compiled):
        LLM(model_directory("llama3"), device="cuda", dtype="float32", tensor_parallel_size=2)
    assert [(shape.split.rank, shape.split.ranks) for shape in shapes[::2]] == [(0, 2), (1, 2)]


TESTS = """
import pytest
from tests.gpu.compile_only import compiled, end

@pytest.fixture
def engine():
    end()

def test_of_an_engine(engine):
    pass

def test_of_a_result():
    compiled.extend(["a key"] * 3)
    end()

def test_that_fails():
    assert False

@pytest.mark.xdist_group("gigabytes")
def test_of_gigabytes():
    print("RUN")
"""


def test_every_test_counts_as_compiled_whatever_ends_it(tmp_path, forked_python):
    (tmp_path / "test_four.py").write_text(TESTS)
    (tmp_path / "plugin.py").write_text(
        "from tests.gpu.compile_only import CompileOnly\ndef pytest_configure(config):\n    config.pluginmanager.register(CompileOnly())"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT))), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "plugin", "-s", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "4 compiled" in done.stdout and "cccc" in done.stdout and "RUN" not in done.stdout
    assert "3 kernels were compiled" in done.stdout
