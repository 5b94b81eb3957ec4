"""What a layer is made of. Each part is a file: its fields of config.json, its tensors in a file, its costs, its forward over the ops.

    grouped_attention   query heads that share KV heads; multi-head attention is the case of as many KV heads as query heads
    gated_mlp           down(activation(gate(x)) * up(x)): Llama and its like
    plain_mlp           down(activation(up(x))): GPT-2

Another part is another module with the same functions, and its line in `parts_of`.
"""

from types import ModuleType

from minllm.models.parts import gated_mlp, grouped_attention, plain_mlp


def parts_of(config) -> tuple[ModuleType, ModuleType]:
    """The modules of a layer's attention and of its feed-forward."""
    return grouped_attention, gated_mlp if config.gated_mlp else plain_mlp
