"""Records: one format, rows that replace their older selves, and a file a device."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from minllm.bench.record import Record, Row, commit, file_name, installed, merged, new_record

ROOT = Path(__file__).parents[2]
ROW = Row("decode", "llama-3.2-1b, batch 1", "bfloat16", 812.5, "tokens/s", limit=1500.0, of_limit=0.542)
RECORD = Record("NVIDIA H200", "580.65", "2026-01-02", "abc", {"numpy": "2.4.6"}, {"copy_tb_s": 4.25, "bf16_tflops": None}, [ROW])


@pytest.fixture(scope="module")
def tool():
    """tools/record_results.py as a module."""
    spec = importlib.util.spec_from_file_location("record_results", ROOT / "tools" / "record_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_record_is_one_line_of_json_with_the_fields_of_the_format():
    text = RECORD.to_json()
    assert "\n" not in text
    assert set(json.loads(text)) == {"device", "driver", "date", "commit", "packages", "ceilings", "rows"}
    assert set(json.loads(text)["rows"][0]) == {
        "benchmark", "case", "variant", "value", "unit", "peer", "peer_value", "ratio", "limit", "of_limit", "error", "peer_error",
    }  # fmt: skip


def test_a_new_row_replaces_its_older_self_and_no_other():
    other = replace(ROW, variant="float16", value=700.0)
    old = json.loads(replace(RECORD, rows=[ROW, other]).to_json())
    newer = replace(ROW, value=900.0)
    result = merged(old, replace(RECORD, date="2026-02-03", ceilings={"copy_tb_s": 4.2, "bf16_tflops": None}, rows=[newer]))
    assert [(row["variant"], row["value"]) for row in result["rows"]] == [("bfloat16", 900.0), ("float16", 700.0)]
    assert result["date"] == "2026-02-03" and result["ceilings"]["copy_tb_s"] == 4.2
    assert [row.get("earlier") for row in result["rows"]] == [None, f"{RECORD.date}, commit {RECORD.commit}"]
    again = merged(result, replace(RECORD, date="2026-03-04", rows=[]))
    assert [row["earlier"] for row in again["rows"]] == [f"2026-02-03, commit {RECORD.commit}", f"{RECORD.date}, commit {RECORD.commit}"]
    same_run = merged(old, replace(RECORD, rows=[newer]))
    assert not any("earlier" in row for row in same_run["rows"])


def test_a_ceiling_that_was_not_measured_leaves_the_old_one():
    old = json.loads(replace(RECORD, ceilings={"copy_tb_s": 4.25, "bf16_tflops": 781.0}).to_json())
    result = merged(old, replace(RECORD, ceilings={"copy_tb_s": None, "bf16_tflops": None}))
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
    assert path.name == "h200.json" and json.loads(path.read_text()) == measured
    tool.record(dict(measured, rows=[dict(measured["rows"][0], value=1.0), dict(measured["rows"][0], variant="x")]), tmp_path)
    rows = json.loads(path.read_text())["rows"]
    assert [(row["variant"], row["value"]) for row in rows] == [("bfloat16", 1.0), ("x", 812.5)]
    assert sum(line.startswith("  {") for line in path.read_text().splitlines()) == 2
