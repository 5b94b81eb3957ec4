"""How a checkpoint stores its matrices, as config.json's quantization_config says."""

from pathlib import Path

from minllm.errors import UnsupportedModelError
from minllm.models.checkpoint import Checkpoint
from minllm.models.config import ModelConfig
from minllm.models.json_files import Fields, read_json
from minllm.models.quantized.awq import read_awq
from minllm.models.quantized.bitsandbytes import read_bitsandbytes
from minllm.models.quantized.compressed_tensors import read_compressed_tensors
from minllm.models.quantized.fp8_blocks import read_fp8
from minllm.models.quantized.gptq import read_gptq
from minllm.models.quantized.modules import FormatOfModules, by_module
from minllm.models.weights import is_prefixed
from minllm.weights.format import WeightFormat

KEY = "quantization_config"
METHODS = ("awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq")


def stored_format(directory: Path, config: ModelConfig, checkpoint: Checkpoint) -> FormatOfModules | None:
    """The format of each module of a Hugging Face directory; None if all modules are plain.

    Raises UnsupportedModelError for formats that minllm does not read, and CheckpointError if files contradict each other.
    """
    path = directory / "config.json"
    values = Fields(read_json(path), str(path)).object(KEY)
    if not values:
        return None
    fields = Fields(values, f"{path}: {KEY}")
    method = fields.text("quant_method", "")
    if method not in METHODS:
        raise UnsupportedModelError(f"{fields.source} has quant_method {method!r}; minllm reads {', '.join(METHODS)}.")
    return by_module(method, config, is_prefixed(checkpoint), _decision(method, fields, checkpoint))


def _decision(method: str, fields: Fields, checkpoint: Checkpoint):
    """The function module -> its format, or None for plain."""
    if method == "gptq":
        return read_gptq(fields, checkpoint).get
    if method == "bitsandbytes":
        of_all, modules = read_bitsandbytes(fields, checkpoint)
        return dict.fromkeys(modules, of_all).get
    if method == "compressed-tensors":
        return read_compressed_tensors(fields)
    found: WeightFormat = read_awq(fields) if method == "awq" else read_fp8(fields)
    left = fields.values.get("modules_to_not_convert") or []
    if not isinstance(left, list) or not all(isinstance(one, str) for one in left):
        raise UnsupportedModelError(f"{fields.source} says modules_to_not_convert = {left!r}, and it must be a list of names.")
    stored = "qweight" if method == "awq" else "weight_scale_inv"

    def decide(module: str):
        # A name in the list is part of a module's, so "layers.1" also matches layers.10: what the file holds of a module decides.
        is_left = module == "lm_head" or any(one in module for one in left)
        return None if is_left and f"{module}.{stored}" not in checkpoint else found

    return decide
