"""The engine on the virtual cache: the same tokens, nothing touched beyond what is mapped, nothing left of an earlier request."""

import functools
import gc

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.errors import OutOfMemoryError
from minllm.runtime import host_pages
from tests.engine.models import model_directory
from tests.models.random_models import prompt
from tests.runtime.guarded_pages import GuardedPages

PROMPTS = [prompt(length) for length in (3, 40, 17, 130, 9)]
PARAMS = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in (40, 3, 20, 9, 30)]


def poison(policy) -> None:
    """Fill all memory behind the cache with NaN: what a sequence leaves must not matter to the next one in its slot."""
    cache = policy.cache
    for slot, pairs in enumerate(policy.slots.mapped):
        for memory in (cache.keys, cache.values):
            address = memory.address + slot * cache.layout.slot_pairs * memory.page_bytes
            cache.pages.backend.bytes_at(address, pairs * memory.page_bytes)[:] = 0xFF


@pytest.fixture
def guarded(monkeypatch):
    """Backends that notice a touch beyond the mapped pages."""
    made = []

    def make():
        made.append(GuardedPages(1 << 14))
        return made[-1]

    monkeypatch.setattr(host_pages, "HostPages", make)
    return made


def test_slots_are_reused_and_nothing_leaks(only_new_objects, guarded):
    options = dict(device="cpu", max_model_len=256, max_num_seqs=2)
    with LLM(model_directory("llama3"), **options) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)]
    with LLM(model_directory("llama3"), kv_cache_policy="virtual", **options) as llm:
        policy = llm.engine.cache_policy
        for _ in range(2):
            assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)] == expected
            policy.wait()
            policy.check()
            guarded[0].check_untouched()
            poison(policy)
        assert policy.usage().allocated == 0 and policy.usage().retained > 0 and policy.counts.reused > 0
        assert policy.estimate.answers == 2 * len(PROMPTS)
        logits = llm.logits(PROMPTS[3])
        assert np.isfinite(logits).all() and policy.usage().allocated == 0
    policy = None
    gc.collect()
    assert not guarded[0].mapped and guarded[0].num_created == 0  # with the LLM goes all memory


def test_a_machine_with_less_memory_than_the_cache_counts_on(monkeypatch):
    """Others took it meanwhile. Prompts of a tile each (6 pairs of pages) run one after the other; an answer that outgrows all there is
    ends its call, and the next one is served."""
    with LLM(model_directory("llama3"), device="cpu", max_model_len=256) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS[:3], PARAMS[:3])]
    monkeypatch.setattr(host_pages, "HostPages", functools.partial(host_pages.HostPages, limit=12))
    with LLM(model_directory("llama3"), device="cpu", max_model_len=256, kv_cache_policy="virtual") as llm:
        policy = llm.engine.cache_policy
        for _ in range(2):
            assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS[:3], PARAMS[:3])] == expected
            with pytest.raises(OutOfMemoryError, match="the machine gives no more"):
                llm.generate(prompt(100), SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
            policy.wait()
            policy.check()
            assert policy.usage().allocated == 0
