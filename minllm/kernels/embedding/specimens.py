"""The embedding kernels as they are launched."""

import numpy as np

from minllm.kernels.embedding.lookup import BLOCK, embedding_kernel, embedding_vector_kernel
from minllm.kernels.specimen import DTYPES, INT32, Specimen, array


def specimens():
    """All of them. Memory is the limit, so the multiprocessor is to be filled: 2,048 threads, of 32 registers each."""
    for dtype in DTYPES:
        indices, matrix = array(INT32, 1), array(dtype, 2)
        elements = (indices, matrix, indices, matrix, INT32, matrix)
        vectors = (indices, matrix, indices, matrix, matrix)
        yield Specimen(f"embedding/elements/{dtype}", embedding_kernel, elements, BLOCK, blocks=8)
        for has_positions, name in ((False, "vectors"), (True, "vectors/positions")):
            kernel = embedding_vector_kernel(np.dtype(DTYPES[dtype].name) if dtype != "bfloat16" else BFLOAT16, has_positions)
            yield Specimen(f"embedding/{name}/{dtype}", kernel, vectors, BLOCK, blocks=8, contains=("LDG*128*", "STG*128"))
