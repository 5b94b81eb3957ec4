"""The table of inflection points: how it is read, what follows from it, and how it comes out of measured times."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import InvalidOptionError
from minllm.kernels.matmul import dataflow
from minllm.kernels.matmul.choice import choose
from minllm.kernels.matmul.dataflow import NEVER, Inflection, choose_dataflow, inflection_points

TABLE = (Inflection(6144, 4096, 3, 97), Inflection(4096, 14336, 2, 129), Inflection(128256, 4096, 9, 9))


@pytest.fixture
def no_cache(monkeypatch, tmp_path):
    """An empty cache folder, and no table read before."""
    monkeypatch.setenv("MINLLM_CACHE_DIR", str(tmp_path / "kernels"))
    dataflow.table_of.cache_clear()
    yield
    dataflow.table_of.cache_clear()


@pytest.mark.parametrize(
    ("m", "n", "k", "expected"),
    [
        (2, 6144, 4096, "gemv"),
        (3, 6144, 4096, "flat"),
        (96, 6144, 4096, "flat"),
        (97, 6144, 4096, "many rows"),
        (2, 4000, 14000, "flat"),  # nearest to 4096x14336
        (8, 100_000, 5000, "gemv"),  # nearest to the head, where flat is never the fastest
        (9, 100_000, 5000, "many rows"),
        (2, 0, 0, "gemv"),
    ],
)
def test_the_nearest_shape_decides(m, n, k, expected):
    assert choose_dataflow(m, n, k, TABLE) == expected


def test_points_are_where_the_lines_cross():
    rows = (1, 2, 4, 8, 16, 64, 128)
    gemv, flat = (10, 11, 14, 20, None, None, None), (12, 12, 12, 12, 13, 18, 40)
    assert inflection_points(rows, gemv, flat, (30, 30, 30, 30, 30, 30, 35)) == (4, 128)
    assert inflection_points(rows, gemv, flat, (30, 30, 30, 30, 30, 30, 50)) == (4, NEVER)
    assert inflection_points(rows, gemv, (12, 11.9, 14.01, 12, 13, 18, 40), (30,) * 6 + (50,)) == (8, NEVER)  # one noisy time
    flat_from, many_from = inflection_points(rows, (10,) * 4 + (None,) * 3, (99,) * 7, (50,) * 7)
    assert flat_from == many_from == 16  # flat is never the fastest


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(*[st.floats(1, 100)] * 3), min_size=2, max_size=6))
def test_the_points_are_ordered_and_take_gemv_only_where_it_can(times):
    rows = tuple(range(5, 5 + len(times)))
    gemv, flat, many = zip(*times, strict=True)
    gemv = tuple(time if m <= 8 else None for m, time in zip(rows, gemv, strict=True))
    flat_from, many_from = inflection_points(rows, gemv, flat, many)
    assert flat_from <= many_from
    assert all(m >= flat_from for m, time in zip(rows, gemv, strict=True) if time is None)


def test_a_table_survives_its_file(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(dataflow.as_json("NVIDIA H200", TABLE))
    assert dataflow.read_table(path) == TABLE
    assert json.loads(path.read_text())["gpu"] == "NVIDIA H200"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"shapes": []}', '{"shapes": [{"n": 8}]}', '{"shapes": [{"n": 8, "k": 8, "flat_from": 9, "many_from": 3}]}'],
)
def test_a_damaged_table_is_explained(text, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(InvalidOptionError, match=r"table\.json.*minllm tune"):
        dataflow.read_table(path)


def test_what_was_tuned_here_comes_before_what_was_shipped_and_the_default_last(no_cache):
    assert dataflow.file_name("NVIDIA H200") == "nvidia-h200.json"
    assert dataflow.table_of("NVIDIA H200") == dataflow.read_table(dataflow.SHIPPED / "nvidia-h200.json")
    assert dataflow.table_of("NVIDIA Nothing 9000") == dataflow.table_of(None) == dataflow.DEFAULT
    path = dataflow.cache_file("NVIDIA H200")
    path.parent.mkdir(parents=True)
    path.write_text(dataflow.as_json("NVIDIA H200", TABLE))
    dataflow.table_of.cache_clear()
    assert dataflow.table_of("NVIDIA H200") == TABLE
    assert choose(2, 4096, 14336, "bfloat16", "NVIDIA H200") == "flat" and choose(2, 4096, 14336, "bfloat16") == "gemv"
    assert choose(2, 4096, 14336, "float32", "NVIDIA H200") == "gemv"  # tensor cores would round


def test_a_table_may_say_that_few_rows_are_many(no_cache, monkeypatch):
    monkeypatch.setattr(dataflow, "DEFAULT", (Inflection(4096, 4096, 2, 4),))
    assert [choose(m, 4096, 4096, "bfloat16") for m in (1, 2, 3, 4, 8, 9)] == ["gemv", "flat", "flat", *["tensor_core"] * 3]
    assert choose(4, 4096, 4096, "float32") == "gemv"
