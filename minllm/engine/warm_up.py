"""Warm-up: load the kernels of a first request, so that its latency does not include loading.

The kernels are in the disk cache already (precompile.py). Which of them a request launches depends on its shape: a short prompt uses other
GEMM tiles than a long one, and greedy decoding skips the sampler. Two prompts and two ways to sample cover nearly all of them. Then the
graphs of decode steps are captured for all batch sizes, each after one launch kernel by kernel. This takes a few seconds.
"""

from collections.abc import Callable
from dataclasses import replace

from minllm.engine.progress import Progress
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.running.model_runner import ModelRunner
from minllm.kernels.sampling.parameters import kind_of
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.runtime import kernel

PROMPT_LENGTHS = (16, 512)
TOKENS = 3
USUAL_KERNELS = 30  # the length of the progress bar; the actual number is known only at the end


def warm_up(generate: Callable, runner: ModelRunner, params: SamplingParams, max_model_len: int, progress: Progress | None = None) -> None:
    """Run small requests through `generate`, sampled as in `params` and greedily, and capture graphs; report each kernel and graph."""
    done = 0

    def count(_name: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress("Loading kernels", done, max(done + 1, USUAL_KERNELS))

    params = replace(params, max_tokens=TOKENS, min_tokens=0, ignore_eos=True, stop=None, seed=0)
    kernel.compilation_listeners.append(count)
    try:
        for length in sorted({min(length, max(1, max_model_len - TOKENS)) for length in PROMPT_LENGTHS}):
            for sampled in (params, replace(params, temperature=0.0)):
                generate([[0] * length], sampled)
    finally:
        kernel.compilation_listeners.remove(count)
    if progress is not None:
        progress("Loading kernels", max(done, 1), max(done, 1))
    runner.capture_graphs({SamplingKind.GREEDY, kind_of(params)}, progress)
