"""Truncated prompts, against transformers' tokenizer with truncation_side="left"."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from minllm import SamplingParams
from minllm.engine.requests.prompts import PromptTokens
from minllm.engine.requests.truncation import truncated
from minllm.errors import InvalidRequestError
from minllm.models.tokenizer import Tokenizer

BOS, EOS = 0, 1
TEMPLATES = {"none": None, "BOS": "<s> $A", "BOS and EOS": "<s> $A </s>", "EOS": "$A </s>", "two before": "<s> <t> $A"}


def backend(template):
    """A tokenizer with a token for each of ten letters, which puts special tokens around a text."""
    vocab = {token: i for i, token in enumerate(["<s>", "</s>", "<t>", *"abcdefghij"])}
    made = tokenizers.Tokenizer(models.BPE(vocab, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    made.add_special_tokens(["<s>", "</s>", "<t>"])
    if template is not None:
        special = [(token, vocab[token]) for token in ("<s>", "</s>", "<t>")]
        made.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    return made


TOKENIZERS = {name: Tokenizer(backend(template), {"bos_token": "<s>"}) for name, template in TEMPLATES.items()}


@given(st.sampled_from(list(TEMPLATES)), st.text("abcdefghij", min_size=1, max_size=12), st.integers(1, 14), st.booleans())
def test_the_tokens_are_those_of_transformers(name, text, length, begins_with_bos):
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=backend(TEMPLATES[name]), truncation_side="left")
    text, tokenizer = ("<s>" if begins_with_bos and name != "none" and name != "EOS" else "") + text, TOKENIZERS[name]
    prompt, params = PromptTokens(text, tokenizer.encode(text)), SamplingParams(truncate_prompt_tokens=length)
    num_special = len(theirs("").input_ids)
    if length < num_special < len(prompt.token_ids):
        with pytest.raises(InvalidRequestError, match="too few for its 2 special tokens"):
            truncated(prompt, params, 99, tokenizer)
        return
    assert truncated(prompt, params, 99, tokenizer).token_ids == theirs(text, truncation=True, max_length=length).input_ids


@pytest.mark.parametrize(
    ("token_ids", "length", "kept"),
    [
        ([5, 6, 7, 8], 2, [7, 8]), ([BOS, 5, 6, 7, 8], 3, [BOS, 7, 8]), ([BOS, 5, 6, 7, EOS], 3, [BOS, 7, EOS]),
        ([5, 6, 7, EOS], 2, [7, EOS]), ([BOS, 5, 6], 99, [BOS, 5, 6]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["none", "BOS", "BOS and EOS"])
def test_ids_of_a_template_or_a_caller_keep_their_special_tokens(name, token_ids, length, kept):
    params = SamplingParams(truncate_prompt_tokens=length)
    assert truncated(PromptTokens("text", token_ids), params, 99, TOKENIZERS[name]) == PromptTokens("text", kept)


@pytest.mark.parametrize(("max_tokens", "kept"), [(0, 10), (1, 9), (4, 6), (9, 1), (None, 9)])
def test_the_whole_context_is_shared_with_the_new_tokens(max_tokens, kept):
    prompt, params = PromptTokens(None, [3] * 20), SamplingParams(truncate_prompt_tokens=-1, max_tokens=max_tokens)
    assert truncated(prompt, params, 10, TOKENIZERS["BOS"]).token_ids == [3] * kept


@pytest.mark.parametrize(("length", "max_tokens"), [(-1, 10), (-1, 99)])
def test_no_room_for_a_prompt_is_refused(length, max_tokens):
    params = SamplingParams(truncate_prompt_tokens=length, max_tokens=max_tokens)
    with pytest.raises(InvalidRequestError, match=f"truncate_prompt_tokens=-1 with max_tokens={max_tokens} leaves .* lower max_tokens"):
        truncated(PromptTokens(None, [3] * 20), params, 10, TOKENIZERS["BOS"])
