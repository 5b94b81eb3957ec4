"""A model in one GGUF file, with the methods of ModelSource (models/source.py)."""

from pathlib import Path

from minllm.models.config import ModelConfig
from minllm.models.generation_config import GenerationConfig
from minllm.models.gguf.checkpoint import GgufCheckpoint
from minllm.models.gguf.gguf_file import GgufFile
from minllm.models.gguf.hyperparameters import metadata_fields, read_architecture, read_gguf_config
from minllm.models.gguf.vocabulary import read_tokenizer
from minllm.models.quantized.gguf_groups import gguf_format
from minllm.models.tokenizer import Tokenizer
from minllm.weights.format import WeightFormat

SAMPLING = "general.sampling."
FOLLOWED = ("temp", "top_p", "top_k", "min_p", "penalty_repeat")
PARTS_OF_OTHERS = ("xtc_threshold", "mirostat_tau", "mirostat_eta")  # keys without effect unless another one is set


class GgufModel:
    """Configuration, weights and tokenizer of a GGUF file. The constructor opens the file and checks its header."""

    def __init__(self, path: Path | str):
        """Raises CheckpointError for a damaged file, UnsupportedModelError for number types that minllm does not read."""
        self.path = Path(path)
        self._file = GgufFile(self.path)

    def config(self) -> ModelConfig:
        """The configuration, from the metadata."""
        return read_gguf_config(self._file)

    def weight_format(self, config: ModelConfig, checkpoint: GgufCheckpoint) -> WeightFormat | None:
        """The format of the matrices that kernels can read as stored; None if there are none."""
        return gguf_format(config, checkpoint)

    def checkpoint(self, config: ModelConfig, allow_nonfinite_weights: bool = False) -> GgufCheckpoint:
        """The weights, which are read on access."""
        return GgufCheckpoint(self._file, config, read_architecture(self._file).naming, allow_nonfinite_weights)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, with the chat template if there is one."""
        return read_tokenizer(self._file)

    def generation_config(self) -> GenerationConfig:
        """The sampling parameters that the model's makers recommend. End-of-text tokens are in the configuration."""
        fields = metadata_fields(self._file)
        known = {SAMPLING + name for name in (*FOLLOWED, *PARTS_OF_OTHERS)}
        others = {key: value for key, value in fields.values.items() if key.startswith(SAMPLING) and key not in known and value}
        return GenerationConfig(
            temperature=fields.number(f"{SAMPLING}temp", None),
            top_p=fields.number(f"{SAMPLING}top_p", None),
            top_k=fields.integer(f"{SAMPLING}top_k", None, minimum=0),
            min_p=fields.number(f"{SAMPLING}min_p", None),
            repetition_penalty=fields.positive(f"{SAMPLING}penalty_repeat", None),
            not_followed=tuple(f"{key}={value!r}" for key, value in others.items()),
            source=str(self.path),
        )
