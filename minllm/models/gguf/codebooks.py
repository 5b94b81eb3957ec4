"""The codebooks of ggml's types IQ1, IQ2 and IQ3: a code of 8 to 11 bits stands for 8 neighbouring numbers (IQ3: 4) without their signs.

A codebook holds few of all combinations of numbers. No formula gives them; the tables are in minllm/data/ggml_codebooks.npz.

Source: ggml-common.h, iq2xxs_grid, iq2xs_grid, iq2s_grid, iq3xxs_grid, iq3s_grid, iq1s_grid and ksigns_iq2xs; the tables are copyright of
the ggml authors, under the MIT licence.
"""

import functools
from pathlib import Path

import numpy as np

FILE = Path(__file__).parents[2] / "data" / "ggml_codebooks.npz"


@functools.cache
def codebook(name: str) -> np.ndarray:
    """The numbers of each code, float32 [codes, 8], or [codes, 4] for iq3_xxs and iq3_s."""
    with np.load(FILE) as tables:
        return tables[name].astype(np.float32)


def signs(bits: np.ndarray) -> np.ndarray:
    """-1 for a bit that is set, else 1: float32 [..., 8] of uint8 [...], the lowest bit first."""
    return 1 - 2 * np.unpackbits(bits[..., None], axis=-1, bitorder="little").astype(np.float32)


def even_signs(bits: np.ndarray) -> np.ndarray:
    """The same of seven bits, uint32 or uint16 [...]; the eighth makes the number of minus signs even."""
    bits = (bits & 127).astype(np.uint8)
    return signs(bits | (np.bitwise_count(bits) & 1) << 7)
