"""Generation with prefix caching: what was computed before is not computed again, and no token changes."""

import pytest

from minllm import LLM, SamplingParams
from tests.engine.checks import BLOCK_BYTES, tokens_of
from tests.engine.models import model_directory
from tests.models.random_models import prompt

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
INSTRUCTIONS = "# Python 3.11, typed, no globals\nimport math\n\n\ndef area(radius: float) -> float:\n"
QUESTIONS = ["    return math", "    if radius < 0:", '    """', "    return math"]


class CountedForwards:
    """Stands before an engine's operations and counts the tokens of every forward."""

    def __init__(self, ops):
        self.ops, self.tokens = ops, []

    def embed(self, batch, *arguments):
        self.tokens.append(batch.num_tokens)
        return self.ops.embed(batch, *arguments)

    def __getattr__(self, name):
        return getattr(self.ops, name)


@pytest.fixture(scope="module", params=[True, "radix"], ids=["hash", "radix"])
def sharing(request):
    """The small model, sharing prefixes; `forwards` counts what it computes."""
    with LLM(model_directory("small"), device="cpu", max_model_len=256, max_num_seqs=8, enable_prefix_caching=request.param) as llm:
        llm.forwards = llm.engine.runner.ops = CountedForwards(llm.engine.ops)
        yield llm


@pytest.fixture(autouse=True)
def fresh(request):
    """Every test begins with an empty cache, and leaves the books right."""
    llm = request.getfixturevalue("sharing") if "sharing" in request.fixturenames else None
    if llm is not None:
        llm.engine.cache_policy.forget_prefixes()
        llm.forwards.tokens.clear()
    yield
    if llm is not None:
        llm.engine.cache_policy.check()
        assert llm.engine.cache_policy.usage().allocated == 0


def test_tokens_are_those_without_it_and_cached_ones_are_not_computed(sharing, llm):
    """One after the other, then all together; the second round finds the first one's answers' prompts whole."""
    prompts = [INSTRUCTIONS + question for question in QUESTIONS]
    expected = tokens_of(llm.generate(prompts, GREEDY))
    alone = [sharing.generate(text, GREEDY)[0] for text in prompts]
    assert tokens_of(alone) == expected
    assert [output.num_cached_tokens for output in alone] == whole_blocks_in_common(sharing, prompts)
    assert alone[0].num_cached_tokens == 0 < alone[1].num_cached_tokens
    computed = sharing.forwards.tokens[:]
    assert computed[::20] == [len(output.prompt_token_ids) - output.num_cached_tokens for output in alone]
    sharing.forwards.tokens.clear()
    again = sharing.generate(prompts, GREEDY)
    assert tokens_of(again) == expected
    assert all(output.num_cached_tokens == (len(output.prompt_token_ids) - 1) // 16 * 16 for output in again)


def whole_blocks_in_common(llm, prompts):
    """For each prompt, what a loop over all earlier ones finds: tokens of the longest common beginning, in whole blocks, less the last."""
    encoded = [llm.tokenizer.encode(text) for text in prompts]

    def common(a, b):
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    return [max((min(common(t, e), len(t) - 1) // 16 * 16 for e in encoded[:i]), default=0) for i, t in enumerate(encoded)]


def test_prompts_of_one_batch_share_what_the_first_of_them_computes(sharing, llm, monkeypatch):
    """In one chunk, and when the first prompt is cut into several."""
    prompts = [INSTRUCTIONS + question for question in QUESTIONS]
    outputs = sharing.generate(prompts, GREEDY)
    assert tokens_of(outputs) == tokens_of(llm.generate(prompts, GREEDY))
    assert [output.num_cached_tokens for output in outputs] == whole_blocks_in_common(sharing, prompts)
    assert sharing.forwards.tokens[0] == sum(len(o.prompt_token_ids) - o.num_cached_tokens for o in outputs)
    sharing.engine.cache_policy.forget_prefixes()
    monkeypatch.setattr(sharing.engine.scheduler, "max_num_batched_tokens", 7)
    assert tokens_of(sharing.generate(prompts, GREEDY)) == tokens_of(outputs)


def test_an_answer_is_found_by_the_next_turn_of_the_conversation(sharing, llm):
    first = sharing.generate(INSTRUCTIONS, GREEDY)[0]
    turn = first.prompt_token_ids + first.outputs[0].token_ids + sharing.tokenizer.encode("\n\n")
    second = sharing.generate([turn], GREEDY)[0]
    known = len(first.prompt_token_ids) + len(first.outputs[0].token_ids) - 1  # the last token was chosen and never computed
    assert second.num_cached_tokens == known // 16 * 16
    assert tokens_of([second]) == tokens_of(llm.generate([turn], GREEDY))


@pytest.mark.parametrize("salts", [("one", "two"), ("one", None), (None, "two"), ("\ud800", "\udc00")])
def test_prompts_of_different_salts_share_nothing(sharing, llm, salts):
    """Each salt computes the prompt for itself, in one batch and alone, and finds it again; all get the tokens of a prompt without salt."""
    expected = tokens_of(llm.generate(INSTRUCTIONS, GREEDY)) * 4
    outputs = sharing.generate([INSTRUCTIONS] * 4, GREEDY, cache_salt=[*salts, *salts])
    found = (len(outputs[0].prompt_token_ids) - 1) // 16 * 16
    assert [output.num_cached_tokens for output in outputs] == [0, 0, found, found]
    assert tokens_of(outputs) == expected
    assert sharing.generate(INSTRUCTIONS, GREEDY, cache_salt="three")[0].num_cached_tokens == 0
    for salt in salts:
        assert sharing.generate([INSTRUCTIONS] * 2, GREEDY, cache_salt=salt)[1].num_cached_tokens == found
    with sharing.stream(INSTRUCTIONS, GREEDY, cache_salt=salts[1]) as stream:
        assert next(stream) and stream.output.num_cached_tokens == found


def test_completions_of_a_prompt_are_of_its_salt(sharing, monkeypatch):
    """They share the prompt with each other, also where they do not fit one batch, and with nobody else."""
    params = SamplingParams(n=3, temperature=1.0, max_tokens=4, ignore_eos=True, seed=1)
    sharing.engine.cache_policy.forget_counts()
    monkeypatch.setattr(sharing.engine.scheduler.queues, "_free_slots", [0, 1])
    outputs = [sharing.generate(INSTRUCTIONS, params, cache_salt=salt)[0] for salt in ("one", "two", "one")]
    found = (len(outputs[0].prompt_token_ids) - 1) // 16 * 16
    assert [output.num_cached_tokens for output in outputs] == [0, 0, found]
    assert sharing.engine.cache_policy.prefix_hits.tokens_hit == 4 * found, "each third completion, and the last request's first"


def test_scoring_computes_every_logit(sharing, llm):
    tokens = sharing.generate(INSTRUCTIONS, GREEDY)[0].prompt_token_ids
    assert sharing.logits(tokens).shape == llm.logits(tokens).shape
    assert sharing.perplexity(tokens) == llm.perplexity(tokens)


def test_a_prefill_that_failed_is_not_believed(sharing, llm, monkeypatch):
    def fail(*_):
        raise RuntimeError("the device fell over")

    with monkeypatch.context() as patch:
        patch.setattr(sharing.forwards, "logits", fail, raising=False)
        with pytest.raises(RuntimeError, match="fell over"):
            sharing.generate(INSTRUCTIONS, GREEDY)
    output = sharing.generate(INSTRUCTIONS, GREEDY)[0]
    assert output.num_cached_tokens == 0
    assert tokens_of([output]) == tokens_of(llm.generate(INSTRUCTIONS, GREEDY))


def test_a_small_cache_evicts_and_goes_on(llm):
    """Eight blocks of 16, prompts that share two of them, and more requests than fit at a time."""
    prompts = [prompt(40)[:32] + prompt(9, seed=seed) for seed in range(6)]
    options = dict(max_model_len=128, kv_cache_memory_bytes=8 * BLOCK_BYTES, enable_prefix_caching="radix")
    with LLM(model_directory("small"), device="cpu", **options) as small:
        assert small.engine.cache_policy.num_blocks == 8
        outputs = small.generate(prompts, GREEDY)
        assert tokens_of(outputs) == tokens_of(llm.generate(prompts, GREEDY))
        assert [output.num_cached_tokens for output in outputs] == [0] + [32] * 5
        small.engine.cache_policy.check()
