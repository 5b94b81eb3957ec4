"""The launches of elementwise operations: T tokens of F features of b bytes."""

from minllm.catalogue.activation import SMALL, gate_and_up
from minllm.catalogue.launch import WIDE, Launch, MachineCode, Measured, Moved, beside, calls, describes, each, in_place
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT32
from minllm.kernels.elementwise.gelu_and_multiply import gelu_and_multiply as launch_gelu_and_multiply
from minllm.kernels.elementwise.in_place import scale as launch_scale
from minllm.kernels.elementwise.in_place import scale_reference, soft_cap_reference
from minllm.kernels.elementwise.in_place import soft_cap as launch_soft_cap

FACTOR, CAP = 3072**0.5, 30.0  # Gemma's


@describes
def gelu_and_multiply(tokens, intermediate, dtype, extreme=False):
    """GELU and multiply."""
    size = tokens * intermediate

    return Launch(
        arrays=lambda noise: gate_and_up(noise, tokens, intermediate, dtype, extreme, 3),
        **beside(launch_gelu_and_multiply, "out"),
        moved=Moved(dict(gate_up=2 * size * dtype.itemsize, out=size * dtype.itemsize)),
        rows=("gate_up", "out"),
        elementwise=True,
    )


@describes
def scale(tokens, features, dtype):
    """Rows times a factor."""
    return _in_place(tokens, features, dtype, launch_scale, scale_reference, factor=FACTOR)


@describes
def soft_cap(tokens, features, dtype):
    """Numbers far below, around and far above the cap."""
    return _in_place(tokens, features, dtype, launch_soft_cap, soft_cap_reference, cap=CAP)


def _in_place(tokens, features, dtype, launcher, reference, **parameter):
    def change(x):
        x[:] = reference(x, **parameter)

    return Launch(
        arrays=lambda noise: dict(x=noise.array((tokens, features), dtype, CAP)),
        call=calls(launcher, **parameter),
        reference=in_place(change, "x"),
        moved=Moved(dict(x=2 * tokens * features * dtype.itemsize)),
        rows=("x",),
        elementwise=True,
    )


def compiled():
    """They are memory-bound: enough blocks to fill most of an SM, or half of it with two loads per thread."""
    for dtype in DTYPES:
        yield MachineCode(f"elementwise/gelu_and_multiply/elements/{dtype}", gelu_and_multiply(1, 65, dtype), blocks=24)
        yield MachineCode(f"elementwise/gelu_and_multiply/vectors/{dtype}", gelu_and_multiply(1, 8192, dtype), blocks=24, contains=WIDE)
        yield MachineCode(f"elementwise/scale/elements/{dtype}", scale(1, 65, dtype), blocks=12)
        yield MachineCode(f"elementwise/scale/vectors/{dtype}", scale(1, 8192, dtype), blocks=12, contains=WIDE)
    yield MachineCode("elementwise/soft_cap/elements", soft_cap(1, 65, FLOAT32), blocks=12)
    yield MachineCode("elementwise/soft_cap/vectors", soft_cap(1, 8192, FLOAT32), blocks=12, contains=WIDE)


def small():
    """Ordinary, extreme and huge values."""
    yield from each(gelu_and_multiply, SMALL, dtype=DTYPES)
    yield from each(gelu_and_multiply, ((1, 20), (1, 21)), dtype=DTYPES, extreme=[True])
    yield from each(scale, SMALL, dtype=DTYPES)
    yield from each(soft_cap, SMALL, dtype=[FLOAT32])


def large():
    """Lengths of models, and more tokens than a grid's second axis may have blocks."""
    yield from each(gelu_and_multiply, ((130, 8192), (2049, 344), (7, 10007)), dtype=DTYPES)
    yield from each(scale, ((130, 2560), (2049, 345)), dtype=DTYPES)
    yield from each(soft_cap, ((17, 262144), (3, 1003)), dtype=[FLOAT32])


def measured():
    """Arrays larger than any cache."""
    yield Measured(gelu_and_multiply(2048, 14336, BFLOAT16), "gelu_and_multiply", "2048x14336, bfloat16")
    yield Measured(scale(8192, 8192, BFLOAT16), "scale", "8192x8192, bfloat16")
    yield Measured(soft_cap(1024, 32768, FLOAT32), "soft_cap", "1024x32768, float32")
