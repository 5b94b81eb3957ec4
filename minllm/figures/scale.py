"""Axes: map values to page coordinates, linearly or logarithmically, with ticks at round numbers."""

import math
from dataclasses import dataclass

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Scale:
    """Maps `low`..`high` to `start`..`end` of the page; logarithmic if `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The coordinate of `value`, clamped to the ends."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low) if value > 0 else 0.0
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """About five round numbers.

        A logarithmic axis has powers of ten, some left out if many, or also 2 and 5 times them if few.
        """
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = 1 + max(0, last - first) // 6
            powers = [10.0**power for power in range(first, last + 1, step)]
            if len(powers) > 1:
                return powers
            between = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
            inside = [tick for tick in between if self.low * 0.999 <= tick <= self.high * 1.001]
            return inside if len(inside) > 1 else [self.low, self.high]
        rough = (self.high - self.low) / 5
        magnitude = 10.0 ** math.floor(math.log10(rough))
        step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [step * count for count in range(first, math.floor(self.high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number as short text: 4,096, 0.31 or 12.5; from 100,000 on with a prefix, 1.2M."""
    for size, prefix in PREFIXES:
        if abs(value) >= max(size, 1e5):
            return f"{value / size:.3g}{prefix}"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
