"""Make sequences that the engine can run from a checked prompt and its parameters."""

from dataclasses import replace

import numpy as np

from minllm.engine.loading import Engine
from minllm.engine.prompts import PromptTokens
from minllm.engine.requests.sequence import Sequence
from minllm.engine.sampling_params import SamplingParams
from minllm.errors import InvalidRequestError


def make_sequences(
    engine: Engine, request_id: str, number: int, prompt: PromptTokens, params: SamplingParams, cache_salt: str, engine_seed: int
) -> list[Sequence]:
    """The sequences of a request, one for each of its `n` completions; the first has the others as siblings.

    If the request has no seed, the first sequence gets one drawn from the engine's seed and the request's `number`, so that the same calls
    in the same order give the same texts; the seeds of the others derive from the first.
    """
    vocab_size = engine.model.config.vocab_size
    for token_id in params.stop_token_ids:
        if token_id >= vocab_size:
            raise InvalidRequestError(f"stop_token_ids holds {token_id}, outside the vocabulary: ids go from 0 to {vocab_size - 1}.")
    if params.logprobs is not None and params.logprobs > vocab_size:
        raise InvalidRequestError(f"logprobs={params.logprobs} is more than the vocabulary's {vocab_size} tokens: lower it.")
    room = engine.max_model_len - len(prompt.token_ids)
    seed = _derived_seed(engine_seed, number) if params.seed is None else params.seed
    sequences = [
        Sequence(
            request_id=request_id,
            prompt=prompt.text,
            prompt_token_ids=prompt.token_ids,
            params=replace(params, seed=seed if index == 0 else _derived_seed(seed, index)),
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            eos_token_ids=frozenset() if params.ignore_eos else engine.eos_token_ids,
            decoder=engine.tokenizer.incremental_decoder(prompt.token_ids, params.skip_special_tokens),
            cache_salt=cache_salt,
            index=index,
        )
        for index in range(params.n)
    ]
    sequences[0].siblings = sequences[1:]
    return sequences


def _derived_seed(engine_seed: int, number: int) -> int:
    return int(np.random.SeedSequence([engine_seed, number]).generate_state(1, np.uint64)[0])
