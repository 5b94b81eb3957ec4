"""Warm-up: compile and load what a first request needs, so that its latency is a request's and not a compiler's.

Which kernels a request launches depends on its shape: a short prompt takes other tiles of the matrix product than a long one, and
greedy decoding skips the sampler. Two prompts and two ways to sample meet nearly all of them; a decode step is launched kernel by kernel
once, and captured once. With every kernel in the disk cache this takes a fraction of a second.
"""

from collections.abc import Callable
from dataclasses import replace

from minllm.engine.progress import Progress
from minllm.engine.sampling_params import SamplingParams
from minllm.runtime import kernel

PROMPT_LENGTHS = (16, 512)
TOKENS = 4  # the prefill's, an eager step's, a captured step's and a replayed one's
USUAL_KERNELS = 30  # how many there are is known only at the end; the bar is drawn for this many


def warm_up(generate: Callable, params: SamplingParams, max_model_len: int, progress: Progress | None = None) -> None:
    """Run small requests through `generate`, sampled as `params` say and greedily; report each kernel that is compiled or loaded."""
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
