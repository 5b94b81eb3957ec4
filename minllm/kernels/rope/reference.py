"""Rotary position embedding, RoPE (Su et al. 2021, "RoFormer", section 3.2.2), in both layouts of the pairs.

(a, b) -> (a cos - b sin, b cos + a sin),  angle = position * frequency[pair]
"""

import numpy as np

from minllm.runtime.kernel import check

TABLE_ROWS = 16384  # positions computed at a time, because their float64 angles take several times the table's memory


def rope_table(positions_count, rotary_dim, inverse_frequencies, attention_factor=1.0):
    """Cosines and sines of every position's angles: float32 [positions_count, rotary_dim], first half cosines, second half sines.

    inverse_frequencies: [rotary_dim / 2], radians per position. The angles are formed in float64, so that a position of 100,000 still has
    an exact angle. `attention_factor` scales both (YaRN's temperature; 1 for the others).
    """
    inverse_frequencies = np.asarray(inverse_frequencies, np.float64)
    check(
        rotary_dim % 2 == 0 and inverse_frequencies.shape == (rotary_dim // 2,),
        f"inverse_frequencies has shape {inverse_frequencies.shape}; a rotary_dim of {rotary_dim} needs one frequency for each pair of "
        "components: an even rotary_dim, and the shape (rotary_dim / 2,)",
    )
    table = np.empty((positions_count, rotary_dim), np.float32)
    for start in range(0, positions_count, TABLE_ROWS):
        rows = table[start : start + TABLE_ROWS]
        angles = np.arange(start, start + len(rows))[:, None] * inverse_frequencies[None, :]  # [rows, rotary_dim / 2]
        rows[:] = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * attention_factor
    return table


def rope_reference(x, positions, cos_sin, interleaved=False):
    """Rotate the pairs of each head's first rotary_dim components by their position's angles; the rest passes unchanged.

    x: [T, heads, head_dim]; positions: [T]; cos_sin: [positions, rotary_dim], see `rope_table`. Pair i is (i, i + rotary_dim/2), the
    half-split layout of Hugging Face's Llama, or (2i, 2i + 1) if `interleaved`, the layout of the paper. Result in the dtype of `x`.
    """
    wide = np.result_type(x.dtype, np.float32)
    rotary_dim = cos_sin.shape[1]
    half = rotary_dim // 2
    angles = cos_sin[positions][:, None, :].astype(wide, copy=False)  # [T, 1, rotary_dim]
    cosine, sine = angles[..., :half], angles[..., half:]
    first, second = (slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)) if interleaved else (slice(0, half), slice(half, rotary_dim))
    out = x.astype(wide)  # always a copy: the input stays unchanged
    a, b = x[..., first].astype(wide, copy=False), x[..., second].astype(wide, copy=False)
    out[..., first] = a * cosine - b * sine
    out[..., second] = b * cosine + a * sine
    return out.astype(x.dtype, copy=False)
