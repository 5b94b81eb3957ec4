"""Sources of a model, a Hugging Face directory or a GGUF file, behind one interface."""

import warnings
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from minllm.errors import LONGEST_SHOWN, CheckpointError, UnsupportedModelError, shown
from minllm.models.checkpoint import Checkpoint
from minllm.models.config import ModelConfig
from minllm.models.config_reader import read_model_config
from minllm.models.generation_config import GenerationConfig, read_generation_config
from minllm.models.gguf.gguf_file import is_gguf
from minllm.models.gguf.gguf_model import GgufModel
from minllm.models.json_files import read_json
from minllm.models.quantized.stored_format import stored_format
from minllm.models.tokenizer import Tokenizer
from minllm.weights.format import WeightFormat
from minllm.weights.stored import StoredWeights

BUNDLED = {"model": "bundled", "draft": "draft"}  # folders of data/models


def bundled_model(which: str = "model") -> Path:
    """The directory of the bundled model, or of its "draft". Raises CheckpointError if this installation lacks it."""
    bundled = Path(str(resources.files("minllm"))) / "data/models" / BUNDLED[which]
    if not bundled.is_dir():
        raise CheckpointError(f"The bundled {which} is missing from this installation ({bundled}): install minllm again, or give a path.")
    return bundled


class ModelSource(Protocol):
    """A model's files as an engine reads them. The methods raise CheckpointError or UnsupportedModelError."""

    path: Path

    def config(self) -> ModelConfig:
        """The model's configuration."""

    def checkpoint(self, config: ModelConfig, allow_nonfinite_weights: bool = False) -> StoredWeights:
        """The stored weights; opening them reads no values yet."""

    def weight_format(self, config: ModelConfig, checkpoint: Any) -> WeightFormat | None:
        """The format in which the matrices of this source's `checkpoint` are stored; None if they are plain."""

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, with the chat template if there is one."""

    def generation_config(self) -> GenerationConfig:
        """The sampling defaults that the model's authors suggest."""


class ModelDirectory:
    """A Hugging Face model directory: config.json, tokenizer.json, safetensors."""

    def __init__(self, path: Path):
        """Raises UnsupportedModelError for a directory that holds only an adapter."""
        self.path = path
        check_adapter(path)

    def config(self) -> ModelConfig:
        """The configuration in config.json."""
        return read_model_config(self.path, quantized=True)

    def checkpoint(self, config: ModelConfig, allow_nonfinite_weights: bool = False) -> Checkpoint:
        """The tensors of one safetensors file, or of shards."""
        return Checkpoint(self.path, allow_nonfinite_weights)

    def weight_format(self, config: ModelConfig, checkpoint: Checkpoint) -> WeightFormat | None:
        """The format that config.json's quantization_config names."""
        return stored_format(self.path, config, checkpoint)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of tokenizer.json and tokenizer_config.json."""
        return Tokenizer.from_directory(self.path)

    def generation_config(self) -> GenerationConfig:
        """The values of generation_config.json; all None without the file."""
        return read_generation_config(self.path)


def check_adapter(directory: Path) -> None:
    """Raises UnsupportedModelError for a directory of a LoRA adapter alone; warns of one beside a whole model, which is not applied."""
    path = directory / "adapter_config.json"
    if not path.exists():
        return
    base = shown(read_json(path).get("base_model_name_or_path"))
    mend = f"merge it into its base model {base} first, with peft's merge_and_unload() and save_pretrained()"
    if not (directory / "config.json").exists():
        raise UnsupportedModelError(f"{directory} holds an adapter ({path.name}), not a whole model, and minllm applies none: {mend}.")
    warnings.warn(f"{path} is not applied: the model runs as if it had no adapter. To use it, {mend}.", UserWarning, stacklevel=2)


def _exists(path: Path) -> bool:
    """Path.exists() as before Python 3.14: a name that is too long, or a folder that may not be entered, is an OSError."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return True


def open_source(path: Path) -> ModelSource:
    """The source at a path. Raises CheckpointError if the path is neither a directory nor a GGUF file."""
    name = shown(str(path)) if not str(path).isprintable() or len(str(path)) > LONGEST_SHOWN else str(path)
    try:
        if path.is_dir():
            return ModelDirectory(path)
        if is_gguf(path) or path.suffix == ".gguf":
            return GgufModel(path)
        exists = _exists(path)
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise CheckpointError(f"{name} cannot be opened: {error.strerror}. Give the path of a model's directory or GGUF file.") from error
    if exists:
        raise CheckpointError(
            f"{name} is not a directory: give the directory that holds config.json, tokenizer.json and the weights, or a GGUF file."
        )
    raise CheckpointError(
        f"There is no directory {name}. minllm downloads nothing: fetch a model first, for example with "
        "`hf download OWNER/NAME --local-dir DIRECTORY`, and give its directory, or none for the bundled model."
    )
