"""Formats that `minllm plan` counts, and that LLM() cannot load yet: bytes per number without scales, and the rate of tensor cores."""

from dataclasses import dataclass

from minllm.weights.format import WeightFormat


@dataclass(frozen=True)
class PlannedFormat(WeightFormat):
    """A format of which only the size is known. Its scales, some 3 % of 4-bit weights in groups of 128, are not counted."""

    is_option = False
