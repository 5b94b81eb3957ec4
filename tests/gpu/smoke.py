"""Whether this GPU, its driver and this installation work, in 90 seconds from an empty kernel cache: `make smoke`.

The doctor's findings come first: Python, packages, driver, compilers, GPU, and a trial kernel. Then each piece of the GPU's host side is
tried, on top of those before it, down to the bundled model's text. A line per piece says ok or FAILED, and what to do.
"""

import faulthandler
import sys
import time
from collections.abc import Callable

import numpy as np

from minllm import LLM, SamplingParams
from minllm.cli.trial_kernel import try_kernel
from minllm.machine.devices import look
from minllm.machine.doctor import diagnose, is_broken
from minllm.runtime.device import device_names
from minllm.runtime.peer_devices import why_no_peers

PIECE_SECONDS = 120  # a piece that takes longer hangs: the process then ends, with the stacks of all threads
PROMPT, NUM_TOKENS = "class Point:\n    def __init__(self, x, y):", 48
NEAR = 0.5  # how far the logit of a token chosen in bfloat16 may lie below the highest in float32


def memory() -> str:
    """A copy to the GPU and back."""
    from minllm.runtime.device import current_device
    from minllm.runtime.memory import to_device

    host = np.arange(1 << 24, dtype=np.float32).reshape(64, -1)
    np.testing.assert_array_equal(to_device(host)[3:5].copy_to_host(), host[3:5])
    free, total = current_device().memory_info()
    return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"


def pinned_memory() -> str:
    """An asynchronous copy into page-locked memory, and its event."""
    from minllm.runtime.memory import pinned_empty, to_device
    from minllm.runtime.stream import compute_stream, read_later

    host = pinned_empty((1 << 20,), np.int32)
    read_later(to_device(np.arange(1 << 20, dtype=np.int32)), host, compute_stream()).sync()
    np.testing.assert_array_equal(host, np.arange(1 << 20))
    return "asynchronous copies arrive"


def graphs() -> str:
    """A kernel captured once and replayed with new inputs."""
    from minllm.kernels.activation.silu import silu_and_multiply, silu_and_multiply_reference
    from minllm.runtime.graph import CapturedGraph
    from minllm.runtime.memory import device_memory, to_device
    from minllm.runtime.stream import compute_stream

    hosts = np.random.default_rng(0).standard_normal((3, 3, 256), dtype=np.float32)
    gate_up, out = to_device(hosts[0]), to_device(np.zeros((3, 128), np.float32))
    silu_and_multiply(gate_up, out, stream=compute_stream())
    graph = CapturedGraph(lambda: silu_and_multiply(gate_up, out, stream=compute_stream()), compute_stream(), device_memory())
    for host in hosts:
        gate_up.copy_from_host(host)
        graph.launch()
        np.testing.assert_allclose(out.copy_to_host(), silu_and_multiply_reference(host), rtol=0, atol=1e-4)
    return "captured and replayed"


def virtual_memory() -> str:
    """Pages mapped and unmapped within a terabyte of addresses."""
    from minllm.runtime.cuda_pages import CudaPages
    from minllm.runtime.virtual_memory import PagePool, VirtualRange

    pages = PagePool(CudaPages(), limit=4)
    addresses = VirtualRange(pages, 1 << 40)
    addresses.map(1, 2)
    page = addresses.array((3, pages.page_bytes), np.uint8)[2]
    page.fill_bytes(7)
    assert (page.copy_to_host() == 7).all(), "a mapped page does not keep what is written to it"
    addresses.close()
    return f"pages of {pages.page_bytes >> 20} MiB"


def model() -> str:
    """The bundled model's greedy text, each token of which the CPU's logits find likeliest, or nearly so."""
    with LLM(device="cuda", progress=True) as llm:
        prompt, start = llm.tokenizer.encode(PROMPT), time.perf_counter()
        (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True))
        rate, found = NUM_TOKENS / (time.perf_counter() - start), list(output.outputs[0].token_ids)
    with LLM(device="cpu", max_num_seqs=1) as llm:
        logits = llm.logits(prompt + found)[len(prompt) - 1 : -1]
    below = logits.max(axis=1) - logits[np.arange(NUM_TOKENS), found]
    assert below.max() < NEAR, f"token {below.argmax()} of {output.outputs[0].text!r} lies {below.max():.2f} below the CPU's likeliest"
    return f"{rate:.0f} tokens/s\n{PROMPT}{output.outputs[0].text}"


def peers() -> str:
    """The sum of two GPUs' arrays, which each reads from the other's memory; on one GPU, of two streams'."""
    if reason := why_no_peers(min(2, len(device_names()))):
        return f"not tried: {reason}. NCCL then copies through the host's memory"
    from tests.gpu.peer_gpus import ONE_GPU, PeerGpus
    from tests.kernels.all_reduce.cases import NAMES, check_all_reduce

    check_all_reduce(NAMES[0], 4104, np.dtype(np.float32), PeerGpus(2, 1 << 16))
    return "two ranks of one GPU wait for each other" if ONE_GPU else "two GPUs read each other's memory"


PIECES: dict[Callable[[], str], str] = {  # what to do if one fails
    memory: "nvidia-smi lists the processes that hold the GPU's memory, and its ECC errors",
    pinned_memory: "ulimit -l limits locked memory; a container may need --ulimit memlock=-1",
    graphs: "a newer NVIDIA driver; enforce_eager=True runs models without graphs",
    virtual_memory: 'a newer NVIDIA driver; kv_cache_policy="paged", the default, does without',
    model: "python -m pytest tests/gpu -x -n 4 finds the kernel that is wrong",
    peers: "nvidia-smi topo -p2p r; in a virtual machine, IOMMU and ACS settings",
}


def main() -> int:
    """Print the verdicts; returns the exit code, 0 if everything works and 1 otherwise, also without a GPU."""
    machine = look(try_kernel)
    findings = diagnose(machine)
    for finding in findings:
        say("FAILED" if finding.level == "problem" else finding.level, f"{finding.subject}: {finding.text}", finding.mend)
    if is_broken(findings):
        print("This installation does not work.")
        return 1
    if machine.device is None:
        print("There is no GPU here, so nothing was tried: `make test` tests what needs none.")
        return 1
    failed = [piece.__name__ for piece, mend in PIECES.items() if not works(piece, mend)]
    print(f"This GPU fails at {', '.join(failed)}." if failed else "This GPU, its driver and this installation work.")
    return bool(failed)


def works(piece: Callable[[], str], mend: str) -> bool:
    """Try a piece, and say whether it works."""
    name, start = piece.__name__.replace("_", " "), time.perf_counter()
    faulthandler.dump_traceback_later(PIECE_SECONDS, exit=True, file=sys.__stderr__)
    try:
        found, error = piece(), None
    except Exception as raised:
        error = raised
    finally:
        faulthandler.cancel_dump_traceback_later()
    seconds = f"({time.perf_counter() - start:.1f} s)"
    if error is None:
        say("ok", f"{name} {seconds}: {found}")
    else:
        say("FAILED", f"{name} {seconds}: {piece.__doc__} {type(error).__name__}: {error}", mend)
    return error is None


def say(verdict: str, text: str, mend: str = "") -> None:
    """Print one verdict."""
    print(f"{verdict:<8}{text}", *([f"        to fix it: {mend}"] if mend else []), sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
