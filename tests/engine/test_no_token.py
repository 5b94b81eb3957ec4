"""A request for which no token can be chosen ends with an error that says why, and its neighbours in the batch do not notice."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minllm import LLM, SamplingParams
from minllm.errors import InvalidRequestError, SamplingError
from tests.engine.checks import BROKEN, break_token, check_nan_ends_its_requests, outputs_of, tokens_of
from tests.engine.models import model_directory
from tests.models.random_models import prompt

GREEDY = dict(temperature=0, max_tokens=6, ignore_eos=True)


def raises(output_token_ids, logits):
    raise RuntimeError("a bug of the user")


ALL = SamplingError, "leave none"
BAD_PROCESSORS = {
    "-inf for all": (lambda ids, x: x * 0 - np.inf, (SamplingError, "logits_processors leave none")),
    "NaN": (lambda ids, x: x * np.nan, (SamplingError, "NaN for 1003 of 1003 tokens")),
    "a single NaN": (lambda ids, x: np.where(np.arange(len(x)) == 9, np.nan, x), (SamplingError, "NaN for 1 of 1003 tokens")),
    "None": (lambda ids, x: None, (SamplingError, "returned None")),
    "a shape that broadcasts": (lambda ids, x: x[:1], (SamplingError, r"float32 \(1,\): it must return numbers of shape \(1003,\)")),
    "a longer row": (lambda ids, x: np.append(x, 1), (SamplingError, r"\(1004,\)")),
    "booleans": (lambda ids, x: x > 0, (SamplingError, "returned bool")),
    "complex numbers": (lambda ids, x: x + 1j, (SamplingError, "returned complex")),
    "text": (lambda ids, x: "logits", (SamplingError, "returned <U6")),
    "a ragged list": (lambda ids, x: [1, [2]], (SamplingError, r"returned \[1, \[2\]\], which is no array")),
    "an exception": (raises, (RuntimeError, "a bug of the user")),
}
BAD_INPUTS = {
    "only ids that end the text, and min_tokens": (
        dict(allowed_token_ids=[5], stop_token_ids=[5], min_tokens=2), (InvalidRequestError, "min_tokens=2 bans those"),
    ),
    "a stop id that is the only allowed one from the second token on": (
        dict(allowed_token_ids=["e", 5], bad_words=["ee"], stop_token_ids=[5], min_tokens=3), (SamplingError, "min_tokens=3, which bans"),
    ),
    "a bias of -inf": (dict(logit_bias={5: -np.inf}), (InvalidRequestError, "logit_bias")),
    "all allowed ids are bad words": (dict(allowed_token_ids=["e"], bad_words=["e"]), ALL),
    "all allowed ids become bad words": (dict(allowed_token_ids=["e"], bad_words=["ee"]), ALL),
    "a penalty that divides by almost nothing": (dict(repetition_penalty=1e-45), (SamplingError, "repetition_penalty=1e-45 takes them")),
    "a penalty beyond float32": (dict(repetition_penalty=1e39), (InvalidRequestError, "repetition_penalty=1e.39 is not allowed")),
    **{f"a processor that returns {name}": (dict(logits_processors=[one]), error) for name, (one, error) in BAD_PROCESSORS.items()},
}  # fmt: skip
COMPANY = [(prompt(9), SamplingParams(**GREEDY)), (prompt(5), SamplingParams(temperature=1.0, seed=3, max_tokens=6, ignore_eos=True))]


@pytest.fixture(scope="module")
def alone(llm):
    return [outputs_of(llm, [one])[0].outputs[0].token_ids for one in COMPANY]


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_inputs_end_their_own_request(name, llm, alone):
    options, (error, message) = BAD_INPUTS[name]
    if "bad_words" in options:
        [e] = llm.tokenizer.encode("e")
        allowed = [e if token == "e" else token for token in options["allowed_token_ids"]]
        options = options | dict(allowed_token_ids=allowed)
    options = dict(temperature=len(name) % 2, max_tokens=4, ignore_eos=True, seed=1, logprobs=1) | options
    if error is InvalidRequestError:
        with pytest.raises(error, match=message):
            outputs_of(llm, [(prompt(7), SamplingParams(**options))])
        return
    found = outputs_of(llm, [COMPANY[0], (prompt(7), SamplingParams(**options)), COMPANY[1]])
    assert [found[0].outputs[0].token_ids, found[2].outputs[0].token_ids] == alone
    assert found[1].outputs[0].finish_reason == "error"
    with pytest.raises(error, match=message):
        raise found[1].error


def test_what_a_processor_may_return(llm):
    """Other dtypes are converted, and +inf leaves only the tokens that have it."""
    free = llm.generate([prompt(7)], SamplingParams(**GREEDY))[0].outputs[0].token_ids
    for dtype in (np.float64, np.float16, np.int64):
        scaled = [lambda ids, x, dtype=dtype: (x * 1000).astype(dtype)]
        assert llm.generate([prompt(7)], SamplingParams(**GREEDY, logits_processors=scaled))[0].outputs[0].token_ids == free
    forces = [lambda ids, x: np.where(np.isin(np.arange(len(x)), (4, 9)), np.inf, x)]
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=40, ignore_eos=True, logits_processors=forces)
    assert set(llm.generate([prompt(7)], params)[0].outputs[0].token_ids) == {4, 9}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return break_token(tmp_path_factory.mktemp("broken") / "model")


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (dict(logprobs=2), "token 1 of its output"),
        (dict(logprobs=0, temperature=1.0), "token 1 of its output"),
        (dict(temperature=1.0, best_of=2), "token 1 of its output"),
        (dict(prompt_logprobs=0), "token 2 of its prompt"),
        (dict(prompt_logprobs=0, max_tokens=0), "token 2 of its prompt"),
        ({}, None),
    ],
)
def test_nan_for_a_token_that_is_not_allowed(llm, options, place):
    """It does not matter to the choice, but makes every log-probability NaN. Each request that ends so is counted."""
    params = SamplingParams(**dict(temperature=0, max_tokens=2, ignore_eos=True, allowed_token_ids=[3, 4], seed=1) | options)
    weight, before = llm.engine.model.weights.lm_head.weight, llm.llm_engine.stats().num_corrupted_requests
    row, weight[BROKEN] = weight[BROKEN].copy(), np.nan
    try:
        if place is None:
            assert set(llm.generate([prompt(7)], params)[0].outputs[0].token_ids) <= {3, 4}
        else:
            with pytest.raises(SamplingError, match=f"for {place} hold NaN"):
                llm.generate([prompt(7)], params)
    finally:
        weight[BROKEN] = row
    assert llm.llm_engine.stats().num_corrupted_requests - before == (0 if place is None else params.num_generated)


@pytest.mark.parametrize("speculates", [False, True])
def test_nan_in_the_model_ends_the_requests_that_meet_it(broken, speculates):
    options = dict(speculative_config=dict(method="ngram", num_speculative_tokens=3)) if speculates else {}
    check_nan_ends_its_requests(broken, device="cpu", **options)


@pytest.mark.parametrize("tree", [{}, {"speculative_token_tree": "[(0,), (1,), (0, 0)]"}])
def test_nan_in_a_draft_model_changes_no_token(tree, llm):
    """The model's own logits are finite, but no draft after a broken token can be chosen."""
    bad = [*prompt(6), BROKEN, *prompt(6)]
    config = dict(model=str(model_directory("small")), num_speculative_tokens=3) | tree
    expected = tokens_of(llm.generate([prompt(9), bad], SamplingParams(**GREEDY)))
    with LLM(model_directory("small"), device="cpu", max_model_len=64, speculative_config=config) as llm:
        llm.engine.runner.speculator.source.model.weights.embedding[BROKEN] = np.nan
        found = tokens_of(llm.generate([prompt(9), bad], SamplingParams(**GREEDY)))
        sampled = tokens_of(llm.generate([bad], SamplingParams(temperature=1.0, seed=1, max_tokens=3, ignore_eos=True)))
    assert found == expected
    assert len(sampled[0]) == 3 and min(sampled[0]) >= 0


def test_an_overflow_of_float16_is_named(tmp_path):
    directory = shutil.copytree(model_directory("small"), tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    for name in tensors:
        if "up_proj" in name or "down_proj" in name:
            tensors[name] *= 3000
    save_file(tensors, directory / "model.safetensors")
    for dtype, works in (("bfloat16", True), ("float16", False)):
        with LLM(directory, device="cpu", dtype=dtype, max_model_len=64) as llm, np.errstate(all="ignore"):
            if works:
                assert len(llm.generate([prompt(9)], SamplingParams(**GREEDY))[0].outputs[0].token_ids) == 6
                continue
            for params in (SamplingParams(**GREEDY), SamplingParams(temperature=1.0, seed=1)):
                with pytest.raises(SamplingError, match=r'activations exceed 65504.*dtype="bfloat16" or dtype="float32"'):
                    llm.generate([prompt(9)], params)
