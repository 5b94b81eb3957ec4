"""What generation must do on any device; tests/engine runs these in NumPy, tests/gpu on a GPU."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minllm import LLM, BeamSearchParams, ContrastiveSearchParams, SamplingParams
from minllm.errors import SamplingError
from tests.engine.models import model_directory, transformers_beams, transformers_greedy
from tests.models.random_models import prompt

PROMPTS = [prompt(length) for length in (1, 17, 130)]
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
BROKEN = 77  # a token with NaN in its embedding: see break_token

BLOCK_BYTES = 2 * 2 * 16 * 2 * 32 * 4  # a block of the small model: layers, K and V, tokens, heads, head_dim, float32

BATCHINGS = [
    {"max_num_seqs": 1},
    {"max_num_seqs": 2},
    {"max_num_batched_tokens": 7},
    {"max_num_batched_tokens": 1, "max_num_seqs": 3},
    {"block_size": 1},
    {"block_size": 7},
    {"block_size": 256},
    {"kv_cache_policy": "contiguous", "max_num_seqs": 3},
    {"kv_cache_policy": "virtual", "max_num_seqs": 3},
]


def tokens_of(outputs):
    """The generated ids of every completion of the outputs."""
    return [completion.token_ids for output in outputs for completion in output.outputs]


def check_greedy_equals_transformers(family, **options):
    """Token for token in float32, for a batch of prompts."""
    with LLM(model_directory(family), dtype="float32", max_model_len=160, **options) as llm:
        ours = tokens_of(llm.generate(PROMPTS, GREEDY))
    assert ours == [transformers_greedy(family, token_ids, 20) for token_ids in PROMPTS]


def check_beam_search_equals_transformers(family, width, **options):
    """Token for token in float32, for several searches at once that no end of text stops."""
    with LLM(model_directory(family), dtype="float32", max_model_len=160, **options) as llm:
        outputs = llm.beam_search(PROMPTS, BeamSearchParams(width, max_tokens=10, ignore_eos=True))
    for token_ids, output in zip(PROMPTS, outputs, strict=True):
        assert [sequence.tokens for sequence in output.sequences] == transformers_beams(family, token_ids, width, 10)


def check_batching_changes_no_token(llm, **options):
    """Requests alone on `llm`, and together on one with other batch and block sizes."""
    prompts = [*PROMPTS[:2], prompt(16), prompt(15, seed=1), prompt(40)]
    alone = [tokens_of(llm.generate([token_ids], GREEDY))[0] for token_ids in prompts]
    with LLM(llm.options.model, max_model_len=256, **options) as other:
        assert tokens_of(other.generate(prompts, GREEDY)) == alone
        assert other.engine.cache_policy.usage().allocated == 0


def check_prefix_caching_changes_no_token(llm, **options):
    """Prompts that begin alike, one after the other, then together in a cache that is too small to keep all of it."""
    prompts = [prompt(70)[:length] + prompt(9, seed=length) for length in (64, 64, 32, 40)]
    alone = tokens_of(llm.generate(prompts, GREEDY))
    with LLM(llm.options.model, max_model_len=256, max_num_seqs=2, **options) as other:
        cached = [other.generate(token_ids, GREEDY)[0] for token_ids in prompts]
        assert tokens_of(cached) == alone
        assert [output.num_cached_tokens for output in cached] == [0, 64, 32, 32]
        for seed in range(9):
            other.generate(prompt(200, seed=seed), GREEDY)
        assert tokens_of(other.generate(prompts, GREEDY)) == alone
        other.engine.cache_policy.check()
        assert other.engine.cache_policy.usage().allocated == 0


def check_parallel_samples(llm):
    """Completions of one prompt against requests with their seeds, for prompts that fill blocks and that do not; with log probabilities."""
    params = SamplingParams(n=3, temperature=1.0, max_tokens=12, ignore_eos=True, seed=5, logprobs=1)
    for length in (1, 15, 16, 17, 40):
        [output] = llm.generate([prompt(length)], params)
        seeds = [sequence.params.seed for sequence in llm._requests(prompt(length), params)[0]]
        assert seeds[0] == 5 and len(set(seeds)) == 3
        alone = [replace(params, n=1, seed=seed) for seed in seeds]
        expected = [other.outputs[0] for other in llm.generate([prompt(length)] * 3, alone)]
        assert tokens_of_completions(output.outputs) == tokens_of_completions(expected)
        assert len(set(map(tuple, tokens_of_completions(output.outputs)))) == 3
        for one, other in zip(output.outputs, expected, strict=True):
            assert [list(named) for named in one.logprobs] == [list(named) for named in other.logprobs]
        assert llm.engine.cache_policy.usage().allocated == 0


def check_a_batch_of_one_equals_a_batch_of_many(llm):
    """Prompts and outputs of different lengths, so that sequences leave the batch one by one."""
    prompts = [prompt(length) for length in (3, 9, 27, 31, 5, 64)]
    lengths = [1, 5, 20, 13, 2, 7]
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]
    together = tokens_of(llm.generate(prompts, params))
    assert list(map(len, together)) == lengths
    assert together == [tokens_of(llm.generate(p, one))[0] for p, one in zip(prompts, params, strict=True)]


def check_seeded_requests(llm):
    """A seed repeats a text, whatever runs beside it, and another seed gives another."""
    seeded = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=16, seed=0)
    text = llm.generate("def f(", seeded)[0].outputs[0].text
    assert llm.generate("def f(", seeded)[0].outputs[0].text == text
    crowd = [SamplingParams(temperature=0.7, max_tokens=n, seed=n) for n in (3, 16, 9)]
    assert llm.generate(["class A", "def f(", "import", "for"], [crowd[0], seeded, *crowd[1:]])[1].outputs[0].text == text
    different = {llm.generate("def f(", SamplingParams(temperature=1.0, max_tokens=16, seed=seed))[0].outputs[0].text for seed in range(4)}
    assert len(different) == 4


def check_endings(llm):
    """Stop ids, min_tokens, penalties and logprobs, in one batch: each as it is alone."""
    free = llm.generate(prompt(17), GREEDY)[0].outputs[0].token_ids
    stop_id = free[next(i for i in range(4, 20) if free[i] not in free[:i])]
    options = [
        {"stop_token_ids": [stop_id]},
        {"stop_token_ids": [stop_id], "min_tokens": 15},
        {"repetition_penalty": 1.7, "logprobs": 2},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"temperature": 1.0, "top_k": 9, "seed": 1, "logprobs": 0},
    ]
    params = [SamplingParams(**{"temperature": 0, "max_tokens": 20, "ignore_eos": True, **given}) for given in options]
    together = [output.outputs[0] for output in llm.generate([prompt(17)] * len(params), params)]
    alone = [llm.generate(prompt(17), one)[0].outputs[0] for one in params]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert together[0].token_ids == free[: free.index(stop_id) + 1] and together[0].stop_reason == stop_id
    assert len(together[1].token_ids) >= 15 and stop_id not in together[1].token_ids[:15]
    assert len(set(map(tuple, tokens_of_completions(together)))) == len(params), "every option changed something"
    assert [len(named) for named in together[4].logprobs] == [1] * 20


def tokens_of_completions(completions):
    """The generated ids of each completion."""
    return [completion.token_ids for completion in completions]


def outputs_of(llm, requests):
    """The last output of each request, (prompt, parameters), all of one batch."""
    for number, (token_ids, params) in enumerate(requests):
        llm.llm_engine.add_request(str(number), token_ids, params)
    last = {}
    while llm.llm_engine.has_unfinished_requests():
        last |= {output.request_id: output for output in llm.llm_engine.step()}
    return [last[str(number)] for number in range(len(requests))]


def break_token(directory: Path, family: str = "small") -> Path:
    """A copy of a random model in which every text with the token BROKEN has logits of NaN."""
    shutil.copytree(model_directory(family), directory)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][BROKEN] = np.nan
    save_file(tensors, directory / "model.safetensors")
    return directory


def check_nan_ends_its_requests(broken, **options):
    """NaN ends the requests that meet it, in the prompt or with a token that they choose, and is counted; the others go on."""
    bad, cause = [*prompt(6), BROKEN, *prompt(6)], "hold NaN or infinity: the forward in float32 has overflowed, or the weights hold NaN"
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    requests = [
        (prompt(9) * 3, greedy), (bad, greedy), (prompt(9), replace(greedy, logit_bias={BROKEN: 100.0})),
        (bad, SamplingParams(temperature=1.0, seed=1, n=2)), (bad, SamplingParams(max_tokens=0, prompt_logprobs=1)),
    ]  # fmt: skip
    with LLM(broken, allow_nonfinite_weights=True, max_model_len=128, max_num_batched_tokens=8, **options) as llm:
        alone = outputs_of(llm, requests[:1])[0].outputs[0].token_ids
        found = outputs_of(llm, requests)
        assert found[0].outputs[0].token_ids == alone and found[0].error is None
        for output, place in zip(found[1:], ("1 of its output", "2 of its output", "1 of its output", ".* of its prompt"), strict=True):
            assert {one.finish_reason for one in output.outputs} == {"error"}
            with pytest.raises(SamplingError, match=f"for token {place} {cause}"):
                raise output.error
        assert found[2].outputs[0].token_ids == [BROKEN] and llm.llm_engine.stats().num_corrupted_requests == 5
        for fails in (
            lambda: llm.generate([bad], replace(greedy, logits_processors=[lambda ids, x: np.nan_to_num(x)])),
            lambda: llm.beam_search([bad], BeamSearchParams(beam_width=2, max_tokens=3)),
            lambda: llm.beam_search([bad], BeamSearchParams(beam_width=2, max_tokens=3, temperature=0.5)),
            lambda: llm.contrastive_search([bad], ContrastiveSearchParams(max_tokens=3)),
            lambda: llm.perplexity(bad),
            lambda: list(llm.stream(bad, greedy)),
        ):
            with pytest.raises(SamplingError, match=cause):
                fails()
        assert np.isnan(llm.logits(bad)[6:]).all(), "logits are returned as they are"
        assert np.isfinite(llm.logits(bad[:6])).all()
        assert outputs_of(llm, requests[:1])[0].outputs[0].token_ids == alone, "nothing is left of the NaN in the cache"
