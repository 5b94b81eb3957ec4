"""The speculator that the options ask for, with its source of drafts."""

from typing import Any

from minllm.engine.drafting.ngrams import NgramDrafts
from minllm.engine.running.slots import Slots
from minllm.engine.running.speculator import Speculator
from minllm.engine.speculative_config import SpeculativeConfig
from minllm.errors import InvalidOptionError


def make_speculator(config: SpeculativeConfig, ops: Any, machine: Any, slots: Slots, max_model_len: int) -> Speculator:
    """Drafts for these slots. InvalidOptionError if no sequence is long enough for them."""
    num_drafts = config.num_speculative_tokens
    if num_drafts > max_model_len - 2:
        raise InvalidOptionError(
            f"speculative_config: num_speculative_tokens={num_drafts} is not allowed: the KV cache has room for {max_model_len} tokens of "
            f"a sequence, so that at most {max_model_len - 2} can be drafted."
        )
    source = NgramDrafts(ops, slots.state, config.prompt_lookup_max, config.prompt_lookup_min)
    return Speculator(ops, machine, slots, source, num_drafts, max_model_len)
