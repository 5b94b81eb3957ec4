"""The benchmarks of kernels: none is missing, what they count is right, their checks catch mistakes, and what they print is the format."""

import math
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
import torch

from minllm import sim
from minllm.bench import kernels, torch_peers
from minllm.bench.kernel_case import (
    BFLOAT16,
    FLOAT32,
    MICROSECONDS,
    TB_S,
    TFLOP_S,
    TOKENS_US,
    Prepared,
    Rival,
    relative_error,
    rounded,
    some_of,
)
from minllm.bench.kernel_cases import STAGES, kernel_cases
from minllm.bench.record import Row
from minllm.bench.timing import REPLAY_BELOW, input_sets, median_seconds
from minllm.catalogue.attention import benchmarks
from minllm.catalogue.matmul.products import matmul_bytes, matmul_flops
from minllm.catalogue.noise import Noise
from minllm.catalogue.sampling import RULES
from minllm.errors import DeviceError, InvalidOptionError
from minllm.kernels.attention import VARIANTS as ATTENTION
from minllm.kernels.matmul import VARIANTS as MATMUL
from minllm.ops.cuda_ops import CudaOps
from minllm.weights.quantized_kernels import KERNELS
from tests.bench.tiny_cases import TINY_CASES, name_of

pytestmark = pytest.mark.results_only

LAUNCHERS = {
    "matmul": set(MATMUL),
    "attention": set(ATTENTION),
    "embedding": {"embedding", "embedding with positions"},
    "normalization": {"rms_norm", "layer_norm"},
    "rope": {"rope"},
    "activation": {"silu_and_multiply", "gelu", "gelu_tanh"},
    "kv": {
        "append",
        "qkv_rope_append",
        "qkv_rope_append with norms",
        "append_quantized",
        "copy_blocks",
        "qkv_rope_append_quantized",
        "quantize_groups",
        "move_window",
    },
    "sampling": {*RULES, "log_probabilities"},
    "slots": {"write_slots", "load_rows", "advance"},
    "experts": {
        "normed_router",
        "route",
        "sort_by_expert",
        "gather_rows",
        "wgmma_gate_up",
        "wgmma_down",
        "combine",
        "combine_norm",
        *(f"{name}{form}" for form in ("", "_int4", "_fp8") for name in ("gate_up_gemv", "down_gemv", "grouped_gate_up", "grouped_down")),
    },
    "quantised": {"chosen", "int4_naive", *(name for found in KERNELS.values() for name in found.variants)},
}
GEMM = next(case for case in TINY_CASES if case.peers == ("cuBLAS",))
CEILINGS = {"copy_tb_s": 4.0, "bf16_tflops": 800.0}
SLOW_IN_THE_SIMULATOR = ("top_k", "top_p", "top_k, top_p and min_p")  # seconds for a search through all logits


def simulated(case, sets=2):
    return case.prepare(CudaOps(simulated=True), Noise(length=10007), sets)


@pytest.mark.parametrize("stage", STAGES)
def test_every_kernel_of_a_stage_is_measured(stage):
    assert {case.variant for case in kernel_cases((stage,))} == LAUNCHERS[stage]
    assert {case.variant for case in TINY_CASES if case.stage == stage} == LAUNCHERS[stage]


def test_no_two_rows_are_told_apart_by_nothing():
    cases = kernel_cases()
    assert len({(case.benchmark, case.case, case.variant) for case in cases}) == len(cases) > 40
    assert {case.stage for case in cases} == set(STAGES)


def found(benchmark, variant, start):
    (case,) = [c for c in kernel_cases() if c.benchmark == benchmark and c.variant == variant and c.case.startswith(start)]
    return case


@pytest.mark.parametrize(
    ("benchmark", "variant", "start", "unit", "work"),
    [
        ("matmul", "tensor_core", "4096x4096x4096", TFLOP_S, 137_438_953_472),  # 2 * 4096**3
        ("matmul", "gemv", "1x6144x4096", TB_S, 2 * (4096 + 25_165_824 + 6144)),
        ("matmul", "gemv", "8x6144x4096", TB_S, 2 * (32768 + 25_165_824 + 49152)),
        ("prefill attention", "materialized", "1x512", TFLOP_S, 4 * 32 * 128 * 131_328),  # 512 * 513 / 2 pairs
        ("prefill attention", "flash_attention_2", "4x2048", TFLOP_S, 4 * 4 * 32 * 128 * 2_098_176),
        ("prefill attention", "flash_attention_3", "1x16384, 32/8 heads, d 64", TFLOP_S, 4 * 32 * 64 * 134_225_920),
        ("decode attention", "split_kv", "64x1024", TB_S, 268_435_456),  # 64 * 1024 keys of 8 heads of 128, twice, 2 bytes each
        ("decode attention", "split_kv", "1x600", TB_S, 1_228_800),
        ("embedding", "embedding", "16384x4096", TB_S, 268_435_456),
        ("embedding", "embedding with positions", "16384x4096", TB_S, 402_653_184),
        ("normalization", "rms_norm", "16384x4096", TB_S, 536_870_912 + 8192),
        ("normalization", "layer_norm", "16384x4096", TB_S, 536_870_912 + 16384),
        ("rope", "rope", "16384x32x128", TB_S, 268_435_456 + 8_388_608),
        ("activation", "silu_and_multiply", "2048x14336", TB_S, 176_160_768),
        ("activation", "gelu", "8192x8192", TB_S, 268_435_456),
        ("kv", "append", "65536x8x128", TB_S, 536_870_912),
        ("kv", "qkv_rope_append", "10240x", TB_S, 251_658_240),  # 10240 tokens of 48 heads of 256 bytes, twice
        ("sampling", "greedy", "64x128256", MICROSECONDS, 32_833_536),
        ("experts", "gate_up_gemv", "1 token, 8 of 32", TB_S, 8 * 2 * 2048 * 768 * 2),
        ("experts", "down_gemv_int4", "1 token, 8 of 32", TB_S, 8 * 2048 * 768 // 2),
        ("experts", "wgmma_down", "2048 tokens", TFLOP_S, 2 * 2048 * 8 * 2048 * 768),
        ("matmul, quantised", "tensor_core_gemv", "2 rows x 6144x4096, int4 in groups of 128", MICROSECONDS, 12_582_912 + 393_216 + 40_960),
        ("matmul, quantised", "wgmma", "256 rows x 4096x4096, int8", MICROSECONDS, 16_777_216 + 16_384 + 4_194_304),
        ("matmul, quantised", "wgmma", "2048 rows x 4096x4096, int8", MICROSECONDS, 0),  # arithmetic limits it
    ],
)
def test_bytes_and_operations_are_those_counted_by_hand(benchmark, variant, start, unit, work):
    case = found(benchmark, variant, start)
    assert (case.unit, case.work) == (unit, work)


def test_tokens_of_context_are_counted_beside_their_bytes():
    """64 * 4096 tokens of 8 heads, K and V: 128 codes and a scale and a zero each, or half the codes and four pairs."""
    for name, head_bytes in (("int8", 132), ("int4", 80), ("fp8_e4m3", 128)):
        case = found("decode attention, quantised", "split_quantized", f"64x4096, 32/8 heads, d 128, {name}, contiguous")
        assert (case.unit, case.tokens, case.work) == (TOKENS_US, 262_144, 262_144 * 16 * head_bytes)
        assert case.value(1e-3) == pytest.approx(262.144)
        assert case.limit({"copy_tb_s": 4.0}) == pytest.approx(4e6 / (16 * head_bytes))


def test_a_rival_of_our_own_is_measured_in_turn():
    launch = [lambda: None]
    prepared = Prepared(launch, [], lambda: np.ones(1), lambda out: 0.0, Rival("another", launch))
    case = found("decode attention, quantised", "split_quantized", "64x4096, 32/8 heads, d 128, int8, contiguous")
    case = replace(case, prepare=lambda *_: prepared)
    row = kernels.KernelBench(None, FakeClock(2e-3), 1, CEILINGS).row(case)
    assert (row.peer, row.ratio, row.value, row.peer_value, row.unit) == ("another", 1.0, 131.1, 131.1, TOKENS_US)


def test_arrays_of_the_glue_are_larger_than_any_cache():
    stages = ("embedding", "normalization", "rope", "activation", "kv")
    measured = [case for case in kernel_cases(stages) if case.unit == TB_S]
    assert {case.stage for case in measured} == set(stages) and all(case.set_bytes > 128e6 for case in measured)


@pytest.mark.covering("case.benchmark + case.variant")
@pytest.mark.parametrize("case", [case for case in TINY_CASES if case.variant not in SLOW_IN_THE_SIMULATOR], ids=name_of)
def test_a_right_result_passes_and_a_wrong_one_does_not(case, monkeypatch, request):
    prepared = simulated(case)
    error = kernels.checked_error(case, prepared)
    assert error <= case.allowed_error
    result = prepared.result()
    assert prepared.error(np.roll(result, 1, axis=-1) if result.dtype != np.int32 else result + 1) > case.allowed_error
    launched = replace(prepared, launches=[lambda: None])  # its result is there already
    broken = replace(launched, result=lambda: np.full(result.shape, np.nan, np.float32))
    with pytest.raises(DeviceError, match="not timed"):
        kernels.checked_error(case, broken)
    if not request.config.option.exhaustive:
        monkeypatch.setattr(sim, "simulate", lambda *_, **__: None)
    for launch in prepared.launches[1:]:  # the launchers take the other sets' arrays as well
        launch()


@pytest.mark.parametrize("case", [case for case in TINY_CASES if case.peers], ids=name_of)
def test_peers_compute_the_same(case):
    prepared = simulated(case)
    names = [name for name in case.peers if name not in ("SDPA cuDNN", "_weight_int4pack_mm")]  # these need a GPU
    for name in names:
        peer = torch_peers.PEERS[name](prepared.inputs)
        assert len(peer.launches) == len(prepared.launches)
        assert prepared.error(peer.result()) <= case.allowed_error


def test_tensors_share_the_memory_of_arrays():
    array = np.arange(6, dtype=np.float32).reshape(2, 3).astype(BFLOAT16)
    tensor = torch_peers.as_torch(array)
    assert tensor.dtype == torch.bfloat16 and tensor.tolist() == array.tolist()
    array[0, 0] = 7
    assert tensor[0, 0] == 7


class Described:
    """What as_torch asks of a DeviceArray."""

    shape, dtype, pointer = (3, 5), BFLOAT16, 4096


def test_device_arrays_are_described_as_numba_and_cupy_do():
    interface = torch_peers.Interface(Described()).__cuda_array_interface__
    assert interface == dict(shape=(3, 5), typestr="<i2", data=(4096, False), version=2)


class FakeClock:
    """A clock on which every launch takes `seconds`, and each call that the host makes takes `overhead` more."""

    def __init__(self, seconds, overhead=0.0):
        self.each, self.overhead, self.replays, self.recorded = seconds, overhead, 0, 0

    def seconds(self, calls):
        results = [call() for call in calls]
        return [self.overhead + (result if isinstance(result, float) else self.each) for result in results]

    def graph(self, calls):
        self.recorded = len(calls)

        def replay():
            self.replays += 1
            return self.each * len(calls)

        return replay


def test_short_launches_are_replayed_and_hosts_do_not_count():
    clock = FakeClock(2e-6, overhead=15e-6)
    seconds = median_seconds([lambda: None] * 3, clock)
    assert clock.replays > 10 and clock.recorded % 3 == 0 and clock.recorded > 100
    assert seconds == pytest.approx(2e-6 + 15e-6 / clock.recorded)


def test_long_launches_are_timed_one_by_one_over_all_sets():
    clock, used = FakeClock(2 * REPLAY_BELOW), []
    assert median_seconds([lambda i=i: used.append(i) for i in range(3)], clock) == pytest.approx(2 * REPLAY_BELOW)
    assert clock.replays == 0 and min(used.count(i) for i in range(3)) >= 9
    assert max(used.count(i) for i in range(3)) - min(used.count(i) for i in range(3)) <= 1


@pytest.mark.parametrize(("set_bytes", "sets"), [(1, 400), (99, 5), (400, 1), (10**9, 1)])
def test_sets_of_inputs_fill_the_cache_four_times(set_bytes, sets):
    assert input_sets(set_bytes, 100) == sets


def test_rows_have_the_format_and_hold_shares_in_speed():
    case = found("matmul", "tensor_core", "4096x4096x4096")
    row = case.row(1e-3, 2e-3, CEILINGS, "torch cuBLAS", 5e-4, 1.9e-3)
    assert row == Row(
        "matmul", "4096x4096x4096, bfloat16", "tensor_core", 137.4, "TFLOP/s", "torch cuBLAS", 274.9, 0.5, 800.0, 0.1718, 2e-3, 1.9e-3
    )
    time = found("sampling", "greedy", "64x128256").row(20e-6, 0.0, CEILINGS)
    assert time.value == 20.0 and time.limit == rounded(32.833536 / 4) and time.of_limit == pytest.approx(time.limit / 20, rel=1e-3)
    assert set(asdict(time)) == {field.name for field in fields(Row)}
    assert found("matmul", "tiled", "2048x2048x2048, float32").row(1e-3, 0.0, CEILINGS).limit is None
    assert found("kv", "append", "65536").row(2e-4, 0.0, CEILINGS).of_limit == pytest.approx(2.684 / 4, rel=1e-3)
    assert found("sampling", "advance", "64 rows").row(2e-6, 0.0, CEILINGS).limit is None


def test_cases_are_chosen_by_the_beginning_of_their_names():
    (gemm,) = kernels.chosen_cases((), ["matmul, 8192x8192x8192, bfloat16, wgmma"])
    assert gemm.name == "matmul, 8192x8192x8192, bfloat16, wgmma"
    both = kernels.chosen_cases(("matmul",), ["matmul, 8192x8192x8192, bfloat16, w", gemm.name])
    assert [case.variant for case in both] == ["warpgroup", "warp_specialized", "wgmma"]
    with pytest.raises(InvalidOptionError, match="begins no row's name, such as 'matmul, 2048x2048x2048"):
        kernels.chosen_cases(("matmul",), ["decode attention"])


def test_a_row_names_the_fastest_peer(monkeypatch):
    clocks = iter([FakeClock(3.0), FakeClock(2.0)])
    monkeypatch.setattr(torch_peers, "TorchClock", lambda: next(clocks))
    monkeypatch.setitem(torch_peers.PEERS, "another", torch_peers.PEERS["cuBLAS"])
    case = replace(GEMM, peers=("cuBLAS", "another"))
    bench = kernels.KernelBench(CudaOps(simulated=True), FakeClock(1.0), 1, CEILINGS, torch_peers)
    row = bench.row(case)
    assert (row.peer, row.ratio, row.peer_error) == ("torch another", 2.0, pytest.approx(row.error, rel=0.5))
    assert "2.00 another" in kernels.as_line(row)


def test_a_peer_that_refuses_leaves_a_row_without_a_peer(monkeypatch, capsys):
    def refuses(inputs):
        raise RuntimeError("no kernel for this\nand much more")

    monkeypatch.setitem(torch_peers.PEERS, "cuBLAS", refuses)
    bench = kernels.KernelBench(CudaOps(simulated=True), FakeClock(1.0), 1, CEILINGS, torch_peers)
    row = bench.row(GEMM)
    assert row.peer is None and row.ratio is None and "no kernel for this" in capsys.readouterr().err


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(InvalidOptionError, match="matmul, attention"):
        kernels.run(["matmull"], None, None)
    with pytest.raises(InvalidOptionError, match="torch"):
        kernels.run([], "tensorflow", None)


def test_noise_is_noise_and_repeats_nothing_at_powers_of_two():
    noise = Noise(length=10007)
    first, second = noise.array((64, 1024), FLOAT32), noise.array((64, 1024), FLOAT32)
    assert abs(first.mean()) < 0.05 and abs(first.std() - 1) < 0.05
    assert (first != second).mean() > 0.99 and not any(np.array_equal(first[0], row) for row in first[1:])
    assert noise.array((5000,), BFLOAT16, deviation=3.0).astype(np.float32).std() == pytest.approx(3, rel=0.1)


def test_errors_are_relative_and_nan_is_one():
    assert relative_error(np.array([3.0, 4.4]), np.array([3.0, 4.0])) == pytest.approx(0.08)
    assert math.isnan(relative_error(np.array([np.nan]), np.array([1.0])))
    assert relative_error(np.zeros(2), np.zeros(2)) == 0


def test_samples_hold_both_ends():
    assert some_of(5, 8, Noise(length=11)).tolist() == [0, 1, 2, 3, 4]
    chosen = some_of(1000, 8, Noise(length=11))
    assert chosen[0] == 0 and chosen[-1] == 999 and 3 <= len(chosen) <= 8


def test_counts_of_the_formulas():
    assert matmul_flops(2, 3, 5) == 60 and matmul_bytes(2, 3, 5, 2) == 62
    assert benchmarks.prefill_flops(2, 3, 4, 8) == 4 * 4 * 8 * 2 * 6
    assert benchmarks.key_value_bytes(2, 3, 4, 8, 2) == 768
