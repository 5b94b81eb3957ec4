"""Peers: PyTorch's kernels on the same arrays as minllm's, only for comparison in benchmarks.

A DeviceArray becomes a tensor without a copy, through the CUDA array interface. So does a NumPy array: without a GPU the tests run the
peers on the CPU.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from minllm.catalogue.matmul.quantized import quantized_rows
from minllm.kernels.matmul.quantized.rows import QuantizedRows

INTEGERS = {1: np.uint8, 2: np.int16, 4: np.int32}  # {item size: integer type}, because the interface has no name for bfloat16
INT_MM_ROWS, TINYGEMM_TILES = 32, 8  # rows to which x is padded for _int_mm; tiles of K that tinygemm packs together
FLOPS_SIZE = 8192  # size of the square GEMM that measures the ceiling of the tensor cores


@dataclass(frozen=True)
class Peer:
    """A peer with its tensors allocated."""

    launches: Sequence[Callable[[], None]]  # one per set of inputs
    result: Callable[[], np.ndarray]  # the output of the first launch, float32, in minllm's layout


class Interface:
    """A DeviceArray with the CUDA array interface, as integers of the same size."""

    def __init__(self, array):
        integer = np.dtype(INTEGERS[array.dtype.itemsize]).str
        self.__cuda_array_interface__ = dict(shape=array.shape, typestr=integer, data=(array.pointer, False), version=2)
        self.array = array  # keeps the memory alive


def as_torch(array) -> torch.Tensor:
    """A tensor over the memory of a DeviceArray or a NumPy array."""
    if isinstance(array, np.ndarray):
        tensor = torch.from_numpy(array.view(INTEGERS[array.dtype.itemsize]))
    else:
        tensor = torch.as_tensor(Interface(array), device="cuda")
    return tensor.view(getattr(torch, array.dtype.name))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A float32 copy of a tensor on the host."""
    return tensor.float().cpu().numpy()


def matmul_peer(inputs: Sequence[Mapping[str, Any]]) -> Peer:
    """x @ weight.T by cuBLAS."""
    pairs = [(as_torch(arrays["x"]), as_torch(arrays["weight"])) for arrays in inputs]
    return Peer([lambda pair=pair: linear(*pair) for pair in pairs], lambda: to_numpy(linear(*pairs[0])))


def softmax_peer(inputs: Sequence[Mapping[str, Any]]) -> Peer:
    """The softmax of each row of x."""
    sets = [as_torch(arrays["x"]) for arrays in inputs]
    return Peer([lambda x=x: torch.softmax(x, dim=-1) for x in sets], lambda: to_numpy(torch.softmax(sets[0], dim=-1)))


def contiguous(cache: torch.Tensor, tables: torch.Tensor, context: int) -> torch.Tensor:
    """A paged cache [blocks, block_size, kv_heads, d] copied to PyTorch's layout, [sequences, kv_heads, context, d]."""
    blocks = cache[tables.long()]  # [sequences, blocks per sequence, block_size, kv_heads, d]
    return blocks.flatten(1, 2)[:, :context].transpose(1, 2).contiguous()


def attention_peer(inputs: Sequence[Mapping[str, Any]], backend: SDPBackend) -> Peer:
    """scaled_dot_product_attention by one backend: causal for prompts, over all keys for a single new token."""
    sets = []
    for arrays in inputs:
        sequences, context = arrays["block_tables"].shape[0], int(as_torch(arrays["context_lens"]).max())
        query = as_torch(arrays["query"])  # [sequences * tokens, heads, d]
        query = query.unflatten(0, (sequences, -1)).transpose(1, 2).contiguous()  # [sequences, heads, tokens, d]
        tables = as_torch(arrays["block_tables"])
        sets.append((query, *(contiguous(as_torch(arrays[name]), tables, context) for name in ("key_cache", "value_cache"))))
    causal = sets[0][0].shape[2] > 1

    def attend(query, key, value):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1])

    def result():
        return to_numpy(attend(*sets[0]).transpose(1, 2).flatten(0, 1))  # [sequences * tokens, heads, d]

    return Peer([lambda one=one: attend(*one) for one in sets], result)


def scaled_peer(inputs: Sequence[Mapping[str, Any]], by_row: bool) -> Peer:
    """_scaled_mm of fp8 codes with fast accumulation, with scales per row and channel if by_row.

    Otherwise its scales per tensor are 1, and the result is scaled per row and channel on the host.
    """
    sets, ones = [], None
    for arrays in inputs:
        (x, x_scales), weight = codes_of_x(arrays, "fp8"), arrays["weight"]
        codes = [one.view(torch.float8_e4m3fn) for one in (x, as_torch(weight.codes))]
        ones = torch.ones((), device=x.device)
        scales = (x_scales[:, None], as_torch(weight.scales)[None, :]) if by_row else (ones, ones)
        sets.append((codes[0], codes[1].T, *scales))

    def multiply(x, weight, x_scale, scale):
        return torch._scaled_mm(x, weight, scale_a=x_scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True)

    def result():
        found = to_numpy(multiply(*sets[0]))
        return found if by_row else found * scales_of_outputs(inputs[0], "fp8")

    return Peer([lambda one=one: multiply(*one) for one in sets], result)


def codes_of_x(arrays: Mapping[str, Any], code: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes of x as bytes, and the scales of its rows; minllm's launcher may quantise x itself."""
    x = arrays["x"]
    if isinstance(x, QuantizedRows):
        return as_torch(x.codes), as_torch(x.scales)
    numbers = as_torch(x)
    codes, scales = (torch.from_numpy(one).to(numbers.device) for one in quantized_rows(to_numpy(numbers), code))
    return codes, scales


def scales_of_outputs(arrays: Mapping[str, Any], code: str) -> np.ndarray:
    """The product of the scales of row and channel, float32 [M, N]."""
    return to_numpy(codes_of_x(arrays, code)[1])[:, None] * to_numpy(as_torch(arrays["weight"].scales))


def int8_peer(inputs: Sequence[Mapping[str, Any]]) -> Peer:
    """_int_mm of int8 codes; it requires more than 16 rows, so x is padded to at least INT_MM_ROWS."""
    sets = []
    for arrays in inputs:
        x = codes_of_x(arrays, "int8")[0].view(torch.int8)
        rows = len(x)
        sets.append((torch.nn.functional.pad(x, (0, 0, 0, max(0, INT_MM_ROWS - rows))), as_torch(arrays["weight"].codes).T))

    def result():
        return to_numpy(torch._int_mm(*sets[0]))[:rows] * scales_of_outputs(inputs[0], "int8")

    return Peer([lambda one=one: torch._int_mm(*one) for one in sets], result)


def int4_peer(inputs: Sequence[Mapping[str, Any]]) -> Peer:
    """tinygemm's GEMM with symmetric int4 weights in groups, packed in tinygemm's order."""
    from minllm.kernels.quantization.reference import unpack_nibbles

    small, n = inputs[0]["small"], inputs[0]["weight"].codes.shape[0]
    codes, scales = (as_torch(one).cpu().numpy() for one in (small.codes, small.scales))
    codes, scales = unpack_nibbles(codes).astype(np.uint8), scales.astype(np.float32)
    pairs = np.resize(codes[:, ::2] << 4 | codes[:, 1::2], (n, codes.shape[1] // 2))
    scale = np.take(scales, np.arange(n) % scales.shape[1], axis=1)  # [groups, n]
    of_groups = torch.from_numpy(np.stack([scale, np.zeros_like(scale)], axis=2)).to(torch.bfloat16)
    group_size = codes.shape[1] // len(scales)
    sets = []
    for arrays in inputs:
        x = as_torch(arrays["x"])
        packed = torch._convert_weight_to_int4pack(torch.from_numpy(pairs).to(x.device), TINYGEMM_TILES)
        sets.append((x, packed, group_size, of_groups.to(x.device)))
    multiply = torch._weight_int4pack_mm
    return Peer([lambda one=one: multiply(*one) for one in sets], lambda: to_numpy(multiply(*sets[0])))


def experts_peer(inputs: Sequence[Mapping[str, Any]], multiply: Callable[..., torch.Tensor]) -> Peer:
    """The GEMMs of experts by multiply(x, weight, ends), without the activation between gate and up, which is that of the result only.

    x [P, K] in the order of experts, weight [E, N, K], ends int32 [E]: where the experts' rows end.
    """
    sets = []
    for arrays in inputs:
        offsets, stack = as_torch(arrays["offsets"]), arrays["gate_up" if "gate_up" in arrays else "down"]
        x = as_torch(arrays["x" if "gate_up" in arrays else "activated"])
        sets.append((x, as_torch(stack).unflatten(0, (len(offsets) - 1, -1)), offsets[1:].contiguous()))

    def result():
        found = multiply(*sets[0])
        if "gate_up" in inputs[0]:
            gate, up = found.float().chunk(2, dim=1)
            return to_numpy(torch.nn.functional.silu(gate) * up)
        out = torch.empty_like(found)
        out[as_torch(inputs[0]["pairs"]).long()] = found
        return to_numpy(out)

    return Peer([lambda one=one: multiply(*one) for one in sets], result)


def grouped(x, weight, ends):
    """One kernel for all experts."""
    return torch._grouped_mm(x, weight.transpose(1, 2), offs=ends)


def expert_by_expert(inputs: Sequence[Mapping[str, Any]]) -> Peer:
    """A GEMM of cuBLAS per expert; the host knows the experts' rows before the measurement."""
    bounds = as_torch(inputs[0]["offsets"]).tolist()

    def multiply(x, weight, ends):
        out = torch.empty(len(x), weight.shape[1], dtype=x.dtype, device=x.device)
        for first, end, matrix in zip(bounds, bounds[1:], weight):
            torch.mm(x[first:end], matrix.T, out=out[first:end])
        return out

    return experts_peer(inputs, multiply)


PEERS: dict[str, Callable[[Sequence[Mapping[str, Any]]], Peer]] = {
    "cuBLAS": matmul_peer,
    "softmax": softmax_peer,
    "SDPA FlashAttention-2": lambda inputs: attention_peer(inputs, SDPBackend.FLASH_ATTENTION),
    "_scaled_mm, per tensor": lambda inputs: scaled_peer(inputs, by_row=False),
    "_scaled_mm, per row": lambda inputs: scaled_peer(inputs, by_row=True),
    "_int_mm": int8_peer,
    "_weight_int4pack_mm": int4_peer,
    "_grouped_mm": lambda inputs: experts_peer(inputs, grouped),
    "cuBLAS, expert by expert": expert_by_expert,
    "SDPA cuDNN": lambda inputs: attention_peer(inputs, SDPBackend.CUDNN_ATTENTION),
}


class TorchClock:
    """timing.Clock for PyTorch's launches, on a stream of PyTorch."""

    def __init__(self):
        torch.cuda.synchronize()  # waits for minllm's copies and kernels
        self.stream = torch.cuda.Stream()

    def seconds(self, calls: Sequence[Callable[[], None]]) -> list[float]:
        """Run the calls one after another, wait for them, and return the seconds of each."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
        with torch.cuda.stream(self.stream):
            events[0].record()
            for call, event in zip(calls, events[1:], strict=True):
                call()
                event.record()
        self.stream.synchronize()
        return [1e-3 * before.elapsed_time(after) for before, after in zip(events[:-1], events[1:], strict=True)]

    def graph(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
        """Capture what the calls launch, without running it, and return a call that replays it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for call in calls:
                call()
        return graph.replay


def bf16_tflops() -> float:
    """TFLOP/s of cuBLAS for a large square GEMM of bfloat16 noise: the measured ceiling of the tensor cores."""
    from minllm.bench.timing import median_seconds

    x, weight = (torch.randn(FLOPS_SIZE, FLOPS_SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * FLOPS_SIZE**3 / median_seconds([lambda: linear(x, weight)], TorchClock()) / 1e12


def forget() -> None:
    """Free the memory of finished peers."""
    torch.cuda.empty_cache()
