"""Recorded figures on pages: their labels name commit and age, older ones are not compared with newer ones, and sums add up."""

import re
from dataclasses import replace

import pytest

from minllm.bench import kernel_keys
from minllm.bench.kernel_keys import (
    CACHE_FORMATS,
    FIRST_RUNGS,
    MODELS_OF_EXPERTS,
    Engine,
    engine_of,
    key_of,
    launched_by,
    meaning,
    rooms_of,
)
from minllm.catalogue import machine_code
from minllm.course import records
from minllm.course.records import comparable, label_of, load_record, parts_of, recorded
from minllm.errors import LessonError
from minllm.kernels.quantization.formats import KV_FORMATS
from minllm.models.shapes import SHAPES, named_config
from minllm.ptx import cp_async_wait_group_0, cp_async_wait_group_1, ex2, load_float32, load_float32_streaming, rcp

# (benchmark, variant, a case) of every row; of the rows that cover the same kernels only one
ROWS = sorted({
    (row["benchmark"], row["variant"], rooms_of(row["benchmark"], row["variant"], row["case"]), engine_of(row["variant"], row["case"])): (
        row["benchmark"], row["variant"], row["case"]
    )
    for name in ("h200", "cache_traffic")
    for row in load_record(name)["rows"]
}.values())  # fmt: skip

# stages that a step of a model without experts never has: of speculation, several GPUs, Gemma, loading and mixtures of experts
OF_OTHER_ENGINES = {"speculation", "all_reduce", "elementwise", "encoding", "experts"}


@pytest.fixture
def row(monkeypatch):
    """A row whose kernel has not changed since."""
    monkeypatch.setattr(kernel_keys, "current_key", lambda benchmark, variant, case: "now")
    return replace(recorded("matmul", "1x28672x4096, bfloat16", "gemv")[0], key="now", commit="5f46087")


def test_a_label_names_command_machine_date_and_commit(row):
    command = "minllm bench kernels --only matmul --against torch"
    assert row.label == f"recorded by {command} on an NVIDIA H200, {row.date}, commit 5f46087"
    assert replace(row, key="before").label == row.label
    assert replace(row, key=None).is_older and not replace(row, key="").is_older
    other = replace(row, commit="abc", date="2026-01-02")
    assert label_of([row, other]) == f"{row.label} and 2026-01-02, commit abc"
    alone = replace(other, benchmark="launch", peer=None)
    assert label_of([row, alone]).startswith(f"recorded by {command} and minllm bench launch on an")


def test_an_older_figure_is_not_compared_with_a_newer_one(row):
    older = replace(row, key="before")
    other = replace(row, commit="abc")
    assert comparable(row, other) and comparable(row, older)  # kernels as they are, and one state of all
    for others in ((other, older), (older, replace(older, commit="abc"))):
        with pytest.raises(LessonError, match="cannot be compared"):
            comparable(*others)


def test_a_cell_may_not_take_rows_of_different_states(monkeypatch):
    """As a notebook runs it: the code of a cell has a file name of its own. What another cell takes does not count."""
    monkeypatch.setattr(records, "_taken", {})
    rows = [dict(load_record()["rows"][0], benchmark="copy", case=case, commit=case, key=None) for case in ("one", "two")]
    monkeypatch.setattr(records, "load_record", lambda name: dict(rows=rows))

    def cell(source, name):
        exec(compile(source, f"/tmp/ipykernel_7/{name}.py", "exec"), dict(recorded=recorded))

    cell("recorded('copy', 'one')", "first")
    cell("recorded('copy', 'two')", "second")
    cell("recorded('copy', listed=True)", "list")
    for mixed in ("recorded('copy')", "recorded('copy', 'one')\nrecorded('copy', 'two')"):
        with pytest.raises(LessonError, match="cannot be compared"):
            cell(mixed, mixed[-5:])


def test_parts_add_up_and_come_from_kernels_of_the_engine(row):
    assert parts_of(row, 3.0, {"a": (row, 1.0), "b": (row, 1.5)}) == 0.5
    with pytest.raises(LessonError, match="exceed the whole by 0.110 ms"):
        parts_of(row, 3.0, {"a": (row, 3.11)})
    with pytest.raises(LessonError, match="split_kv, which the engine does not launch"):
        parts_of(row, 3.0, {"attention": (replace(row, benchmark="decode attention", variant="split_kv"), 1.0)})
    with pytest.raises(LessonError, match="cannot be compared"):
        parts_of(row, 3.0, {"a": (replace(row, key="before", commit="abc"), 1.0)})


@pytest.mark.parametrize("benchmark, variant, case", ROWS)
def test_every_row_of_the_records_has_kernels_or_needs_none(benchmark, variant, case):
    key = key_of(benchmark, variant, case)
    assert len(key) == (0 if benchmark in kernel_keys.OF_NO_KERNEL or benchmark.startswith("cache ") and not key else 12)


def test_rooms_are_there():
    names = [f"{name}/" for name in machine_code()]
    for room in FIRST_RUNGS:
        assert any(name.startswith(f"{room}/") for name in names), room
    assert rooms_of("decode attention", "split_kv") == ("attention/split_kv",) and rooms_of("decode step", "graph replay") == ()


def test_a_key_sees_code_and_constants_and_no_words(tmp_path):
    """As the disk cache's key: an edit of the body, of a constant, of a helper; but not of comments, docstrings, layout or place."""

    def key_of_source(text, number=[0]):  # noqa: B006
        number[0] += 1
        path = tmp_path / f"source_{number[0]}.py"
        path.write_text(text)
        namespace = {"__name__": path.stem}
        exec(compile(text, str(path), "exec"), namespace)
        return str(meaning(namespace["f"], {}))

    text = "SIZE = 4\ndef helper(x):\n    return x + SIZE\ndef f(x):\n    return helper(x) * 2\n"
    same = 'SIZE = 4\n\n\ndef helper(x):\n    """Words."""\n    return x + SIZE  # why\ndef f(x):\n    return helper(x)   * 2\n'
    assert key_of_source(text) == key_of_source(same)
    for old, new in (("SIZE = 4", "SIZE = 5"), ("x + SIZE", "x - SIZE"), ("* 2", "* 3")):
        assert key_of_source(text.replace(old, new)) != key_of_source(text), new


def test_an_instruction_is_known_by_what_it_emits_alone():
    """Its own text and lowering, not those of its module: so a new instruction changes no key."""
    instructions = (ex2, rcp, load_float32, load_float32_streaming, cp_async_wait_group_0, cp_async_wait_group_1)
    described = [str(meaning(one, {})) for one in instructions]
    assert len(set(described)) == 6 and "ex2.approx.ftz.f32" in described[0] and "rcp" not in described[0]
    assert "L1::no_allocate" in described[3] and "L1::no_allocate" not in described[2] and "wait_group 1;" in described[5]
    assert not any("np.float32" in text or "math.exp2" in text for text in described)  # nothing of emulations


def test_a_row_of_whole_steps_covers_what_its_engine_can_launch():
    assert {*CACHE_FORMATS} == {*KV_FORMATS}
    assert engine_of("bfloat16") == engine_of("graph replay") == Engine() and engine_of("int4, window 128") == Engine(cache_format="int4")
    plain, codes = ({name for name in machine_code() if launched_by(engine, name)} for engine in (Engine(), Engine(cache_format="int8")))
    assert plain < codes and not any("quantized" in name or "/float32" in name or "float16" in name.split("/") for name in plain)
    assert any("quantized/int8" in name for name in codes) and not any("fp8_e4m3" in name for name in codes)
    stages = {name.split("/")[0] for name in plain}
    assert stages == {name.split("/")[0] for name in machine_code()} - OF_OTHER_ENGINES
    modules = {machine_code()[name].kernel.function.__module__ for name in codes}
    assert not any(module.startswith("minllm.kernels.matmul.quantized") for module in modules)  # weights are another matter than a cache


def test_a_row_of_a_model_with_experts_covers_their_kernels():
    assert {*MODELS_OF_EXPERTS} == {name for name in SHAPES if named_config(name).num_experts}
    case = "qwen3-30b-a3b (random weights in int4_g128), batch 1, context 1024"
    assert engine_of("graph replay", case) == Engine(weight_format="int4", experts=True)
    plain, int4 = ({n for n in machine_code() if launched_by(Engine(weight_format=one, experts=True), n)} for one in ("", "int4"))
    assert any(name.startswith("experts/route") for name in plain) and not any(re.search("_(int4|fp8)/", name) for name in plain)
    assert any("gemv_int4/" in name for name in int4) and not any("_fp8/" in name for name in int4)
    assert rooms_of("experts", "down_gemv_fp8") == ("experts/down_gemv_fp8",)


def test_quantised_weights_have_kernels_of_their_own():
    case = "16 rows x 6144x4096, int4 in groups of 128"
    assert rooms_of("matmul, quantised", "tensor_core_gemv", case) == ("matmul/tensor_core_gemv/int4",)
    assert rooms_of("matmul, quantised", "wgmma", "1 row x 8x8, fp8") == ("matmul/wgmma/float8_e4m3fn",)
    assert engine_of("graph replay", "llama-3.1-8b (random weights in int4_g128), batch 1") == Engine(weight_format="int4")
    assert engine_of("graph replay", "llama-3.1-8b (random weights in bfloat16), batch 1") == Engine()
    plain, int4, int8 = ({n for n in machine_code() if launched_by(Engine(weight_format=one), n)} for one in ("", "int4", "int8"))
    assert plain < int4 and any("tensor_core_gemv/int4" in name for name in int4) and not any("nf4" in name for name in int4)
    assert any("flat/wgmma/int8" in name for name in int8) and not any(name.startswith("kv/") for name in int8 - plain)
