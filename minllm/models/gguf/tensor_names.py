"""Translates llama.cpp's tensor names and layouts to Hugging Face's, which the rest of minllm reads.

Names: llama.cpp's gguf-py, constants.py (TENSOR_NAMES) and tensor_mapping.py. Three layouts differ (convert_hf_to_gguf.py):

    llama   rows of q and k are permuted within each head. Hugging Face rotates number i of a head with number i + d/2, llama.cpp rotates
            2i with 2i + 1, so row 2i + half of the file is row half * d/2 + i of the model
    gpt2    matrices are [outputs, inputs]; Hugging Face's Conv1D stores [inputs, outputs]
    gemma   weights of norms are whole; Hugging Face stores their distance from 1
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minllm.errors import UnsupportedModelError

ROPE_FACTORS = "rope_freqs.weight"  # part of the rotary embedding; not a weight in Hugging Face's checkpoints
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
LLAMA_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LLAMA_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_LAYER_NAMES = LLAMA_LAYER_NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GPT2_NAMES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
GPT2_LAYER_NAMES = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}


class Naming(NamedTuple):
    """The names of an architecture's tensors, and which of them are permuted or transposed in the file."""

    outside: dict[str, str]  # llama.cpp's name of a module outside the layers -> Hugging Face's
    layer: dict[str, str]  # the same within a layer
    layers: str  # Hugging Face's prefix of a layer's number
    permuted: tuple[str, ...] = ()  # modules of a layer with permuted rows
    transposed: tuple[str, ...] = ()  # modules of a layer with transposed matrices


LLAMA_NAMING = Naming(LLAMA_NAMES, LLAMA_LAYER_NAMES, "model.layers.", permuted=("self_attn.q_proj", "self_attn.k_proj"))
QWEN_NAMING = LLAMA_NAMING._replace(permuted=())
GEMMA_NAMING = Naming(LLAMA_NAMES, GEMMA_LAYER_NAMES, "model.layers.")
GPT2_NAMING = Naming(
    GPT2_NAMES, GPT2_LAYER_NAMES, "transformer.h.", transposed=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
)  # fmt: skip


def hugging_face_name(naming: Naming, name: str, path: Path) -> str:
    """Hugging Face's name of a tensor of the file. Raises UnsupportedModelError if the architecture lacks it."""
    match = LAYER.fullmatch(name)
    if match and match[2] in naming.layer:
        return f"{naming.layers}{match[1]}.{naming.layer[match[2]]}.{match[3]}"
    module, _, kind = name.rpartition(".")
    if module in naming.outside and kind in ("weight", "bias"):
        return f"{naming.outside[module]}.{kind}"
    raise UnsupportedModelError(
        f"{path} holds tensor {name!r}, which no model of its architecture has that minllm runs; leaving it out would change the result."
    )


def file_name(naming: Naming, name: str) -> str:
    """The inverse of hugging_face_name; `name` itself if it has none."""
    module, _, kind = name.rpartition(".")
    place, prefix = naming.outside, ""
    if module.startswith(naming.layers):
        layer, _, module = module.removeprefix(naming.layers).partition(".")
        place, prefix = naming.layer, f"blk.{layer}."
    return next((f"{prefix}{theirs}.{kind}" for theirs, ours in place.items() if ours == module), name)


def is_permuted(naming: Naming, name: str) -> bool:
    """Whether the rows of a tensor are permuted in the file; name: Hugging Face's."""
    return name.rpartition(".")[0].endswith(naming.permuted) if naming.permuted else False


def is_transposed(naming: Naming, name: str) -> bool:
    """Whether a tensor is a matrix that is transposed in the file; name: Hugging Face's."""
    module, _, kind = name.rpartition(".")
    return kind == "weight" and bool(naming.transposed) and module.endswith(naming.transposed)


def unpermuted(tensor: np.ndarray, head_dim: int) -> np.ndarray:
    """q, k or their biases with rows in Hugging Face's order: in each head the even rows, then the odd ones."""
    pairs = tensor.reshape(-1, head_dim // 2, 2, *tensor.shape[1:])  # [heads, pairs, half, inputs]
    return pairs.swapaxes(1, 2).reshape(tensor.shape)
