"""The page of a weight matrix in few bits, against the package's weight formats: every code, number and byte."""

import ml_dtypes
import numpy as np

from minllm.kernels.quantization.groups import NF4_BLOCK
from minllm.kernels.quantization.nf4 import NF4_CODES, quantize_blocks, unpack_pairs
from minllm.kernels.quantization.reference import unpack_nibbles
from minllm.weights.format import WeightFormat
from minllm.weights.formats import WEIGHT_FORMATS, int4_format
from tests.javascript.modules import needs_javascript, run

GROUPS = (8, 16, 32, 64)


def matrices():
    """Normal numbers, with outliers, tiny, all positive, and with a row of zeros."""
    random = np.random.default_rng(0)
    normal = random.normal(0, 0.02, (5, 128))
    outlier = normal * np.where(np.arange(128) == 21, 64, 1)
    tiny, positive = normal * 1e-3, np.abs(normal)
    zeros = normal * (np.arange(5) != 2)[:, None]
    return [one.astype(np.float32) for one in (normal, outlier, tiny, positive, zeros)]


def cases():
    """Every format over every matrix; grouped ones with every size of groups."""
    grouped = [(name, group) for name in ("int4", "int4_zeros") for group in GROUPS]
    formats = [("int8", 32), ("fp8", 32), ("nf4", NF4_BLOCK), *grouped]
    return [(matrix, name, group) for matrix in matrices() for name, group in formats]


def of_package(name: str, group: int) -> WeightFormat:
    """The package's format."""
    return int4_format(name, group, name == "int4_zeros") if name.startswith("int4") else WEIGHT_FORMATS[name]


def coded(matrix, name, group):
    """(codes, numbers, bytes) by the package; NF4 without double quantisation."""
    found = of_package(name, group)
    if name == "nf4":
        packed, absmax = quantize_blocks(matrix)
        codes = unpack_pairs(packed)
        back = (NF4_CODES[codes].reshape(len(matrix), -1, NF4_BLOCK) * absmax[..., None]).reshape(matrix.shape)
        return codes, back, packed.nbytes + absmax.nbytes
    weight = found.encode(matrix)
    if name == "fp8":
        codes = weight.codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    else:
        codes = weight.codes if name == "int8" else unpack_nibbles(weight.codes)
    return codes, found.dequantize(weight), found.matrix_bytes(*matrix.shape)


@needs_javascript
def test_every_code_is_the_packages():
    given = cases()
    asked = [dict(matrix=matrix.astype(np.float64).tolist(), format=name, group=group) for matrix, name, group in given]
    for (matrix, name, group), answer in zip(given, run("weight_codes_cases.mjs", "weight-codes.js", asked), strict=True):
        codes, back, size = coded(matrix, name, group)
        np.testing.assert_array_equal(np.array(answer["codes"]), codes, err_msg=f"{name} {group}")
        np.testing.assert_array_equal(np.array(answer["back"], np.float32), back)
        assert answer["bytes"] == size
        wanted = np.linalg.norm(back.astype(np.float64) - matrix) / np.linalg.norm(matrix.astype(np.float64))
        np.testing.assert_allclose(answer["error"], wanted, rtol=1e-9)
