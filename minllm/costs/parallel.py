"""Tensor parallelism: what one of N GPUs holds, reads and computes, and the bytes that the GPUs exchange.

Each GPU has 1/N of the heads, of the feed-forward's inner width and of the vocabulary, and all of the hidden state. So one GPU's part is a
model of the same kind with smaller numbers, and every formula of this package applies to it. If there are more GPUs than KV heads, each KV
head is stored on several GPUs. After the output projection and after the feed-forward each GPU holds a partial sum of the hidden state, and
an all-reduce adds these up: two per layer, and one after the embedding, which is split by vocabulary; logits are gathered.

In a ring each GPU sends and receives 2 (N - 1) / N of the bytes to reduce, and half of that to gather. Sources: Shoeybi et al. 2019,
"Megatron-LM", section 3; Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", section 3.
"""

from dataclasses import replace

from minllm.costs.stages import LOGIT_BYTES
from minllm.errors import InvalidOptionError
from minllm.models.config import ModelConfig


def shard(config: ModelConfig, degree: int) -> ModelConfig:
    """One GPU's part of the model. Raises InvalidOptionError if the tensor-parallel `degree` does not fit."""
    if degree == 1:
        return config
    heads, kv_heads, shared = config.num_attention_heads, config.num_key_value_heads, config.shared_expert_intermediate_size
    if not divides(config, degree):
        raise InvalidOptionError(
            f"A tensor-parallel degree of {degree} does not divide this model: it has {heads} query heads, {kv_heads} KV heads and an "
            f"inner width of {config.intermediate_size}{f', {shared} in the shared expert' if shared else ''}. Allowed are "
            f"{', '.join(map(str, degrees(config)))}."
        )
    return replace(
        config,
        num_attention_heads=heads // degree,
        num_key_value_heads=max(1, kv_heads // degree),
        intermediate_size=config.intermediate_size // degree,
        shared_expert_intermediate_size=shared // degree,
        vocab_size=-(-config.vocab_size // degree),
    )


def copies_of_a_kv_head(config: ModelConfig, degree: int) -> int:
    """The number of GPUs that hold the same KV head at tensor-parallel `degree`."""
    return max(1, degree // config.num_key_value_heads)


def degrees(config: ModelConfig) -> list[int]:
    """The tensor-parallel degrees that divide the model, up to 64."""
    return [n for n in range(1, 65) if divides(config, n)]


def divides(config: ModelConfig, degree: int) -> bool:
    """Whether heads and inner widths are whole on each of `degree` GPUs."""
    widths, kv_heads = (config.intermediate_size, config.shared_expert_intermediate_size), config.num_key_value_heads
    whole = not any(count % degree for count in (config.num_attention_heads, *widths))
    return whole and (kv_heads % degree == 0 or degree % kv_heads == 0)


def divides_rows(config: ModelConfig) -> bool:
    """Whether GPUs can divide the rows of a prompt: every sum of theirs is added to the residual stream, and an RMSNorm follows.

    Gemma normalises a sum before it is added, and a mixture of experts is added to the whole stream on every GPU.
    """
    return config.norm == "rms_norm" and config.gated_mlp and not (config.post_norms or config.num_experts)


def all_reduces(config: ModelConfig, embeds: bool = True) -> int:
    """The number of all-reduces per step. embeds: whether these GPUs also compute the embedding."""
    return (3 if config.shared_expert_intermediate_size else 2) * config.num_hidden_layers + embeds


def all_reduce_bytes(config: ModelConfig, tokens: int, rows: int, degree: int, itemsize: int = 2, embeds: bool = True) -> int:
    """Bytes that each GPU sends, and receives, in a step of `tokens` tokens and `rows` rows of logits.

    config: of the whole model, or of all GPUs of a pipeline stage together.
    """
    reduced = 2 * all_reduces(config, embeds) * tokens * config.hidden_size * itemsize
    gathered = rows * config.vocab_size * LOGIT_BYTES
    return (reduced + gathered) * (degree - 1) // degree
