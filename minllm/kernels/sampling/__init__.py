"""From logits to the next token: bias, penalties, thresholds (top-k, top-p, min-p), a seeded draw, log-probabilities."""

from minllm.kernels.sampling.parameters import build_sampling_tensors
from minllm.kernels.sampling.sample import sample_reference
from minllm.kernels.sampling.tensors import SamplingKind, SamplingTensors

__all__ = ["SamplingKind", "SamplingTensors", "build_sampling_tensors", "sample_reference"]
