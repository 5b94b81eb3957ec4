"""The measuring tools without a GPU: parts that fail do not take the others with them, and the sanitizers' verdicts are read right."""

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from minllm.bench import perplexity
from minllm.bench.frameworks_table import COMPARED
from minllm.bench.headline import HEADLINE
from minllm.bench.kernels import chosen_cases
from minllm.bench.record import Record, Row
from minllm.bench.row_command import KERNEL_STAGES
from minllm.cli.bench import bench_app

ROOT = Path(__file__).parents[2]
RECORD = Record("NVIDIA H200", "580.65", "2026-01-02", "", {}, {"copy_tb_s": 4.25}, [Row("matmul", "1x1x1", "gemv", 1.0, "TB/s")])


def load(name):
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    module = sys.modules[f"{name}_tool"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITES = f"import sys; open(sys.argv[-1], 'w').write({RECORD.to_json()!r})"


@pytest.fixture
def record(monkeypatch, tmp_path):
    """The tool, whose parts are the scripts that a test gives instead of benchmarks: {name: script}, and its command line."""
    tool = load("record")
    monkeypatch.setattr(tool, "is_available", lambda: True)

    def main(scripts, *arguments, seconds=1, processes=1, commit="abc123"):
        every = tuple(tool.Part(name, (sys.executable, "-c", script), seconds, 1, processes) for name, script in scripts.items())
        monkeypatch.setattr(tool, "parts", lambda: every)
        monkeypatch.setattr(sys, "argv", ["record.py", "--into", str(tmp_path), "--commit", commit, *arguments])
        return tool.main()

    main.tool = tool
    return main


def measuring(name):
    """A benchmark of one row, whose case is `name`."""
    made = replace(RECORD, rows=[replace(RECORD.rows[0], case=name)])
    return f"import sys; open(sys.argv[-1], 'w').write({made.to_json()!r})"


def test_a_part_that_fails_leaves_the_others(record, tmp_path, capsys):
    assert record({"bad": "import sys; sys.exit(3)", "good": WRITES}) == 1
    whole = json.loads((tmp_path / "h200.json").read_text())
    assert whole["commit"] == "abc123" and [row["commit"] for row in whole["rows"]] == ["abc123"]
    assert whole["parts"] == ["good"] and "exit code 3" in capsys.readouterr().err


def test_what_a_failing_part_has_measured_is_kept(record, tmp_path):
    assert record({"half": WRITES + "; sys.exit(1)"}) == 1
    whole = json.loads((tmp_path / "h200.json").read_text())
    assert len(whole["rows"]) == 1 and whole["parts"] == []  # so the next run measures it again


def test_a_run_ends_in_time_and_the_next_goes_on(record, tmp_path, monkeypatch, capsys):
    scripts = {name: measuring(name) for name in ("one", "two", "three")}
    monkeypatch.setattr(record.tool, "RUN_SECONDS", 30)
    assert record(scripts, seconds=30) == 0  # the first part leaves too little for another
    assert "2 parts are left, run it again: two, three" in capsys.readouterr().out
    monkeypatch.setattr(record.tool, "RUN_SECONDS", 570)
    assert record(scripts) == 0
    said = capsys.readouterr().out
    assert "all parts were run" in said and "== one" not in said and said.index("== two") < said.index("== three")
    assert [row["case"] for row in json.loads((tmp_path / "h200.json").read_text())["rows"]] == ["one", "two", "three"]
    assert record(scripts) == 0 and "==" not in capsys.readouterr().out
    assert record(scripts, "--only", "t") == 0 and capsys.readouterr().out.count("== t") == 2


def test_a_record_is_of_one_commit(record, tmp_path):
    assert record({"one": measuring("one")}) == 0 == record({"two": measuring("two")}, commit="def456")
    whole = json.loads((tmp_path / "h200.json").read_text())
    assert whole["parts"] == ["two"] and [(row["case"], row["commit"]) for row in whole["rows"]] == [("two", "def456")]


def test_the_median_of_three_processes_is_kept_with_the_range(record, tmp_path):
    """Each process counts the runs so far in a file; the second is the fastest."""
    made = json.dumps({**RECORD.as_dict(), "rows": [{**RECORD.rows[0].as_dict(), "value": "VALUE"}]})
    count = f"p = Path({str(tmp_path / 'count')!r}); n = len(p.read_text()) if p.exists() else 0; p.write_text('x' * (n + 1))"
    script = (
        f"import sys; from pathlib import Path; {count}; open(sys.argv[-1], 'w').write({made!r}.replace('\"VALUE\"', str((5, 9, 7)[n])))"
    )
    assert record({"steps": script}, processes=3) == 0
    (row,) = json.loads((tmp_path / "h200.json").read_text())["rows"]
    assert (row["value"], row["low"], row["high"]) == (7, 5, 9)


def test_a_part_that_takes_too_long_is_stopped(record, monkeypatch, capsys):
    monkeypatch.setattr(record.tool, "RUN_SECONDS", 0.5)
    assert record({"slow": "import time; time.sleep(60)"}) == 1 and "none within" in capsys.readouterr().err


def test_a_record_is_measured_whole_in_two_runs(capsys):
    tool = load("record")
    every = tool.parts()
    assert len({part.name for part in every}) == len(every) and sum(part.rows for part in every) <= tool.MOST_ROWS == 260
    tool.print_plan(every)
    said = capsys.readouterr().out
    assert f"{sum(part.rows for part in every)} rows of at most 260, 2 runs of at most 540 s" in said
    ends = {number: seconds for number, seconds in re.findall(r"^run (\d) +(\d+) s", said, re.M)}  # of each run the last
    assert all(f"{seconds} s: " in tool.__doc__.replace("\n", " ") for seconds in ends.values())
    three = [part.name.split()[0] for part in every if part.processes == 3]
    assert {*three} == {"step", "serve"} and {"lessons", "kernels"} <= {part.name.split()[0] for part in every}


def test_the_command_line_accepts_every_part():
    """The options of each part exist, and their values are allowed; measure_lessons.py has the figures of the lessons."""
    every, commands = load("record").parts(), typer.main.get_command(bench_app).commands
    for part in every:
        if part.command[1] == "-m":
            name, *options = part.command[part.command.index("bench") + 1 :]
            assert commands[name].make_context(name, [*options, "--json", "-"]).params, part.name
        else:
            assert Path(part.command[1]).exists() and f'"{part.command[3]}"' in Path(part.command[1]).read_text(encoding="utf-8")


def test_the_record_has_the_rows_of_the_readme_and_of_the_frameworks_page():
    """Each quantity is one of a part's: by the command that measures its row."""
    commands = [" ".join(part.command) for part in load("record").parts()]
    kernels = [case.name for case in chosen_cases((), ())]
    for one in (*(one for line in HEADLINE.values() for one in line), *COMPARED):
        if one.benchmark in KERNEL_STAGES:
            assert any(name.startswith(f"{one.benchmark}, {one.case}") for name in kernels), one
            continue
        model, batch = one.case.split(" ")[0], re.search(r"batch (\d+)", one.case)
        words = ["serve" if one.benchmark == "serving throughput" else "step", model]
        words += [f"--batch {batch[1]} "] if batch else ["--prompt 2048"] if one.benchmark == "whole prefill" else []
        words += re.findall(r"mixed-prompts|nano-vllm", one.case)
        assert any(all(word in command for word in words) for command in commands), one


def test_a_record_that_lacks_a_part_is_not_taken(record, tmp_path, monkeypatch):
    assert record({"one": measuring("one")}) == 0
    parts = record.tool.parts()
    monkeypatch.setattr(record.tool, "parts", lambda: (*parts, replace(parts[0], name="two")))
    with pytest.raises(SystemExit, match="it lacks two"):
        record.tool.take([tmp_path / "h200.json"], tmp_path / "results", tmp_path / "speed.json")
    assert not (tmp_path / "results").exists()


def test_a_whole_record_becomes_that_of_the_pages(record, tmp_path, monkeypatch):
    monkeypatch.setattr(record.tool, "keys_at", lambda name, rows: {rows[0]: "of this machine"})
    monkeypatch.setattr(record.tool, "headline_rows", lambda whole: whole["rows"])
    assert record({"one": measuring("one")}) == 0
    record.tool.take([tmp_path / "h200.json"], tmp_path / "results", tmp_path / "speed.json")
    shown, speed = (json.loads((tmp_path / name).read_text()) for name in ("results/h200.json", "speed.json"))
    assert shown["rows"] == speed["rows"] and [row["key"] for row in shown["rows"]] == ["of this machine"]
    other = {**shown, "device": "NVIDIA H100"}
    (tmp_path / "other.json").write_text(json.dumps(other))
    record.tool.take([tmp_path / "other.json"], tmp_path / "results", tmp_path / "none.json")  # the README stays that of the first
    assert (tmp_path / "results" / "h100.json").exists() and not (tmp_path / "none.json").exists()


def test_two_files_are_one_record_if_their_commit_and_gpu_are_the_same(record, tmp_path, monkeypatch):
    monkeypatch.setattr(record.tool, "keys_at", lambda name, rows: {})
    monkeypatch.setattr(record.tool, "headline_rows", lambda whole: whole["rows"])
    assert record({"one": measuring("one")}) == 0
    one, part = json.loads((tmp_path / "h200.json").read_text()), record.tool.parts()[0]
    two = {**one, "parts": ["two"], "rows": [{**row, "case": "two"} for row in one["rows"]]}
    files = [tmp_path / "h200.json", tmp_path / "two.json"]
    monkeypatch.setattr(record.tool, "parts", lambda: (part, replace(part, name="two")))
    for change in ({"device": "NVIDIA H100"}, {"rows": [{**row, "commit": "another"} for row in two["rows"]]}):
        files[1].write_text(json.dumps({**two, **change}))
        with pytest.raises(SystemExit, match="no whole record of one GPU and commit"):
            record.tool.take(files, tmp_path / "results", tmp_path / "speed.json")
    files[1].write_text(json.dumps(two))
    record.tool.take(files, tmp_path / "results", tmp_path / "speed.json")
    shown = json.loads((tmp_path / "results" / "h200.json").read_text())
    assert len(shown["rows"]) == 2 * len(one["rows"]) and shown["parts"] == [*one["parts"], "two"]


def test_a_machine_without_a_gpu_is_refused(monkeypatch, tmp_path):
    tool = load("record")
    monkeypatch.setattr(tool, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["record.py", "--into", str(tmp_path)])
    with pytest.raises(SystemExit, match="no GPU"):
        tool.main()


def test_a_source_without_a_commit_is_refused(record, monkeypatch, tmp_path):
    monkeypatch.setattr(record.tool, "commit", lambda: "")
    with pytest.raises(SystemExit, match="name it with --commit"):
        record({"one": measuring("one")}, commit="")
    assert not [*tmp_path.iterdir()]


def test_rows_of_changed_kernels_are_counted(tmp_path, capsys):
    rows = [dict(RECORD.rows[0].as_dict(), key=key, case=case) for key, case in (("before", "a"), (None, "b"), ("", "c"))]
    (tmp_path / "h200.json").write_text(json.dumps({**RECORD.as_dict(), "rows": rows}))
    load("record").print_changed(tmp_path)
    assert capsys.readouterr().out == "h200.json: the kernels of 2 of 3 rows have changed since they were measured: 2 matmul\n"


@pytest.mark.parametrize(
    ("code", "output", "well"),
    [
        (0, "12 passed in 3.1s\n========= ERROR SUMMARY: 0 errors\n", True),
        (0, "12 passed in 3.1s\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", True),
        (86, "12 passed in 3.1s\n========= ERROR SUMMARY: 2 errors\n", False),
        (1, "1 failed, 11 passed in 3.1s\n========= ERROR SUMMARY: 0 errors\n", False),
        (0, "12 passed in 3.1s\n", False),
        (-1, "not finished after 600 s", False),
    ],
)
def test_a_sanitizer_has_to_say_that_all_is_well(code, output, well):
    assert load("check_memory").verdict(code, output)[0] is well


def test_what_is_missing_is_said(monkeypatch, capsys):
    tool = load("check_memory")
    monkeypatch.setattr(sys, "argv", ["check_memory.py"])
    monkeypatch.setattr(tool, "find_sanitizer", lambda: None)
    assert tool.main() == 2 and "CUDA toolkit" in capsys.readouterr().err
    monkeypatch.setattr(tool, "find_sanitizer", lambda: "/bin/true")
    monkeypatch.setattr(tool, "is_available", lambda: False)
    assert tool.main() == 2 and "GPU" in capsys.readouterr().err


def test_every_pattern_selects_tests(forked_python):
    tool = load("check_memory")
    tests = tool.selected_tests()
    assert 100 < len(tests) < 700  # a few hundred, of thousands: one per kernel, and small sizes of others
    for pattern in tool.SELECTED:
        assert any(re.search(pattern, test) for test in tests), pattern


class Llm:
    """What perplexity.rows asks of an LLM: a token is two bytes, and each costs 3 bits."""

    class engine:
        class ops:
            dtype = "bfloat16"

    class options:
        quantization = None

    class tokenizer:
        @staticmethod
        def encode(text):
            return list(range(len(text.encode()) // 2))

    def perplexity(self, tokens, window, stride):
        return 8.0


def test_bits_a_byte_are_counted_over_the_texts_bytes():
    perplexity_row, bits = perplexity.rows(Llm(), "bundled", "é" * 100)
    assert perplexity_row.value == 8.0 and bits.value == pytest.approx(3 * 99 / 200, abs=1e-4)
    assert bits.variant == "bfloat16" and bits.unit == "bits/byte"


def test_a_row_names_the_format_of_quantised_weights(monkeypatch):
    monkeypatch.setattr(Llm.options, "quantization", "int8")
    assert {row.variant for row in perplexity.rows(Llm(), "bundled", "é" * 100)} == {"bfloat16, weights in int8"}


def test_models_of_the_package_by_name():
    assert perplexity.directory_of("draft").name == "draft" and (perplexity.directory_of("draft") / "config.json").exists()
    assert perplexity.directory_of("/some/where") == "/some/where"
