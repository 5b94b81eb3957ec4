"""From a GGUF file's metadata to a ModelConfig, by way of config.json's keys, which families/ parses.

llama.cpp's keys begin with the architecture: "llama.block_count" (docs/gguf.md, "Standardized key-value pairs"). A key of the
architecture that is not listed here may change the model, so it is refused unless its value switches it off.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.config_reader import parse_model_config
from minllm.models.gguf.ends_of_text import NORMAL, ends_of_text
from minllm.models.gguf.gguf_file import GgufFile
from minllm.models.gguf.metadata import NestedArray
from minllm.models.gguf.tensor_names import GEMMA_NAMING, GPT2_NAMING, LLAMA_NAMING, QWEN_NAMING, ROPE_FACTORS, Naming
from minllm.models.json_files import Fields

LONGEST_SHOWN = 60  # characters of a string shown in an error
LLAMA_SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
GPT2_SIZES = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
}
LLAMA_KEYS = {  # keys that are read below, besides the sizes
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
    "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
}  # fmt: skip
GPT2_KEYS = {"attention.layer_norm_epsilon"}
GEMMA2_KEYS = LLAMA_KEYS | {"attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"}
GEMMA3_KEYS = LLAMA_KEYS | {
    "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa", "final_logit_softcapping",
}  # fmt: skip
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}  # Gemma's largest models, which scale scores by another width than head_dim's
NOTES = {"rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout"}  # keys that change no result


@dataclass(frozen=True)
class GgufArchitecture:
    """What a value of general.architecture means: config.json's model_type, tensor names and metadata keys."""

    model_type: str
    naming: Naming
    sizes: dict[str, str]  # key of the metadata, without the architecture -> key of config.json
    keys: set[str]  # the other keys that are read


GGUF_ARCHITECTURES = {
    "llama": GgufArchitecture("llama", LLAMA_NAMING, LLAMA_SIZES, LLAMA_KEYS),
    "qwen2": GgufArchitecture("qwen2", QWEN_NAMING, LLAMA_SIZES, LLAMA_KEYS),
    "qwen3": GgufArchitecture("qwen3", QWEN_NAMING, LLAMA_SIZES, LLAMA_KEYS),
    "gemma2": GgufArchitecture("gemma2", GEMMA_NAMING, LLAMA_SIZES, GEMMA2_KEYS),
    "gemma3": GgufArchitecture("gemma3_text", GEMMA_NAMING, LLAMA_SIZES, GEMMA3_KEYS),
    "gpt2": GgufArchitecture("gpt2", GPT2_NAMING, GPT2_SIZES, GPT2_KEYS),
}


def metadata_fields(file: GgufFile) -> Fields:
    """Typed access to the keys with a single value; arrays are replaced by a description, for errors."""
    return Fields({key: _single(value) for key, value in file.metadata.items()}, str(file.path))


def _single(value: object) -> Any:
    if isinstance(value, NestedArray):
        return f"an array of {value.length} arrays"
    if isinstance(value, list | np.ndarray):
        return f"an array of {len(value)}"
    if isinstance(value, str) and len(value) > LONGEST_SHOWN:
        return f"{value[:LONGEST_SHOWN]}..."
    return value


def read_architecture(file: GgufFile) -> GgufArchitecture:
    """The architecture. Raises UnsupportedModelError if minllm does not run it, or for an adapter or a split file."""
    fields = metadata_fields(file)
    kind, name = fields.text("general.type", "model"), fields.text("general.architecture")
    if kind != "model":
        raise UnsupportedModelError(f"{file.path} has general.type {kind!r}, and minllm reads whole models: give the file of the model.")
    if name not in GGUF_ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path} has general.architecture {name!r}, and minllm reads {', '.join(GGUF_ARCHITECTURES)} from GGUF files."
        )
    if fields.integer("split.count", 1, minimum=0) > 1:
        raise UnsupportedModelError(
            f"{file.path} is one file of {fields.integer('split.count')}, and minllm reads models of one file: join them with llama.cpp's "
            "`llama-gguf-split --merge FIRST_FILE OUT_FILE`."
        )
    return GGUF_ARCHITECTURES[name]


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """The ModelConfig. Raises CheckpointError for contradictions, UnsupportedModelError for unsupported features."""
    architecture, fields = read_architecture(file), metadata_fields(file)
    prefix = fields.text("general.architecture") + "."
    _refuse_unknown_keys(fields, prefix, architecture)
    values: dict[str, Any] = {ours: fields.integer(prefix + theirs) for theirs, ours in architecture.sizes.items()}
    layers = fields.integer(f"{prefix}block_count")
    if layers > len(file.tensors):
        raise CheckpointError(f"{file.path} says {prefix}block_count = {layers}, and holds {len(file.tensors)} tensors; copy it again.")
    values |= dict(
        model_type=architecture.model_type,
        vocab_size=fields.integer(f"{prefix}vocab_size", None) or _count_of_tokens(file),
        tie_word_embeddings="output.weight" not in file.tensors,
        bos_token_id=list(fields.token_ids("tokenizer.ggml.bos_token_id")),
        eos_token_id=ends_of_text(fields, _tokens(file), _types(file)),
    )
    if architecture.model_type == "gpt2":
        values["layer_norm_epsilon"] = fields.positive(f"{prefix}attention.layer_norm_epsilon")
        return parse_model_config(values, str(file.path))
    values |= _llama_values(file, fields, prefix)
    if architecture.naming is GEMMA_NAMING:
        values |= _gemma_values(fields, prefix, values)
    config = parse_model_config(values, str(file.path))
    _check_head_dim(fields, prefix, config)
    return _with_rope_factors(file, config)


def _llama_values(file: GgufFile, fields: Fields, prefix: str) -> dict[str, Any]:
    """The keys of config.json that Llama and Qwen have besides the sizes."""
    heads, hidden = fields.integer(f"{prefix}attention.head_count"), fields.integer(f"{prefix}embedding_length")
    values: dict[str, Any] = dict(
        num_key_value_heads=fields.integer(f"{prefix}attention.head_count_kv", heads),
        rms_norm_eps=fields.positive(f"{prefix}attention.layer_norm_rms_epsilon"),
        rope_theta=fields.positive(f"{prefix}rope.freq_base", 10000.0),
        attention_bias="blk.0.attn_q.bias" in file.tensors,
    )
    head_dim = fields.integer(f"{prefix}attention.key_length", None)
    if head_dim is None and hidden % heads == 0:
        head_dim = hidden // heads
    if head_dim is None:
        raise CheckpointError(f"{file.path} has {prefix}embedding_length {hidden}, which its {heads} heads do not divide; copy it again.")
    factor = fields.positive(f"{prefix}rope.scaling.factor", fields.positive(f"{prefix}rope.scale_linear", 1.0))
    kind = fields.text(f"{prefix}rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(f"{file.path} has {prefix}rope.scaling.type {kind!r}, and minllm computes none and linear.")
    if kind == "linear" and factor != 1.0:
        values["rope_scaling"] = dict(rope_type="linear", factor=factor)
    return values | dict(head_dim=head_dim)


def _gemma_values(fields: Fields, prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """The keys of config.json that Gemma has besides Llama's.

    No key says what scores are divided by: as in llama.cpp, the root of head_dim, and of the hidden size per head in the models of 27B.
    """
    largest = values["num_hidden_layers"] == LAYERS_OF_27B[prefix[:-1]]
    return dict(
        query_pre_attn_scalar=values["hidden_size"] // values["num_attention_heads"] if largest else values["head_dim"],
        sliding_window=fields.integer(f"{prefix}attention.sliding_window", None),
        attn_logit_softcapping=fields.positive(f"{prefix}attn_logit_softcapping", None),
        final_logit_softcapping=fields.positive(f"{prefix}final_logit_softcapping", None),
        sliding_window_pattern=fields.integer(f"{prefix}attention.sliding_window_pattern", None),
        rope_local_base_freq=fields.positive(f"{prefix}rope.freq_base_swa", None),
    )


def _refuse_unknown_keys(fields: Fields, prefix: str, architecture: GgufArchitecture) -> None:
    known = {*architecture.sizes} | {"vocab_size"} | architecture.keys | NOTES
    for key, value in fields.values.items():
        name = key.removeprefix(prefix)
        if name == key or name in known or not value or (name == "attention.causal" and value is True):
            continue
        raise UnsupportedModelError(f"{fields.source} sets {key} = {value!r}, which minllm does not know and which may change the results.")


def _check_head_dim(fields: Fields, prefix: str, config: ModelConfig) -> None:
    """Raises UnsupportedModelError unless values and the rotary embedding have the width of the keys, head_dim."""
    for name in ("attention.value_length", "rope.dimension_count"):
        width = fields.integer(prefix + name, config.head_dim)
        if width != config.head_dim:
            raise UnsupportedModelError(
                f"{fields.source} sets {prefix}{name} = {width}, and minllm needs the width of a head there, {config.head_dim}."
            )


def _tokens(file: GgufFile) -> list[str]:
    """The text of each id; empty for a file without a tokenizer."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return tokens if isinstance(tokens, list) else []


def _types(file: GgufFile) -> list[int]:
    """The type of each id; all ordinary in a file with damaged types, which the tokenizer refuses."""
    types = file.metadata.get("tokenizer.ggml.token_type")
    count = len(_tokens(file))
    return types.tolist() if isinstance(types, np.ndarray) and len(types) == count else [NORMAL] * count


def _count_of_tokens(file: GgufFile) -> int:
    if not _tokens(file):
        raise CheckpointError(f"{file.path} lacks a list 'tokenizer.ggml.tokens', which must hold the vocabulary; take another file of it.")
    return len(_tokens(file))


def _with_rope_factors(file: GgufFile, config: ModelConfig) -> ModelConfig:
    """The config with the file's divisors of RoPE frequencies, llama.cpp's form of Llama 3's RoPE scaling."""
    if ROPE_FACTORS not in file.tensors or config.model_type != "llama" or config.rope is None:
        return config
    shape = file.tensors[ROPE_FACTORS].shape
    if shape != (config.head_dim // 2,):
        raise CheckpointError(f"{file.path}: tensor {ROPE_FACTORS!r} has shape {list(shape)}, and heads make it [{config.head_dim // 2}].")
    factors = file.tensor(ROPE_FACTORS).astype(np.float64)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise CheckpointError(f"{file.path}: tensor {ROPE_FACTORS!r} holds numbers that are not above zero; copy the file again.")
    return replace(config, rope=replace(config.rope, frequency_factors=tuple(factors.tolist())))
