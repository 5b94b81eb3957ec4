"""The launches of the norms: T tokens of H features of b bytes."""

import numpy as np

from minllm.catalogue.launch import WIDE, Launch, MachineCode, Measured, Moved, beside, calls, describes, each
from minllm.catalogue.rows import BFLOAT16, CODES, DTYPES, UNIT, before_quantization, is_whole, longest_rows, longest_short_rows, quantized
from minllm.kernels.normalization.layer_norm import layer_norm as launch_layer_norm
from minllm.kernels.normalization.rms_norm import rms_norm as launch_rms_norm
from minllm.kernels.normalization.rms_norm import rms_norm_reference
from minllm.kernels.normalization.rms_norm_quantized import rms_norm_quantized as launch_rms_norm_quantized

EPSILON = 1e-5
# Lengths around the block's 256 threads and around whole vectors.
SMALL = (
    dict(tokens=3, hidden=264),
    dict(tokens=2, hidden=259),
    dict(tokens=2, hidden=1, residual=False),
    dict(tokens=1, hidden=7),
    dict(tokens=3, hidden=8, residual=False),
    dict(tokens=1, hidden=255, residual=False),
    dict(tokens=1, hidden=256),
    dict(tokens=1, hidden=257),
    dict(tokens=2, hidden=40, magnitude=1e4),  # its squares overflow float16
    dict(tokens=1, hidden=61, magnitude=1e-4, epsilon=1e-6),  # epsilon is as large as the mean square
    dict(tokens=1, hidden=72, offset=300.0, magnitude=0.5, residual=False),  # a mean far larger than the spread
)
LARGE = ((130, 4096), (17, 16384), (2, 16392), (5, 20011), (2049, 344))


def inputs(noise, tokens, hidden, dtype, residual, magnitude, offset):
    """x around `offset`, of spread `magnitude`; the residual, or None; the weight."""
    x = noise.array((tokens, hidden), np.float32 if offset else dtype, magnitude)
    return dict(
        x=(x + np.float32(offset)).astype(dtype) if offset else x,  # a sum with 0 would give a dry run's array memory
        residual=noise.array((tokens, hidden), dtype, magnitude) if residual else None,
        weight=noise.array((hidden,), dtype),
    )


@describes
def rms_norm(tokens, hidden, dtype, residual=True, magnitude=1.0, offset=0.0, epsilon=EPSILON):
    """RMSNorm, after adding x to the residual if there is one."""
    shape, size, row = (tokens, hidden), tokens * hidden * dtype.itemsize, hidden * dtype.itemsize
    asked = dict(x=size, residual=2 * size, weight=size, out=size)

    return Launch(
        arrays=lambda noise: dict(inputs(noise, *shape, dtype, residual, magnitude, offset), out=noise.unwritten(shape, dtype)),
        **beside(launch_rms_norm, *(("out", "residual") if residual else ("out",)), epsilon=epsilon),
        moved=dict(
            rms_norm_vector_kernel=Moved(asked, dict(weight=row)),  # different: (4 T H + H) b
            rms_norm_kernel=Moved(asked | dict(residual=4 * size), dict(residual=2 * size, weight=row)),
        ),
        rows=("x", "residual", "out"),
    )


@describes
def rms_norm_quantized(tokens, hidden, dtype, code, residual=True):
    """RMSNorm, after adding x to the residual if there is one, that writes codes, "int8" or "fp8", and a scale per token; one is zeros."""
    shape, size, count = (tokens, hidden), tokens * hidden * dtype.itemsize, tokens * hidden

    def arrays(noise):
        given = inputs(noise, *shape, dtype, residual, 1.0, 0.0)
        for name in ("x", "residual") if residual else ("x",):
            given[name][1:2] = 0
        return given

    def reference(x, residual, weight):
        stream = rms_norm_reference(x, weight, EPSILON, residual)[1]
        normalized = rms_norm_reference(before_quantization(stream, hidden), before_quantization(weight, hidden), EPSILON)[0]
        return dict(quantized(normalized, code), **({} if residual is None else dict(residual=stream)))

    asked = dict(x=size, **(dict(residual=2 * size) if residual else {}), weight=size, codes=count, scales=4 * tokens)
    return Launch(
        arrays,
        call=calls(launch_rms_norm_quantized, epsilon=EPSILON, code=code),
        reference=reference,
        moved=dict(rms_norm_quantized_kernel=Moved(asked, dict(weight=hidden * dtype.itemsize))),  # and scales: (3 b + 1) T H + b H
        slack=UNIT[dtype] if not is_whole(dtype, hidden) else 1e-6,
        exact=("residual",),
    )


@describes
def layer_norm(tokens, hidden, dtype, residual=True, bias=True, magnitude=1.0, offset=0.0, epsilon=EPSILON):
    """LayerNorm, after adding x to the residual if there is one."""
    shape, size, row = (tokens, hidden), tokens * hidden * dtype.itemsize, hidden * dtype.itemsize
    asked = dict(x=size, residual=2 * size, weight=size, bias=size, out=size)
    return Launch(
        arrays=lambda noise: dict(
            inputs(noise, *shape, dtype, residual, magnitude, offset),
            bias=noise.array((hidden,), dtype) if bias else None,
            out=noise.unwritten(shape, dtype),
        ),
        **beside(launch_layer_norm, *(("out", "residual") if residual else ("out",)), epsilon=epsilon),
        moved=dict(
            layer_norm_vector_kernel=Moved(asked, dict(weight=row, bias=row)),  # different: (4 T H + 2 H) b
            layer_norm_kernel=Moved(asked | dict(residual=5 * size), dict(residual=2 * size, weight=row, bias=row)),
        ),
        rows=("x", "residual", "out"),
        slack=3e-6 + 1e-6 * offset / magnitude,  # the mean is a float32: where it is large beside the spread, its rounding shows
    )


def compiled():
    """One block takes a row: the vector kernels use up to 1,024 threads and hold it in registers. A constant that decides the register
    count takes its smallest and its largest value."""
    for dtype in DTYPES:
        yield MachineCode(f"normalization/rms_norm/elements/{dtype}", rms_norm(1, 259, dtype), blocks=5)
        yield MachineCode(f"normalization/layer_norm/elements/{dtype}", layer_norm(1, 259, dtype), blocks=5)
        for pieces, length in longest_rows(dtype):
            end = f"{pieces}/{dtype}"
            yield MachineCode(f"normalization/rms_norm/vectors/{end}", rms_norm(1, length, dtype), blocks=1, contains=WIDE)
            yield MachineCode(f"normalization/layer_norm/vectors/{end}", layer_norm(1, length, dtype), blocks=1, contains=WIDE)
        for pieces, length in longest_short_rows(dtype):
            for code, targets in CODES.items():
                name, launch = f"normalization/rms_norm_quantized/{code}/{pieces}/{dtype}", rms_norm_quantized(1, length, dtype, code)
                yield MachineCode(name, launch, blocks=1, contains=WIDE, targets=targets)


def small():
    """With and without residual and bias, huge and tiny values."""
    for function in (rms_norm, layer_norm):
        yield from each(function, SMALL, dtype=DTYPES)
    yield from each(layer_norm, (dict(tokens=3, hidden=8, residual=False), dict(tokens=1, hidden=257)), dtype=DTYPES, bias=[False])
    yield from each(rms_norm_quantized, ((3, 264), (3, 8), (3, 259)), dtype=DTYPES, code=CODES)
    yield from each(rms_norm_quantized, ((3, 264),), dtype=DTYPES, code=CODES, residual=[False])


def large():
    """Lengths of models, and rows too long for registers."""
    for function in (rms_norm, layer_norm):
        yield from each(function, LARGE, dtype=DTYPES)
        yield from each(function, ((3, 8192),), dtype=DTYPES, residual=[False])
    yield from each(rms_norm_quantized, ((130, 2048), (17, 16384), (2, 16392)), dtype=DTYPES, code=CODES)
    yield from each(rms_norm_quantized, ((130, 2048),), dtype=DTYPES, code=CODES, residual=[False])


def measured():
    """With residual and bias."""
    yield Measured(rms_norm(16384, 4096, BFLOAT16), "rms_norm", "16384x4096, bfloat16")
    yield Measured(layer_norm(16384, 4096, BFLOAT16), "layer_norm", "16384x4096, bfloat16")
