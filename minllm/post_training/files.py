"""Writes a quantised checkpoint: the tensors of a module, config.json, safetensors files.

The layout is that of compressed-tensors (models/quantized/compressed_tensors.py), for NF4 that of bitsandbytes
(models/quantized/bitsandbytes.py).
"""

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from minllm.errors import InvalidOptionError
from minllm.kernels.quantization.fp8 import E4M3
from minllm.kernels.quantization.groups import NESTED_BLOCK, NF4_BLOCK
from minllm.kernels.quantization.nf4 import NF4_CODES, double_quantize, dynamic_map, pack_pairs
from minllm.models.checkpoint import INDEX_FILE
from minllm.models.json_files import read_json
from minllm.models.named_templates import TEMPLATE_FOLDER
from minllm.models.quantized.bitsandbytes import STATE
from minllm.models.quantized.words import pack_words
from minllm.models.safetensors_file import CODE_DTYPES, NUMPY_DTYPES
from minllm.post_training.rounding import Rounded

LEFT_OUT = ("config.json", INDEX_FILE, "adapter_config.json")  # files of a source that are written anew, or do not apply to the copy
TOKEN_BY_TOKEN = {"num_bits": 8, "symmetric": True, "dynamic": True, "strategy": "token"}
IN_GROUPS = {"num_bits": 8, "symmetric": True, "dynamic": True, "strategy": "group", "group_size": 128}
ITEM_NAMES = {dtype: name for name, dtype in (CODE_DTYPES | NUMPY_DTYPES).items()}


def int4_tensors(rounded: Rounded, has_zeros: bool) -> dict[str, np.ndarray]:
    """The tensors of a module in compressed-tensors' pack-quantized layout, by suffix."""
    tensors = {
        "weight_packed": pack_words(rounded.codes, 1), "weight_scale": rounded.scales, "weight_shape": np.array(rounded.codes.shape),
    }  # fmt: skip
    return tensors | ({"weight_zero_point": pack_words(rounded.zeros, 0)} if has_zeros else {})


def int8_tensors(rounded: Rounded) -> dict[str, np.ndarray]:
    """The tensors of a module in the int-quantized layout, by suffix."""
    return {"weight": rounded.codes.astype(np.int8), "weight_scale": rounded.scales}


def fp8_tensors(rounded: Rounded) -> dict[str, np.ndarray]:
    """The tensors of a module in the float-quantized layout, with a scale per row."""
    return {"weight": rounded.codes.view(E4M3), "weight_scale": rounded.scales}


def fp8_block_tensors(rounded: Rounded) -> dict[str, np.ndarray]:
    """The tensors of a module in the float-quantized layout, with a scale per block of 128 x 128."""
    return {"weight": rounded.codes.view(E4M3), "weight_scale": np.ascontiguousarray(rounded.scales[::128])}


def nf4_tensors(rounded: Rounded) -> dict[str, np.ndarray]:
    """The tensors of a module in bitsandbytes' NF4 layout with double quantisation, by suffix."""
    absmax, nested, offset = double_quantize(rounded.scales)
    state = {
        "quant_type": "nf4", "blocksize": NF4_BLOCK, "dtype": "bfloat16", "shape": list(rounded.codes.shape),
        "nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": float(offset),
    }  # fmt: skip
    return {
        "weight": pack_pairs(rounded.codes).reshape(-1, 1),
        "weight.absmax": absmax.reshape(-1), "weight.quant_map": NF4_CODES,
        "weight.nested_absmax": nested, "weight.nested_quant_map": dynamic_map(),
        f"{STATE}nf4": np.frombuffer(json.dumps(state).encode(), np.uint8),
    }  # fmt: skip


def compressed_tensors(layout: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    """The quantization_config of config.json for compressed-tensors; activations None: not quantised."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": group}, "kv_cache_scheme": None,
    }  # fmt: skip


BITSANDBYTES_NF4 = {  # the quantization_config of config.json
    "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True, "bnb_4bit_quant_storage": "uint8", "bnb_4bit_compute_dtype": "bfloat16",
    "llm_int8_skip_modules": ["lm_head"],
}  # fmt: skip


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """A directory beside `out` to write to, which gets the name `out` in the end.

    After an error it is removed, with the parents that were made for it. Raises InvalidOptionError if it cannot be written: no space left,
    no permission, a file in place of a parent.
    """
    unfinished = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    missing = list(itertools.takewhile(lambda parent: not parent.exists(), out.parents))  # the innermost first
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(out)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        with suppress(OSError):  # something else may have been written to a parent meanwhile
            for parent in missing:
                parent.rmdir()
        if isinstance(error, OSError):
            raise InvalidOptionError(f"{out} cannot be written: {error.strerror or error}; nothing of it is left.") from error
        raise


class ShardWriter:
    """Writes safetensors files into a directory, one per call of `write`, and their index."""

    def __init__(self, directory: Path):
        self.directory, self.weight_map, self.total = directory, {}, 0

    def write(self, tensors: dict[str, np.ndarray]) -> None:
        """Write one more file with these tensors."""
        name = f"model-{len(set(self.weight_map.values())) + 1:05d}.safetensors"
        write_safetensors(self.directory / name, tensors)
        self.weight_map |= dict.fromkeys(tensors, name)
        self.total += sum(tensor.nbytes for tensor in tensors.values())

    def finish(self) -> None:
        """Write the index."""
        index = {"metadata": {"total_size": self.total}, "weight_map": self.weight_map}
        (self.directory / INDEX_FILE).write_text(json.dumps(index, indent=1), encoding="utf-8")


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write a safetensors file: the header's length, the header, and the tensors without gaps."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        offsets = [at, at + tensor.nbytes]
        header[name] = {"dtype": ITEM_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        at = offsets[1]
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).tobytes())


def copy_rest(source: Path, directory: Path, quantization: dict[str, Any]) -> None:
    """Write config.json with `quantization`; copy tokenizer, chat templates and generation_config.json."""
    for path in source.iterdir():
        if path.is_file() and path.suffix in (".json", ".txt", ".model", ".jinja") and path.name not in LEFT_OUT:
            shutil.copyfile(path, directory / path.name)
    if (source / TEMPLATE_FOLDER).is_dir():
        shutil.copytree(source / TEMPLATE_FOLDER, directory / TEMPLATE_FOLDER, dirs_exist_ok=True)
    config = read_json(source / "config.json") | {"quantization_config": quantization}
    (directory / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def rounded_as(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """float32 numbers rounded to `dtype`, that of the source file, if it is a floating-point type."""
    return numbers.astype(dtype if dtype.kind == "f" or dtype == ml_dtypes.bfloat16 else np.float32)
