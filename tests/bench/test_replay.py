"""The replay on traffics that can be counted by hand, and on every policy: everybody gets an answer, and the claims about waste hold."""

import pytest

from minllm.bench import cache as benchmark
from minllm.bench.replay import STEP_SECONDS, replay
from minllm.bench.traffic import Traffic, TrafficRequest
from minllm.cache.contiguous import ContiguousPolicy
from minllm.cache.paged import PagedPolicy
from minllm.errors import OutOfMemoryError


def request(prompt, answer, arrival=0.0):
    return TrafficRequest(arrival, list(range(prompt)), list(range(answer)))


def test_one_request_step_by_step():
    """A prompt of 3 and an answer of 2 in blocks of 4: it enters, gets two tokens, and leaves at the beginning of the next step."""
    found = replay(PagedPolicy(4, 4), [request(3, 2)])
    assert found.batch == [1, 1, 1]
    assert [usage.holding for usage in found.usage] == [3, 4, 5]
    assert [usage.wasted for usage in found.usage] == [1, 0, 3]
    assert (found.computed_tokens, found.cached_tokens, found.preemptions) == (3, 0, 0)


def test_nobody_enters_before_arriving():
    found = replay(PagedPolicy(4, 4), [request(1, 1), request(1, 1, arrival=4 * STEP_SECONDS)])
    assert found.batch == [1, 1, 0, 0, 1, 1]


def test_who_came_last_is_preempted_and_computed_again():
    """Two sequences of 4 tokens grow towards 3 blocks of 4 each, and there are 4 blocks."""
    found = replay(PagedPolicy(4, 4), [request(4, 5), request(4, 5)])
    assert found.preemptions == 1
    assert found.batch[0] == 2 and 1 in found.batch
    assert found.computed_tokens == 4 + 4 + 8, "the second one came back with the four tokens of answer that it had"
    assert max(found.waiting) == 1


def test_a_request_that_can_never_fit_is_an_error():
    with pytest.raises(OutOfMemoryError, match="can never fit"):
        replay(PagedPolicy(2, 4), [request(9, 1)])
    with pytest.raises(OutOfMemoryError, match="can never fit"):
        replay(PagedPolicy(2, 4), [request(7, 2)])


def test_the_batch_is_what_the_cache_holds():
    found = replay(ContiguousPolicy(3, 8), [request(2, 3) for _ in range(7)])
    assert max(found.batch) == 3 and found.preemptions == 0
    assert found.waste == pytest.approx(1 - sum(2 + i for i in range(4)) / 32)
    assert replay(PagedPolicy(100, 4), [request(2, 3) for _ in range(7)], max_num_seqs=2).batch[0] == 2


@pytest.fixture(scope="module")
def played():
    """Every policy of the benchmark on a shorter traffic that comes at once."""
    requests = Traffic(150, rate=10_000.0).generate()
    small = pytest.MonkeyPatch()
    small.setattr(benchmark, "CACHE_TOKENS", 16_384)
    found = {name: replay(make(), requests) for name, make in benchmark.chat_policies().items()}
    small.undo()
    return found


def test_every_policy_serves_everybody(played):
    requests = Traffic(150, rate=10_000.0).generate()
    least = sum(len(r.answer) + 1 for r in requests)  # each is in the batch for a step a token, and for one to leave
    for name, found in played.items():
        assert sum(found.batch) - found.preemptions <= least <= sum(found.batch), name
        assert found.computed_tokens >= sum(len(r.prompt) for r in requests)


def test_blocks_of_16_waste_less_than_4_percent(played):
    assert played["paged, blocks of 16"].waste < 0.04
    wastes = [played[f"paged, blocks of {size}"].waste for size in benchmark.BLOCK_SIZES]
    assert wastes == sorted(wastes), "larger blocks waste more"
    assert played["contiguous"].waste > 0.7
    assert wastes[2] < played["virtual"].waste < wastes[-1], "pages of 32 tokens, mapped in tiles of 128"


def test_less_waste_is_a_larger_batch(played):
    assert played["paged, blocks of 16"].mean_batch > 3 * played["contiguous"].mean_batch
    assert max(played["contiguous"].batch) == 8


def test_shared_system_prompts_are_computed_once(monkeypatch):
    monkeypatch.setattr(benchmark, "CACHE_TOKENS", 16_384)
    requests = Traffic(100, rate=10_000.0, system_prompts=2, system_prompt_tokens=256).generate()
    paged, *shared = (replay(make(), requests) for make in benchmark.sharing_policies().values())
    assert paged.hit_rate == 0
    for found in shared:
        assert found.hit_rate > 0.5 and found.mean_batch > 1.5 * paged.mean_batch
        assert found.computed_tokens < 0.5 * paged.computed_tokens
