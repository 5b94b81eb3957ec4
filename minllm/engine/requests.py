"""Make sequences that the engine can run from a checked prompt and its parameters."""

from dataclasses import replace
from typing import Any

import numpy as np

from minllm.engine.loading import Engine
from minllm.engine.prompts import PromptTokens
from minllm.engine.request_checks import check_vocabulary, prompt_in_context
from minllm.engine.sampling_params import SamplingParams
from minllm.engine.sequence import Sequence
from minllm.errors import InvalidRequestError

NOT_HONOURED = ("best_of", "logit_bias", "allowed_token_ids", "bad_words", "logits_processors", "prompt_logprobs")


class NoText:
    """The decoder of a request with detokenize=False: no token has a text."""

    def push(self, token_id: int) -> str:
        """No text."""
        return ""

    def finish(self) -> str:
        """No text."""
        return ""


def make_sequences(
    engine: Engine, number: int, prompt: PromptTokens, params: SamplingParams, cache_salt: str, engine_seed: int
) -> list[Sequence]:
    """The sequences of request `number`, one for each of its `n` completions.

    If the request has no seed, the first sequence gets one drawn from the engine's seed and `number`, so that the same calls in the same
    order give the same texts; the seeds of the others derive from the first.
    """
    eos_token_ids = frozenset() if params.ignore_eos else engine.eos_token_ids
    check_honoured(params)
    check_vocabulary(params, engine.model.config.vocab_size, {*eos_token_ids, *params.stop_token_ids})
    prompt = prompt_in_context(prompt, params, engine.max_model_len)
    room = engine.max_model_len - len(prompt.token_ids)
    seed = _derived_seed(engine_seed, number) if params.seed is None else params.seed
    sequences = []
    for index in range(params.n):
        sequence = Sequence(
            request_id=str(number) if index == 0 else f"{number}.{index}",
            prompt=prompt.text,
            prompt_token_ids=prompt.token_ids,
            params=replace(params, seed=seed if index == 0 else _derived_seed(seed, index)),
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            eos_token_ids=eos_token_ids,
            decoder=_decoder(engine, prompt, params),
            cache_salt=cache_salt,
            index=index,
            sibling=sequences[0] if sequences else None,
        )
        sequences.append(sequence)
    return sequences


def check_honoured(params: SamplingParams) -> None:
    """Raise InvalidRequestError for parameters that the engine does not honour yet, rather than ignore them."""
    given = [name for name in NOT_HONOURED if getattr(params, name) not in (None, ())]
    given += ["max_tokens=0"] if params.max_tokens == 0 else []
    if given:
        raise InvalidRequestError(f"{', '.join(given)}: not supported by this version of the engine; leave it out.")


def _decoder(engine: Engine, prompt: PromptTokens, params: SamplingParams) -> Any:
    if not params.detokenize:
        return NoText()
    return engine.tokenizer.incremental_decoder(prompt.token_ids, params.skip_special_tokens)


def _derived_seed(engine_seed: int, number: int) -> int:
    return int(np.random.SeedSequence([engine_seed, number]).generate_state(1, np.uint64)[0])
