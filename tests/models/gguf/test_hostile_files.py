"""Whatever bytes a GGUF file has, opening it and loading everything in it ends with a model or with our own error."""

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minllm import LLM, SamplingParams
from minllm.errors import CheckpointError, MinLLMError
from minllm.models.gguf.gguf_model import GgufModel
from minllm.models.model import load_model
from minllm.models.tied_head import untied_if_stored
from minllm.ops.numpy_ops import NumpyOps
from tests.models.gguf.small_model import metadata, tensors
from tests.models.gguf.writer import gguf_bytes

WHOLE = gguf_bytes(metadata(), tensors())
HEADER_BYTES = WHOLE.rindex(b"output_norm.weight") + 64
NUMBERS = [0, 1, 2, 3, 7, 8, 31, 33, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]


def load_all(path):
    """What the engine reads, before it knows the machine."""
    source = GgufModel(path)
    config = source.config()
    checkpoint = source.checkpoint(config)
    config = untied_if_stored(config, checkpoint)
    checkpoint.dtype()
    source.generation_config()
    source.tokenizer().encode("hello <|im_end|> wörld 12")
    load_model(path, NumpyOps("float32"), checkpoint=checkpoint, config=config, max_positions=8)


def attempt(path, content):
    """Only CheckpointError, of which UnsupportedModelError is one, and no warning."""
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            load_all(path)
        except CheckpointError as error:
            assert str(error).endswith(".") and len(str(error)) < 1000


changes = st.lists(
    st.one_of(
        st.tuples(st.integers(0, HEADER_BYTES), st.binary(min_size=1, max_size=8)),
        st.tuples(st.integers(0, HEADER_BYTES), st.sampled_from(NUMBERS).map(lambda number: number.to_bytes(8, "little"))),
        st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=4)),
    ),
    min_size=1,
    max_size=4,
)
many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(changes)
def test_changed_bytes(tmp_path, edits):
    content = bytearray(WHOLE)
    for at, new in edits:
        content[at : at + len(new)] = new
    attempt(tmp_path / "model.gguf", bytes(content))


@many
@given(st.integers(0, HEADER_BYTES), st.integers(0, 40), st.binary(max_size=40))
def test_bytes_that_are_cut_out_or_put_in(tmp_path, at, cut, new):
    attempt(tmp_path / "model.gguf", WHOLE[:at] + new + WHOLE[at + cut :])


@many
@given(st.binary(max_size=200))
def test_any_bytes(tmp_path, content):
    attempt(tmp_path / "model.gguf", b"GGUF\x03\x00\x00\x00" + content)


KEYS = sorted(metadata())
anything = st.one_of(
    st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2, 64, 2**31 - 1]), st.floats(width=32), st.booleans(), st.text(max_size=20),
    st.lists(st.text(max_size=5), max_size=5), st.lists(st.integers(-9, 9), max_size=5).map(lambda items: np.array(items, np.int32)),
)  # fmt: skip


@many
@given(st.dictionaries(st.sampled_from(KEYS), anything, min_size=1, max_size=3))
def test_any_values_of_known_keys(tmp_path, values):
    values.pop("general.alignment", None)  # the writer follows it
    attempt(tmp_path / "model.gguf", gguf_bytes(metadata() | values, tensors()))


def test_the_file_itself_is_a_model_that_answers(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(WHOLE)
    load_all(path)
    with LLM(path, device="cpu", max_num_seqs=2) as llm:
        assert str(llm.engine.ops.dtype) == "bfloat16"
        first = llm.chat([dict(role="user", content="hello")], SamplingParams(temperature=0, max_tokens=5))[0].outputs[0]
        assert first.token_ids
    with LLM(str(path), device="cpu", dtype="float32", load_format="dummy") as llm:
        assert llm.generate("hello", SamplingParams(max_tokens=2))[0].outputs[0].token_ids


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="There is no file .*none.gguf"):
        LLM(tmp_path / "none.gguf")


def test_weights_that_are_not_finite(tmp_path):
    stored = tensors()
    name = "blk.0.attn_q.weight"
    stored[name] = stored[name]._replace(data=b"\x00\x7c" + stored[name].data[2:])  # an infinite scale
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(metadata(), stored))
    with pytest.raises(CheckpointError, match=r"tensor 'blk\.0\.attn_q\.weight' holds NaN or infinity"):
        LLM(path, device="cpu")
    with LLM(path, device="cpu", allow_nonfinite_weights=True):
        pass


def test_a_model_too_large_for_this_machine_is_our_error(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(metadata(llama__feed_forward_length=2**31 - 1, llama__context_length=2**31 - 1), tensors()))
    with pytest.raises(MinLLMError):
        LLM(path, device="cpu")
