"""Greedy text of the bundled model with every source of drafts, token for token that of plain decoding, over many prompts, in float32."""

import pytest

import minllm
from minllm import LLM, SamplingParams

SOURCES = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4},
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 4},
    "tree": {"method": "draft_model", "num_speculative_tokens": 5, "speculative_token_tree": "[(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]"},
    "lookahead": {"method": "lookahead", "window": 4, "ngram_size": 3, "guess_set_size": 4},
}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
MANY, SOME = 1000, 24  # prompts, with --exhaustive and without
SMALL = dict(device="cpu", dtype="float32", max_model_len=128)


def texts(prompts, config):
    """(the tokens of each prompt, the number of accepted drafts)."""
    with LLM(speculative_config=config, **SMALL) as llm:
        outputs = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
        return outputs, llm.llm_engine.stats().spec_decode_num_accepted_tokens


@pytest.fixture(scope="module")
def plain(request):
    """(prompts of 8 to 47 tokens from the held-out text, what plain decoding says)."""
    count = MANY if request.config.option.exhaustive else SOME
    with LLM(**SMALL) as llm:
        tokens = llm.tokenizer.encode(minllm.held_out_text()[:400_000])
    stride = (len(tokens) - 64) // count
    prompts = [tokens[i * stride : i * stride + 8 + i % 40] for i in range(count)]
    return prompts, texts(prompts, None)[0]


@pytest.mark.parametrize("source", SOURCES)
def test_no_token_differs(plain, source):
    prompts, expected = plain
    found, accepted = texts(prompts, SOURCES[source])
    assert [i for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)) if ours != theirs] == []
    assert accepted > len(prompts) / 4
