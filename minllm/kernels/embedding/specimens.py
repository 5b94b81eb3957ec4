"""The embedding kernels as they are launched."""

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.embedding.lookup import BLOCK, embedding_kernel, embedding_vector_kernel
from minllm.kernels.specimen import INT32, Specimen, array


def specimens():
    """All embedding kernels. They are memory-bound, so they should fill most of the SM: 12 blocks of 128 threads."""
    for dtype in FLOAT_DTYPES:
        indices, matrix = array(INT32, 1), array(dtype.name, 2)
        elements = (indices, matrix, indices, matrix, INT32, matrix)
        vectors = (indices, matrix, indices, matrix, matrix)
        yield Specimen(f"embedding/elements/{dtype}", embedding_kernel, elements, BLOCK, blocks=12)
        for has_positions, name in ((False, "vectors"), (True, "vectors_with_positions")):
            kernel = embedding_vector_kernel(dtype, has_positions)
            yield Specimen(f"embedding/{name}/{dtype}", kernel, vectors, BLOCK, blocks=12, contains=("LDG*128*", "STG*128*"))
