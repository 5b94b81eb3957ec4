"""The grid of a format: the numbers that its codes can represent for a group of inputs.

    integers  code = round(w / scale) + zero, from low to high      w' = (code - zero) * scale
    e4m3      code = e4m3(w / scale)                                w' = code * scale
    NF4       code = the nearest of 16 numbers to w / absmax        w' = NF4_CODES[code] * absmax

A scale covers a group's largest magnitude. With clipping it is the one of 17 scales, between 60 and 100 % of that, with the least squared
error over the group: smaller steps for all numbers, at the price of clipping the largest.

Source: Lin et al. 2024, "AWQ", section 3.2 and its code's auto_clip (the search; there it minimises the error of outputs, here of weights).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minllm.kernels.quantization.fp8 import E4M3, LARGEST
from minllm.kernels.quantization.fp8_block import to_codes
from minllm.kernels.quantization.nf4 import NF4_CODES, nearest

SHARES = np.linspace(1, 0.6, 17)  # shares of the largest magnitude that a scale covers


class IntegerGrid(NamedTuple):
    """Integer codes for N rows of a group, with a scale and a zero point per row."""

    scales: np.ndarray  # [N]
    zeros: np.ndarray  # [N]
    low: int
    high: int

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Codes of values [N], or [K, N]."""
        return np.clip(np.rint(values * inverse(self.scales)) + self.zeros, self.low, self.high).astype(np.int16)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """The numbers that codes represent, float32 of their shape."""
        return (codes - self.zeros) * self.scales.astype(np.float32)


class Fp8Grid(NamedTuple):
    """e4m3 codes for N rows, with a scale per row."""

    scales: np.ndarray  # [N]
    zeros: None = None

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Codes of values [N], or [K, N]."""
        return to_codes(values * inverse(self.scales))

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """The numbers that codes represent, float32 of their shape."""
        return codes.view(E4M3).astype(np.float32) * self.scales


class Nf4Grid(NamedTuple):
    """NF4 codes for N rows of a block, with an absmax per row."""

    scales: np.ndarray  # [N], absmax
    zeros: None = None

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Codes of values [N], or [K, N]."""
        return nearest(values * inverse(self.scales), NF4_CODES)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """The numbers that codes represent, float32 of their shape."""
        return NF4_CODES[codes] * self.scales


def inverse(scales: np.ndarray) -> np.ndarray:
    """1 / scales, float32; 0 if a scale is 0."""
    scales = scales.astype(np.float32)
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)


def int8_grid(rows: np.ndarray) -> IntegerGrid:
    """The int8 grid of whole rows [N, K]."""
    scales = np.abs(rows).max(axis=1) * np.float32(1 / 127)
    return IntegerGrid(scales.astype(np.float32), np.zeros(len(rows), np.float32), -127, 127)


def fp8_grid(rows: np.ndarray) -> Fp8Grid:
    """The e4m3 grid of whole rows [N, K]."""
    return Fp8Grid((np.abs(rows).max(axis=1) * np.float32(1 / LARGEST)).astype(np.float32))


def fp8_block_grid(rows: np.ndarray) -> Fp8Grid:
    """The e4m3 grid of 128 inputs of all rows [N, 128], with one scale per 128 rows."""
    first = np.arange(0, len(rows), 128)
    largest = np.maximum.reduceat(np.abs(rows).max(axis=1), first)
    return Fp8Grid(np.repeat(largest * np.float32(1 / LARGEST), 128)[: len(rows)].astype(np.float32))


def int4_grid(group: np.ndarray, has_zeros: bool, clip: bool) -> IntegerGrid:
    """The int4 grid of one group of inputs [N, group]."""
    return least_error(group, lambda share: covering_int4_grid(group, has_zeros, share), clip)


def nf4_grid(block: np.ndarray, clip: bool) -> Nf4Grid:
    """The NF4 grid of one block of inputs [N, 64]; as in quantization/nf4.py, absmax is not rounded here."""
    absmax = np.abs(block).max(axis=1)
    return least_error(block, lambda share: Nf4Grid(absmax * share), clip)


def least_error(group: np.ndarray, covering: Callable[[np.float32], Any], clip: bool) -> Any:
    """covering(1); with clip, for each row the covering(share) of least squared error over group [N, K]."""
    best, least = covering(np.float32(1)), None
    for share in SHARES if clip else ():
        grid = covering(np.float32(share))
        error = np.square(grid.decode(grid.encode(group.T)) - group.T).sum(axis=0)
        if least is not None:
            better = error < least
            zeros = None if grid.zeros is None else np.where(better, grid.zeros, best.zeros)
            best = best._replace(scales=np.where(better, grid.scales, best.scales), zeros=zeros)
        least = error if least is None else np.minimum(least, error)
    return best


def covering_int4_grid(group: np.ndarray, has_zeros: bool, share: np.float32) -> IntegerGrid:
    """The int4 grid over a share of the group's range; scales are rounded to float16, as in quantization/int4.py."""
    if not has_zeros:
        scales = (np.abs(group).max(axis=1) * (share / np.float32(7))).astype(np.float16)
        return IntegerGrid(scales, np.full(len(group), 8, np.float32), 0, 15)
    low, high = group.min(axis=1, initial=0) * share, group.max(axis=1, initial=0) * share
    scales = ((high - low) * np.float32(1 / 15)).astype(np.float16)
    return IntegerGrid(scales, np.clip(np.rint(-low * inverse(scales)), 0, 15).astype(np.float32), 0, 15)
