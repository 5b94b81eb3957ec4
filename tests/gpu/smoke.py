"""The GPU's host side piece by piece, each on top of those before: `python -m tests.gpu.smoke` prints what works, what fails, and times."""

import sys
import time
import traceback

import numpy as np

from minllm.kernels.sampling.sample import SampleScratch, sample
from tests.kernels.sampling.cases import RULES, expected_tokens, logits_of, run_sample, slots_of, tensors


def device():
    """The primary context, and what the driver says about the device."""
    from minllm.runtime.device import current_device, is_available

    assert is_available(), "is_available() says that there is no GPU"
    found = current_device()
    return f"{found}, free memory {found.memory_info()[0] / 2**30:.1f} GiB"


def memory():
    """A copy there and back."""
    from minllm.runtime.memory import to_device

    host = np.arange(1000, dtype=np.float32).reshape(10, 100)
    np.testing.assert_array_equal(to_device(host)[3:5].copy_to_host(), host[3:5])


def pinned():
    """Page-locked memory, an asynchronous copy and its event."""
    from minllm.runtime.memory import pinned_empty, to_device
    from minllm.runtime.stream import compute_stream, read_later

    host = pinned_empty((100,), np.int32)
    read_later(to_device(np.arange(100, dtype=np.int32)), host, compute_stream()).sync()
    np.testing.assert_array_equal(host, np.arange(100))


def greedy():
    """Two kernels on the default stream."""
    from minllm.runtime.memory import to_device

    logits = logits_of("normal", 2, 32000)
    tokens = run_sample(logits, tensors([dict(temperature=0.0)] * 2, 32000), to_device, lambda array: array.copy_to_host())
    np.testing.assert_array_equal(tokens, np.argmax(logits, axis=1))


def draws():
    """All sampling kernels against the reference."""
    from minllm.runtime.memory import to_device

    logits, sampling = logits_of("normal", len(RULES), 128256), tensors(RULES, 128256)
    tokens = run_sample(logits, sampling, to_device, lambda array: array.copy_to_host())
    np.testing.assert_array_equal(tokens, expected_tokens(logits, sampling))


def replay_time(launch, repeats: int = 20, replays: int = 20) -> float:
    """Microseconds of one `launch`, as nodes of a graph."""
    from minllm.runtime.graph import CapturedGraph
    from minllm.runtime.memory import device_memory
    from minllm.runtime.stream import compute_stream

    stream = compute_stream()
    launch()
    graph = CapturedGraph(lambda: [launch() for _ in range(repeats)], stream, device_memory())
    graph.launch()
    stream.sync()
    start = time.perf_counter()
    for _ in range(replays):
        graph.launch()
    stream.sync()
    return (time.perf_counter() - start) / repeats / replays * 1e6


def sampling_times():
    """Graph capture and replay, and what sampling one row of 128,256 logits costs."""
    from minllm.runtime.memory import empty, to_device
    from minllm.runtime.stream import compute_stream

    lines = []
    for rows in (1, 64):
        logits = to_device(logits_of("normal", rows, 128256))
        slots = to_device(slots_of(logits))
        for rule in (dict(temperature=0.0), dict(), dict(top_k=50), dict(top_p=0.9), dict(top_k=50, top_p=0.9), dict(presence_penalty=0.5)):
            sampling = tensors([rule] * rows, 128256).to(to_device)
            out, scratch = empty((rows,), np.int32), SampleScratch.allocate(empty, rows, 128256, sampling.kind)
            microseconds = replay_time(lambda a=(logits, sampling, slots, out, scratch): sample(*a, compute_stream()))
            lines.append(f"{rows} rows, {rule}: {microseconds:.1f} µs")
    return "\n    ".join(["", *lines])


def operations():
    """A whole forward of small models against NumPy's."""
    from minllm.ops.cuda_ops import CudaOps
    from minllm.ops.numpy_ops import NumpyOps
    from tests.ops.test_cuda_ops import logits_of as model_logits

    chunks = [[[5, 1, 7], [2]], [[3], [9]]]
    for family, dtype, tolerance in (("llama", "float32", 1e-4), ("gpt2", "float32", 1e-4), ("qwen3", "bfloat16", 4e-2)):
        ours, theirs = (model_logits(ops, family, chunks, True) for ops in (CudaOps(dtype), NumpyOps(dtype)))
        for our, their in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(our, their, rtol=0, atol=tolerance * np.abs(their).max(), err_msg=f"{family} {dtype}")


def steps_of(prompts, params, **options):
    """The tokens of requests on the CPU, in eager steps and in replayed ones, which must be equal; says how many graphs were captured."""
    from minllm import LLM
    from tests.engine.models import model_directory

    found, runners = {}, {"cpu": dict(device="cpu"), "eager": dict(device="cuda", enforce_eager=True), "graphs": dict(device="cuda")}
    for name, runner in runners.items():
        with LLM(model_directory("llama3"), dtype="float32", max_model_len=160, max_num_seqs=8, **runner, **options) as llm:
            found[name] = [completion.token_ids for output in llm.generate(prompts, params) for completion in output.outputs]
            captured = 0 if llm.engine.runner.graphs is None else llm.engine.runner.graphs.num_captured
    assert found["cpu"] == found["eager"], f"eager steps differ from NumPy: {found}"
    assert found["cpu"] == found["graphs"], f"replayed steps differ from NumPy: {found}"
    return f"{captured} graphs"


def decode_steps():
    """Requests that begin together: after the prompts only decode steps, each launched before the last one was read."""
    from minllm import SamplingParams
    from tests.models.random_models import prompt

    return steps_of([prompt(3), prompt(17)], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))


def mixed_steps():
    """Chunks of prompts beside decodes, requests that come and go, several completions, and sampling of all kinds."""
    from minllm import SamplingParams
    from tests.models.random_models import prompt

    params = [
        SamplingParams(temperature=i % 2, max_tokens=2 + 5 * i % 19, seed=i, ignore_eos=True, n=3 if i == 5 else 1, top_k=30 * (i % 3 == 1))
        for i in range(20)
    ]
    return steps_of([prompt(1 + 17 * i % 90, seed=i) for i in range(20)], params, max_num_batched_tokens=24)


def preempted_steps():
    """A cache of twelve blocks, whose sequences are swapped to the host or computed again."""
    from minllm import SamplingParams
    from tests.engine.checks import BLOCK_BYTES
    from tests.models.random_models import prompt

    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    options = dict(preemption="auto", kv_cache_memory_bytes=12 * BLOCK_BYTES, swap_space_bytes=64 << 20)
    return steps_of([prompt(9 + i) for i in range(8)], params, **options)


def decoding_time():
    """The bundled model's decode step, if it is there: tokens a second of a replayed graph."""
    from minllm import LLM, SamplingParams

    with LLM(device="cuda") as llm:
        lines = []
        for temperature in (0, 0.8):
            params = SamplingParams(temperature=temperature, seed=0, max_tokens=128, ignore_eos=True)
            llm.generate("def main():", params)
            start = time.perf_counter()
            llm.generate("def main():", params)
            lines.append(f"{temperature=}: {128 / (time.perf_counter() - start):.0f} tokens/s")
    return ", ".join(lines)


PIECES = [device, memory, pinned, greedy, draws, sampling_times, operations, decode_steps, mixed_steps, preempted_steps, decoding_time]


def main() -> int:
    """Run every piece; the number of those that failed."""
    failed = 0
    for piece in PIECES:
        start = time.perf_counter()
        try:
            said = piece() or ""
            print(f"ok      {piece.__name__} ({time.perf_counter() - start:.1f} s) {said}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {piece.__name__}: {piece.__doc__}\n{traceback.format_exc(limit=-6)}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
