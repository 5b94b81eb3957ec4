"""The launches that encode matrices of N outputs and K inputs of b bytes while a checkpoint loads."""

from minllm.catalogue.launch import WIDE, Launch, MachineCode, Moved, describes, each
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT32
from minllm.kernels.encoding.int4 import encode_int4
from minllm.kernels.encoding.nf4 import encode_nf4_blocks
from minllm.kernels.quantization.groups import NF4_BLOCK
from minllm.kernels.quantization.nf4 import NF4_CODES, quantize_blocks
from minllm.weights.formats import int4_format

GROUPS = (32, 64, 128)
# A row within one block of threads, and one that ends within a second; an output that is alone, and more than a few.
SMALL = ((3, 128), (1, 1152), (5, 256))


def matrix(noise, outputs, inputs, dtype):
    """Numbers of the size of weights, with a group of zeros and a group of equal numbers."""
    found = noise.array((outputs, inputs), dtype, 0.02)
    found[0, :NF4_BLOCK], found[-1, -NF4_BLOCK:] = 0, 0.5
    return found


@describes
def int4(outputs, inputs, dtype, group, zeros=False):
    """int4 in groups, symmetric or with zero points."""
    numbers, groups = outputs * inputs, outputs * inputs // group

    def reference(matrix):
        codes, scales, *of_zeros = int4_format("", group, zeros).encode(matrix)[: 3 if zeros else 2]
        return dict(codes=codes, scales=scales, **({"zeros": of_zeros[0]} if zeros else {}))

    def call(ops, matrix):
        found = encode_int4(matrix, ops.empty, group, zeros, ops.stream)
        return {name: array for name, array in zip(("codes", "scales", "zeros"), found, strict=True) if array is not None}

    of_zeros = {"zeros": groups} if zeros else {}
    return Launch(
        arrays=lambda noise: dict(matrix=matrix(noise, outputs, inputs, dtype)),
        call=call,
        reference=reference,
        moved=Moved(dict(matrix=numbers * dtype.itemsize, codes=numbers // 2, scales=2 * groups, **of_zeros)),
        exact=True,
    )


@describes
def nf4(outputs, inputs, dtype):
    """NF4 codes and the magnitudes of their blocks."""
    numbers = outputs * inputs
    return Launch(
        arrays=lambda noise: dict(matrix=matrix(noise, outputs, inputs, dtype)),
        call=lambda ops, matrix: dict(zip(("codes", "absmax"), encode_nf4_blocks(matrix, NF4_CODES, ops.empty, ops.stream), strict=True)),
        reference=lambda matrix: dict(zip(("codes", "absmax"), quantize_blocks(matrix), strict=True)),
        moved=Moved(dict(matrix=numbers * dtype.itemsize, codes=numbers // 2, absmax=4 * numbers // NF4_BLOCK)),
        exact=True,
    )


def compiled():
    """A lane has one or two loads in flight, so most of an SM's warps have to be there."""
    for dtype in DTYPES:
        for group in GROUPS:
            for zeros in (False, True):
                name = f"encoding/int4{'_zeros' if zeros else ''}/{group}/{dtype}"
                yield MachineCode(name, int4(4096, 4096, dtype, group, zeros), blocks=8, contains=WIDE[:1])
        yield MachineCode(f"encoding/nf4/{dtype}", nf4(4096, 4096, dtype), blocks=8, contains=WIDE[:1])


def small():
    """Groups of zeros and of equal numbers among ordinary ones."""
    yield from each(int4, SMALL, dtype=DTYPES, group=GROUPS, zeros=[False, True])
    yield from each(nf4, SMALL, dtype=DTYPES)


def large():
    """Matrices of models."""
    yield from each(int4, ((14336, 4096),), dtype=[BFLOAT16], group=GROUPS, zeros=[False, True])
    yield from each(nf4, ((4096, 14336),), dtype=[BFLOAT16, FLOAT32])
