"""Speculative decoding on a GPU: its graphs and its eager steps give the text of plain decoding on the CPU, whatever drafts."""

import pytest

from minllm import LLM, SamplingParams
from minllm.engine.scheduling.speculative import Speculation
from minllm.kernels.speculation.accept import accept
from tests.engine.checks import tokens_of
from tests.engine.models import model_directory
from tests.engine.scheduling.scripted_runner import check_nothing_is_left
from tests.gpu.test_step_graphs import SMALL, crowd

SOURCES = {
    "ngram": {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1},
    "itself": {
        "model": str(model_directory("llama3")),
        "draft_sample_method": "greedy",
        "num_speculative_tokens_schedule": "constant",
    },
}
TREES = {
    "tree": SOURCES["itself"] | {"num_speculative_tokens": 5, "speculative_token_tree": "[(0,), (1,), (0, 0), (0, 1), (1, 0)]"},
    "lookahead": {"method": "lookahead", "window": 4, "ngram_size": 3, "guess_set_size": 3},
}


@pytest.mark.covering("source + num_drafts", "enforce_eager")
@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("num_drafts", [1, 4])
@pytest.mark.parametrize("source", SOURCES)
def test_a_crowd_gets_the_text_of_plain_decoding(source, num_drafts, enforce_eager):
    """Greedy and sampled requests, some with penalties, more of them than slots, in mixed steps and in steps of decodes alone."""
    prompts, params = crowd(30)
    with LLM(model_directory("llama3"), device="cpu", **SMALL) as llm:
        expected = tokens_of(llm.generate(prompts, params))
    config = SOURCES[source] | {"num_speculative_tokens": num_drafts}
    options = SMALL | dict(device="cuda", speculative_config=config, enforce_eager=enforce_eager, max_num_batched_tokens=64)
    with LLM(model_directory("llama3"), **options) as llm:
        for _ in range(2):
            assert tokens_of(llm.generate(prompts, params)) == expected
        stats = llm.llm_engine.stats()
        assert stats.spec_decode_num_draft_tokens > 0 and (stats.num_graphs > 0) != enforce_eager
        check_nothing_is_left(llm.engine.scheduler, 8)


@pytest.mark.covering("name", "enforce_eager")
@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("name", TREES)
def test_a_crowd_gets_the_text_of_plain_decoding_from_trees(name, enforce_eager):
    """As above: the nodes of trees of several sequences beside prompts, paths that are compacted, graphs for all of it."""
    prompts, params = crowd(30)
    with LLM(model_directory("llama3"), device="cpu", **SMALL) as llm:
        expected = tokens_of(llm.generate(prompts, params))
    options = SMALL | dict(device="cuda", speculative_config=TREES[name], enforce_eager=enforce_eager, max_num_batched_tokens=96)
    with LLM(model_directory("llama3"), **options) as llm:
        for _ in range(2):
            assert tokens_of(llm.generate(prompts, params)) == expected
        stats = llm.llm_engine.stats()
        assert stats.spec_decode_num_accepted_tokens > 0 and (stats.num_graphs > 0) != enforce_eager
        check_nothing_is_left(llm.engine.scheduler, 8)


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_a_draft_model_that_pauses_and_comes_back(enforce_eager):
    """Pauses and trials take turns, in steps of decodes and beside prompts; what it has not seen meanwhile it computes before a trial."""
    prompts, params = crowd(30)
    with LLM(model_directory("llama3"), device="cpu", **SMALL) as llm:
        expected = tokens_of(llm.generate(prompts, params))
    config = SOURCES["itself"] | {"num_speculative_tokens": 3, "num_speculative_tokens_schedule": "adaptive"}
    options = SMALL | dict(device="cuda", speculative_config=config, enforce_eager=enforce_eager, max_num_batched_tokens=64)
    with LLM(model_directory("llama3"), **options) as llm:
        llm.engine.scheduler.speculation = Speculation(3, needs_room=True, best=lambda rate, count: 0, trial_interval=lambda count: 3)
        for _ in range(2):
            assert tokens_of(llm.generate(prompts, params)) == expected
        assert llm.llm_engine.stats().spec_decode_num_accepted_tokens > 0
        check_nothing_is_left(llm.engine.scheduler, 8)


@pytest.mark.parametrize("schedule", ["adaptive", "constant"])
def test_the_bundled_draft_changes_no_greedy_token(schedule):
    prompts = ["def read_lines(path):", "class Stack:\n", "import os\n\n\ndef main"] * 5
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    found = []
    for config in (None, {"method": "draft_model", "num_speculative_tokens": 4, "num_speculative_tokens_schedule": schedule}):
        with LLM(device="cuda", dtype="float32", max_num_seqs=16, speculative_config=config) as llm:
            found.append(tokens_of(llm.generate(prompts, params)))
    assert found[0] == found[1]


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_a_kernel_of_ones_own_decides(enforce_eager):
    """It is launched with arrays of the device, and captured into the graphs of steps."""
    calls = []

    def my_accept(*arguments):
        calls.append(arguments)
        accept(*arguments)

    prompts, params = crowd(10)
    config = SOURCES["ngram"] | {"num_speculative_tokens": 4}
    options = SMALL | dict(device="cuda", speculative_config=config, enforce_eager=enforce_eager)
    texts = []
    for variants in (None, {"accept": my_accept}):
        with LLM(model_directory("llama3"), **options, kernel_variants=variants) as llm:
            texts.append(tokens_of(llm.generate(prompts, params)))
            stages = llm.engine.ops.own_stages
    assert texts[0] == texts[1] and calls and stages == ("accept",)
