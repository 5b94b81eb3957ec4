"""Records: one format, rows that replace their older selves, and a file a device."""

import functools
import importlib.util
import json
import linecache
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from minllm.bench import kernel_keys
from minllm.bench.kernel_keys import is_older, key_of
from minllm.bench.record import Record, Row, commit, file_name, installed, merged, new_record, origin
from minllm.machine import driver

ROOT = Path(__file__).parents[2]
ROW = Row("decode", "llama-3.2-1b, batch 1", "bfloat16", 812.5, "tokens/s", limit=1500.0, of_limit=0.542)
RECORD = Record("NVIDIA H200", "580.65", "2026-01-02", "abc", {"numpy": "2.4.6"}, {"copy_tb_s": 4.25, "bf16_tflops": None}, [ROW])


@pytest.fixture(scope="module")
def tool():
    """tools/record.py as a module, which computes the keys of a commit once: a process imports that commit's kernels."""
    spec = importlib.util.spec_from_file_location("record_tool", ROOT / "tools" / "record.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["record_tool"] = module
    spec.loader.exec_module(module)
    keys_at = functools.cache(module.keys_at)
    module.keys_at = lambda name, rows: keys_at(name, tuple(rows))
    return module


def test_a_record_is_one_line_of_json_with_the_fields_of_the_format():
    text = RECORD.to_json()
    assert "\n" not in text
    assert set(json.loads(text)) == {"device", "driver", "date", "commit", "packages", "ceilings", "rows"}
    assert set(json.loads(text)["rows"][0]) == {
        "benchmark", "case", "variant", "value", "unit", "peer", "peer_value", "ratio", "limit", "of_limit", "error", "peer_error",
        "machine", "date", "commit", "key", "note",
    }  # fmt: skip
    several = replace(ROW, low=800.0, high=815.0, metrics={"p99_itl_ms": 4.1})
    assert several.as_dict() == {**ROW.as_dict(), "low": 800.0, "high": 815.0, "metrics": {"p99_itl_ms": 4.1}}


def test_a_new_row_replaces_its_older_self_and_no_other():
    other = replace(ROW, variant="float16", value=700.0)
    old = json.loads(replace(RECORD, rows=[ROW, other]).to_json())
    newer = replace(ROW, value=900.0)
    result = merged(old, replace(RECORD, date="2026-02-03", ceilings={"copy_tb_s": 4.2, "bf16_tflops": None}, rows=[newer]).as_dict())
    assert [(row["variant"], row["value"]) for row in result["rows"]] == [("bfloat16", 900.0), ("float16", 700.0)]
    assert result["date"] == "2026-02-03" and result["ceilings"]["copy_tb_s"] == 4.25


def test_each_row_of_a_record_names_its_run_and_the_key_of_its_kernels(monkeypatch):
    gemv = Row("matmul", "1x4096x4096, bfloat16", "gemv", 4.0, "TB/s")
    monkeypatch.setattr(driver, "release", lambda: "580.65")
    row, copy, lost = new_record("NVIDIA H200", {}, [gemv, replace(gemv, benchmark="copy"), replace(gemv, variant="magic")]).rows
    assert (row.machine, row.commit, row.key) == ("NVIDIA H200", commit(), key_of("matmul", "gemv")) and row.date
    assert copy.key == "" and lost.key is None
    assert [is_older(one.benchmark, one.variant, one.key) for one in (row, copy, lost)] == [False, False, True]
    record = dict(date=row.date, commit=row.commit)
    assert origin(asdict(row), record) == ""
    elsewhere = replace(row, date="2026-01-02", commit="0123456789ab", note="the second of two runs")
    assert origin(asdict(elsewhere), record) == " (2026-01-02, commit 0123456, the second of two runs)"


def test_keys_of_another_machine_are_computed_anew(tool):
    if not commit():
        pytest.skip("no git checkout: no other commit's source")
    row = dict(benchmark="rope", case="a", variant="rope", commit=commit().rstrip("+"), key="of another Numba")
    rows = tool.with_own_keys(dict(rows=[row, dict(row, benchmark="copy", key="")]))["rows"]
    assert rows[0]["key"] not in (None, "of another Numba") and rows[1]["key"] == ""


def test_rows_of_a_commit_that_git_does_not_have_keep_their_keys(tool, capsys):
    row = dict(benchmark="rope", case="a", variant="rope", commit="0" * 12, key="known")
    rows = [row, dict(row, case="b"), dict(row, case="c", key=None), dict(row, benchmark="copy", key="")]
    assert tool.with_own_keys(dict(rows=rows))["rows"] == rows
    assert capsys.readouterr().err.startswith("2 rows of commit 000000000000 keep their keys")


def test_the_first_part_that_measures_a_ceiling_sets_it():
    old = replace(RECORD, ceilings={"copy_tb_s": 4.25, "bf16_tflops": None}).as_dict()
    result = merged(old, replace(RECORD, ceilings={"copy_tb_s": 4.24, "bf16_tflops": 781.0}).as_dict())
    assert result["ceilings"] == {"copy_tb_s": 4.25, "bf16_tflops": 781.0}


@pytest.mark.parametrize(
    ("device", "name"),
    [("NVIDIA H200", "h200.json"), ("NVIDIA GeForce RTX 4090", "rtx-4090.json"), ("cpu (x86_64)", "cpu-x86_64.json")],
)
def test_each_device_has_a_file(device, name):
    assert file_name(device) == name


def test_a_cpu_record_names_no_driver():
    record = new_record("cpu", {}, [])
    assert record.device.startswith("cpu (") and record.driver == ""


def test_packages_that_are_not_installed_are_left_out():
    assert set(installed(("numpy", "no-such-package"))) == {"numpy"}


def test_the_commit_is_git_s_own_or_empty():
    assert commit() == "" or all(letter in "0123456789abcdef+" for letter in commit())


def test_the_tool_writes_a_file_that_reads_back_and_merges(tool, tmp_path):
    measured = json.loads(RECORD.to_json())
    path = tool.record(measured, tmp_path)
    assert path.name == "h200.json" and json.loads(path.read_text()) == {**measured, "parts": []}
    tool.record(dict(measured, rows=[dict(measured["rows"][0], value=1.0), dict(measured["rows"][0], variant="x")]), tmp_path)
    rows = json.loads(path.read_text())["rows"]
    assert [(row["variant"], row["value"]) for row in rows] == [("bfloat16", 1.0), ("x", 812.5)]
    assert sum(line.startswith("  {") for line in path.read_text().splitlines()) == 2


def test_what_the_compiler_does_not_see_is_no_part_of_a_meaning():
    """Decorators and annotations, and outside values that a variable of the function hides."""
    source = "{}def double(x{}):\n    factor = other\n    return factor * x\n"
    functions = []
    for decorator, annotation, hidden in (("", "", 1), ("@wrap(factor)\n", ": list", 2)):
        file = f"<{decorator}>"
        linecache.cache[file] = None, None, source.format(decorator, annotation).splitlines(keepends=True), file
        namespace = dict(factor=hidden, other=3, wrap=lambda factor: lambda function: function)
        exec(compile("".join(linecache.cache[file][2]), file, "exec"), namespace)
        functions.append(namespace["double"])
    plain, decorated = (kernel_keys.meaning(function, {}) for function in functions)
    assert plain == decorated
    functions[1].__globals__["other"] = 4
    assert kernel_keys.meaning(functions[1], {}) != plain


def test_the_engine_of_a_row_has_the_cache_that_its_variant_or_case_names():
    served = "llama-3.1-8b (random weights), 512 requests, weights in fp8, KV cache in fp8_e4m3, all at once"
    assert kernel_keys.engine_of("max_concurrency 1", served) == kernel_keys.Engine("bfloat16", "fp8_e4m3", "fp8")
    assert kernel_keys.engine_of("int8, window 128", "bundled").cache_format == "int8"
    assert kernel_keys.engine_of("float16", "bundled") == kernel_keys.Engine("float16")


def test_keys_are_shared_with_processes_that_start_later(monkeypatch, forked_python):
    row = dict(benchmark="rope", variant="rope", case="a")
    monkeypatch.setenv(kernel_keys.SHARED_KEYS, "")
    kernel_keys.share_keys([row, dict(row, benchmark="copy"), row])
    tell = "len(k.shared_keys()), k.current_key('rope', 'rope', 'a'), k.machine_code.cache_info()"
    code = f"import minllm.bench.kernel_keys as k; print({tell})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.startswith(f"2 {key_of('rope', 'rope', 'a')} ") and "misses=0" in done.stdout  # nothing is computed again
