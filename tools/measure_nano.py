"""minllm.nano beside the engine on a GPU: the table of docs/nano.md. `python tools/measure_nano.py [SHAPE]`

Both run the same random weights in bfloat16. Each time is the median step of sequences that decode; the engine's from generated tokens per
second with CUDA graphs, and without. nano's operations are then timed one by one, each ended by a wait for the GPU.
"""

import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from minllm import LLM
from minllm import SamplingParams as EngineParams
from minllm.bench.generate import write_shape
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.shapes import SHAPES, named_config
from minllm.nano import NanoLLM, SamplingParams
from minllm.nano.operations import Kernels
from minllm.post_training.files import write_safetensors
from minllm.runtime.device import core_device, current_device

PROMPT, STEPS, BATCHES = 192, 32, (1, 16, 64)


def main(shape: str = "llama-3.2-1b") -> None:
    """Print the table of a shape."""
    config = named_config(shape)
    with tempfile.TemporaryDirectory() as directory:
        write_shape(Path(directory), SHAPES[shape])
        checkpoint = RandomCheckpoint(config)
        write_safetensors(Path(directory) / "model.safetensors", {name: checkpoint.tensor(name) for name in checkpoint.names()})
        prompts = np.random.default_rng(0).integers(0, config.vocab_size, (max(BATCHES), PROMPT)).tolist()
        times = {f"engine, {name}": engine_steps(directory, prompts, eager) for name, eager in (("graphs", False), ("eager", True))}
        nano, parts = nano_steps(directory, prompts)
    print(f"\n{shape}, bfloat16, {PROMPT} tokens of prompt: ms per step\n\n| sequences | {' | '.join(map(str, BATCHES))} |")
    for name, row in (times | {"nano": nano}).items():
        print(f"| {name} | {' | '.join(f'{1e3 * row[batch]:.2f}' for batch in BATCHES)} |")
    for name in parts[BATCHES[0]]:
        print(f"| nano, {name}, alone | {' | '.join(f'{1e3 * parts[batch][name]:.2f}' for batch in BATCHES)} |")


def engine_steps(directory: str, prompts: list[list[int]], eager: bool) -> dict[int, float]:
    """{sequences: seconds of a decode step} of the engine."""
    longest = PROMPT + STEPS + 1
    with LLM(directory, max_num_seqs=max(BATCHES), max_model_len=longest, enforce_eager=eager) as llm:
        return {batch: decode_seconds(llm, prompts[:batch]) for batch in BATCHES}


def decode_seconds(llm: LLM, prompts: list[list[int]]) -> float:
    """Seconds of a decode step: those of STEPS more tokens, over STEPS; the median of three."""

    def seconds(tokens: int) -> float:
        start = time.perf_counter()
        llm.generate(prompts, EngineParams(max_tokens=tokens, temperature=0, ignore_eos=True))
        return time.perf_counter() - start

    seconds(STEPS)  # compiles and captures
    return statistics.median((seconds(STEPS + 1) - seconds(1)) / STEPS for _ in range(3))


def nano_steps(directory: str, prompts: list[list[int]]) -> tuple[dict[int, float], dict[int, dict[str, float]]]:
    """({sequences: seconds of a decode step}, {sequences: {operation: seconds of all its calls in a step, each waited for}}) of nano."""
    llm = NanoLLM(directory, "cuda", "bfloat16", num_blocks=1024, max_num_seqs=max(BATCHES), max_num_batched_tokens=len(prompts) * PROMPT)
    found, parts = {}, {}
    for batch in BATCHES:
        decode(llm, prompts[:batch])  # compiles
        found[batch] = statistics.median(decode(llm, prompts[:batch]))
        llm.ops = Timed(llm.ops)
        steps = len(decode(llm, prompts[:batch]))
        parts[batch] = {name: seconds / steps for name, seconds in llm.ops.seconds.items()}
        llm.ops = llm.ops.ops
    return found, parts


def decode(llm: NanoLLM, prompts: list[list[int]]) -> list[float]:
    """Generate from all prompts; the seconds of each step in which they decode."""
    sequences, steps = [llm.add(prompt, SamplingParams(max_tokens=STEPS, ignore_eos=True)) for prompt in prompts], []
    llm.step()  # all prompts
    if isinstance(llm.ops, Timed):
        llm.ops.seconds.clear()
    while not sequences[0].finish_reason:
        start = time.perf_counter()
        llm.step()
        steps.append(time.perf_counter() - start)
    return steps


class Timed:
    """Operations that wait for the GPU after each call, and add up the seconds of each."""

    def __init__(self, ops: Kernels):
        self.ops, self.seconds = ops, Counter()

    def __getattr__(self, name: str):
        method = getattr(self.ops, name)
        if name not in vars(Kernels):
            return method

        def timed(*arguments, **options):
            device = core_device(current_device().index)
            device.sync()
            start = time.perf_counter()
            result = method(*arguments, **options)
            device.sync()
            self.seconds[name] += time.perf_counter() - start
            return result

        return timed


if __name__ == "__main__":
    main(*sys.argv[1:])
