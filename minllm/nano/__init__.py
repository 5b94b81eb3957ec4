"""The whole engine in one evening: in-flight batching, chunked prefill, paged blocks, prefix sharing, preemption, and a forward pass.

    from minllm.nano import NanoLLM, SamplingParams
    print(NanoLLM().generate(["def fibonacci(n):"], SamplingParams(max_tokens=32))[0].text)

Read it in this order; each file is one idea:

    sequence.py      a request, and what has been computed of it
    block_pool.py    the memory of keys and values, in blocks that sequences share
    scheduler.py     which tokens of which sequences the next step computes
    forward.py       the transformer, from token ids to logits
    operations.py    its eight kernels: on a GPU, in the simulator, or as NumPy equations
    weights.py       the matrices of a checkpoint
    sampling.py      from logits to a token
    engine.py        the loop

minllm's own engine (minllm/engine) computes the same tokens with faster kernels, quantised weights and caches, speculation, several GPUs
and CUDA graphs, and without waiting for the GPU between steps.
"""

from minllm.nano.engine import NanoLLM, Output
from minllm.nano.sequence import SamplingParams

__all__ = ["NanoLLM", "Output", "SamplingParams"]
