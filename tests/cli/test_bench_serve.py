"""`minllm bench serve` as a user meets it. Mistakes are refused before a model is loaded."""

import contextlib
import json
import sys

import pytest
from typer.testing import CliRunner

from minllm.bench.serving import arguments, command
from minllm.cli import app as cli
from minllm.engine.engine_stats import EngineStats
from minllm.engine.options import EngineOptions
from tests.bench.serving.fake_engine import VOCABULARY, FakeEngine, Stats

runner = CliRunner()


def run(*arguments):
    """Invoke the command in this process."""
    return runner.invoke(cli.app, ["bench", "serve", *map(str, arguments)])


class RealTime:
    """A clock for the fake engine: the driver reads the machine's clock here, and a step should not take long."""

    now = staticmethod(lambda: 0.0)
    sleep = staticmethod(lambda seconds: None)


@pytest.fixture
def opened(monkeypatch):
    """The options with which engines were opened; engines are fakes, and every option is one of LLM()."""
    found = []

    @contextlib.contextmanager
    def opened_engine(model, options, max_model_len):
        found.append((model, options, max_model_len))
        yield FakeEngine(RealTime()), VOCABULARY

    monkeypatch.setattr(command, "opened_engine", opened_engine)
    return found


@pytest.fixture
def new_options(monkeypatch):
    """Options of LLM() that the comparisons try are taken as known."""
    known = set(EngineOptions.__dataclass_fields__)
    known_only = lambda **options: EngineOptions(**{name: value for name, value in options.items() if name in known})  # noqa: E731
    monkeypatch.setattr(arguments, "EngineOptions", known_only)
    monkeypatch.setattr(arguments, "check_names", lambda options: None)


def test_quantised_weights_are_named_in_the_case(opened, tmp_path):
    path = tmp_path / "rows.json"
    result = run("--num-prompts", 1, "--output-len", 2, "--device", "cpu", "--quantization", "int8", "--json", path)
    assert result.exit_code == 0, result.output
    assert all("weights in int8" in row["case"] for row in json.loads(path.read_text())["rows"])
    assert opened[0][1]["quantization"] == "int8"
    assert run("--quantization", "int8", "--simulate", "h200").exit_code == 1
    assert run("--quantization", "int3", "--device", "cpu").exit_code == 1


def test_a_run_prints_a_table_and_a_line_of_json(opened, tmp_path):
    path = tmp_path / "rows.json"
    result = run("--num-prompts", 3, "--input-len", "2:9", "--output-len", 4, "--device", "cpu", "--json", path, "--goodput", "ttft:500")
    assert result.exit_code == 0, result.output
    assert "output throughput" in result.stdout and "goodput" in result.stdout
    line = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    assert line["completed"] == 3 and line["total_output_tokens"] == 12
    record = json.loads(path.read_text())
    assert record["device"].startswith("cpu") and record["rows"][0]["benchmark"] == "serving throughput"
    assert record["rows"][0]["case"] == "bundled, 3 requests, prompts 2:9, outputs 4, all at once"
    [(model, options, max_model_len)] = opened
    assert model == "bundled" and 6 <= max_model_len <= 13 and options["device"] == "cpu" and "scheduling_policy" not in options


def test_only_the_record_goes_to_standard_output_with_json_dash(opened):
    result = run("--num-prompts", 2, "--device", "cpu", "--json", "-")
    assert result.exit_code == 0 and json.loads(result.stdout)["rows"]
    assert "output throughput" in result.stderr


def test_a_sweep_draws_and_summarises(opened, tmp_path):
    rates = ["--request-rate", 2000, "--request-rate", "inf"]
    result = run("--request-list", "mixed-prompts", "--num-prompts", 4, *rates, "--device", "cpu", "--plot", tmp_path / "pictures")
    assert result.exit_code == 0, result.output
    assert "2000 requests/s" in result.stdout and "all at once" in result.stdout and "4 of 4" in result.stdout
    assert len(opened) == 1 and list((tmp_path / "pictures").glob("*.svg"))


def test_a_trace_brings_its_own_arrivals(opened, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt": "hello", "output_tokens": 2, "arrival": 0.01}\n{"prompt_tokens": 3, "output_tokens": 1, "arrival": 0}\n')
    result = run("--dataset-path", path, "--device", "cpu", "--num-warmups", 0)
    assert result.exit_code == 0 and "trace.jsonl, 2 requests" in result.stdout
    assert "as recorded" in result.stdout and '"request_rate": null' in result.stdout
    assert opened[0][2] is None  # the tokens of a text are not known before the tokenizer is


def test_every_policy_is_measured_on_one_engine(opened, new_options):
    result = run("--compare-policies", "--num-prompts", 2, "--output-len", 2, "--request-rate", 1000, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert len(opened) == 1
    assert all(name in result.stdout for name in ("static", "in_flight", "split_fuse", "prefill_first"))


def test_an_interrupt_keeps_what_was_measured(opened, new_options, monkeypatch, tmp_path):
    def opened_engine(model, options, max_model_len):
        if options["preemption"] == "drop":
            raise KeyboardInterrupt
        return contextlib.nullcontext((FakeEngine(RealTime()), VOCABULARY))

    monkeypatch.setattr(command, "opened_engine", opened_engine)
    path = tmp_path / "rows.json"
    arguments = ["--compare-preemption", "--num-prompts", 2, "--kv-cache-memory-bytes", 10**6]
    result = run(*arguments, "--device", "cpu", "--json", path)
    assert result.exit_code == 130
    assert {row["variant"] for row in json.loads(path.read_text())["rows"]} == {"recompute", "swap"}


def test_preemption_needs_a_small_cache(opened, new_options):
    result = run("--compare-preemption", "--device", "cpu")
    assert result.exit_code == 1 and "--kv-cache-memory-bytes" in result.stderr and not opened
    arguments = ["--compare-preemption", "--num-prompts", 2, "--output-len", 2, "--kv-cache-memory-bytes", 10**6]
    assert run(*arguments, "--device", "cpu").exit_code == 0
    assert [options["preemption"] for _, options, _ in opened] == ["recompute", "swap", "drop"]


REFUSED = {
    ("--model", "nosuch"): "llama-3.1-8b",
    ("--request-rate", "0"): "--request-rate 0",
    ("--request-rate=-2",): "--request-rate -2",
    ("--request-rate", "nan"): "--request-rate nan",
    ("--burstiness", "0"): "--burstiness",
    ("--goodput", "tftt:5"): "--goodput tftt:5",
    ("--input-len", "9:3"): "--input-len 9:3",
    ("--output-len", "many"): "--output-len many",
    ("--request-list", "sharegpt"): "nano-vllm",
    ("--request-list", "nano-vllm", "--input-len", "5"): "both say which requests",
    ("--dataset-path", "/no/such.jsonl"): "/no/such.jsonl",
    ("--dataset", "/no/such.jsonl", "--request-list", "nano-vllm"): "both say which requests",
    ("--against", "vllm"): "--against vllm",
    ("--compare-policies", "--compare-concurrency"): "do not go together",
    ("--compare-concurrency", "--against", "transformers"): "do not go together",
    ("--compare-concurrency", "--max-concurrency", "5"): "--max-concurrency does not go with",
    ("--kv-cache-dtype", "int3"): "kv_cache_dtype='int3'",
    ("--variant", "matmul"): "--variant matmul",
    ("--plot", __file__): "is a file",
    ("--simulate", "h2000"): "no data sheet of a GPU 'h2000'",
    ("--simulate", "h200", "--dtype", "float16"): "--dtype does not go with --simulate",
    ("--simulate", "h200", "--preemption", "swap"): "--preemption swap does not go with --simulate",
    ("--simulate", "h200", "--against", "transformers"): "--against does not go with --simulate",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_a_mistake_is_one_line_before_a_model_is_loaded(opened, arguments):
    result = run(*arguments, "--device", "cpu")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1 and REFUSED[arguments] in result.stderr, result.output
    assert not opened


def test_a_rate_beside_a_trace_with_arrivals_is_refused(opened, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt_tokens": 3, "output_tokens": 1, "arrival": 0}\n')
    result = run("--dataset-path", path, "--request-rate", 3, "--device", "cpu")
    assert result.exit_code == 1 and "does not go with" in result.stderr and not opened


def test_a_missing_peer_is_an_error_of_ours(opened, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # makes `import torch` fail
    monkeypatch.delitem(sys.modules, "minllm.bench.serving.transformers_peer", raising=False)
    monkeypatch.delattr("minllm.bench.serving.transformers_peer", raising=False)
    result = run("--against", "transformers", "--device", "cpu")
    assert result.exit_code == 1 and "minllm[bench]" in result.stderr and not opened


@pytest.mark.parametrize("arguments", [["--device", "cpu"], ["--simulate", "h200", "--model", "llama-3.1-8b"]])
def test_a_trace_without_a_gpu_is_refused(opened, tmp_path, arguments):
    result = run("--profile", tmp_path / "new", *arguments)
    assert result.exit_code == 1 and "--profile traces the kernels of a GPU" in result.stderr and not opened
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("arguments", [["--num-prompts", 0], ["--max-concurrency", 0], ["--num-warmups", -1], ["--request-rate", "x"]])
def test_numbers_that_are_none_are_usage_errors(opened, arguments):
    assert run(*arguments).exit_code == 2 and not opened


def test_the_engine_itself_serves(model_directory, tmp_path):
    """The fakes above have the interface of LLMEngine; this one is it."""
    assert set(Stats.__dataclass_fields__) == set(EngineStats.__dataclass_fields__)
    path = tmp_path / "rows.json"
    lengths = ["--num-prompts", 5, "--input-len", "3:20", "--output-len", "2,7", "--num-warmups", 1]
    result = run("--model", model_directory, "--device", "cpu", *lengths, "--request-rate", 100, "--request-rate", "inf", "--json", path)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("5 of 5") == 2
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 2 and all(row["value"] > 0 and row["metrics"]["p99_ttft_ms"] > 0 for row in rows)


def test_a_gpu_is_simulated(opened, tmp_path):
    path = tmp_path / "rows.json"
    sizes = ("--num-prompts", 12, "--input-len", 500, "--output-len", 8, "--json", path)
    result = run("--model", "llama-3.1-8b", "--simulate", "h200", "--compare-policies", *sizes)
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text())
    assert record["device"] == "NVIDIA H200, simulated" and not opened
    assert {row["variant"] for row in record["rows"]} == {"static", "in_flight", "split_fuse", "prefill_first"}
    assert all(row["case"].startswith("llama-3.1-8b, simulated, 12 requests") for row in record["rows"])
    assert all(row["key"] == "" for row in record["rows"]) and record["driver"] == "", "no kernel was measured"
    again = run("--model", "llama-3.1-8b", "--simulate", "h200", "--compare-policies", *sizes)
    assert again.output == result.output, "the same every time"


def test_a_simulated_cache_can_be_small():
    full = ("--model", "llama-3.1-8b", "--simulate", "h200", "--num-prompts", 20, "--input-len", 100, "--output-len", 100)
    line = run(*full, "--kv-cache-memory-bytes", 131072 * 1000, "--preemption", "drop").stdout.splitlines()[-1]
    assert json.loads(line)["failed"] > 0
