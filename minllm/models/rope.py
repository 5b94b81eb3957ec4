"""The frequencies with which a model rotates its queries and keys.

Rotary position embedding (Su et al. 2021, section 3.4) rotates pair i of a head by the angle position * f_i, with
f_i = theta ** (-2 i / head_dim). The models that minllm runs extend it to longer contexts in two ways:

    linear   f_i / factor, which scales positions down (Chen et al. 2023, "Extending context window ... via positional interpolation")
    llama3   f_i / factor for long wavelengths, f_i for short ones, a blend between them (the Llama 3 report, section 3.4.2;
             wavelength = 2 pi / f_i, bounds original_max_position_embeddings / low_freq_factor and / high_freq_factor)

GGUF files store the result of llama3 as one factor per frequency, f_i / factor_i.

kernels/rope computes the table of cosines and sines for these frequencies.
"""

import math
from dataclasses import dataclass

import numpy as np

from minllm.errors import UnsupportedModelError
from minllm.models.json_files import Fields

ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RopeConfig:
    """The rotary embedding of a model, with the names of config.json's rope_scaling."""

    rope_theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    frequency_factors: tuple[float, ...] = ()  # divisors of the frequencies, one each; empty: none


def read_rope_config(fields: Fields) -> RopeConfig:
    """The rotary embedding of a config.json.

    Old keys are rope_theta and rope_scaling, the new one is rope_parameters. If both are present, rope_scaling replaces rope_parameters
    entirely, including its rope_theta, as in transformers. Raises UnsupportedModelError for an unsupported kind of scaling, and for a
    partial rotation.
    """
    key = "rope_scaling" if fields.object("rope_scaling") else "rope_parameters"
    scaling = Fields(fields.object(key), f"{key} of {fields.source}")
    if any(isinstance(value, dict) for value in scaling.values.values()):
        raise UnsupportedModelError(f"{scaling.source} differs between kinds of layers, and minllm takes one rotation for all layers.")
    rope_theta = scaling.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    rope_type = scaling.text("rope_type", scaling.text("type", "default"))
    for place in (fields, scaling):
        if place.positive("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModelError(f"{place.source} rotates only a part of each head (partial_rotary_factor); minllm rotates all.")
    if rope_type == "default":
        return RopeConfig(rope_theta)
    if rope_type == "linear":
        return RopeConfig(rope_theta, "linear", scaling.positive("factor"))
    if rope_type == "llama3":
        return _llama3(fields, scaling, rope_theta)
    raise UnsupportedModelError(f"{scaling.source} asks for rope_type {rope_type!r}; minllm computes {', '.join(ROPE_TYPES)}.")


def _llama3(fields: Fields, scaling: Fields, rope_theta: float) -> RopeConfig:
    low, high = scaling.positive("low_freq_factor"), scaling.positive("high_freq_factor")
    if high <= low:
        raise UnsupportedModelError(f"{scaling.source} says high_freq_factor {high} <= low_freq_factor {low}; it must be the greater one.")
    # A few checkpoints keep the trained length beside rope_scaling; it then overrides that in it. The default is the model's own length.
    inside = scaling.integer("original_max_position_embeddings", fields.integer("max_position_embeddings", 2048))
    original = fields.integer("original_max_position_embeddings", inside)
    return RopeConfig(rope_theta, "llama3", scaling.positive("factor"), low, high, original)


def inverse_frequencies(rope: RopeConfig, rotary_dim: int) -> np.ndarray:
    """f_i for i < rotary_dim / 2, in radians per position: float64 [rotary_dim / 2]."""
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim
    frequencies = rope.rope_theta**-exponents
    if rope.frequency_factors:
        frequencies = frequencies / np.array(rope.frequency_factors)
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    if rope.rope_type == "llama3":
        return _stretch_long_wavelengths(frequencies, rope)
    return frequencies


def _stretch_long_wavelengths(frequencies: np.ndarray, rope: RopeConfig) -> np.ndarray:
    """The llama3 frequencies: f_i for short wavelengths, f_i / factor for long ones, a blend between them."""
    turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)  # full turns within the trained length
    keep = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / rope.factor
