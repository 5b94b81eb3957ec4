#!/usr/bin/env bash
# mlx 0.32.4 on the CPU, mlx.core.load of GGUF files, written by gguf 0.19.0.
#
# Input: files of three tensors, "a" in F32, "b" in another type, "c" in F32. Types of "b": MXFP4, as published files of gpt-oss have it,
# NVFP4, TQ1_0 and TQ2_0; Q5_0, IQ4_NL and F64; BF16 with 1e5, 1 and 1e-8.
# Expected: all three tensors, or an error that names what is not supported, as mlx.core.load raises for Q5_0, IQ4_NL and F64.
# Seen: with MXFP4, NVFP4, TQ1_0 and TQ2_0 the result has "a" alone, without a message: reading ends at the first type that is not known,
# and "c" is lost as well. With such a tensor in first place the result is empty. The metadata are complete. BF16 is read as float16, so
# that 1e5 is infinity and 1e-8 is 0; the same numbers in a safetensors file stay bfloat16.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "mlx[cpu]==0.32.4" gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import gguf
import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)


def loaded(quant_type, order="abc"):
    """What mlx reads of a file whose tensor "b" has this type: the tensors, or the error."""
    if quant_type.name == "F64":
        b = np.ones((1, 4))
    elif quant_type.name == "BF16":
        b = gguf.quants.quantize(np.array([[1e5, 1.0, 1e-8, -1.0]], np.float32), quant_type)
    else:
        numbers, size = gguf.GGML_QUANT_SIZES[quant_type]
        b = np.zeros((1, 256 // numbers * size), np.uint8)
    path = f"{sys.argv[1]}/{quant_type.name}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name in order:
        if name == "b":
            writer.add_tensor("b", b, raw_dtype=quant_type)
        else:
            writer.add_tensor(name, np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert [tensor.name for tensor in gguf.GGUFReader(path).tensors] == list(order)
    try:
        tensors, metadata = mx.load(path, return_metadata=True)
    except RuntimeError as error:
        print(f"{quant_type.name}: {error}")
        return "error"
    print(f"{quant_type.name}, tensors {' '.join(order)}: {sorted(tensors)} are loaded")
    assert metadata["general.architecture"] == "llama"
    return tensors


types = gguf.GGMLQuantizationType
for quant_type in (types.MXFP4, types.NVFP4, types.TQ1_0, types.TQ2_0):
    assert list(loaded(quant_type)) == ["a"] and loaded(quant_type, "bac") == {}
for quant_type in (types.Q5_0, types.IQ4_NL, types.F64):
    assert loaded(quant_type) == "error"
assert sorted(loaded(types.F16)) == ["a", "b", "c"]
brain = loaded(types.BF16)["b"]
print(f"BF16: {brain.dtype}, {brain.tolist()}")
assert brain.dtype == mx.float16 and brain.tolist() == [[float("inf"), 1, 0, -1]]
PYTHON
