"""Traced steps: a recorded trace of the 8B shape (an H200; two layers of each step), and kernels made up to overlap."""

import gzip
import io
import json
import sys
import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from minllm import LLM
from minllm.bench.serving.profile import stages
from minllm.bench.serving.profile.report import rows, table, write_pictures
from minllm.bench.serving.profile.run import SIZES, check_profiler, profiled, steps_of
from minllm.bench.serving.profile.stages import ADVANCE, PREFIX, WRITE_SLOTS, stage_of
from minllm.bench.serving.profile.steps import Event, StepSize, StepSummary, steps_by_kind, traced_steps
from minllm.bench.serving.workload import BenchRequest
from minllm.catalogue import STAGES
from minllm.errors import DeviceError, InvalidOptionError
from tests.compile.kernels_in_sources import kernel_names
from tests.engine.models import model_directory

GEMM_KERNEL, NORM_KERNEL = PREFIX + "matmul::wgmma::wgmma::kernel", PREFIX + "normalization::rms_norm::kernel"
TINY = StepSize(1, 0, 1)


@pytest.fixture(scope="module")
def recorded():
    return steps_of(json.loads(Path(__file__).with_name("traced_steps.json").read_text()))


def test_every_kernel_has_a_stage():
    for module, name in kernel_names(STAGES):
        assert stage_of(f"{module.replace('.', '::')}::{name}[abi:v1](int)") != stages.OTHER, (module, name)
    for name in ("void at::native::vectorized_elementwise_kernel", "my::kernels::matmul::", "Memset (Device)"):
        assert stage_of(name) == stages.OTHER


def test_every_stage_of_the_table_has_a_kernel():
    names = {f"{module.replace('.', '::')}::{name}" for module, name in kernel_names(STAGES)}
    for prefix in (*stages.STAGES, WRITE_SLOTS.removeprefix(PREFIX), ADVANCE.removeprefix(PREFIX)):
        assert any(name.startswith(PREFIX + prefix) for name in names), prefix


def test_the_longest_beginning_of_a_name_counts():
    assert stage_of(PREFIX + "attention::flash_attention_3::flash_attention_3::make_kernel") == stages.PROMPTS
    assert stage_of(PREFIX + "attention::split_tensor_core::split_tensor_core::make_kernel") == stages.DECODES
    assert stage_of(PREFIX + "attention::common::merge_states::make_kernel") == stages.DECODES


def test_a_kernel_counts_with_what_it_adds():
    """The norm starts under the GEMM and ends 2 µs after it; a copy runs while no kernel does; later kernels start under the norm."""
    events = [
        Event("Memcpy DtoH", 101.0, 103.0, is_copy=True), Event(WRITE_SLOTS, 104.0, 105.0), Event(GEMM_KERNEL, 110.0, 120.0),
        Event(NORM_KERNEL, 112.0, 122.0), Event(GEMM_KERNEL, 125.0, 135.0), Event(NORM_KERNEL, 126.0, 130.0), Event(ADVANCE, 134.0, 140.0),
    ]  # fmt: skip
    [_, step] = traced_steps([Event(GEMM_KERNEL, 90.0, 99.0), Event(ADVANCE, 98.0, 100.0), *reversed(events)], [TINY, TINY])
    assert (step.begin, step.forward, step.end, step.time) == (100.0, 110.0, 140.0, 40.0)
    assert (step.idle_between, step.idle_within) == (9.0, 3.0)  # 100 to 104 and 105 to 110; 122 to 125
    assert step.stages == {stages.GEMM: 10.0 + 5.0, stages.NORM: 2.0 + 5.0, stages.SLOTS: 1.0 + 5.0}
    assert len(step.events) == 7


def test_times_and_idle_time_are_the_whole_step(recorded):
    for before, step in zip(recorded, recorded[1:]):
        assert step.begin == before.end
        assert sum(step.stages.values()) + step.idle_between + step.idle_within == pytest.approx(step.time)


def test_recorded_steps(recorded):
    kinds = steps_by_kind(recorded)
    assert {kind: len(found) for kind, found in kinds.items()} == {"decode": 4, "mixed": 1}
    decode, mixed = (StepSummary.of(found) for found in kinds.values())
    assert decode.idle_between == pytest.approx(16.4, abs=0.1) and decode.idle_within == pytest.approx(0, abs=0.1)
    assert (decode.tokens, mixed.tokens) == (256, 2048)
    assert stages.PROMPTS not in decode.stages and mixed.stages[stages.PROMPTS] == pytest.approx(153, abs=1)


def test_small_batches_are_left_out(recorded):
    steps = [recorded[0], *recorded[2:4], *(SimpleNamespace(size=StepSize(count, 0, count)) for count in (223, 224, 1))]
    assert [step.size.decodes for step in steps_by_kind(steps)["decode"]] == [256, 256, 224]
    assert steps_by_kind([]) == {} and steps_by_kind(recorded[:1]) == {}


def test_lost_steps_are_an_error():
    with pytest.raises(DeviceError, match="has 1 steps and the engine computed 2"):
        traced_steps([Event(GEMM_KERNEL, 0.0, 1.0), Event(ADVANCE, 1.0, 2.0)], [TINY, TINY])
    assert traced_steps([], []) == []


def test_rows_and_table(recorded):
    decode, mixed = rows(recorded, "a model", "split_fuse")
    assert (decode.benchmark, mixed.benchmark) == ("serving, decode step by stage", "serving, mixed step by stage")
    for row in (decode, mixed):
        assert (row.case, row.variant, row.unit) == ("a model", "split_fuse", "ms") and row.value > 0
        assert sum(row.metrics.values()) - row.metrics["no kernel, %"] == pytest.approx(100, abs=0.5)
    console = Console(file=io.StringIO(), width=150)
    console.print(table(recorded, "traced"))
    text = console.file.getvalue()
    assert "decode: 4 steps of 256 tokens" in text and "no kernel, between steps" in text and "attention of prompts" in text
    assert stages.OTHER not in text and rows([], "", "") == []


def test_pictures(recorded, tmp_path):
    files = write_pictures(recorded, "a model", tmp_path / "run")
    assert [path.name for path in files] == [f"run-{name}.svg" for name in ("decode-stages", "mixed-stages", "decode-steps", "decode-gap")]
    for path in files:
        text = path.read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg") and len(text) < 60_000
    assert "copies" in files[-1].read_text() and "GEMM" in files[0].read_text()
    assert write_pictures(recorded[:1], "a model", tmp_path / "one") == []


def fake_torch(engine):
    """torch with a profiler that records a GEMM and an ADVANCE for every step of `engine`."""
    before = engine.core.num_steps

    class Profiler:
        def export_chrome_trace(self, path):
            names = [GEMM_KERNEL, ADVANCE] * (engine.core.num_steps - before)
            events = [dict(name=name, cat="kernel", ts=10.0 * i, dur=5.0) for i, name in enumerate(names)]
            Path(path).write_text(json.dumps({"traceEvents": [{"ph": "M"}, *events]}))

    @contextmanager
    def profile(activities):
        assert activities == ["CUDA"]
        yield Profiler()

    cuda = SimpleNamespace(init=lambda: None, synchronize=lambda: None)
    profiler = SimpleNamespace(profile=profile, ProfilerActivity=SimpleNamespace(CUDA="CUDA"))
    return {"torch": SimpleNamespace(cuda=cuda, profiler=profiler), "torch.profiler": profiler}


def test_a_profiled_run_knows_its_steps(tmp_path, monkeypatch):
    """On a CPU, with a profiler of ours in place of torch's."""
    path = tmp_path / "run.pt.trace.json.gz"
    with LLM(model_directory("small"), device="cpu", max_model_len=64, max_num_batched_tokens=8) as llm:
        for name, module in fake_torch(llm.llm_engine).items():
            monkeypatch.setitem(sys.modules, name, module)
        execute = llm.engine.runner.execute
        steps = profiled(llm.llm_engine, [BenchRequest([1, 2, 3], 4), BenchRequest(list(range(20)), 3)], None, path)
        assert llm.engine.runner.execute == execute
    assert sum(step.size.tokens for step in steps) == 3 + 20 + (4 - 1) + (3 - 1)
    assert steps[0].size.prompts == 2 and steps[-1].size.prompts == 0
    with gzip.open(path, "rt") as file:
        trace = json.load(file)
    assert trace[SIZES] == [list(step.size) for step in steps] and steps_of(trace) == steps


def test_what_cannot_be_traced_is_refused(monkeypatch):
    with pytest.raises(InvalidOptionError, match="--profile traces the kernels of a GPU"):
        check_profiler("cpu")
    monkeypatch.setitem(sys.modules, "torch", None)  # makes `import torch` fail
    with pytest.raises(InvalidOptionError, match="pip install torch"):
        check_profiler("cuda")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    with pytest.raises(InvalidOptionError, match="sees no GPU"):
        check_profiler("cuda")
