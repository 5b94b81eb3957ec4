"""Make sequences that the engine can run from a checked prompt and its parameters."""

from typing import Any

import numpy as np

from minllm.engine.build.engine import Engine
from minllm.engine.requests.bad_words import BadWords
from minllm.engine.requests.beam_search import Beam, BeamSearch, Temperature
from minllm.engine.requests.beam_search_params import BeamSearchParams
from minllm.engine.requests.output_text import NoText
from minllm.engine.requests.prompts import PromptTokens
from minllm.engine.requests.request_checks import check_context, check_vocabulary
from minllm.engine.requests.sampling_params import MAX_LOGPROBS, LogitsProcessor, SamplingParams
from minllm.engine.requests.sequence import Sequence
from minllm.engine.requests.truncation import truncated
from minllm.models.tokenizer import Tokenizer


def make_sequences(
    engine: Engine, request_id: str, number: int, prompt: PromptTokens, params: SamplingParams, cache_salt: str, engine_seed: int
) -> list[Sequence]:
    """The sequences of a request, one for each completion to generate; the first has the others as siblings.

    If the request has no seed, the seed of the first sequence derives from the engine's seed and the request's `number`, so that the same
    calls in the same order give the same texts; the seeds of the others derive from the first.
    """
    eos_token_ids = frozenset() if params.ignore_eos else engine.eos_token_ids
    ending_token_ids = {*eos_token_ids, *(params.stop_token_ids or ())}
    check_vocabulary(params, engine.model.config.vocab_size, ending_token_ids)
    prompt = truncated(prompt, params, engine.max_model_len, engine.tokenizer)
    check_context(prompt, params, engine.max_model_len)
    room = engine.max_model_len - len(prompt.token_ids)
    seed = _seed(params, engine_seed, number)
    processors: tuple[LogitsProcessor, ...] = tuple(params.logits_processors or ())
    banned_token_ids: tuple[int, ...] = ()
    if params.bad_words:
        bad_words = _bad_words(params, engine.tokenizer, ending_token_ids)
        processors, banned_token_ids = (*processors, bad_words), bad_words.always_banned(engine.model.config.vocab_size)
    sequences = [
        Sequence(
            request_id=request_id,
            prompt=prompt.text,
            prompt_token_ids=prompt.token_ids,
            params=params.with_seed(seed if index == 0 else _derived_seed(seed, index)),
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            eos_token_ids=eos_token_ids,
            decoder=_decoder(engine, prompt, params),
            # Positions found in the prefix cache have no logits, so a scored prompt gets a salt of its own and shares nothing.
            cache_salt=cache_salt if params.prompt_logprobs is None else f"scored {request_id} {number}",
            index=index,
            dtype=np.dtype(engine.ops.dtype).name,
            logits_processors=processors,
            banned_token_ids=banned_token_ids,
            grammar=None if params.structured_outputs is None else engine.grammars.start(params.structured_outputs),
        )
        for index in range(params.num_generated)
    ]
    sequences[0].siblings = sequences[1:]
    return sequences


def make_beams(
    engine: Engine, request_id: str, number: int, prompt: PromptTokens, params: BeamSearchParams, cache_salt: str, engine_seed: int
) -> list[Beam]:
    """The beams of a search; the first computes the prompt.

    A step reads the 2 * beam_width likeliest tokens of each beam, or more if the model has more than beam_width end-of-sequence ids, so
    that at least beam_width of the tokens continue the text.
    """
    vocab_size = engine.model.config.vocab_size
    candidates = min(MAX_LOGPROBS, vocab_size, params.beam_width + max(params.beam_width, len(engine.eos_token_ids)))
    step = SamplingParams(temperature=0, max_tokens=params.max_tokens, ignore_eos=params.ignore_eos, detokenize=False, logprobs=candidates)
    [first] = make_sequences(engine, request_id, number, prompt, step, cache_salt, engine_seed)
    processors = (Temperature(params.temperature),) if params.temperature not in (0, 1) else ()
    beams = [
        Beam(
            request_id, prompt.text, first.prompt_token_ids, step, first.max_tokens, first.eos_token_ids, NoText(), index=index,
            arrival_time=first.arrival_time, cache_salt=cache_salt, dtype=first.dtype, logits_processors=processors,
            scores_processed=True,
        )
        for index in range(params.beam_width)
    ]  # fmt: skip
    BeamSearch(params, beams)
    return beams


def _bad_words(params: SamplingParams, tokenizer: Tokenizer, ending_token_ids: set[int]) -> BadWords:
    hidden = frozenset() if params.include_stop_str_in_output else frozenset(ending_token_ids)
    if params.skip_special_tokens:
        hidden |= tokenizer.special_token_ids
    return BadWords(params.banned_texts, tokenizer.token_texts, hidden)


def _decoder(engine: Engine, prompt: PromptTokens, params: SamplingParams) -> Any:
    if not params.detokenize:
        return NoText()
    return engine.tokenizer.incremental_decoder(prompt.token_ids, params.skip_special_tokens)


def _seed(params: SamplingParams, engine_seed: int, number: int) -> int:
    """The seed of a request's first completion; 0 for greedy decoding, because deriving a seed takes longer than most checks."""
    if params.seed is not None:
        return params.seed
    return 0 if params.is_greedy else _derived_seed(engine_seed, number)


def _derived_seed(engine_seed: int, number: int) -> int:
    return int(np.random.SeedSequence([engine_seed, number]).generate_state(1, np.uint64)[0])
