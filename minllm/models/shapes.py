"""Shapes of well-known models by name, and of any config.json or meta.json by path; no weights are needed.

A shape has the keys and values of the model's config.json, so that the reader of real checkpoints reads it too.
"""

from pathlib import Path
from typing import Any

from minllm.errors import InvalidOptionError
from minllm.models.config import ModelConfig
from minllm.models.config_reader import parse_model_config
from minllm.models.gguf.gguf_file import is_gguf
from minllm.models.json_files import Fields, read_json

QUANTIZATION = "quantization_config"  # the key of config.json
BUNDLED_CONFIG = Path(__file__).parent.parent / "data" / "models" / "bundled" / "config.json"

_LLAMA_3_ROPE = dict(
    rope_theta=500000.0,
    rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
)
_LLAMA_3 = dict(model_type="llama", vocab_size=128256, rms_norm_eps=1e-5, max_position_embeddings=131072, num_key_value_heads=8)

_LLAMA_3_8B = _LLAMA_3 | _LLAMA_3_ROPE | dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32)

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": _LLAMA_3
    | _LLAMA_3_ROPE
    | dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, head_dim=64, tie_word_embeddings=True),
    "llama-3.1-8b": _LLAMA_3_8B | dict(tie_word_embeddings=False),
    "llama-3.1-70b": _LLAMA_3_8B
    | dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, tie_word_embeddings=False),
    "llama-2-7b": dict(
        model_type="llama", vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=32, max_position_embeddings=4096,
    ),
    "llama-2-70b": dict(
        model_type="llama", vocab_size=32000, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8, max_position_embeddings=4096,
    ),
    "mistral-7b": dict(
        model_type="mistral", vocab_size=32768, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, sliding_window=None, max_position_embeddings=32768,
    ),
    "qwen2.5-7b": dict(
        model_type="qwen2", vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, max_position_embeddings=131072,
    ),
    "qwen3-8b": dict(
        model_type="qwen3", vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=40960,
    ),
    "gemma-3-1b": dict(
        model_type="gemma3_text", vocab_size=262144, hidden_size=1152, intermediate_size=6912, num_hidden_layers=26, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, sliding_window=512, max_position_embeddings=32768,
    ),
    "gemma-3-4b": dict(
        model_type="gemma3_text", vocab_size=262208, hidden_size=2560, intermediate_size=10240, num_hidden_layers=34, num_attention_heads=8,
        num_key_value_heads=4, head_dim=256, sliding_window=1024, max_position_embeddings=131072,
        rope_scaling=dict(rope_type="linear", factor=8.0),
    ),
    "qwen3-30b-a3b": dict(
        model_type="qwen3_moe", vocab_size=151936, hidden_size=2048, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4,
        head_dim=128, max_position_embeddings=40960, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True,
    ),
    "gpt2": dict(model_type="gpt2", vocab_size=50257, n_embd=768, n_head=12, n_layer=12, n_positions=1024),
}  # fmt: skip


def shape_values(name: str) -> dict[str, Any]:
    """The content of config.json for a shape in SHAPES, or for "bundled". Raises KeyError for another name."""
    return read_json(BUNDLED_CONFIG) if name == "bundled" else SHAPES[name]


def named_config(name: str) -> ModelConfig:
    """The ModelConfig of a shape in SHAPES. Raises KeyError for another name."""
    return parse_model_config(SHAPES[name], source=f"shape {name}")


def find_config(model: str, quantized: bool = False) -> tuple[str, ModelConfig]:
    """(name, ModelConfig) of a known shape, a model directory, a GGUF file, or a bare JSON file.

    quantized: the caller asks for stored_quantization, so a quantization_config is not refused. Raises InvalidOptionError if it is none of
    them, CheckpointError and UnsupportedModelError as read_model_config does.
    """
    path = Path(model)
    if is_gguf(path):
        from minllm.models.gguf.gguf_model import GgufModel  # imported here, so that other plans do not need tokenizers

        return path.stem, GgufModel(path).config()
    if (file := _json_file(model)) is not None:
        values = read_json(file)
        if quantized:
            values.pop(QUANTIZATION, None)
        return file.resolve().parent.name if file.name == "config.json" else file.stem, parse_model_config(values, str(file))
    if model == "bundled" or model in SHAPES:
        return model, parse_model_config(shape_values(model), f"shape {model}")
    raise InvalidOptionError(
        f"{model or repr(model)} is neither a file, nor a model directory, nor a known shape. Give the path of a config.json or meta.json, "
        f"or one of bundled, {', '.join(SHAPES)}."
    )


def stored_quantization(model: str) -> str | None:
    """How a model directory or a JSON file says that its matrices are stored, such as "awq"; None for plain ones and other models.

    Raises CheckpointError if the file is damaged.
    """
    file = None if is_gguf(Path(model)) else _json_file(model)
    stored = {} if file is None else Fields(read_json(file), str(file)).object(QUANTIZATION)
    return str(stored.get("quant_method", "quantized")) if stored else None


def keeps_blocks(model: str) -> bool:
    """Whether a GPU keeps some matrices of a GGUF file as they are stored (models/quantized/gguf_groups.py)."""
    if not is_gguf(Path(model)):
        return False
    from minllm.models.gguf.gguf_model import GgufModel

    source = GgufModel(model)
    config = source.config()
    return source.weight_format(config, source.checkpoint(config)) is not None


def _json_file(model: str) -> Path | None:
    """The JSON file of a model directory, or the path of one; None if `model` is neither."""
    path = Path(model)
    if model and path.is_dir():
        path = path / "config.json"
    return path if path.is_file() or path.name == "config.json" else None
