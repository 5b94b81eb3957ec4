"""The parts of a layer, one file each: fields of config.json, tensors in a checkpoint, costs, forward pass.

    grouped_attention   query heads share KV heads; multi-head attention is the case kv_heads = heads
    gated_mlp           down(activation(gate(x)) * up(x)): Llama and similar models
    plain_mlp           down(activation(up(x))): GPT-2
    experts             a router chooses a few of many gated feed-forwards for each token: Qwen3-MoE

To add a part, write a module with the same functions and add it to `parts_of`.
"""

from types import ModuleType

from minllm.models.parts import experts, gated_mlp, grouped_attention, plain_mlp


def parts_of(config) -> tuple[ModuleType, ModuleType]:
    """The modules of this package that implement a layer's attention and its feed-forward."""
    mlp = experts if config.num_experts else gated_mlp if config.gated_mlp else plain_mlp
    return grouped_attention, mlp
