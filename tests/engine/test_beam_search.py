"""Beam search against enumeration, transformers, and vLLM's algorithm written out; alone and beside others, with much memory and little."""

import itertools
import json
import random

import numpy as np
import pytest
import torch
import transformers

from minllm import LLM, BeamSearchParams, SamplingParams
from minllm.engine.scheduling.length_prediction import LENGTH_PREDICTIONS
from minllm.engine.scheduling.policies import POLICIES
from minllm.errors import InvalidRequestError, OutOfMemoryError
from tests.engine.checks import check_beam_search_equals_transformers
from tests.engine.models import byte_level_tokenizer, model_directory, transformers_beams
from tests.models.random_models import prompt

PARAMS = BeamSearchParams(4, max_tokens=12)
CACHES = {
    "paged": {},
    "small blocks": {"block_size": 3},
    "hash chain": {"enable_prefix_caching": "hash"},
    "radix tree": {"enable_prefix_caching": "radix"},
    "contiguous": {"kv_cache_policy": "contiguous"},
    "virtual": {"kv_cache_policy": "virtual"},
}


def log_softmax(logits):
    """float64 [vocab]."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def expected_sequences(llm, token_ids, params, eos=frozenset()):
    """(tokens, sum of log-probabilities), best first: each step extends all beams, computed anew, by their 2 * beam_width best tokens."""
    live, completed = [(list(token_ids), 0.0)], []

    def score(one):
        tokens, total = one
        return total / (len(tokens) - (tokens[-1] in eos)) ** params.length_penalty

    for _ in range(params.max_tokens):
        found = []
        for tokens, total in live:
            logprobs = log_softmax(llm.logits(tokens)[-1] / (params.temperature or 1.0))
            for token_id in np.argsort(-logprobs, kind="stable")[: 2 * params.beam_width].tolist():
                one = [*tokens, token_id], total + logprobs[token_id]
                (completed if token_id in eos else found).append(one)
        live = sorted(found, key=score, reverse=True)[: params.beam_width]
    return sorted(completed + live, key=score, reverse=True)[: params.beam_width]


def check_equal(output, expected):
    """The same tokens, and sums up to float32's rounding."""
    assert [sequence.tokens for sequence in output.sequences] == [tokens for tokens, _ in expected]
    np.testing.assert_allclose([sequence.cum_logprob for sequence in output.sequences], [total for _, total in expected], atol=2e-4)


def tokens_of(outputs):
    """The tokens of all sequences."""
    return [[sequence.tokens for sequence in output.sequences] for output in outputs]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model of three tokens, of which 2 ends the text."""
    directory = tmp_path_factory.mktemp("three tokens")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=3, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=64, eos_token_id=2, bos_token_id=None, pad_token_id=None, initializer_range=0.4,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    with LLM(directory, device="cpu", dtype="float32", max_num_seqs=16) as llm:
        yield llm


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 4.0])
def test_wide_beams_find_the_best_of_all_sequences(tiny, length_penalty):
    """Up to eight sequences of three tokens have not ended, and there are ten beams, so nothing is ever dropped."""
    start, scored = [0, 1, 1, 0], []
    for tokens in itertools.chain.from_iterable(itertools.product(range(3), repeat=length) for length in (1, 2, 3)):
        if 2 in tokens[:-1] or (len(tokens) < 3 and tokens[-1] != 2):
            continue
        logits = tiny.logits([*start, *tokens])
        total = sum(log_softmax(logits[len(start) + i - 1])[token_id] for i, token_id in enumerate(tokens))
        scored.append((total / (len(start) + len(tokens) - (tokens[-1] == 2)) ** length_penalty, total, [*start, *tokens]))
    assert len(scored) == 1 + 2 + 4 + 8
    expected = [(tokens, total) for _, total, tokens in sorted(scored, reverse=True)[:10]]
    [output] = tiny.beam_search([start], BeamSearchParams(10, max_tokens=3, length_penalty=length_penalty))
    check_equal(output, expected)
    assert [one.finish_reason for one in output.sequences] == ["stop" if one.tokens[-1] == 2 else "length" for one in output.sequences]


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("family", ["llama3", "mistral", "gpt2"])
def test_without_an_end_of_text_it_is_transformers_beam_search(family, width):
    check_beam_search_equals_transformers(family, width, device="cpu")


@pytest.mark.parametrize("early_stopping", [False, True])
def test_it_ends_as_transformers_does_where_the_two_agree(llm, monkeypatch, early_stopping):
    """Without a length penalty the scores are the same sums. transformers drops ends that are not among the best of their step, so the end
    here is a token that is."""
    [free] = llm.beam_search(prompt(17), BeamSearchParams(3, max_tokens=10))
    eos = free.sequences[0].tokens[17 + 3]
    monkeypatch.setattr(llm.engine, "eos_token_ids", frozenset([eos]))
    params = BeamSearchParams(3, max_tokens=10, length_penalty=0.0, early_stopping=early_stopping)
    [output] = llm.beam_search(prompt(17), params)
    found = transformers_beams("small", prompt(17), 3, 10, eos, length_penalty=0.0, early_stopping=early_stopping or "never")
    assert [sequence.tokens for sequence in output.sequences] == found
    assert output.sequences[0].finish_reason == "stop"


@pytest.mark.parametrize("options", [
    {}, {"length_penalty": 0.0}, {"length_penalty": 3.0}, {"length_penalty": -2.0}, {"temperature": 0.5}, {"temperature": 2.0},
    {"beam_width": 1}, {"beam_width": 7},
], ids=str)  # fmt: skip
def test_it_is_vllms_algorithm(llm, monkeypatch, options):
    params = BeamSearchParams(**{"beam_width": 3, "max_tokens": 8, **options})
    [free] = llm.beam_search(prompt(20), params)
    eos = frozenset(sequence.tokens[20 + 2 + i] for i, sequence in enumerate(free.sequences[:2]))
    monkeypatch.setattr(llm.engine, "eos_token_ids", eos)
    [output] = llm.beam_search(prompt(20), params)
    check_equal(output, expected_sequences(llm, prompt(20), params, eos))
    [ignoring] = llm.beam_search(prompt(20), BeamSearchParams(**{"beam_width": 3, "max_tokens": 8, "ignore_eos": True, **options}))
    assert ignoring == free and "stop" in {sequence.finish_reason for sequence in output.sequences}


def test_an_early_stop_takes_the_first_that_end(llm, monkeypatch):
    ends = np.argsort(-llm.logits(prompt(20))[-1])[:2].tolist()
    monkeypatch.setattr(llm.engine, "eos_token_ids", frozenset(ends))
    steps = llm.llm_engine.stats().num_steps
    late = llm.beam_search(prompt(20), BeamSearchParams(2, max_tokens=8, length_penalty=8.0))[0].sequences
    early = llm.beam_search(prompt(20), BeamSearchParams(2, max_tokens=8, length_penalty=8.0, early_stopping=True))[0].sequences
    assert [sequence.tokens[20:] for sequence in early] == [[token_id] for token_id in ends] and len(late[0].tokens) == 28
    assert llm.llm_engine.stats().num_steps - steps == 8 + 1


def test_text_and_the_end_of_it(llm, monkeypatch):
    token_ids = llm.tokenizer.encode("def f(")
    [free] = llm.beam_search("def f(", BeamSearchParams(1, max_tokens=4))
    [best] = free.sequences
    assert best.tokens[: len(token_ids)] == token_ids and best.text == llm.tokenizer.decode(best.tokens) and best.finish_reason == "length"
    monkeypatch.setattr(llm.engine, "eos_token_ids", frozenset(best.tokens[-1:]))
    for included in (False, True):
        [ended] = llm.beam_search("def f(", BeamSearchParams(1, max_tokens=9, include_stop_str_in_output=included))
        assert ended.sequences[0].tokens == best.tokens and ended.sequences[0].finish_reason == "stop"
        assert ended.sequences[0].text == llm.tokenizer.decode(best.tokens if included else best.tokens[:-1])


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("options", CACHES.values(), ids=CACHES)
def test_beams_share_blocks_in_every_cache(llm, monkeypatch, options, ahead):
    prompts = [prompt(length) for length in (1, 15, 16, 40)]
    expected = [llm.beam_search(token_ids, PARAMS)[0] for token_ids in prompts]
    with LLM(model_directory("small"), device="cpu", max_model_len=128, max_num_seqs=16, **options) as other:
        monkeypatch.setattr(other.engine.runner.machine, "steps_ahead", ahead)
        execute = other.engine.runner.execute
        monkeypatch.setattr(other.engine.runner, "execute", lambda step: (other.engine.cache_policy.check(), execute(step))[1])
        assert tokens_of(other.beam_search(prompts, PARAMS)) == tokens_of(expected)
        assert other.llm_engine.stats().num_steps == 12, "all beams of all searches go together"
        assert other.engine.cache_policy.usage().allocated == 0 and other.llm_engine.stats().num_preemptions == 0


@pytest.mark.parametrize("options", [
    {"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "kivi_int4", "kv_cache_residual_window": 32},
], ids=str)  # fmt: skip
def test_beams_in_quantised_caches_have_their_own_newest_tokens(options):
    """Each sum is that of the same tokens where a text is scored; the windows' rings are copied with the forks."""
    with LLM(model_directory("small"), device="cpu", max_model_len=256, max_num_seqs=8, **options) as llm:
        [output] = llm.beam_search(prompt(40), BeamSearchParams(4, max_tokens=70))
        for sequence in output.sequences:
            logits = llm.logits(sequence.tokens)[39:-1]
            total = sum(log_softmax(row)[token_id] for row, token_id in zip(logits, sequence.tokens[40:], strict=True))
            assert sequence.cum_logprob == pytest.approx(total, abs=0.01)


def test_the_prompt_is_held_once(llm, monkeypatch):
    """40 tokens in blocks of 16: two full blocks are shared, and each of four beams writes a third one of its own."""
    seen, execute, policy = [], llm.engine.runner.execute, llm.engine.cache_policy
    monkeypatch.setattr(llm.engine.runner, "execute", lambda step: (seen.append(policy.usage().allocated), execute(step))[1])
    llm.beam_search(prompt(40), BeamSearchParams(4, max_tokens=6))
    assert [allocated // llm.engine.cache.shape.bytes_per_block for allocated in seen] == [3] + [6] * 5


def test_a_search_runs_beside_a_stream_and_other_parameters(llm):
    prompts = [prompt(30), prompt(9), prompt(17)]
    params = [BeamSearchParams(width, max_tokens=length) for width, length in ((3, 9), (2, 4), (1, 14))]
    alone = [llm.beam_search(token_ids, one)[0] for token_ids, one in zip(prompts, params, strict=True)]
    greedy = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    text = llm.generate(prompt(12), greedy)[0].outputs[0].text
    with llm.stream(prompt(12), greedy) as stream:
        first = next(stream)
        assert tokens_of(llm.beam_search(prompts, params)) == tokens_of(alone)
        assert first + "".join(stream) == text


def test_more_beams_than_slots_are_computed_in_turns(llm):
    expected = llm.beam_search([prompt(20), prompt(9)], PARAMS)
    for seqs in (1, 3):
        for policy in ("split_fuse", "in_flight", "prefill_first", "static"):
            with LLM(model_directory("small"), device="cpu", max_model_len=64, max_num_seqs=seqs, scheduling_policy=policy) as other:
                assert tokens_of(other.beam_search([prompt(20), prompt(9)], PARAMS)) == tokens_of(expected)
                assert other.engine.cache_policy.usage().allocated == 0


@pytest.fixture(scope="module")
def searches(llm, request):
    """(prompts, their parameters, what each search finds by itself): six searches for 30 tokens with --exhaustive, else four for 16."""
    count, tokens = (6, 30) if request.config.option.exhaustive else (4, 16)
    prompts, params = [prompt(length) for length in (40, 20, 9, 33, 17, 25)[:count]], BeamSearchParams(4, max_tokens=tokens)
    return prompts, params, [llm.beam_search(token_ids, params)[0] for token_ids in prompts]


@pytest.mark.covering("options + preemption", "options + ahead", "preemption + ahead")
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("options", [CACHES["paged"], CACHES["small blocks"], CACHES["radix tree"]], ids=str)
def test_little_memory_changes_no_token(searches, monkeypatch, options, preemption, ahead):
    """Room for 100 tokens, where the searches and a request beside them need more than that."""
    prompts, params, expected = searches
    monkeypatch.setattr("minllm.engine.build.memory_budget.MAX_HOST_BYTES", 103_300)
    with LLM(model_directory("small"), device="cpu", max_model_len=72, max_num_seqs=12, preemption=preemption, **options) as other:
        monkeypatch.setattr(other.engine.runner.machine, "steps_ahead", ahead)
        with other.stream(prompt(8), SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)) as stream:
            next(stream)
            assert tokens_of(other.beam_search(prompts, params)) == tokens_of(expected)
            stream.close()
        assert other.llm_engine.stats().num_preemptions > 0
        other.engine.cache_policy.check()
        assert other.engine.cache_policy.usage().allocated == 0


@pytest.mark.covering("remainder")
@pytest.mark.parametrize("seed, remainder", [(seed, seed % 4) for seed in range(8)])
def test_random_traffic(llm, monkeypatch, seed, remainder):
    """Searches that come while others run, one of which may be aborted, in a small cache of a random kind, under a random policy."""
    draw = random.Random(seed)
    monkeypatch.setattr("minllm.engine.build.memory_budget.MAX_HOST_BYTES", draw.choice([80_000, 103_300, 150_000]))
    options = dict(draw.choice([one for name, one in CACHES.items() if name != "virtual"]), preemption=draw.choice(["recompute", "swap"]))
    options |= dict(max_num_seqs=draw.choice([1, 3, 8]), max_num_batched_tokens=draw.choice([5, 2048]))
    options |= dict(scheduling_policy=draw.choice(list(POLICIES)), length_prediction=draw.choice(list(LENGTH_PREDICTIONS)))
    given = [(prompt(draw.randint(1, 30), seed), BeamSearchParams(draw.randint(1, 5), draw.randint(1, 28))) for _ in range(4)]
    with LLM(model_directory("small"), device="cpu", max_model_len=60, **options) as other:
        monkeypatch.setattr(other.engine.runner.machine, "steps_ahead", draw.choice([0, 1]))
        core, searches = other.llm_engine.core, [other._requests(*one, kind=BeamSearchParams)[0] for one in given]
        arrivals, aborted = [draw.randint(0, 20) for _ in searches], draw.choice([None, None, *searches])
        for number in range(4000):
            for beams, arrival in zip(searches, arrivals, strict=True):
                if arrival == number:
                    core.add(beams[0])
            if number == 25 and aborted is not None:
                core.abort(aborted[-1:])
            if number > 25 and not core.has_work:
                break
            core.step()
            other.engine.cache_policy.check()
        assert not core.has_work and other.engine.cache_policy.usage().allocated == 0
        for beams, one in zip(searches, given, strict=True):
            if beams[0].finish_reason == "abort":
                assert beams is aborted
            else:
                assert tokens_of([beams[0].search.output(other.tokenizer)]) == tokens_of(llm.beam_search(*one))


def test_a_dropped_beam_ends_its_search(monkeypatch):
    monkeypatch.setattr("minllm.engine.build.memory_budget.MAX_HOST_BYTES", 103_300)
    with LLM(model_directory("small"), device="cpu", max_model_len=72, max_num_seqs=12, preemption="drop") as llm:
        with pytest.raises(OutOfMemoryError, match='preemption="drop" ends such requests'):
            llm.beam_search([prompt(40), prompt(40, 1)], BeamSearchParams(4, max_tokens=30))
        assert llm.engine.cache_policy.usage().allocated == 0 and llm.llm_engine.stats().num_waiting == 0
        assert len(llm.beam_search(prompt(9), BeamSearchParams(2, max_tokens=4))[0].sequences) == 2


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_whatever_ends_a_step_frees_all_beams(llm, monkeypatch, error):
    execute, count = llm.engine.runner.execute, itertools.count()

    def fail(step):
        if next(count) == 5:
            raise error("the fifth step")
        return execute(step)

    with monkeypatch.context() as patched, pytest.raises(error, match="the fifth step"):
        patched.setattr(llm.engine.runner, "execute", fail)
        llm.beam_search([prompt(20), prompt(9)], PARAMS)
    assert llm.engine.cache_policy.usage().allocated == 0 and llm.llm_engine.stats().num_running == 0
    assert llm.llm_engine.stats().num_waiting == 0 and not llm.llm_engine.core.has_work
    llm.engine.cache_policy.check()


def test_an_aborted_beam_ends_its_search(llm):
    core, [beams] = llm.llm_engine.core, llm._requests(prompt(20), PARAMS, kind=BeamSearchParams)
    core.add(beams[0])
    assert set(core.scheduler.queues.sequences()) == set(beams)
    for _ in range(4):
        core.step()
    core.abort(beams[2:3])
    assert {beam.finish_reason for beam in beams} == {"abort"} and not core.has_work


def test_parameters_of_another_class_are_refused(llm):
    with pytest.raises(InvalidRequestError, match=r"is not a BeamSearchParams: write BeamSearchParams\("):
        llm.beam_search(prompt(3), SamplingParams())
    with pytest.raises(InvalidRequestError, match="is not a SamplingParams"):
        llm.generate(prompt(3), PARAMS)
    with pytest.raises(InvalidRequestError, match="2 BeamSearchParams were given for 1 prompts"):
        llm.beam_search(prompt(3), [PARAMS, PARAMS])
