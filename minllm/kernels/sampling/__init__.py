"""From logits to the next token: penalties, thresholds (top-k, top-p, min-p), a seeded draw, log-probabilities."""

from minllm.kernels.sampling.log_probabilities import log_probabilities
from minllm.kernels.sampling.sample import sample_reference
from minllm.kernels.sampling.tensors import SamplingTensors, build_sampling_tensors

__all__ = ["SamplingTensors", "build_sampling_tensors", "log_probabilities", "sample_reference"]
