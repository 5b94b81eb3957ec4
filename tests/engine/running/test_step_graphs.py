"""Graphs of steps, and a step of lead, on NumPy: a graph is the recorded function, run again at every launch."""

import functools

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.engine.options import SCHEDULING_POLICIES
from minllm.engine.running.model_runner import ModelRunner
from minllm.engine.running.speculator import Speculator
from minllm.engine.running.step_graphs import decode_sizes, next_size, table_widths, token_sizes
from minllm.errors import CaptureError
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.ops.numpy_ops import NumpyOps
from tests.engine.checks import BLOCK_BYTES
from tests.engine.models import model_directory
from tests.models.random_models import prompt


class QueueOps(NumpyOps):
    """NumPy with device arrays of its own: what is passed in is copied, as to a GPU."""

    def array(self, host_array):
        return np.array(host_array, order="C")


class Event:
    """Something that the device does some time later, after all that came before; the host sees it once it has waited for it."""

    is_done = False

    def __init__(self, queue, happens):
        self.queue, self.happens = queue, happens
        queue.append(self)

    def sync(self):
        while not self.is_done:
            first = self.queue.pop(0)
            first.happens()
            first.is_done = True


class QueueMachine:
    """A machine without a GPU that is one step ahead. Results reach the host arrays only when an event is waited for, like a slow GPU's."""

    steps_ahead, graph_memory_bytes = 1, 0

    def __init__(self):
        self.captures = self.launches = 0
        self.fails = False  # whether captures fail
        self.queue = []  # events, the earliest first

    def capture(self, function):
        if self.fails:
            raise RuntimeError("the capture failed")
        machine = self
        self.captures += 1

        class Graph:
            """All graphs share the memory of their results, so a result is overwritten by the next launch, of whichever graph."""

            result = None

            def launch(self):
                machine.launches += 1
                new = function()
                if self.result is None:
                    self.result = new
                for old, fresh in zip(self.result, new, strict=True):
                    old[:] = fresh

        return Graph()

    def pinned(self, shape, dtype):
        return np.full(shape, 99, dtype)

    def read_later(self, array, pinned):
        contents = array.copy()  # the order of the stream: what the array holds now

        def happens():
            pinned[:] = contents

        return Event(self.queue, happens)

    def write(self, array, host):
        array[:] = host

    def write_later(self, array, pinned):
        array[:] = pinned
        then = pinned.copy()

        def happens():
            assert np.array_equal(pinned, then), "overwritten on its way to the device"

        return Event(self.queue, happens)


def with_graphs(llm, machine, max_num_seqs=8, max_model_len=256, budget=2048):
    """Give a loaded CPU engine the runner of a GPU."""
    old = llm.engine.runner
    assert llm.llm_engine.core.runner is old
    ops, speculator, beyond = QueueOps("float32"), None, 0
    if old.speculator is not None:
        source, num_drafts, config = old.speculator.source, old.speculator.query_len - 1, llm.options.speculative_config
        beyond = config.rows_beyond
        speculator = functools.partial(
            Speculator, ops, machine, source=source, num_drafts=num_drafts, width=max_model_len, tree=config.tree, cache=old.cache
        )
    runner = ModelRunner(
        ops, old.model, old.cache, old.policy, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget,
        max_model_len=max_model_len + beyond, machine=machine, uses_graphs=True, speculator=speculator,
    )  # fmt: skip
    llm.engine.runner = llm.llm_engine.core.runner = runner


@pytest.fixture(scope="module")
def machine():
    return QueueMachine()


@pytest.fixture(scope="module")
def graph_llm(machine):
    """The session's model, with the runner of a GPU."""
    with LLM(model_directory("small"), device="cpu", max_model_len=256, max_num_seqs=8) as llm:
        with_graphs(llm, machine)
        yield llm
        assert llm.engine.cache_policy.usage().allocated == 0


def results(outputs):
    return [(one.token_ids, one.logprobs, one.finish_reason) for output in outputs for one in output.outputs]


def steps_ended(llm):
    """Compute what was launched ahead."""
    while llm.llm_engine.core.has_work:
        llm.llm_engine.core.step()


def test_sizes_and_widths():
    assert decode_sizes(1) == [1] and decode_sizes(3) == [1, 2, 3] and decode_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert token_sizes(600) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768]
    assert decode_sizes(257)[:6] == [1, 2, 4, 8, 16, 32] and token_sizes(3584)[-3:] == [2560, 3072, 3584]
    assert all(len(decode_sizes(most)) <= len(decode_sizes(256)) + 2 for most in range(1, 1025))
    assert all(len(token_sizes(most)) <= len(token_sizes(2048)) + 2 for most in range(1, 8193))
    assert table_widths(16, 16) == [16] and table_widths(64, 16) == [64] and table_widths(500, 16) == [64, 256, 500]
    assert [next_size(count, [1, 2, 4, 8]) for count in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, None]


class ColdMachine(QueueMachine):
    """A machine on which nothing is loaded: a capture fails unless as many tokens were computed before."""

    def __init__(self):
        super().__init__()
        self.refusals, self.loaded = 0, False

    def capture(self, function):
        if not self.loaded:
            self.refusals += 1
            self.loaded = True
            raise CaptureError("a kernel is not loaded")
        return super().capture(function)


def test_a_step_is_launched_before_its_capture_only_if_something_is_missing(llm):
    machine, params = ColdMachine(), SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    with LLM(model_directory("small"), device="cpu", max_model_len=128, max_num_seqs=4) as other:
        with_graphs(other, machine, 4, 128)
        computed, compute = [], other.engine.runner.graphs.compute
        other.engine.runner.graphs.compute = lambda slots, batch, kind: computed.append(batch.num_tokens) or compute(slots, batch, kind)
        assert results(other.generate([prompt(20)], params)) == results(llm.generate([prompt(20)], params))
    assert machine.refusals == 1 and machine.captures == 2, "graphs of the prompt and of a decode step"
    assert len(computed) == machine.launches + 1


@pytest.mark.parametrize("is_rank", [True, False])
def test_ranks_launch_the_same_whatever_each_has_loaded(monkeypatch, is_rank):
    """A step before every capture, so that no rank sends messages that its peers do not wait for."""
    if is_rank:
        monkeypatch.setattr(QueueOps, "communicator", None, raising=False)
    launched, params = [], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    for loaded in (False, True):
        machine, launches = ColdMachine(), []
        machine.loaded = loaded
        with LLM(model_directory("small"), device="cpu", max_model_len=128, max_num_seqs=4) as llm:
            with_graphs(llm, machine, 4, 128)
            compute = llm.engine.runner.graphs.compute

            def launch(slots, batch, kind, machine=machine, launches=launches, compute=compute):
                machine.loaded = True
                launches.append(batch.num_tokens)
                return compute(slots, batch, kind)

            llm.engine.runner.graphs.compute = launch
            llm.generate([prompt(20)], params)
        launched.append(launches)
    assert (launched[0] == launched[1]) == is_rank


@pytest.mark.parametrize("name", ["kivi_int4", "int8"])
def test_a_residual_window_moves_on_inside_the_graph(name):
    """Across several groups, with a sequence that ends before the other; then another batch on the same graphs, and a fork."""
    options = dict(kv_cache_dtype=name, kv_cache_residual_window=32, max_model_len=128, max_num_seqs=2)
    batches = [([prompt(30), prompt(5)], [70, 20]), ([prompt(7), prompt(41)], [40, 40])]
    tokens, machine = [], QueueMachine()
    for use_graphs in (False, True):
        with LLM(model_directory("small"), device="cpu", **options) as llm:
            if use_graphs:
                with_graphs(llm, machine, 2, 128)
            found = []
            for prompts, lengths in batches:
                params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]
                found += [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
            sampled = SamplingParams(n=2, temperature=1.0, max_tokens=40, seed=3, ignore_eos=True)
            found += [one.token_ids for one in llm.generate([prompt(50)], sampled)[0].outputs]
            tokens.append(found)
    assert tokens[0] == tokens[1] and machine.launches > 100


MIXED = [
    SamplingParams(temperature=0, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.9, max_tokens=14, seed=3, ignore_eos=True),
    SamplingParams(temperature=1.1, top_k=20, max_tokens=1, seed=4, ignore_eos=True),
    SamplingParams(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.1, max_tokens=6, seed=5, ignore_eos=True),
]


@pytest.mark.parametrize("params", [[MIXED[0]] * 4, MIXED, [MIXED[1]], MIXED[:2] + MIXED[:1]], ids=["greedy", "mixed", "one", "three"])
def test_tokens_are_those_of_the_plain_runner(llm, graph_llm, params):
    prompts = [prompt(length) for length in (3, 17, 30, 16)][: len(params)]
    assert results(graph_llm.generate(prompts, params)) == results(llm.generate(prompts, params))


def test_requests_come_and_go_while_graphs_of_other_sizes_replay(llm, graph_llm, machine):
    """More requests than slots: rows leave and enter, so that steps of decodes alone alternate with mixed ones, in changing sizes."""
    lengths = [(3 + 7 * i % 40, 2 + 5 * i % 23) for i in range(25)]
    params = [
        SamplingParams(temperature=float(i % 3 > 0), top_k=30 * (i % 2), max_tokens=tokens, seed=i, ignore_eos=True)
        for i, (_, tokens) in enumerate(lengths)
    ]
    prompts = [prompt(length, seed=length) for length, _ in lengths]
    launches = machine.launches
    assert results(graph_llm.generate(prompts, params)) == results(llm.generate(prompts, params))
    assert machine.launches > launches + 20
    steps_ended(graph_llm)


@pytest.mark.covering("policy", "budget")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("budget", [1, 7, 16, 40])
def test_chunks_beside_decodes_are_replayed_too(llm, policy, budget):
    """Mixed steps of all sizes, with chunks that sample nothing, tiny caches, preemption, and prefixes that are found."""
    machine = QueueMachine()
    options = dict(scheduling_policy=policy, max_num_batched_tokens=budget, kv_cache_memory_bytes=9 * BLOCK_BYTES, preemption="auto")
    options |= dict(max_num_seqs=5, enable_prefix_caching=budget > 7, swap_space_bytes=9 * BLOCK_BYTES)
    params = [SamplingParams(temperature=i % 2, max_tokens=3 + 5 * i % 17, seed=i, ignore_eos=True, n=1 + 2 * (i == 3)) for i in range(9)]
    prompts = [(prompt(32) + prompt(60, seed=i))[: 5 + 11 * i % 60] for i in range(9)]
    with LLM(model_directory("small"), device="cpu", max_model_len=128, **options) as other:
        with_graphs(other, machine, 5, 128, budget)
        for _ in range(2):
            assert results(other.generate(prompts, params)) == results(llm.generate(prompts, params))
        steps_ended(other)
        assert other.engine.cache_policy.usage().allocated == 0 and machine.launches > 40
        assert any(key.prompts for key in other.engine.runner.graphs._graphs)


def test_completions_of_a_prompt(llm, graph_llm):
    params = SamplingParams(n=5, temperature=1.0, max_tokens=20, seed=3, ignore_eos=True)
    for length in (16, 17, 31):
        assert results(graph_llm.generate([prompt(length)], params)) == results(llm.generate([prompt(length)], params))


def test_log_probabilities_come_back_with_their_step(llm, graph_llm):
    params = [SamplingParams(temperature=0, max_tokens=n, logprobs=top, prompt_logprobs=2, ignore_eos=True) for n, top in ((4, 3), (7, 1))]
    params.append(SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
    prompts = [prompt(5), prompt(6), prompt(7)]
    ours, theirs = (runner.generate(prompts, params) for runner in (graph_llm, llm))
    for one, other in zip(ours, theirs, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert (one.outputs[0].logprobs is None) == (other.outputs[0].logprobs is None)
        found = (one.outputs[0].logprobs or []) + (one.prompt_logprobs or [None])[1:]
        wanted = (other.outputs[0].logprobs or []) + (other.prompt_logprobs or [None])[1:]
        for step, expected in zip(found, wanted, strict=True):
            assert step.keys() == expected.keys()
            for token in step:
                assert step[token].rank == expected[token].rank
                assert step[token].logprob == pytest.approx(expected[token].logprob, abs=1e-5)


def test_processors_run_between_graphs(llm, graph_llm):
    """A request whose logits the host changes is computed without graphs and without a lead; its neighbours get what they always get."""

    def odd_ids_only(output_token_ids, logits):
        logits[::2] = -np.inf
        return logits

    params = [MIXED[1], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logits_processors=[odd_ids_only]), MIXED[0]]
    prompts = [prompt(9), prompt(12), prompt(20)]
    found = graph_llm.generate(prompts, params)
    assert results(found) == results(llm.generate(prompts, params))
    assert all(token % 2 for token in found[1].outputs[0].token_ids)


def test_a_graph_is_captured_once_for_steps_of_one_size(graph_llm, machine):
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    graph_llm.generate([prompt(4), prompt(9), prompt(2)], params)
    captures, launches = machine.captures, machine.launches
    graph_llm.generate([prompt(6), prompt(3), prompt(1), prompt(2)], params)
    steps_ended(graph_llm)
    assert (machine.captures, machine.launches) == (captures, launches + 5), "12 tokens are of one size with 15, as three rows with four"


def test_graphs_are_captured_beforehand_for_all_sizes(llm):
    machine = QueueMachine()
    with LLM(model_directory("small"), device="cpu", max_model_len=256, max_num_seqs=9) as other:
        with_graphs(other, machine, 9)
        reports = []
        graphs = other.engine.runner.graphs
        other.engine.runner.capture_graphs({SamplingKind.GREEDY, SamplingKind.RANDOM}, lambda *report: reports.append(report))
        assert machine.captures == graphs.num_captured == len(reports) and reports[-1][1] == reports[-1][2] == len(reports)
        captured = {key for key in graphs._graphs if not key.prompts}
        assert sorted(key.decodes for key in captured if key.kind == SamplingKind.RANDOM) == [1, 2, 4, 8, 9]
        prompts = [prompt(3 + i) for i in range(9)]
        params = [SamplingParams(temperature=i % 2, seed=i, max_tokens=6, ignore_eos=True) for i in range(9)]
        assert results(other.generate(prompts, params)) == results(llm.generate(prompts, params))
        assert captured == {key for key in graphs._graphs if not key.prompts}


def test_a_capture_that_fails_ends_its_requests_and_the_next_ones_run(llm):
    machine = QueueMachine()
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(model_directory("small"), device="cpu", max_model_len=256, max_num_seqs=8) as other:
        with_graphs(other, machine)
        machine.fails = True
        with pytest.raises(RuntimeError, match="the capture failed"):
            other.generate([prompt(5), prompt(9)], params)
        steps_ended(other)
        assert other.engine.cache_policy.usage().allocated == 0 and not other.engine.scheduler.queues.running
        machine.fails = False
        assert results(other.generate([prompt(5)], params)) == results(llm.generate([prompt(5)], params))


def test_a_sequence_that_stops_early_leaves_the_others_alone(llm, graph_llm):
    prompts = [prompt(4), prompt(9), prompt(2)]
    free = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    whole = llm.generate(prompts, free)
    stop = whole[1].outputs[0].token_ids[3]
    params = [free, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[stop]), free]
    assert results(graph_llm.generate(prompts, params)) == results(llm.generate(prompts, params))


def test_block_tables_grow_under_a_replaying_graph(llm, graph_llm, machine):
    """40 tokens after 5 and 30: both sequences take blocks while steps are under way."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = [prompt(5), prompt(30)]
    expected = results(llm.generate(prompts, params))
    graph_llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    captures = machine.captures
    assert results(graph_llm.generate(prompts, params)) == expected
    assert machine.captures == captures


def test_a_stream_closed_early_does_not_disturb_the_next(llm, graph_llm):
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    stream = graph_llm.stream("def", params)
    next(iter(stream))
    stream.close()
    assert results(graph_llm.generate([prompt(5)], params)) == results(llm.generate([prompt(5)], params))


def test_min_tokens_and_full_caches(llm, graph_llm):
    first = llm.generate([prompt(5)], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))[0].outputs[0].token_ids[0]
    params = SamplingParams(temperature=0, max_tokens=11, min_tokens=4, stop_token_ids=[first])  # 16 tokens: exactly one block
    assert results(graph_llm.generate([prompt(5)], params)) == results(llm.generate([prompt(5)], params))
