"""Generation with real forwards in NumPy: against transformers, and against itself however requests are batched."""

import json
import shutil

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from tests.engine import checks
from tests.engine.checks import BLOCK_BYTES, GREEDY, tokens_of
from tests.engine.models import model_directory
from tests.models.random_models import FAMILIES, prompt


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers(family):
    checks.check_greedy_equals_transformers(family, device="cpu")


@pytest.mark.parametrize("options", checks.BATCHINGS)
def test_how_requests_are_batched_changes_no_token(llm, options):
    checks.check_batching_changes_no_token(llm, device="cpu", **options)


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_prefix_caching_changes_no_token(llm, index):
    checks.check_prefix_caching_changes_no_token(llm, device="cpu", enable_prefix_caching=index)


def test_a_batch_of_one_equals_a_batch_of_many(llm):
    checks.check_a_batch_of_one_equals_a_batch_of_many(llm)


def test_seeded_requests_repeat_and_ignore_their_neighbours(llm):
    checks.check_seeded_requests(llm)


def test_options_of_neighbours_do_not_mix(llm):
    checks.check_endings(llm)


def test_a_small_cache_takes_requests_in_turns(llm):
    """Four blocks of 16: two of these requests at a time."""
    with LLM(model_directory("small"), device="cpu", max_model_len=64, kv_cache_memory_bytes=4 * BLOCK_BYTES) as small:
        assert small.engine.cache_policy.num_blocks == 4
        prompts = [prompt(12, seed=seed) for seed in range(5)]
        assert tokens_of(small.generate(prompts, GREEDY)) == tokens_of(llm.generate(prompts, GREEDY))


def test_the_engine_seed_repeats_a_whole_run():
    def run(seed):
        with LLM(model_directory("small"), device="cpu", max_model_len=64, seed=seed) as llm:
            params = SamplingParams(temperature=1.0, max_tokens=10)
            return [output.outputs[0].text for _ in range(2) for output in llm.generate(["a", "a"], params)]

    first = run(7)
    assert run(7) == first != run(8)
    assert len(set(first)) == 4, "requests without a seed must differ from each other"


def test_outputs_and_metrics(llm):
    outputs = llm.generate(["def f(x):", prompt(5)], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
    assert outputs[0].prompt == "def f(x):" and outputs[1].prompt is None
    assert outputs[0].prompt_token_ids == llm.tokenizer.encode("def f(x):") and outputs[1].prompt_token_ids == prompt(5)
    for output in outputs:
        completion = output.outputs[0]
        assert output.finished and len(output.outputs) == 1 and completion.index == 0
        assert completion.text == llm.tokenizer.decode(completion.token_ids)
        assert completion.logprobs is completion.cumulative_logprob is None
        assert output.metrics.prompt_tokens == len(output.prompt_token_ids) and output.metrics.generated_tokens == 9
        assert output.metrics.time_to_first_token > 0
        assert output.metrics.decode_tokens_per_second == pytest.approx(8 / output.metrics.decode_seconds)
    assert outputs[0].request_id != outputs[1].request_id


def test_default_parameters_are_the_checkpoints(llm):
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0, max_tokens=12)
    assert tokens_of(llm.generate(prompt(9))) == tokens_of(llm.generate(prompt(9), SamplingParams(temperature=0, max_tokens=12)))


def test_the_generation_configs_end_of_sequence_counts_before_the_models(tmp_path):
    """As in transformers, whose generation_config.json overrides config.json (where a Llama ends with id 2)."""
    shutil.copytree(model_directory("small"), tmp_path, dirs_exist_ok=True)
    for written, expected in ((None, {2}), (7, {7}), ([5, 7, 5000], {5, 7})):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": written}))
        with LLM(tmp_path, device="cpu", max_model_len=16) as llm:
            assert llm.engine.eos_token_ids == expected


def test_one_prompt_or_a_list_of_it(llm):
    for single in ("def f(", prompt(4), tuple(prompt(4)), np.array(prompt(4))):
        assert tokens_of(llm.generate(single, GREEDY)) == tokens_of(llm.generate([single], GREEDY))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_generates_what_its_own_logits_say(dtype):
    with LLM(model_directory("small"), device="cpu", dtype=dtype, max_model_len=64) as llm:
        tokens = llm.generate(prompt(17), SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))[0].outputs[0].token_ids
        logits = llm.logits(prompt(17) + tokens[:-1])[16:]
        chosen = np.take_along_axis(logits, np.array(tokens)[:, None], axis=1)[:, 0]
        assert (chosen >= logits.max(axis=1) - 0.02 * np.abs(logits).max()).all()  # rounding differs between one token and many


def test_the_checkpoints_dtype_is_the_default():
    with LLM(model_directory("small", "bfloat16"), device="cpu", max_model_len=64) as llm:
        assert str(llm.engine.ops.dtype) == "bfloat16"
