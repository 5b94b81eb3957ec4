"""Dynamic SplitFuse: no step is longer than its budget, and nobody who decodes waits for a prompt."""

from hypothesis import given
from hypothesis import strategies as st

from minllm.engine.core import EngineCore
from tests.engine.scheduling.scripted_runner import check_nothing_is_left, scripted, small_engine

REQUESTS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 20)), min_size=1, max_size=8)


@given(requests=REQUESTS, budget=st.sampled_from([1, 2, 7, 16, 64]), ahead=st.integers(0, 1))
def test_every_step_gives_a_token_to_everyone_who_decodes(requests, budget, ahead):
    """The gap between two tokens is one step, however long the prompts are that arrive meanwhile. Each request: prompt, tokens, arrival."""
    scheduler, runner = small_engine(blocks=100, seqs=8, budget=budget, ahead=ahead)
    core = EngineCore(scheduler, runner, tokenizer=None)
    made = [scripted(number, range(prompt), range(20), tokens)[0] for number, (prompt, tokens, _) in enumerate(requests)]
    step = 0
    while step <= 20 or core.has_work:
        for sequence, (_, _, arrival) in zip(made, requests, strict=True):
            if arrival == step:
                core.add(sequence)
        core.step()
        step += 1
    begun = {}
    for number, spans in enumerate(runner.steps):
        prompts = decodes = 0
        for name, _, length in spans:
            sequence = made[int(name)]
            computed, last = begun.get(name, (0, None))
            if computed >= len(sequence.prompt_token_ids):
                assert number == last + 1, "a step without it"
            else:
                prompts += length
            begun[name] = (computed + length, number)
        assert prompts <= max(1, budget - decodes)
    check_nothing_is_left(scheduler, 8)


def test_a_long_prompt_is_split_and_short_ones_are_fused():
    scheduler, runner = small_engine(blocks=100, seqs=8, budget=8)
    core = EngineCore(scheduler, runner, tokenizer=None)
    lengths = {"decodes": 3, "long": 18, "short": 2, "another": 2}
    for name, length in lengths.items():
        core.add(scripted(name, range(length), range(20), 6)[0])
        if name == "decodes":
            core.step()
    for _ in range(4):
        core.step()
    assert [[(name, length) for name, _, length in step] for step in runner.steps[:4]] == [
        [("decodes", 3)],
        [("decodes", 1), ("long", 7)],
        [("decodes", 1), ("long", 7)],
        [("decodes", 1), ("long", 4), ("short", 2), ("another", 1)],
    ]


@given(
    requests=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=7), blocks=st.integers(6, 10),
    budget=st.sampled_from([1, 2, 7, 64]), ahead=st.integers(0, 1), preemption=st.sampled_from(["recompute", "swap", "auto"]),
)  # fmt: skip
def test_a_crowd_in_a_tiny_cache_is_served_in_bounded_time(requests, blocks, budget, ahead, preemption):
    """The oldest request goes on in every step, so none waits longer than those before it need, one after the other."""
    scheduler, runner = small_engine(blocks=blocks, seqs=7, budget=budget, ahead=ahead, preemption=preemption)
    core = EngineCore(scheduler, runner, tokenizer=None)
    made = [scripted(number, range(prompt), range(20), tokens)[0] for number, (prompt, tokens) in enumerate(requests)]
    for sequence in made:
        core.add(sequence)
    while core.has_work:
        core.step()
    assert runner.number <= sum(prompt + 2 * tokens + 2 for prompt, tokens in requests)
    check_nothing_is_left(scheduler, 7)
