"""What a GGUF file may hold, and what is refused: each fault with the file, the key or tensor, and what is allowed."""

import itertools
import os
import re
import struct

import numpy as np
import pytest

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.gguf.gguf_file import GgufFile, is_gguf
from minllm.models.source import open_source
from tests.models.gguf import small_model
from tests.models.gguf.writer import F32, Q4_0, Stored, float32, gguf_bytes, string, write_gguf

VECTOR = {"a": float32([1, 2, 3])}


def opened(tmp_path, metadata=None, tensors=None, version=3):
    return GgufFile(write_gguf(tmp_path / "model.gguf", metadata or {}, tensors or {}, version))


def refuse(path, match, error=CheckpointError):
    with pytest.raises(error, match=match) as caught:
        GgufFile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("version", [2, 3])
def test_values_of_every_type(tmp_path, version):
    wide = {"u64": struct.pack("<IQ", 10, 2**63), "i64": struct.pack("<Iq", 11, -5), "f64": struct.pack("<Id", 12, 1e-300)}
    narrow = {"u8": struct.pack("<IB", 0, 255), "i8": struct.pack("<Ib", 1, -1), "u16": struct.pack("<IH", 2, 65535)}
    signed = {"i16": struct.pack("<Ih", 3, -2), "i32": struct.pack("<Ii", 5, -3)}
    plain = {"u32": 7, "f32": 1e-5, "bool": True, "text": "Größe 東京", "empty": "", "texts": ["a", "", "é"]}
    arrays = {"numbers": np.array([1, -2, 3], np.int16), "none": np.array([], np.float32), "no texts": []}
    found = opened(tmp_path, wide | narrow | signed | plain | arrays, version=version).metadata
    assert {key: found[key] for key in wide} == {"u64": 2**63, "i64": -5, "f64": 1e-300}
    assert {key: found[key] for key in narrow | signed} == {"u8": 255, "i8": -1, "u16": 65535, "i16": -2, "i32": -3}
    assert {key: found[key] for key in plain} == plain and found["bool"] is True
    assert found["numbers"].tolist() == [1, -2, 3] and len(found["none"]) == 0 and found["no texts"] == []


def test_arrays_of_arrays_are_passed_over(tmp_path):
    texts, numbers = struct.pack("<IQ", 8, 2) + string("a") + string("é"), struct.pack("<IQ3H", 2, 3, 1, 2, 3)
    nested = struct.pack("<IIQ", 9, 9, 3) + texts + numbers + struct.pack("<IQIQ", 9, 1, 4, 0)
    file = opened(tmp_path, {"notes": nested, "after": 5}, VECTOR)
    assert file.metadata["notes"].length == 3 and file.metadata["after"] == 5
    np.testing.assert_array_equal(file.tensor("a"), [1, 2, 3])
    for key in ("tokenizer.ggml.tokens", "tokenizer.chat_template", "llama.block_count", "llama.new_key"):
        source = open_source(write_gguf(tmp_path / "model.gguf", small_model.metadata() | {key: nested}, small_model.tensors()))
        with pytest.raises(CheckpointError, match=key):  # keys that are needed, or may change the results
            source.config(), source.tokenizer()


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensors_begin_at_multiples_of_the_alignment(tmp_path, alignment):
    tensors = {"a": float32([1, 2, 3]), "b.c": float32(np.arange(24).reshape(2, 3, 4)), "d": float32([5])}
    file = opened(tmp_path, {"general.alignment": alignment}, tensors)
    assert list(file.tensors) == list(tensors) and not any(tensor.begin % alignment for tensor in file.tensors.values())
    np.testing.assert_array_equal(file.tensor("b.c"), np.arange(24).reshape(2, 3, 4))
    np.testing.assert_array_equal(file.tensor("d"), [5])
    with pytest.raises(ValueError):
        file.tensor("a")[0] = 1  # the file is mapped read-only


def test_the_last_padding_may_be_missing(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({}, VECTOR)[:-20])
    np.testing.assert_array_equal(GgufFile(path).tensor("a"), [1, 2, 3])


def test_every_shorter_file_is_refused(tmp_path):
    whole = gguf_bytes({"general.architecture": "llama", "texts": ["a", "b"], "numbers": np.arange(3, dtype=np.int32)}, VECTOR)
    path = tmp_path / "model.gguf"
    for size in range(len(whole) - 20):
        path.write_bytes(whole[:size])
        refuse(path, "cut short|not a GGUF file")


START = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
TENSOR = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a GGUF file"),
        (b"\x80\x02}q", "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**63), "header of 9,223,372,036,854,775,808 keys"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**63, 0), "header of 9,223,372,036,854,775,808 tensors"),
        (START + struct.pack("<Q", 2**64 - 1) + bytes(9), "name of key 0 needs 18,446,744,073,709,551,615 bytes"),
        (START + string("") + struct.pack("<IH", 2, 1), "name of key 0 is ''"),
        (START + string(b"\xff") + struct.pack("<IQ", 10, 1), "name of key 0 is not valid UTF-8"),
        (START + string("a\n") + struct.pack("<IQ", 10, 1), "printable"),
        (START + string("k") + struct.pack("<IQ", 13, 0), "key 'k' has type 13"),
        (START + string("k") + struct.pack("<IQ", 8, 99), "value of key 'k' needs 99 bytes"),
        (START + string("k") + struct.pack("<IIQ", 9, 8, 2**61), "array 'k' of 2,305,843,009,213,693,952 items"),
        (START + string("k") + struct.pack("<IIQ", 9, 4, 2**62), "array 'k' of 4,611,686,018,427,387,904 items"),
        (START + string("k") + struct.pack("<IIQ", 9, 9, 2**60), "array 'k' of 1,152,921,504,606,846,976 items"),
        (START + string("k") + struct.pack("<IIQIQ", 9, 9, 1, 0, 99), "array 'k' of 99 items needs 99 bytes"),
        (START + string("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 99, "arrays in more than 8 levels"),
        (START + string("k") + struct.pack("<IIQ", 9, 99, 1), "array 'k' has items of type 99"),
        (TENSOR + string("t" * 65) + bytes(40), "name of tensor 0"),
        (TENSOR + string("t") + struct.pack("<I", 5) + bytes(60), "tensor 't' has 5 dimensions"),
        (TENSOR + string("t") + struct.pack("<I", 0) + bytes(60), "tensor 't' has 0 dimensions"),
        (TENSOR + string("t") + struct.pack("<IQIQ", 1, 0, 0, 0), "sizes are at least 1"),
        (TENSOR + string("t") + struct.pack("<IQQQQIQ", 4, *[2**63] * 4, 0, 0), "tensor 't' ends at byte"),
        (TENSOR + string("t") + struct.pack("<IQIQ", 1, 33, Q4_0, 0) + bytes(99), "rows of 33 numbers, and Q4_0 has blocks of 32"),
    ],
    ids=itertools.count(),
)
def test_damage_is_named(tmp_path, content, words):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    refuse(path, words)


def test_a_key_or_a_tensor_that_comes_twice(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({"aa": 1, "ab": 2}, VECTOR).replace(b"ab", b"aa"))
    refuse(path, "key 'aa' comes twice")
    path.write_bytes(gguf_bytes({}, {"aa": float32([1]), "ab": float32([2])}).replace(b"ab", b"aa"))
    refuse(path, "tensor 'aa' comes twice")


@pytest.mark.parametrize(
    ("offset", "words"), [(0, "overlaps"), (16, r"overlaps .*multiples of 32"), (64, "32 bytes unused"), (2**63, "unused")]
)
def test_tensors_that_overlap_or_leave_gaps(tmp_path, offset, words):
    whole = gguf_bytes({}, {"a": float32([1]), "b": float32([2])})
    right = struct.pack("<I", F32) + struct.pack("<Q", 32)
    assert whole.count(right) == 1
    path = tmp_path / "model.gguf"
    path.write_bytes(whole.replace(right, struct.pack("<IQ", F32, offset)))
    refuse(path, f"tensor 'b'.*{words}")


def test_blocks_of_a_fork_are_named(tmp_path):
    blocks = Stored(42, (32, 128), bytes(32 * 34))  # Q2_0 with 128 numbers a block; ggml's have 64 and take 36 bytes
    for tensors in ({"a": blocks}, {"a": blocks, "b": blocks}):
        refuse(write_gguf(tmp_path / "model.gguf", {}, tensors), "Q2_0 has blocks of 128 numbers, as a fork of llama.cpp")


def test_bytes_that_belong_to_no_tensor(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({}, VECTOR) + b"x")
    refuse(path, "1 bytes at the end belong to no tensor")


@pytest.mark.parametrize("alignment", [0, 4, 33, 2**31, "32", True])
def test_alignments_are_powers_of_two(tmp_path, alignment):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({"general.alignmenx": alignment}, {}).replace(b"alignmenx", b"alignment"))
    refuse(path, "general.alignment")


@pytest.mark.parametrize(("version", "words"), [(1, "of version 1"), (4, "of version 4"), (3 << 24, "big-endian")])
def test_other_versions_are_refused(tmp_path, version, words):
    refuse(write_gguf(tmp_path / "model.gguf", {}, {}, version), words, UnsupportedModelError)


@pytest.mark.parametrize(("kind", "name"), [(15, "Q8_K"), (24, "I8"), (99, "type 99")])
def test_other_types_are_refused_by_name(tmp_path, kind, name):
    path = write_gguf(tmp_path / "model.gguf", {}, {"t": Stored(kind, (256,), bytes(512))})
    refuse(path, f"tensor 't' is stored as {name}, and minllm reads .*Q4_1.*llama-quantize", UnsupportedModelError)


def test_paths_that_are_no_files(tmp_path):
    refuse(tmp_path / "none.gguf", "There is no file")
    refuse(tmp_path, "cannot be read")
    os.mkfifo(tmp_path / "fifo.gguf")
    refuse(tmp_path / "fifo.gguf", "FIFO")
    assert not is_gguf(tmp_path / "fifo.gguf") and not is_gguf(tmp_path) and not is_gguf(tmp_path / "none.gguf")


def test_a_gguf_file_is_known_by_its_name_or_its_first_bytes(tmp_path):
    named, bare, other = tmp_path / "a.gguf", tmp_path / "blob", tmp_path / "b.bin"
    named.write_bytes(b"")
    bare.write_bytes(b"GGUF")
    other.write_bytes(b"GGU")
    assert is_gguf(named) and is_gguf(bare) and not is_gguf(other)


def test_a_header_has_a_limit(tmp_path, monkeypatch):
    from minllm.models.gguf import value_reader

    monkeypatch.setattr(value_reader, "LARGEST_HEADER", 100)
    path = write_gguf(tmp_path / "model.gguf", {"text": "x" * 200}, VECTOR)
    refuse(path, re.escape("a header may have 100 in all"))
