"""The launches of the activations: T tokens of I features of b bytes."""

import numpy as np

from minllm.catalogue.launch import WIDE, Launch, MachineCode, Measured, Moved, beside, calls, describes, each
from minllm.catalogue.rows import BFLOAT16, CODES, DTYPES, FLOAT32, UNIT, before_quantization, is_whole, longest_short_rows, quantized
from minllm.kernels.activation.gelu import FORMULAS
from minllm.kernels.activation.gelu import gelu as launch_gelu
from minllm.kernels.activation.silu import silu_and_multiply, silu_and_multiply_reference
from minllm.kernels.activation.silu_quantized import silu_and_multiply_quantized

# Where the exponential over- and underflows, where erf and tanh are 1 to the last bit, zeros of both signs, and the largest float16.
MAGNITUDES = (0.0, 1e-7, 0.5, 5.9, 11.0, 87.0, 89.0, 104.0, 1e4, 65504.0)
EXTREMES = np.array([sign * magnitude for magnitude in MAGNITUDES for sign in (1, -1)])
# Lengths around whole vectors and the block's 64 threads; 520 is 65 vectors of 8, one more than a block.
SMALL = ((3, 72), (2, 67), (1, 1), (3, 7), (2, 63), (1, 64), (1, 65), (2, 16), (1, 520))
EXTREME = ((1, 20), (1, 40), (1, 21))
LARGE = ((130, 8192), (1, 28672), (2049, 344), (7, 10007))


def gate_and_up(noise, tokens, intermediate, dtype, extreme, magnitude=1.0):
    """Gate and up side by side, and the output; extreme: factors are below 1, so that the largest float16 times one of them is finite."""
    gate_up = noise.array((tokens, 2, intermediate), dtype, magnitude)
    if extreme:
        gate_up[:, 0] = np.resize(EXTREMES, (tokens, intermediate))
        gate_up[:, 1] = np.clip(gate_up[:, 1].astype(np.float32), -0.9, 0.9)
    return dict(gate_up=gate_up.reshape(tokens, -1), out=noise.unwritten((tokens, intermediate), dtype))


@describes
def silu(tokens, intermediate, dtype, extreme=False):
    """SiLU and multiply."""
    size = tokens * intermediate

    return Launch(
        arrays=lambda noise: gate_and_up(noise, tokens, intermediate, dtype, extreme),
        **beside(silu_and_multiply, "out"),
        moved=Moved(dict(gate_up=2 * size * dtype.itemsize, out=size * dtype.itemsize), operations=6 * size),
        rows=("gate_up", "out"),
        elementwise=True,
    )


@describes
def silu_quantized(tokens, intermediate, dtype, code):
    """SiLU and multiply that writes codes, "int8" or "fp8", and a scale per token; one is zeros."""
    size = tokens * intermediate

    def arrays(noise):
        gate_up = noise.array((tokens, 2 * intermediate), dtype)
        gate_up[1:2] = 0
        return dict(gate_up=gate_up)

    return Launch(
        arrays,
        call=calls(silu_and_multiply_quantized, code=code),
        reference=lambda gate_up: quantized(silu_and_multiply_reference(before_quantization(gate_up, intermediate)), code),
        moved=dict(silu_quantized_kernel=Moved(dict(gate_up=2 * size * dtype.itemsize, codes=size, scales=4 * tokens))),
        slack=UNIT[dtype] if not is_whole(dtype, intermediate) else 1e-6,
    )


@describes
def gelu(tokens, features, dtype, approximate, extreme=False):
    """GELU of every element; approximate: "none" or "tanh"."""
    shape, size = (tokens, features), tokens * features

    def arrays(noise):
        x = np.resize(EXTREMES, shape).astype(dtype) if extreme else noise.array(shape, dtype, 3)
        return dict(x=x, out=noise.unwritten(shape, dtype))

    return Launch(
        arrays,
        **beside(launch_gelu, "out", approximate=approximate),
        moved=Moved(dict(x=size * dtype.itemsize, out=size * dtype.itemsize), operations=10 * size if approximate == "tanh" else None),
        rows=("x", "out"),
        elementwise=True,
    )


def compiled():
    """They are memory-bound: enough blocks to fill most of an SM, or half of it with two loads per thread."""
    for dtype in DTYPES:
        yield MachineCode(f"activation/silu/elements/{dtype}", silu(1, 65, dtype), blocks=24)
        yield MachineCode(f"activation/silu/vectors/{dtype}", silu(1, 8192, dtype), blocks=24, contains=WIDE)
        for code, targets in CODES.items():
            for pieces, length in longest_short_rows(dtype):
                name, launch = f"activation/silu_quantized/{code}/{pieces}/{dtype}", silu_quantized(1, length, dtype, code)
                yield MachineCode(name, launch, blocks=1, contains=WIDE[:1], targets=targets)
        for name, approximate in (("gelu", "none"), ("gelu_tanh", "tanh")):
            yield MachineCode(f"activation/{name}/elements/{dtype}", gelu(1, 65, dtype, approximate), blocks=12)
            yield MachineCode(f"activation/{name}/vectors/{dtype}", gelu(1, 8192, dtype, approximate), blocks=8, contains=WIDE)


def small():
    """Ordinary, extreme and huge values."""
    yield from each(silu, SMALL, dtype=DTYPES)
    yield from each(silu, EXTREME, dtype=DTYPES, extreme=[True])
    yield from each(silu_quantized, ((3, 264), (3, 8), (3, 259)), dtype=DTYPES, code=CODES)
    yield gelu(3, 72, BFLOAT16, "none")
    yield gelu(2, 67, FLOAT32, "tanh")
    yield from each(gelu, SMALL, dtype=DTYPES, approximate=FORMULAS)
    yield from each(gelu, EXTREME, dtype=DTYPES, approximate=FORMULAS, extreme=[True])


def large():
    """Lengths of models, and more tokens than a grid's second axis may have blocks."""
    yield from each(silu, LARGE, dtype=DTYPES)
    yield from each(gelu, LARGE, dtype=DTYPES, approximate=FORMULAS)
    yield from each(silu_quantized, ((130, 8192), (3, 16392)), dtype=DTYPES, code=CODES)


def measured():
    """Arrays larger than any cache."""
    yield Measured(silu(2048, 14336, BFLOAT16), "silu_and_multiply", "2048x14336, bfloat16")
    for name, approximate in (("gelu", "none"), ("gelu_tanh", "tanh")):
        yield Measured(gelu(8192, 8192, BFLOAT16, approximate), name, "8192x8192, bfloat16")
