"""Several ranks as users have them: LLM(tensor_parallel_size=, pipeline_parallel_size=) gives the same tokens, and ends well."""

import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest

from minllm import LLM, SamplingParams, StructuredOutputsParams
from minllm.engine.ranks import start
from minllm.engine.ranks.serve import STATE
from minllm.engine.requests.beam_search_params import BeamSearchParams
from minllm.errors import InvalidOptionError, InvalidRequestError
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.parallel.processes import RankError
from tests.engine.ranks.models import save_model_of_eight_heads
from tests.forked_python import forked_python

RANKS = {  # (tensor parallel, pipeline parallel); with four tensor ranks two hold each KV head
    "2 ranks": (2, 1), "4 ranks": (4, 1), "2 stages of 2 ranks": (2, 2),
}  # fmt: skip
OPTIONS = dict(device="cpu", max_model_len=96, max_num_seqs=4, max_num_batched_tokens=24, block_size=8)
PROMPTS = [[5, 6, 7], [11] * 40, [2, 3], [900, 17, 17, 17, 55], list(range(60, 90))]  # 40 and 30 tokens take several chunks
REPEATS = [[7, 8, 9] * 6, [1, 2] * 8]
pytestmark = pytest.mark.usefixtures("forked_python")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A float32 Llama of eight heads, random, with an odd vocabulary."""
    return save_model_of_eight_heads(tmp_path_factory.mktemp("eight-heads"))


@pytest.fixture(scope="module", params=RANKS.values(), ids=RANKS)
def both(request, directory):
    """(one process, several ranks), with all that the policies of scheduling and cache can do to a sequence."""
    options = dict(OPTIONS, enable_prefix_caching=True)
    blocks = 12  # one sequence at its longest, so that several are preempted
    (tensor, pipeline), bytes_per_block = request.param, 2 * 4 * 8 * 32 * 4  # bytes of one KV head
    with (
        forked_python(),
        LLM(directory, **dict(options, kv_cache_memory_bytes=2 * blocks * bytes_per_block)) as alone,
        LLM(directory, **dict(options, kv_cache_memory_bytes=blocks * bytes_per_block // pipeline), tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline) as ranks,
    ):  # fmt: skip
        assert alone.engine.cache.num_blocks == ranks.engine.cache.num_blocks
        yield alone, ranks


def tokens_of(outputs):
    return [[list(completion.token_ids) for completion in output.outputs] for output in outputs]


def louder(_output_token_ids, logits):
    """A function of the user's, which only rank 0 has."""
    return 1.5 * np.roll(logits, 1)


def failing(_output_token_ids, _logits):
    raise ZeroDivisionError("a fault of this test")


REQUESTS = {
    "greedy": SamplingParams(temperature=0, max_tokens=24),
    "sampled": SamplingParams(temperature=0.9, top_p=0.8, top_k=50, presence_penalty=0.5, seed=4, max_tokens=20),
    "several completions": SamplingParams(temperature=1.0, n=3, seed=9, max_tokens=6),
    "processed": SamplingParams(temperature=0, logits_processors=[louder], max_tokens=5),
    "structured": SamplingParams(seed=3, max_tokens=12, logprobs=1, structured_outputs=StructuredOutputsParams(regex="[a-e ]{2,9}")),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_tokens_are_those_of_one_process_and_ranks_agree_bitwise(name, both):
    alone, ranks = both
    assert tokens_of(ranks.generate(PROMPTS, REQUESTS[name])) == tokens_of(alone.generate(PROMPTS, REQUESTS[name]))
    processes, runner = ranks.engine.processes, ranks.engine.runner
    processes.send(STATE)
    for words in processes.replies():
        np.testing.assert_array_equal(words, runner.slots.state.words)


def test_sequences_are_preempted_and_share_prefixes(both):
    """The cache is small enough for the other tests to meet both; a prompt's blocks are found when it comes again."""
    _, ranks = both
    for prompts in (PROMPTS, PROMPTS[1], PROMPTS[1]):
        ranks.generate(prompts, REQUESTS["greedy"])
    assert ranks.llm_engine.stats().num_preemptions > 0 and ranks.engine.cache_policy.prefix_hits.tokens_hit > 0


def test_log_probabilities_and_scores_are_those_of_one_process(both):
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=1)
    outputs = [llm.generate(PROMPTS[:2], params) for llm in both]
    for one, other in zip(*outputs, strict=True):
        for found, wanted in zip(other.outputs[0].logprobs, one.outputs[0].logprobs, strict=True):
            assert list(found) == list(wanted)
            np.testing.assert_allclose([x.logprob for x in found.values()], [x.logprob for x in wanted.values()], atol=1e-4)
        for found, wanted in zip(other.prompt_logprobs[1:], one.prompt_logprobs[1:], strict=True):
            np.testing.assert_allclose([x.logprob for x in found.values()], [x.logprob for x in wanted.values()], atol=1e-4)
    alone, ranks = both
    np.testing.assert_allclose(ranks.logits(PROMPTS[1]), alone.logits(PROMPTS[1]), atol=1e-4)
    assert ranks.perplexity(PROMPTS[4], 16, 8) == pytest.approx(alone.perplexity(PROMPTS[4], 16, 8), rel=1e-5)


def test_beams_and_copied_blocks_are_those_of_one_process(both):
    found = [llm.beam_search(PROMPTS[:2], BeamSearchParams(beam_width=3, max_tokens=9)) for llm in both]
    assert [[beam.tokens for beam in output.sequences] for output in found[1]] == [
        [beam.tokens for beam in output.sequences] for output in found[0]
    ]  # fmt: skip


def test_a_fault_of_a_users_function_ends_its_request_alone(both):
    _, ranks = both
    with pytest.raises(ZeroDivisionError, match="a fault of this test"):
        ranks.generate([3, 4], SamplingParams(max_tokens=3, logits_processors=[failing]))
    test_tokens_are_those_of_one_process_and_ranks_agree_bitwise("processed", both)


def test_ranks_meet_after_their_warm_up(both):
    """All reply to the capture of graphs, of which the CPU has none, before the next step."""
    both[1].engine.runner.capture_graphs({SamplingKind.GREEDY})
    test_tokens_are_those_of_one_process_and_ranks_agree_bitwise("processed", both)


def test_contrastive_search_is_refused(both):
    with pytest.raises(InvalidRequestError, match="make an LLM with tensor_parallel_size=1"):
        both[1].contrastive_search([1, 2])


def test_drafts_are_verified_alike_and_a_killed_rank_ends_all(directory):
    """Speculation first; then rank 1 is killed between two steps of a stream, and everything ends within five seconds."""
    options = dict(OPTIONS, speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    both = [params, replace(params, structured_outputs=StructuredOutputsParams(regex="(?:ab|ba){9}"))]
    with LLM(directory, **OPTIONS) as alone:
        wanted = tokens_of(alone.generate(REPEATS, both))
    with LLM(directory, **options, tensor_parallel_size=2) as ranks:
        assert tokens_of(ranks.generate(REPEATS, both)) == wanted
        stream = ranks.stream(REPEATS[0], params)
        next(stream)
        [child] = children = ranks.engine.processes.children
        start_time = time.monotonic()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(RankError, match="Rank 1 was ended by SIGKILL, and all ranks have ended"):
            for _ in stream:
                pass
        assert time.monotonic() - start_time < 5
        with pytest.raises(RankError, match="Rank 1 was ended by SIGKILL"):  # and so for whoever comes later
            ranks.generate([1, 2], params)
        assert ranks.engine.cache_policy.usage().allocated == 0
    assert all(one.returncode is not None for one in children)


def test_an_interrupt_within_a_step_ends_all_ranks(directory, monkeypatch):
    """The other ranks would go on with the rest of that step, while rank 0 begins the next one: all sums would be of two steps."""
    with LLM(directory, **OPTIONS, tensor_parallel_size=2) as ranks:
        ops, children = ranks.engine.runner.ops, ranks.engine.processes.children

        def interrupted(_array):
            raise KeyboardInterrupt

        monkeypatch.setattr(ops.communicator, "all_reduce", interrupted, raising=False)
        with pytest.raises(KeyboardInterrupt):
            ranks.generate([1, 2], SamplingParams(max_tokens=3))
        monkeypatch.undo()
        with pytest.raises(RankError, match=r"Rank 0 has failed, and all ranks have ended: KeyboardInterrupt\(\)"):
            ranks.generate([1, 2], SamplingParams(max_tokens=3))
        assert ranks.engine.cache_policy.usage().allocated == 0
    assert all(one.returncode is not None for one in children)


WRONG = {
    "heads": (dict(tensor_parallel_size=3), "degree of 3 does not divide this model: it has 8 query heads, 2 KV heads"),
    "zero": (dict(tensor_parallel_size=0), "tensor_parallel_size=0 is not allowed: tensor_parallel_size is an integer of at least 1"),
    "pages": (dict(kv_cache_policy="virtual"), 'kv_cache_policy="virtual" is not allowed together with tensor_parallel_size=2'),
    "swap": (dict(preemption="swap"), "preemption='swap' is not allowed together with tensor_parallel_size=2"),
    "kernel": (dict(kernel_variants={"matmul": print}), "A launcher of your own in kernel_variants is not allowed together"),
    "layers": (dict(tensor_parallel_size=1, pipeline_parallel_size=3), "does not divide the model's 4 layers: take one of 1, 2, 4"),
    "drafts": (
        dict(pipeline_parallel_size=2, speculative_config={"method": "ngram", "num_speculative_tokens": 2}),
        "is not allowed together with tensor_parallel_size=2 and pipeline_parallel_size=2",
    ),
    "variant": (dict(kernel_variants={"matmul": "tiled"}), "chooses among GPU kernels by name, and this LLM runs on the CPU"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_split_is_refused_before_anything_starts(name, directory, monkeypatch):
    options, message = WRONG[name]
    monkeypatch.setattr(start, "RankProcesses", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(InvalidOptionError) as error:
        LLM(directory, device="cpu", **{"tensor_parallel_size": 2, **options})
    assert message in str(error.value)


def test_the_bundled_model_cannot_be_split():
    with pytest.raises(InvalidOptionError, match="it has 5 query heads, 1 KV heads and an inner width of 896. Allowed are 1"):
        LLM(device="cpu", tensor_parallel_size=2)


def test_an_error_while_loading_ends_all_ranks(directory, monkeypatch):
    """The cache is too small for one block, which rank 0 finds out as the others do."""
    started = []

    class Noted(start.RankProcesses):
        def __init__(self, *given):
            super().__init__(*given)
            started.append(self)

    monkeypatch.setattr(start, "RankProcesses", Noted)
    with pytest.raises(Exception, match="No memory is left for the KV cache|kv_cache_memory_bytes"):
        LLM(directory, device="cpu", tensor_parallel_size=2, kv_cache_memory_bytes=16)
    assert all(child.returncode is not None for child in started[0].children)


@pytest.mark.parametrize(("tensor", "pipeline"), [(8, 1), (4, 2)])
def test_eight_ranks_make_the_tokens_of_one_process(tensor, pipeline, directory):
    """With eight tensor ranks each has one query head, and four hold each KV head."""
    with (
        LLM(directory, **OPTIONS) as alone,
        LLM(directory, **OPTIONS, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline) as ranks,
    ):
        params = SamplingParams(temperature=0, max_tokens=4)
        assert tokens_of(ranks.generate(PROMPTS[:3], params)) == tokens_of(alone.generate(PROMPTS[:3], params))
        ranks.engine.processes.send(STATE)
        for words in ranks.engine.processes.replies():
            np.testing.assert_array_equal(words, ranks.engine.runner.slots.state.words)
