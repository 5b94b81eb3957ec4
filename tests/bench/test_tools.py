"""The measuring tools without a GPU: parts that fail do not take the others with them, and the sanitizers' verdicts are read right."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from minllm.bench import perplexity
from minllm.bench.record import Record, Row

ROOT = Path(__file__).parents[2]
RECORD = Record("NVIDIA H200", "580.65", "2026-01-02", "", {}, {"copy_tb_s": 4.25}, [Row("matmul", "1x1x1", "gemv", 1.0, "TB/s")])


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def record_results(monkeypatch, tmp_path):
    """The tool, whose benchmarks are the scripts that a test gives instead of `minllm bench`: each gets "--json" and a path last."""
    tool = load("record_results")

    def main(*scripts, arguments=()):
        commands = iter(scripts)

        class Subprocess:
            TimeoutExpired = tool.subprocess.TimeoutExpired
            run = staticmethod(
                lambda command, timeout: real_run([sys.executable, "-c", next(commands), command[-1]], timeout=timeout, text=True)
            )

        real_run = tool.subprocess.run
        monkeypatch.setattr(tool, "subprocess", Subprocess)
        monkeypatch.setattr(tool, "BENCHMARKS", tuple(("generate", str(i)) for i in range(len(scripts))))
        monkeypatch.setattr(sys, "argv", ["record_results.py", "--results", str(tmp_path), *arguments])
        return tool.main()

    return main


WRITES = f"import sys; open(sys.argv[1], 'w').write({RECORD.to_json()!r})"


def test_a_part_that_fails_leaves_the_others(record_results, tmp_path, capsys):
    assert record_results("import sys; sys.exit(3)", WRITES, arguments=("--commit", "abc123")) == 1
    whole = json.loads((tmp_path / "h200.json").read_text())
    assert whole["commit"] == "abc123" and len(whole["rows"]) == 1
    assert "exit code 3" in capsys.readouterr().err


def test_what_a_failing_part_has_measured_is_kept(record_results, tmp_path):
    assert record_results(WRITES + "; sys.exit(1)") == 1
    assert len(json.loads((tmp_path / "h200.json").read_text())["rows"]) == 1


def test_all_well_is_exit_code_0(record_results):
    assert record_results(WRITES, WRITES) == 0


def test_records_that_were_measured_before(record_results, tmp_path):
    (tmp_path / "one.json").write_text(RECORD.to_json())
    assert record_results(arguments=(str(tmp_path / "one.json"),)) == 0
    assert (tmp_path / "h200.json").exists()


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


def test_every_pattern_selects_tests():
    tool = load("check_memory")
    tests = tool.selected_tests()
    assert 100 < len(tests) < 600
    for pattern in tool.SELECTED:
        assert any(re.search(pattern, test) for test in tests), pattern


class Llm:
    """What perplexity.rows asks of an LLM: a token is two bytes, and each costs 3 bits."""

    class engine:
        class ops:
            dtype = "bfloat16"

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


def test_models_of_the_package_by_name():
    assert perplexity.directory_of("draft").name == "draft" and (perplexity.directory_of("draft") / "config.json").exists()
    assert perplexity.directory_of("/some/where") == "/some/where"
