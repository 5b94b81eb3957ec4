"""Reads config.json into a ModelConfig: finds the architecture, refuses unsupported options, checks the values."""

from pathlib import Path
from typing import Any

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.architectures import ARCHITECTURES, LACKING
from minllm.models.config import ModelConfig
from minllm.models.config_keys import refuse_unknown_options
from minllm.models.json_files import Fields, read_json


def read_model_config(directory: Path | str, quantized: bool = False) -> ModelConfig:
    """The ModelConfig of a Hugging Face model directory.

    quantized: the caller reads quantization_config (models/quantized/), so it is not refused here. Raises CheckpointError if
    config.json is missing, damaged or contradicts itself, UnsupportedModelError if it describes a model that minllm cannot compute.
    """
    path = Path(directory) / "config.json"
    values = read_json(path)
    if quantized:
        values.pop("quantization_config", None)
    return parse_model_config(values, str(path))


def parse_model_config(values: dict[str, Any], source: str = "config.json") -> ModelConfig:
    """The ModelConfig of a config.json's content; `source` names it in errors.

    Raises as read_model_config does.
    """
    fields = Fields(values, source)
    named = values.get("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        raise CheckpointError(f"{source} says architectures = {named!r}, and it must be a list of names.")
    model_type = fields.text("model_type", "")
    by_type = {architecture.model_type: name for name, architecture in ARCHITECTURES.items()}
    name = named[0] if named else by_type.get(model_type, model_type)
    architecture = ARCHITECTURES.get(name)
    if architecture is None or model_type not in ("", architecture.model_type):
        lacking = f" It lacks {LACKING[model_type]}." if model_type in LACKING else ""
        raise UnsupportedModelError(
            f"{source} describes architecture {name or 'unnamed'!r} (model_type {model_type or 'unnamed'!r}); minllm runs "
            + ", ".join(f"{name} ({architecture.model_type})" for name, architecture in ARCHITECTURES.items())
            + f".{lacking}"
        )
    refuse_unknown_options(fields, architecture.keys)
    config = architecture.read(fields)
    _check(config, source)
    return config


def _check(config: ModelConfig, source: str) -> None:
    """Raises CheckpointError for combinations of values that no family allows."""
    if config.num_attention_heads % config.num_key_value_heads:
        raise CheckpointError(
            f"{source} has {config.num_attention_heads} query heads and {config.num_key_value_heads} key-value heads; "
            "the first must be a multiple of the second."
        )
    if config.rope is not None and config.head_dim % 2:
        raise CheckpointError(f"{source} has head_dim {config.head_dim}; a rotary embedding needs an even one.")
