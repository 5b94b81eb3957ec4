"""The runner that works one step ahead, on NumPy: its graph is the recorded function, run again at every launch."""

import numpy as np
import pytest
from minllm.engine.cuda_graph_runner import CudaGraphRunner

from minllm import LLM, SamplingParams
from minllm.ops.numpy_ops import NumpyOps
from tests.engine import checks
from tests.engine.models import model_directory
from tests.models.random_models import prompt


class QueueOps(NumpyOps):
    """NumPy with device arrays of its own: what is passed in is copied, as to a GPU. The advance kernel runs in the simulator."""

    stream = None

    def array(self, host_array):
        return np.array(host_array, order="C")


class HostMachine:
    """A graph machine without a GPU. Results reach the host arrays only when an event is waited for, like a slow GPU's."""

    def __init__(self):
        self.captures = self.launches = 0

    def capture(self, function):
        machine = self
        self.captures += 1

        class Graph:
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
        return np.full(shape, -99, dtype)

    def read_later(self, array, pinned):
        contents = array.copy()  # a stream's order: what the array holds now

        class Event:
            def sync(self):
                pinned[:] = contents

        machine_event = Event()
        if pinned.ndim == 2:
            pinned[:] = contents
        return machine_event

    def write(self, array, host):
        array[:] = host

    def write_later(self, array, pinned):
        array[:] = pinned
        pinned_then = pinned.copy()

        class Event:
            def sync(self):
                assert np.array_equal(pinned, pinned_then), "overwritten on its way to the device"

        return Event()

    def clear_row(self, array, row):
        array[row] = 0


@pytest.fixture(scope="module")
def machine():
    return HostMachine()


@pytest.fixture(scope="module")
def graph_llm(machine):
    """The session's model, with the runner of a GPU."""
    with LLM(model_directory("llama3"), device="cpu", max_model_len=256, max_num_seqs=8) as llm:
        old = llm.engine.runner
        ops = QueueOps("float32")
        llm._batching.runner = CudaGraphRunner(ops, old.model, old.cache, old.max_num_batched_tokens, 256, machine)
        yield llm
        assert llm.engine.cache_policy.usage().allocated == 0


def results(outputs):
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


@pytest.mark.parametrize("name", ["kivi_int4", "int8"])
def test_a_residual_window_moves_on_inside_the_graph(name):
    """Across several groups, with a sequence that ends before the other; then another batch on the same graph, and a fork."""
    options = dict(kv_cache_dtype=name, kv_cache_residual_window=32, max_model_len=128, max_num_seqs=2)
    batches = [([prompt(30), prompt(5)], [70, 20]), ([prompt(7), prompt(41)], [40, 40])]
    tokens, machine = [], HostMachine()
    for use_graph in (False, True):
        with LLM(model_directory("llama3"), device="cpu", **options) as llm:
            old = llm.engine.runner
            if use_graph:
                llm._batching.runner = CudaGraphRunner(QueueOps("float32"), old.model, old.cache, old.max_num_batched_tokens, 128, machine)
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


def test_log_probabilities_come_back_with_their_step(llm, graph_llm):
    params = [SamplingParams(temperature=0, max_tokens=n, logprobs=3, ignore_eos=True) for n in (4, 7)]
    prompts = [prompt(5), prompt(6)]
    ours, theirs = (runner.generate(prompts, params) for runner in (graph_llm, llm))
    for one, other in zip(ours, theirs, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        for step, expected in zip(one.outputs[0].logprobs, other.outputs[0].logprobs, strict=True):
            assert step.keys() == expected.keys()
            for token in step:
                assert step[token].rank == expected[token].rank
                assert step[token].logprob == pytest.approx(expected[token].logprob, abs=1e-5)


def test_a_graph_is_captured_once_for_batches_of_one_shape(graph_llm, machine):
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    graph_llm.generate([prompt(4), prompt(9), prompt(2)], params)
    captures, launches = machine.captures, machine.launches
    graph_llm.generate([prompt(40), prompt(3), prompt(7)], params)
    assert (machine.captures, machine.launches) == (captures, launches + 4)


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
    captures = machine.captures
    assert results(graph_llm.generate(prompts, params)) == expected
    assert machine.captures == captures + 1


def test_forks_of_a_prompt_are_copied_before_they_write(graph_llm):
    checks.check_parallel_samples(graph_llm)


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
