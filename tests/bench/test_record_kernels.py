"""What is compiled before a record is measured: the kernels of its cases and of its engines, each once."""

from dataclasses import replace

from minllm.bench import kernel_cases, record_kernels
from minllm.bench.record_kernels import ENGINES, engine_shape, kernels_of_record
from minllm.catalogue import measured_launches
from minllm.engine.kernels_needed import kernels_needed
from minllm.models.shapes import SHAPES
from minllm.weights.formats import WEIGHT_FORMATS
from tests.runtime.h200 import H200


def test_cases_and_engines_are_compiled_once(monkeypatch):
    norms = [row for row in measured_launches() if row.benchmark == "" and row.launch.stage == "normalization"]
    rows = [replace(norms[0], rival=norms[1].launch), replace(norms[0], for_tuning=True)]
    monkeypatch.setattr(kernel_cases, "measured_launches", lambda: [*rows, *rows])
    monkeypatch.setattr(record_kernels, "ENGINES", ENGINES[:1])
    found, engine = kernels_of_record(H200), kernels_needed(engine_shape(H200, *ENGINES[0]))
    of_case = [kernel for launch in (rows[0].launch, rows[0].rival) for kernel in launch.kernels(H200.compute_capability)]
    assert len(set(found)) == len(found) and {*found} == {*engine, *of_case}


def test_engines_are_known():
    assert {model for model, _ in ENGINES} <= {*SHAPES} and {form for _, form in ENGINES} - {""} <= {*WEIGHT_FORMATS}
