"""Thousands of mixed requests: no block, slot or chunk of host memory is lost, and each request ends once, in one way."""

import random

import pytest

from minllm import LLM, SamplingParams
from minllm.engine.core import EngineCore
from tests.engine.checks import BLOCK_BYTES
from tests.engine.models import model_directory
from tests.engine.scheduling.scripted_runner import check_books, check_nothing_is_left, expected_tokens, scripted, small_engine
from tests.engine.traffic import Traffic
from tests.models.random_models import prompt

ENGINES = {
    "split_fuse, swap": dict(scheduling_policy="split_fuse", preemption="swap", enable_prefix_caching="hash", max_num_batched_tokens=24),
    "in_flight, recompute": dict(scheduling_policy="in_flight", preemption="recompute", max_num_batched_tokens=64),
    "prefill_first, drop": dict(scheduling_policy="prefill_first", preemption="drop", max_num_batched_tokens=40),
    "static, auto": dict(
        scheduling_policy="static", preemption="auto", length_prediction="mean", enable_prefix_caching="radix", max_num_batched_tokens=32
    ),
}


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_mixed_requests_on_the_cpu(request, options):
    count = 2500 if request.config.option.exhaustive else 120
    sizes = dict(max_model_len=128, max_num_seqs=8, swap_space_bytes=6 * BLOCK_BYTES, kv_cache_memory_bytes=16 * BLOCK_BYTES)
    with LLM(model_directory("small"), device="cpu", **sizes, **options) as llm:
        traffic = Traffic(llm, seed=len(options["scheduling_policy"]))
        traffic.run(count)
        check_nothing_is_left(llm.engine.scheduler, 8)
        assert not traffic.differing, "other company, other tokens"
        assert {"abort", "error", "done"} == set(traffic.ended.values()) and traffic.refused > 0
        assert options["scheduling_policy"] == "static" or llm.llm_engine.stats().num_preemptions > 0
        assert len(llm.generate(prompt(9), SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))[0].outputs[0].token_ids) == 5


@pytest.mark.covering("policy + preemption", "ahead")
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("policy", ["split_fuse", "in_flight", "prefill_first", "static"])
@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto", "drop"])
def test_scripted_requests(request, policy, preemption, ahead):
    """The scheduler alone, with steps that fail, late results, and completions that share prompts."""
    count, chance = 2000 if request.config.option.exhaustive else 100, random.Random(ahead)
    faults = frozenset(chance.sample(range(20, 20 * count), count // 10))
    scheduler, runner = small_engine(
        blocks=14, seqs=6, budget=16, policy=policy, preemption=preemption, cache=chance.choice(["hash chain", "radix tree"]), ahead=ahead,
        fails_at=frozenset(step for step in faults if step % 2), lost=frozenset(step for step in faults if not step % 2),
    )  # fmt: skip
    core, made, running, ends = EngineCore(scheduler, runner, tokenizer=None), [], [], {}
    while len(made) < count or core.has_work:
        if len(made) < count and len(running) < 15:
            length, tokens, n = chance.randrange(1, 20), chance.randrange(0, 14), chance.choice([1, 1, 1, 2, 4])
            start = chance.choice([5, 5, 1000 * len(made)])
            script = range(100 * len(made), 100 * len(made) + tokens)
            asked = dict(max_tokens=chance.randrange(0, 12), n=n, salt=chance.choice(["", "salt"]), priority=chance.choice([0, 0, 1]))
            sequences = scripted(len(made), range(start, start + length), script, **asked)
            core.add(sequences[0])
            made.append(sequences)
            running += sequences
        if running and chance.random() < 0.05:
            gone = made[int(chance.choice(running).request_id)]
            core.abort(gone)
            ends |= {sequence: sequence.finish_reason for sequence in gone if sequence not in ends}
        for sequence in core.step():
            if sequence.is_finished and sequence not in ends:
                ends[sequence] = sequence.finish_reason
        running = [sequence for sequence in running if not sequence.is_finished]
        check_books(scheduler.queues)
    check_nothing_is_left(scheduler, 6)
    every = [sequence for sequences in made for sequence in sequences]
    assert set(ends) == set(every) and all(ends[sequence] == sequence.finish_reason for sequence in every)
    for sequence in every:
        found, expected = sequence.output_token_ids, expected_tokens(sequence)
        assert found == expected[: len(found)] and (len(found) == len(expected) or sequence.finish_reason in ("abort", "error"))
