"""`minllm tune` without a GPU: what it measures, what it prints and writes, and what it says where it cannot."""

import io
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from minllm.bench import tune
from minllm.catalogue.noise import Noise
from minllm.cli import app as cli
from minllm.errors import InvalidOptionError
from minllm.kernels.matmul.dataflow import Inflection
from minllm.models.config_reader import parse_model_config
from minllm.models.shapes import SHAPES
from minllm.ops.cuda_ops import CudaOps


def test_the_shapes_of_a_model_are_those_of_its_weights():
    shapes = {name: tune.model_shapes(parse_model_config(SHAPES[name], name)) for name in ("llama-3.1-8b", "gpt2")}
    assert shapes["llama-3.1-8b"] == [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
    assert shapes["gpt2"] == [(2304, 768), (768, 768), (3072, 768), (768, 3072), (50257, 768)]


def test_the_points_are_printed_and_kept():
    def measure(n, k):
        for m in tune.ROWS:
            yield (10e-6 * m if m <= 8 else None, 25e-6 + m * 1e-7, 30e-6 if m < 100 else 26e-6)

    out = io.StringIO()
    assert tune.tuned(64, 128, measure, out) == Inflection(64, 128, 3, 64)
    lines = out.getvalue().splitlines()
    assert len(lines) == len(tune.ROWS) + 1
    assert lines[0].split() == ["64x128", "1", "10.00", "25.10", "30.00", "gemv"]
    assert lines[-2].split() == ["256", "50.60", "26.00", "many", "rows"]
    assert lines[-1] == "64x128: flat from 3 rows, many rows from 64"


def test_every_product_is_measured_where_it_is_allowed(monkeypatch):
    class Clock:
        def seconds(self, calls):
            for call in calls:
                call()
            return [1.0] * len(calls)

    monkeypatch.setattr(tune, "ROWS", (1, 9))
    monkeypatch.setattr(tune, "input_sets", lambda *_: 1)
    ops = CudaOps("bfloat16", simulated=True)
    ops.memory = type("Memory", (), dict(trim=lambda self: 0, array=lambda self, host: host, empty=lambda self, *a: np.empty(*a)))()
    monkeypatch.setattr(tune, "seconds_of", lambda product, arrays, stream, clock: product(*arrays[0]) or 1.0)
    assert list(tune.measure_shape(ops, Clock(), Noise(length=997), 1, 24, 16)) == [(1.0, 1.0, 1.0), (None, 1.0, 1.0)]


@pytest.mark.parametrize(("text", "words"), [("28672", "write N x K"), ("0x8", "write N x K"), ("8x20", "multiple of 8")])
def test_shapes_that_cannot_be_measured_are_explained(text, words):
    with pytest.raises(InvalidOptionError, match=f"--shape {text} is not allowed.*{words}"):
        tune.parse_shape(text)


def test_without_a_gpu_it_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(tune, "is_available", lambda: False)
    result = CliRunner().invoke(cli.app, ["tune", "--shape", "64x64"])
    assert result.exit_code == 1
    assert "minllm tune measures a GPU" in result.stderr and "minllm doctor" in result.stderr


def test_a_table_is_written_where_it_was_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(tune, "is_available", lambda: True)
    monkeypatch.setattr(tune, "measurement", lambda: ("NVIDIA Nothing", None))
    monkeypatch.setattr(tune, "tuned", lambda n, k, measure, out: Inflection(n, k, 2, 65))
    result = CliRunner().invoke(cli.app, ["tune", "--shape", "64x64", "--json", str(tmp_path / "new" / "table.json")])
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "new" / "table.json").read_text())
    assert written == dict(gpu="NVIDIA Nothing", shapes=[dict(n=64, k=64, flat_from=2, many_from=65)])
    result = CliRunner().invoke(cli.app, ["tune", "--shape", "64x64", "--json", "-"])
    assert json.loads(result.stdout) == written
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(cli.app, ["tune", "--shape", "64x64", "--json", str(tmp_path / "file" / "table.json")])
    assert result.exit_code == 1 and "cannot be written" in result.stderr
