"""Warm-up: compile and load the kernels of a first request, so that its latency does not include compilation.

Which kernels a request launches depends on its shape: a short prompt uses other GEMM tiles than a long one, and
greedy decoding skips the sampler. Two prompts and two ways to sample cover nearly all of them; a decode step is launched kernel by kernel
once, and captured once. With every kernel in the disk cache this takes a fraction of a second.
"""

from collections.abc import Callable
from dataclasses import replace

from minllm.engine.progress import Progress
from minllm.engine.sampling_params import SamplingParams
from minllm.runtime import kernel

PROMPT_LENGTHS = (16, 512)
TOKENS = 4  # one each for prefill, an eager step, a captured step and a replayed step
USUAL_KERNELS = 30  # the length of the progress bar; the actual number is known only at the end


def warm_up(generate: Callable, params: SamplingParams, max_model_len: int, progress: Progress | None = None) -> None:
    """Run small requests through `generate`, sampled as in `params` and greedily; report each kernel that is compiled or loaded."""
    done = 0

    def count(_name: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress("Compiling kernels", done, max(done + 1, USUAL_KERNELS))

    params = replace(params, max_tokens=TOKENS, min_tokens=0, ignore_eos=True, stop=None, seed=0)
    kernel.compilation_listeners.append(count)
    try:
        for length in sorted({min(length, max(1, max_model_len - TOKENS)) for length in PROMPT_LENGTHS}):
            for sampled in (params, replace(params, temperature=0.0)):
                generate([[0] * length], sampled)
    finally:
        kernel.compilation_listeners.remove(count)
    if progress is not None:
        progress("Compiling kernels", max(done, 1), max(done, 1))
