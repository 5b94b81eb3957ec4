"""Trees of drafts and lookahead decoding change no token, under every schedule and in every cache that takes them."""

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.engine.options import SCHEDULING_POLICIES
from minllm.engine.scheduling.speculative import SpeculationCounts
from minllm.errors import InvalidOptionError
from minllm.kernels.speculation.runs import runs_of
from tests.engine.checks import BLOCK_BYTES
from tests.engine.models import model_directory
from tests.engine.test_draft_model import CACHES
from tests.engine.test_speculation import GREEDY, PROMPTS, SAMPLED, SMALL, everything, plain, texts_of  # noqa: F401 - a fixture
from tests.kernels.speculation.trees import path_of
from tests.models.random_models import prompt

PATHS = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0)]"
DRAWN = {"model": str(model_directory("small")), "num_speculative_tokens": 8, "speculative_token_tree": PATHS}
ITSELF = DRAWN | {"draft_sample_method": "greedy"}
LOOKAHEAD = {"method": "lookahead", "window": 4, "ngram_size": 3, "guess_set_size": 3}


class TreeHints:
    """A DraftSource that knows texts: of each tree one path is how a text goes on, now this path and now that; other nodes are noise."""

    reads_history, reads_room, draws = True, False, False

    def __init__(self, texts):
        self.texts, self.random = texts, np.random.default_rng(1)

    def copy_blocks(self, copies):
        pass

    def enter(self, slot, token_ids, drafts, machine):
        pass

    def propose(self, slots, batch, state, drafts, kind, chosen):
        counts, tree = np.zeros(len(slots), np.int32), drafts.tree.host
        for first, _ in runs_of(slots):
            slot = slots[first]
            length = int(state.lengths[slot])
            known = drafts.token_history[slot, :length].tolist()
            rest = next((text[length:] for text in self.texts if text[:length] == known), [])
            drafts.drafts[slot] = self.random.integers(0, 1000, len(tree) - 1)
            for node, token in zip(path_of(tree, int(self.random.integers(1, len(tree))))[1:], rest, strict=False):
                drafts.drafts[slot, node - 1] = token
            counts[first] = self.random.integers(0, len(tree))
        return counts


def check(plain, config, hints=True, **options):  # noqa: F811
    """The requests of each kind, then all of them, when a prefix cache knows the prompts and the drafts are hints. Returns the stats."""
    greedy, sampled = plain
    with LLM(model_directory("small"), speculative_config=config, **(SMALL | options)) as llm:
        assert everything(llm.generate(PROMPTS, GREEDY)) == everything(greedy)
        assert everything(llm.generate(PROMPTS, SAMPLED)) == everything(sampled)
        if hints:
            speculator = llm.engine.runner.speculator
            speculator.source = TreeHints(texts_of(greedy + sampled))
            speculator.drafts.token_history = np.zeros((len(speculator.drafts.drafts), SMALL["max_model_len"]), np.int32)
            assert everything(llm.generate(PROMPTS * 2, GREEDY + SAMPLED)) == everything(greedy + sampled)
        llm.engine.cache_policy.check()
        assert llm.engine.cache_policy.usage().allocated == 0
        return llm.llm_engine.stats()


@pytest.mark.covering("budget + config", "policy")
@pytest.mark.parametrize("budget", [14, 30, 2048])
@pytest.mark.parametrize("config", [ITSELF, LOOKAHEAD], ids=["tree", "lookahead"])
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
def test_policies_and_chunks(plain, policy, config, budget):  # noqa: F811
    assert check(plain, config, scheduling_policy=policy, max_num_batched_tokens=budget + 4).spec_decode_num_accepted_tokens > 40


@pytest.mark.covering("cache", "config")
@pytest.mark.parametrize("config", [ITSELF, LOOKAHEAD], ids=["tree", "lookahead"])
@pytest.mark.parametrize("cache", CACHES)
def test_caches(plain, cache, config):  # noqa: F811
    check(plain, config, max_num_batched_tokens=40, **CACHES[cache])


@pytest.mark.covering("preemption", "cache + config")
@pytest.mark.parametrize("config", [ITSELF, LOOKAHEAD], ids=["tree", "lookahead"])
@pytest.mark.parametrize("cache", ["small blocks", "radix"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preemption(plain, preemption, cache, config):  # noqa: F811
    """Room for 144 tokens, for requests that need 300 at a time, and for the nodes of their trees where there is some."""
    blocks = 18 if config is ITSELF else 9  # the draft's cache takes half
    options = dict(preemption=preemption, kv_cache_memory_bytes=blocks * BLOCK_BYTES, swap_space_bytes=blocks * BLOCK_BYTES)
    assert check(plain, config, **options, **CACHES[cache]).num_preemptions > 0


def test_a_model_that_drafts_for_itself_is_right_along_the_likeliest_path(plain, monkeypatch):  # noqa: F811
    """The keys of the accepted path have to lie one after the other in its cache, too, or its next drafts are wrong."""
    greedy, _ = plain
    verified = []
    monkeypatch.setattr(SpeculationCounts, "add", lambda self, drafted, accepted, longest: verified.append((accepted, longest)))
    with LLM(model_directory("small"), speculative_config=ITSELF, **SMALL) as llm:
        assert everything(llm.generate(PROMPTS, GREEDY)) == everything(greedy)
    assert [accepted for accepted, _ in verified] == [longest for _, longest in verified] and verified.count((3, 3)) > 10


def test_a_model_that_draws_for_itself_is_right_at_the_first_child(plain, monkeypatch):  # noqa: F811
    """p = q but for rounding, so the first child of each node is accepted, by requests that draw with any parameters and by greedy ones."""
    greedy, _ = plain
    verified = []
    monkeypatch.setattr(SpeculationCounts, "add", lambda self, drafted, accepted, longest: verified.append((accepted, longest)))
    with LLM(model_directory("small"), speculative_config=DRAWN, **SMALL) as llm:
        outputs = llm.generate(PROMPTS + PROMPTS, GREEDY + SAMPLED)
        assert everything(outputs[: len(GREEDY)]) == everything(greedy)
        assert [len(one.token_ids) for output in outputs[len(GREEDY) :] for one in output.outputs] == [20, 12, 9, 20, 20, 20, 20, 1]
    right = [accepted == longest for accepted, longest in verified]
    assert sum(right) >= len(right) - 1 and len(right) > 30


def test_the_last_tokens_of_a_cache():
    """A sequence may fill the model's length to the last token, though a tree has more nodes than tokens are left."""
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    found = []
    for config in (None, ITSELF, LOOKAHEAD):
        with LLM(model_directory("small"), speculative_config=config, device="cpu", dtype="float32", max_model_len=64) as llm:
            [output] = llm.generate([prompt(4)], params)
            found.append(output.outputs[0].token_ids)
    assert len(found[0]) == 60 and found[0] == found[1] == found[2]


def test_prefix_caching_counts_accepted_tokens_only():
    """A block that rejected nodes had filled is not found by a prompt that begins with them, and that of the accepted path is."""
    first, params = prompt(14, seed=1), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(model_directory("small"), **SMALL) as llm:
        right = texts_of(llm.generate([first], params))[0]
    wrong = right[:15] + [(t + 1) % 100 for t in right[15:]]
    with LLM(model_directory("small"), speculative_config=ITSELF, enable_prefix_caching=True, **SMALL) as llm:
        assert texts_of(llm.generate([first], params))[0] == right
        assert llm.generate([wrong], params)[0].num_cached_tokens == 0
        again = llm.generate([right], params)[0]
        assert again.num_cached_tokens == 16
    with LLM(model_directory("small"), **SMALL) as llm:
        assert llm.generate([right], params)[0].outputs[0].token_ids == again.outputs[0].token_ids


TREE = {"method": "draft_model", "num_speculative_tokens": 3, "speculative_token_tree": "[(0,), (1,), (0, 0)]"}


@pytest.mark.parametrize(
    "config, options, words",
    [
        (TREE | {"speculative_token_tree": "[(0,), (0, 1)]"}, {}, r"the tree has the path \(0, 1\) and lacks \(0, 0\), .* Give the paths"),
        (TREE | {"speculative_token_tree": 3}, {}, "speculative_token_tree=3 is not allowed"),
        (TREE | {"num_speculative_tokens": 4}, {}, "num_speculative_tokens=4 is not .* num_speculative_tokens is 3, the number of paths"),
        (TREE | {"method": "ngram"}, {}, 'speculative_token_tree is None with method="ngram"'),
        (TREE | {"synthetic_acceptance_rate": 0.5}, {}, "synthetic_acceptance_rate is None with a tree"),
        (TREE | {"window": 4}, {}, 'window=4 is not allowed: window is None with method="draft_model"'),
        (
            TREE | {"num_speculative_tokens": 21, "speculative_token_tree": str([(i,) for i in range(21)])}, {},
            "a tree with up to 20 drafts after a token, not 21",
        ),
        (LOOKAHEAD | {"num_speculative_tokens": 4}, {}, 'num_speculative_tokens=4 is not .* None with method="lookahead"'),
        (LOOKAHEAD | {"ngram_size": 1}, {}, "ngram_size=1 is not allowed: ngram_size is an integer of at least 2"),
        (LOOKAHEAD | {"window": 200}, {}, r"window=200, ngram_size=3, guess_set_size=3 are not allowed together: .* = 406 rows of a step"),
        (LOOKAHEAD, {"kv_cache_dtype": "int8"}, "kv_cache_dtype='int8' is not .* kv_cache_dtype is \"auto\" with a speculative_token_tree"),
        (LOOKAHEAD, {"kv_cache_policy": "virtual"}, 'kv_cache_policy is "paged" or "contiguous" with a speculative_token_tree or'),
        (LOOKAHEAD, {"batch_invariant": True}, "batch_invariant is False with a speculative_token_tree or lookahead decoding"),
        (LOOKAHEAD, {"max_num_batched_tokens": 14}, "at most max_num_batched_tokens - 2, here 14 - 2"),
        (LOOKAHEAD, {"kernel_variants": {"accept": print}}, "Your accept kernel decides on drafts, and here a path of a tree is accepted"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_by_name(config, options, words):
    with pytest.raises(InvalidOptionError, match=words):
        LLM(model_directory("small"), speculative_config=config, device="cpu", **options)
