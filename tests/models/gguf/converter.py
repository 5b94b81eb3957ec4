"""From a Hugging Face directory to GGUF, in the steps of llama.cpp's convert_hf_to_gguf.py, without quantisation and tokenizer."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.models.gguf.writer import float32, write_gguf

MODULES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm", "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip


def stored_name(name: str, is_gemma: bool = False) -> str:
    """The name in a GGUF file of a parameter of transformers."""
    module, _, kind = name.rpartition(".")
    layer = ""
    for prefix in ("model.layers.", "transformer.h."):
        if module.startswith(prefix):
            number, _, module = module.removeprefix(prefix).partition(".")
            layer = f"blk.{number}."
    if is_gemma and module == "post_attention_layernorm":
        return f"{layer}post_attention_norm.{kind}"
    return f"{layer}{MODULES[module]}.{kind}"


def permute(weights: np.ndarray, heads: int, kv_heads: int | None) -> np.ndarray:
    """LlamaModel.permute of convert_hf_to_gguf.py, as it stands there."""
    if kv_heads is not None and heads != kv_heads:
        heads = kv_heads
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def rope_factors(config: dict[str, Any]) -> np.ndarray | None:
    """LlamaModel.generate_extra_tensors: the factors of Llama 3's frequencies."""
    scaling = config.get("rope_parameters") or {}
    if scaling.get("rope_type") != "llama3":
        return None
    base, dim, factor = scaling["rope_theta"], config["head_dim"], scaling["factor"]
    low, high, trained = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_position_embeddings"]
    factors = []
    for frequency in 1.0 / (base ** (np.arange(0, dim, 2, dtype=np.float32) / dim)):
        wavelength = 2 * math.pi / frequency
        if wavelength < trained / high:
            factors.append(1)
        elif wavelength > trained / low:
            factors.append(factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def metadata_of(config: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters, under llama.cpp's keys."""
    arch = config["model_type"].removesuffix("_text")
    found = {"general.architecture": arch, "general.type": "model", "general.name": "random", f"{arch}.vocab_size": config["vocab_size"]}
    if arch == "gpt2":
        found |= {
            f"{arch}.context_length": config["n_positions"], f"{arch}.embedding_length": config["n_embd"],
            f"{arch}.block_count": config["n_layer"], f"{arch}.feed_forward_length": config["n_inner"],
            f"{arch}.attention.head_count": config["n_head"], f"{arch}.attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        }  # fmt: skip
        return found
    local = config["rope_parameters"].get("sliding_attention")
    rope = config["rope_parameters"].get("full_attention", config["rope_parameters"])
    found |= {
        f"{arch}.context_length": config["max_position_embeddings"], f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.block_count": config["num_hidden_layers"], f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"], f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"], f"{arch}.rope.freq_base": float(rope["rope_theta"]),
    }  # fmt: skip
    if config.get("head_dim"):
        width = config["head_dim"]
        found |= {f"{arch}.attention.key_length": width, f"{arch}.attention.value_length": width}
        if arch == "llama":
            found[f"{arch}.rope.dimension_count"] = width
    if arch.startswith("gemma"):
        found[f"{arch}.attention.sliding_window"] = config["sliding_window"]
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            found |= {f"{arch}.{key}": config[key]} if config[key] is not None else {}
    if local is not None:
        found |= {f"{arch}.rope.freq_base_swa": local["rope_theta"], f"{arch}.attention.sliding_window_pattern": 2}
    if rope["rope_type"] == "linear":
        found |= {f"{arch}.rope.scaling.type": "linear", f"{arch}.rope.scaling.factor": rope["factor"]}
    return found


def converted(directory: Path, path: Path, **more: Any) -> Path:
    """Write the model of a directory, in float32, as the GGUF file `path`, with `more` keys."""
    config = json.loads((directory / "config.json").read_text())
    tensors = {}
    if (factors := rope_factors(config)) is not None:
        tensors["rope_freqs.weight"] = float32(factors)
    for name, values in load_file(directory / "model.safetensors").items():
        is_gemma = config["model_type"].startswith("gemma")
        stored = stored_name(name, is_gemma)
        if is_gemma and name.endswith("norm.weight"):
            values = values + np.float32(1)
        if config["model_type"] == "llama" and (".attn_q." in stored or ".attn_k." in stored):
            kv_heads = config["num_key_value_heads"] if ".attn_k." in stored else config["num_attention_heads"]
            values = permute(values, config["num_attention_heads"], kv_heads)
        if config["model_type"] == "gpt2" and ".h." in name and values.ndim == 2:  # GPT-2's modules hold [in, out]
            values = values.T
        tensors[stored] = float32(values)
    return write_gguf(path, metadata_of(config) | more, tensors)
