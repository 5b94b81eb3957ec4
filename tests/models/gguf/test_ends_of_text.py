"""The tokens that end a text in a GGUF file: named by a key, or known by their text."""

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.errors import CheckpointError
from minllm.models.gguf.ends_of_text import ENDS, FILL_IN
from minllm.models.gguf.gguf_model import GgufModel
from tests.models.gguf.small_model import TOKENS, metadata, tensors
from tests.models.gguf.writer import float32, write_gguf

LAST = len(TOKENS) - 1


def model(tmp_path, renamed=None, kind=3, **changes):
    """The small model, its last tokens with other texts; <|endoftext|> and <|im_end|> of its vocabulary are not ends."""
    tokens = ["<a>", "<b>", "<c>", *TOKENS[3:]]
    for place, text in enumerate(renamed or [], 1):
        tokens[-place] = text
    types = np.array([3] * 3 + [1] * (len(TOKENS) - 3), np.int32)
    types[len(TOKENS) - len(renamed or []) :] = kind
    changes = {"tokenizer__ggml__eos_token_id": None, "tokenizer__ggml__merges": [], **changes}
    changes |= {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__token_type": types}
    return write_gguf(tmp_path / "model.gguf", metadata(**changes), {"a": float32([1])})


def ends(*arguments, **changes):
    return GgufModel(model(*arguments, **changes)).config().eos_token_ids


@pytest.mark.parametrize("kind", [1, 3, 4], ids=["normal", "control", "user defined"])
def test_well_known_texts_end_a_text_and_between_bars_whatever_their_type(tmp_path, kind):
    assert ends(tmp_path, []) == ()
    counts = {1: lambda text: text.startswith("<|"), 3: lambda text: True, 4: lambda text: text != "</s>"}[kind]
    assert ends(tmp_path, ENDS, kind) == tuple(LAST - place for place, text in enumerate(ENDS) if counts(text))


@pytest.mark.parametrize("kind", [1, 4], ids=["normal", "user defined"])
def test_html_does_not_end_where_a_tag_is_an_ordinary_token(tmp_path, kind):
    """Qwen's vocabulary has the tag as an ordinary token, Gemma's as a user-defined one."""
    assert ends(tmp_path, ["</s>", "<|im_end|>"], kind=kind) == (LAST - 1,)


@pytest.mark.parametrize("kind", [1, 4], ids=["normal", "user defined"])
def test_an_end_of_a_wrong_type_is_a_special_token(tmp_path, kind):
    ours = GgufModel(model(tmp_path, ["<|im_end|>"], kind, tokenizer__ggml__bos_token_id=None)).tokenizer()
    hi = [TOKENS.index("h"), TOKENS.index("i")]
    assert ours.encode("hi<|im_end|>") == [*hi, LAST] and ours.decode([*hi, LAST]) == "hi"


def test_keys_come_first_and_repetitions_count_once(tmp_path):
    named = {f"tokenizer__ggml__{name}_token_id": token_id for name, token_id in dict(eom=7, eos=5, eot=LAST, fim_pad=6).items()}
    assert ends(tmp_path, ["<|eot_id|>", "<|im_end|>", "<|fim_pad|>"], **named) == (5, LAST, 7, 6, LAST - 1)


@pytest.mark.parametrize("name", FILL_IN)
def test_of_tokens_after_a_filled_in_text_the_first_counts(tmp_path, name):
    assert ends(tmp_path, FILL_IN[name]) == (LAST,)


@pytest.mark.parametrize("value", ["3", -1.5, True, np.array([3], np.int32)])
def test_what_is_no_token_id_is_refused(tmp_path, value):
    with pytest.raises(CheckpointError, match="says tokenizer.ggml.eot_token_id = .*, and it must be a token id"):
        ends(tmp_path, [], tokenizer__ggml__eot_token_id=value)


def test_a_chat_ends_at_a_turns_end_that_no_key_names(tmp_path):
    """SmolLM2's base model, whose eos is <|endoftext|>, in a chat."""
    path = write_gguf(tmp_path / "model.gguf", metadata(tokenizer__ggml__eos_token_id=0), tensors())
    with LLM(path, device="cpu") as llm:
        likely = SamplingParams(temperature=0, max_tokens=4, logit_bias={2: 100})
        completion = llm.chat([{"role": "user", "content": "hello"}], likely)[0].outputs[0]
        assert (completion.token_ids, completion.finish_reason, completion.text) == ([2], "stop", "")
        beyond = SamplingParams(temperature=0, max_tokens=4, logit_bias={2: 100}, ignore_eos=True)
        assert llm.generate("hello", beyond)[0].outputs[0].token_ids == [2] * 4
