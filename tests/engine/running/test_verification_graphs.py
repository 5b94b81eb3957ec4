"""Steps that verify drafts, as graphs: the text is that of plain decoding, whatever is padded, and every step is a replay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm import LLM, SamplingParams
from minllm.engine.running.step_graphs import next_size, verification_sizes
from minllm.engine.scheduling.speculative import Speculation
from tests.engine.checks import BLOCK_BYTES, tokens_of
from tests.engine.models import model_directory
from tests.engine.running.test_step_graphs import QueueMachine, results, steps_ended, with_graphs
from tests.engine.test_speculation import GREEDY, PROMPTS, SAMPLED, SMALL, Hints, ngrams, plain, texts_of  # noqa: F401
from tests.engine.test_trees import ITSELF, LOOKAHEAD
from tests.models.random_models import prompt

DRAFTS = 4


def check(texts, budget, **options):
    """All requests together on the runner of a GPU, with n-grams and with hints."""
    machine, (greedy, sampled) = QueueMachine(), texts
    options = SMALL | dict(max_num_seqs=5, max_num_batched_tokens=budget, speculative_config=ngrams(DRAFTS)) | options
    with LLM(model_directory("small"), **options) as llm:
        with_graphs(llm, machine, 5, SMALL["max_model_len"], budget)
        for _ in range(2):
            assert tokens_of(llm.generate(PROMPTS, GREEDY)) == tokens_of(greedy)
            assert tokens_of(llm.generate(PROMPTS, SAMPLED)) == tokens_of(sampled)
            steps_ended(llm)
            llm.engine.runner.speculator.source = Hints(texts_of(greedy + sampled))
            llm.engine.runner.graphs._graphs.clear()  # they hold the source
        assert llm.engine.cache_policy.usage().allocated == 0 and machine.launches > 40


@pytest.mark.parametrize("budget", [7, 64])
@pytest.mark.parametrize("policy", ["split_fuse", "prefill_first"])
def test_text_is_that_of_plain_decoding(plain, policy, budget):  # noqa: F811
    check(plain, budget, scheduling_policy=policy)


def test_in_a_small_cache(plain):  # noqa: F811
    check(plain, 16, kv_cache_memory_bytes=9 * BLOCK_BYTES, preemption="recompute", enable_prefix_caching=True)


def test_a_draft_models_steps_are_in_the_graph(plain):  # noqa: F811
    """It draws the same drafts as it does launched kernel by kernel: as many of them are right."""
    itself = {"model": str(model_directory("small")), "num_speculative_tokens": DRAFTS}
    accepted = []
    for replays in (True, False):
        machine = QueueMachine()
        with LLM(model_directory("small"), **SMALL, max_num_seqs=5, max_num_batched_tokens=64, speculative_config=itself) as llm:
            with_graphs(llm, machine, 5, SMALL["max_model_len"], 64)
            if not replays:
                llm.engine.runner.graphs = None
            assert tokens_of(llm.generate(PROMPTS, GREEDY)) == tokens_of(plain[0])
            steps_ended(llm)
            stats = llm.llm_engine.stats()
            accepted.append((stats.spec_decode_num_draft_tokens, stats.spec_decode_num_accepted_tokens_per_pos))
            assert llm.engine.cache_policy.usage().allocated == 0 and (machine.launches > 5) == replays
            assert stats.spec_decode_acceptance_rate > 0.9, "the model drafts for itself"
    assert accepted[0] == accepted[1]


def test_a_draft_model_pauses_in_graphs(plain):  # noqa: F811
    """Steps without drafts are replays too, which need nothing from the host while all sequences decode."""
    machine, itself = QueueMachine(), {"model": str(model_directory("small")), "num_speculative_tokens": DRAFTS}
    with LLM(model_directory("small"), **SMALL, max_num_seqs=5, max_num_batched_tokens=64, speculative_config=itself) as llm:
        with_graphs(llm, machine, 5, SMALL["max_model_len"], 64)
        graphs = llm.engine.runner.graphs
        kind = llm.engine.runner.slots.kind([])
        captured = graphs.keys([kind])
        assert len(set(captured)) == len(captured)
        pausing = {key._replace(makes_drafts=True) for key in captured if not key.makes_drafts}
        assert {key for key in pausing if key.prompts} == {key for key in captured if key.prompts and key.makes_drafts}
        assert {key for key in pausing if not key.prompts} == {
            key._replace(query_len=0) for key in captured if not key.prompts and key.query_len == 1
        }, "those of plain decoding"
        llm.engine.scheduler.speculation = Speculation(DRAFTS, needs_room=True, best=lambda *_: 0, trial_interval=lambda count: 3)
        assert tokens_of(llm.generate(PROMPTS, GREEDY)) == tokens_of(plain[0])
        steps_ended(llm)
        assert llm.llm_engine.stats().spec_decode_acceptance_rate == 1.0 and machine.launches > 5
        assert {key.makes_drafts for key in graphs._graphs} == {True, False}


@given(st.integers(1, 70), st.integers(2, 9), st.data())
def test_a_verification_is_little_longer_than_its_rows(most, query_len, data):
    """For any number of sequences and rows there is a size, and rows of padding are at most a third, or those of sequences of padding."""
    sizes = verification_sizes(most, query_len)
    count = data.draw(st.integers(1, most))
    rows = data.draw(st.integers(count + 1, count * query_len))
    decodes = next_size(count, sizes)
    padded = next_size(rows, sizes[decodes])
    assert count <= decodes < 2 * count and decodes <= most
    assert rows <= padded <= max(4 * rows / 3 + 1, 3 * decodes / 2 + 1)


def test_steps_of_decodes_are_as_long_as_their_drafts_need():
    """Ragged runs are packed: the longest run decides nothing about the number of rows."""
    with LLM(model_directory("small"), **SMALL, max_num_seqs=8, speculative_config=ngrams(DRAFTS)) as llm:
        with_graphs(llm, QueueMachine(), 8, 128)
        graphs = llm.engine.runner.graphs
        kind = llm.engine.runner.slots.kind([])
        keys = [graphs.key(3, 0, rows, 64, kind) for rows in (3, 4, 12, 13, 15)]
        assert [(key.tokens, key.decodes, key.query_len) for key in keys] == [(4, 4, 1), (5, 4, 5), (12, 4, 5), (16, 4, 5), (16, 4, 5)]
        captured = {(key.tokens, key.decodes, key.query_len) for key in graphs.keys([kind]) if not key.prompts}
        reached = [graphs.key(n, 0, rows, 64, kind) for n in range(1, 9) for rows in range(n, 5 * n + 1)]
        assert captured == {(key.tokens, key.decodes, key.query_len) for key in reached}, "no graph is captured in vain, none later"


def test_a_source_that_fails_while_it_is_captured_is_switched_off(plain):  # noqa: F811
    """The step that it fails in goes on without drafts, and so do all later ones."""

    class Failing(Hints):
        def propose(self, *_):
            raise RuntimeError("out of ideas")

    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(model_directory("small"), **SMALL, max_num_seqs=4, speculative_config=ngrams(DRAFTS)) as llm:
        with_graphs(llm, QueueMachine(), 4, 128)
        expected = results(llm.generate([prompt(9), prompt(20)], params))
        llm.engine.runner.graphs._graphs.clear()
        llm.engine.runner.speculator.source = Failing([])
        with pytest.warns(RuntimeWarning, match="out of ideas"):
            assert results(llm.generate([prompt(9), prompt(20)], params)) == expected
        assert llm.engine.runner.speculator.source is None


@pytest.mark.parametrize("config", [ITSELF, LOOKAHEAD], ids=["tree", "lookahead"])
def test_trees_are_in_the_graphs(plain, config):  # noqa: F811
    """A step is planned before the path of the one before it is known: its nodes lie behind the most that may have been accepted."""
    machine, (greedy, sampled) = QueueMachine(), plain
    options = SMALL | dict(max_num_seqs=5, max_num_batched_tokens=64, speculative_config=config)
    with LLM(model_directory("small"), **options) as llm:
        with_graphs(llm, machine, 5, SMALL["max_model_len"], 64)
        assert tokens_of(llm.generate(PROMPTS, GREEDY)) == tokens_of(greedy)
        assert tokens_of(llm.generate(PROMPTS, SAMPLED)) == tokens_of(sampled)
        steps_ended(llm)
        assert llm.llm_engine.stats().spec_decode_num_accepted_tokens > 0
        assert llm.engine.cache_policy.usage().allocated == 0 and machine.launches > 20
