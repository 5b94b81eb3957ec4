"""Stages of a pipeline with graphs like a GPU's: replays write over the arrays of earlier ones, and the tokens are those of one process."""

import random
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest

from minllm import LLM, SamplingParams, StructuredOutputsParams
from minllm.costs import pipeline as costs
from minllm.engine.build import engine
from minllm.engine.build.engine import load_engine
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.rank_runner import LeadingRunner, RankRunner
from minllm.engine.ranks.serve import serve
from minllm.engine.ranks.share import RankShare, captures_steps
from minllm.engine.running.machine import HostMachine
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.parallel.pipeline import LogitsElsewhere
from minllm.parallel.processes import OtherRanks
from minllm.parallel.tensor_parallel import SplitLogits
from tests.engine.models import model_directory
from tests.engine.ranks.models import save_model_of_eight_heads
from tests.models.random_models import prompt
from tests.parallel.in_threads import in_threads

OPTIONS = dict(device="cpu", max_model_len=96, max_num_seqs=4, max_num_batched_tokens=32)
PROMPTS = [[5, 6, 7], [11] * 40, [2, 3], list(range(60, 90)), [8, 8, 1]]
REQUESTS = [
    SamplingParams(temperature=0, max_tokens=16),
    SamplingParams(temperature=0.9, top_p=0.8, seed=4, logprobs=2, prompt_logprobs=1, max_tokens=12),
    SamplingParams(temperature=0, max_tokens=6, logits_processors=[lambda _, logits: np.roll(logits, 1)]),  # without graphs
    SamplingParams(seed=3, max_tokens=10, structured_outputs=StructuredOutputsParams(regex="[a-e ]{2,9}")),
]


class Replay:
    """A graph of a function; its result lies in memory that every graph writes."""

    def __init__(self, function, machine):
        (found,) = function()
        self.function, self.machine = function, machine
        self.result = (in_memory(found, machine.shared),)

    def launch(self):
        """Compute the function again, and write over all results."""
        self.machine.launches += 1
        (found,) = self.function()
        self.machine.shared.fill(np.nan)
        in_memory(found, self.machine.shared)


def in_memory(logits, memory):
    """The logits, written to the beginning of `memory`."""
    if isinstance(logits, LogitsElsewhere):
        return logits
    if isinstance(logits, SplitLogits):
        return SplitLogits(logits.ops, in_memory(logits.own, memory), logits.part)
    memory[: logits.size] = logits.reshape(-1)
    return memory[: logits.size].reshape(logits.shape)


class MachineWithGraphs(HostMachine):
    """A CPU with graphs that share memory."""

    def __init__(self):
        self.shared, self.launches = np.empty(1 << 16, np.float32), 0

    def capture(self, function):
        """A graph."""
        return Replay(function, self)


class RanksInThreads(OtherRanks):
    """The other ranks, whose threads end when their channels are closed."""

    failure = None

    def __init__(self, channels):
        self.channels = channels

    def end(self, reason):
        """Close the channels."""
        self.failure = reason
        self.close()

    def close(self):
        for channel in self.channels.values():
            channel.close()


def capturing_runner(share):
    """What RankShare.runner returns for an engine on a GPU."""
    kind = RankRunner if share.rank.rank else LeadingRunner
    return lambda *arguments, **options: kind(*arguments, **(options | dict(uses_graphs=True)))


@pytest.fixture
def on_ranks(monkeypatch):
    """on_ranks(work, directory, fewest, **options): work(llm) on rank 0, with graphs. fewest: the tokens of a micro-batch."""

    def on_ranks(work, directory, fewest, **options):
        count = options.get("tensor_parallel_size", 1) * options["pipeline_parallel_size"]
        channels = {rank: Pipe() for rank in range(1, count)}

        def lead(rank, given):
            processes = RanksInThreads({other: ours for other, (ours, _) in channels.items()})
            found = load_engine(given, share=RankShare(rank, given))
            processes.replies()  # all have loaded
            found.runner.processes = processes
            return replace(found, processes=processes)

        def run(rank):
            if rank.rank:
                return serve(rank._replace(channel=channels[rank.rank][1]), EngineOptions(model=directory, **options))
            monkeypatch.setattr("minllm.engine.llm.load_ranks", lambda given, _: lead(rank, given))
            with LLM(directory, **options) as llm:
                llm.engine.runner.capture_graphs({SamplingKind.GREEDY})
                return work(llm)

        monkeypatch.setattr(costs, "FEWEST_TOKENS", fewest)
        monkeypatch.setattr(engine, "HostMachine", MachineWithGraphs)
        monkeypatch.setattr(RankShare, "runner", property(capturing_runner))
        return in_threads(count, run)[0]

    return on_ranks


@pytest.mark.parametrize(("tensor", "pipeline", "fewest"), [(1, 2, 1), (2, 2, 1), (1, 4, 1), (1, 4, 2)])
def test_replayed_stages_make_the_tokens_of_one_process(tensor, pipeline, fewest, on_ranks, tmp_path):
    directory = save_model_of_eight_heads(tmp_path)
    with LLM(directory, **OPTIONS) as alone:
        wanted = [alone.generate(PROMPTS, params) for params in REQUESTS]

    def work(llm):
        return [llm.generate(PROMPTS, params) for params in REQUESTS], llm.engine.runner.machine.launches

    found, launches = on_ranks(work, directory, fewest, **OPTIONS, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    assert launches > 60
    for one, other in zip(found, wanted, strict=True):
        assert [output.outputs[0].token_ids for output in one] == [output.outputs[0].token_ids for output in other]
    for one, other in zip(found[1], wanted[1], strict=True):
        numbers = ([*output.prompt_logprobs[1:], *output.outputs[0].logprobs] for output in (one, other))
        for here, there in zip(*numbers, strict=True):
            np.testing.assert_allclose([x.logprob for x in here.values()], [x.logprob for x in there.values()], atol=1e-4)


FORMS = [dict(temperature=0, prompt_logprobs=1), dict(n=3), dict(max_tokens=0, prompt_logprobs=0), dict(top_p=0.8, frequency_penalty=1.0)]


def outputs_at_random(llm, seed):
    """What requests get that come and go at random steps; and the number of preemptions."""
    draw, found, leaves, engine, step = random.Random(seed), {}, {}, llm.llm_engine, 0
    while step < 16 or engine.has_unfinished_requests():
        if step < 16:
            token_ids = prompt(80)[: draw.randrange(40)] + prompt(draw.randrange(1, 40), seed=step)
            params = dict(max_tokens=draw.randrange(1, 15), seed=step, ignore_eos=True) | draw.choice(FORMS)
            engine.add_request(str(step), token_ids, SamplingParams(**params))
            leaves[step + draw.choice([1, 3, 1000, 1000, 1000])] = str(step)
        engine.abort_request(leaves.get(step, "none"))
        found |= {one.request_id: one for one in engine.step() if one.finished}
        step += 1
    assert llm.engine.cache_policy.usage().allocated == 0
    return found, engine.stats().num_preemptions


@pytest.mark.parametrize(("seed", "budget", "block_size", "fewest"), [(0, 11, 5, 1), (1, 29, 3, 4), (2, 64, 16, 2)])
def test_requests_that_come_and_go_get_the_tokens_of_one_process(seed, budget, block_size, fewest, on_ranks):
    """They share prefixes, fork and are preempted, and parts of prompts end anywhere in blocks."""
    directory, given = model_directory("small"), OPTIONS | dict(max_num_batched_tokens=budget, block_size=block_size)
    given |= dict(enable_prefix_caching=True, kv_cache_memory_bytes=130 << 10)  # 130 tokens
    with LLM(directory, **given) as alone:
        wanted, num_preemptions = outputs_at_random(alone, seed)
    given |= dict(kv_cache_memory_bytes=65 << 10, pipeline_parallel_size=2)
    found, same = on_ranks(lambda llm: outputs_at_random(llm, seed), directory, fewest, **given)
    assert num_preemptions == same > 0 and found.keys() == wanted.keys()
    for name, output in found.items():
        assert [one.token_ids for one in output.outputs] == [one.token_ids for one in wanted[name].outputs]
        for here, there in zip(output.prompt_logprobs or [None], wanted[name].prompt_logprobs or [None], strict=True):
            numbers = [[x.logprob for x in (named or {}).values()] for named in (here, there)]
            np.testing.assert_allclose(*numbers, atol=1e-4)


def test_parts_of_prompts_that_end_with_no_token_choose_none(on_ranks):
    """A choice lets all stages wait for the last one: here 1 of 6 forwards has one, the last part of the last chunk of 40 tokens."""

    def work(llm):
        ops, launches, choices = llm.engine.ops, llm.engine.runner.machine.launches, []
        ops.sample, sample = lambda *arguments: choices.append(1) or sample(*arguments), ops.sample
        llm.generate([[11] * 40], SamplingParams(max_tokens=1))
        return llm.engine.runner.machine.launches - launches, len(choices)

    options = OPTIONS | dict(max_num_batched_tokens=16, pipeline_parallel_size=2)
    assert on_ranks(work, model_directory("small"), fewest=1, **options) == (6, 1)


@pytest.mark.parametrize(
    ("options", "captured"),
    [
        (dict(), True),
        (dict(enforce_eager=True), False),
        (dict(tensor_parallel_size=2, pipeline_parallel_size=2), True),
        (dict(tensor_parallel_size=2, kernel_variants={"all_reduce": "nccl"}), False),
    ],
)
def test_steps_are_captured_unless_nccl_adds_up(options, captured):
    assert captures_steps(EngineOptions(**options)) == captured
