"""The batched GEMV over int4 and NF4 in the simulator: bits from run to run, tilings, and errors."""

from types import SimpleNamespace

import numpy as np
import pytest

from minllm.catalogue.matmul.quantized import quantized_product
from minllm.errors import KernelArgumentError
from minllm.kernels.matmul.quantized.batched_gemv import gemv
from minllm.kernels.quantization.int4 import Int4Weight
from minllm.machine.occupancy import WARP
from minllm.runtime.device import SHARED_BYTES_PER_BLOCK
from minllm.weights.formats import WEIGHT_FORMATS
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, bits, random
from tests.kernels.launches import result

FORMS = {name: WEIGHT_FORMATS[name].codec for name in ("int4", "nf4")}
LAUNCHERS = {name: (gemv.make_gemv(form), gemv.make_gated_gemv(form)) for name, form in FORMS.items()}
Tiling = gemv.BatchedGemvTiling
SAME_BITS = [
    quantized_product("batched_gemv", "int4/64", 3, 72, 384, bias=True, tiling=Tiling(2, 2, 2, 1, 8)),
    quantized_product("batched_gemv", "int4/32_minimums", 9, 40, 256, FLOAT16, out_dtype=FLOAT32, tiling=Tiling(2, 1, 2, 1, 16)),
    quantized_product("batched_gemv", "nf4/nested", 11, 40, 384, FLOAT16, gated=True, tiling=Tiling(2, 1, 1, 2, 16)),
]
LENGTHS = [128, 896, 1536, 2048, 2176, 3584, 4096, 5120, 8192, 8960, 11008, 14336, 18944, 28672]


@pytest.mark.results_only
@pytest.mark.parametrize("launch", SAME_BITS, ids=str)
def test_runs_and_grids_of_any_size_give_the_same_bits(launch, device):
    first, again, one_tile_each = (result(launch, device, sms) for sms in (1, 1, 99))
    np.testing.assert_array_equal(bits(first), bits(again))
    np.testing.assert_array_equal(bits(first), bits(one_tile_each))


@pytest.mark.parametrize("name", FORMS)
def test_without_outputs_there_is_nothing_to_do(name):
    x, _, out = arrays_of(name)
    empty = WEIGHT_FORMATS[name].without_contents(SimpleNamespace(empty=np.empty), 0, 256)
    LAUNCHERS[name][0](x, empty, out[:, :0])
    LAUNCHERS[name][1](x, empty, out[:, :0])


def arrays_of(name, m=2, n=4, k=256):
    """Return x, a weight in this format, and out."""
    return random((m, k), BFLOAT16, 0), WEIGHT_FORMATS[name].encode(random((n, k), FLOAT32, 1)), np.empty((m, n), BFLOAT16)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("gated", [False, True])
def test_rows_that_do_not_fit_are_refused(name, gated):
    (x, weight, out), launch = arrays_of(name), LAUNCHERS[name][gated]
    short, short_weight, _ = arrays_of(name, k=192)
    shifted = np.zeros(x.size + 1, BFLOAT16)[1:].reshape(x.shape)
    shifted_codes = np.zeros(weight.codes.size + 1, np.uint8)[1:].reshape(weight.codes.shape)
    words = "takes up to 16 rows of float16 or bfloat16 of a multiple of 128 inputs, rows that begin on multiples of 16 bytes"
    for wrong, of in (
        (np.zeros((17, 256), BFLOAT16), weight), (np.zeros((0, 256), BFLOAT16), weight), (x.astype(FLOAT32), weight), (short, short_weight),
        (shifted, weight), (x, weight._replace(codes=shifted_codes)),
    ):  # fmt: skip
        with pytest.raises(KernelArgumentError, match=rf"x is {wrong.dtype} .*{words}"):
            launch(wrong, of, out)


@pytest.mark.parametrize("name", FORMS)
def test_rows_of_which_a_block_s_part_is_too_long_are_refused(name):
    for m, k in ((2, 1 << 17), (9, 1 << 16)):
        x, weight, out = arrays_of(name, m, k=k)
        with pytest.raises(KernelArgumentError, match=rf"x is bfloat16 \[{m}, {k}\].*take gemv, or widen the weight"):
            LAUNCHERS[name][0](x, weight, out)
        assert gemv.choose_tiling(m, 4, k).shared_bytes(k // 128) > SHARED_BYTES_PER_BLOCK


@pytest.mark.parametrize("name", FORMS)
def test_a_weight_of_another_length_and_rows_with_gaps_are_refused(name):
    x, weight, out = arrays_of(name)
    for k in (128, 512):
        with pytest.raises(KernelArgumentError, match="codes is .* its shape must be" if name != "int4" else "codes|groups"):
            LAUNCHERS[name][0](random((2, k), BFLOAT16, 0), weight, out)
    with pytest.raises(KernelArgumentError, match="x is bfloat16 .* with strides"):
        LAUNCHERS[name][0](np.zeros((2, 512), BFLOAT16)[:, ::2], weight, out)


def test_gate_and_up_are_an_even_number_of_rows():
    x, weight, _ = arrays_of("nf4", n=17)
    with pytest.raises(KernelArgumentError, match="gate_up has 17 rows"):
        LAUNCHERS["nf4"][1](x, weight, np.empty((2, 8), BFLOAT16))


def test_groups_that_do_not_fit_are_refused():
    x, weight, out = arrays_of("int4")
    for groups in (16, 3):  # groups of 16 inputs, and of a third of a row
        with pytest.raises(KernelArgumentError, match="groups of 32, 64 or multiples of 128"):
            LAUNCHERS["int4"][0](x, Int4Weight(weight.codes, np.ones((groups, 4), FLOAT16)), out)
    for other in (dict(minimums=weight.scales.astype(FLOAT32)), dict(scales=weight.scales.astype(np.float64))):
        with pytest.raises(KernelArgumentError, match="take gemv, or widen the weight"):
            LAUNCHERS["int4"][0](x, weight._replace(**other), out)


@pytest.mark.parametrize("name", FORMS)
def test_arrays_beside_x_and_tilings_that_do_not_fit_are_refused(name):
    (x, weight, out), (plain, gated) = arrays_of(name, m=9), LAUNCHERS[name]
    for launch, given, words in (
        (plain, dict(bias=np.zeros(4, FLOAT16)), "bias is float16"), (plain, dict(bias=np.zeros(5, BFLOAT16)), "bias is bfloat16"),
        (plain, dict(out=np.empty((9, 5), BFLOAT16)), "out is bfloat16"), (plain, dict(out=np.empty((8, 4), BFLOAT16)), "out is bfloat16"),
        (plain, dict(out=np.empty((9, 4), FLOAT16)), "out is float16"), (gated, dict(out=np.empty((9, 2), FLOAT32)), "out is float32"),
        (gated, dict(), "out is bfloat16"),
        (plain, dict(tiling=(4, 3, 1, 2, 16)), "divide evenly into groups of `splits`"),
        (plain, dict(tiling=(4, 4, 3, 2, 16)), "a cluster has 1, 2, 4 or 8 blocks"),
        (plain, dict(tiling=(4, 4, 16, 2, 16)), "a cluster has 1, 2, 4 or 8 blocks"),
        (plain, dict(tiling=(4, 4, 1, 2, 24)), "8 or 16 tokens"),
        (plain, dict(tiling=(4, 4, 1, 2, 8)), "9 rows of x"),
        (plain, dict(tiling=(32, 4, 1, 2, 16)), "1 to 16 warps"), (plain, dict(tiling=(4, 4, 1, 0, 16)), "at least one step in flight"),
        (plain, dict(tiling=(4, 4, 1, 64, 16)), "bytes of shared memory; a block has"),
    ):  # fmt: skip
        with pytest.raises(KernelArgumentError, match=words):
            launch(x, weight, **(dict(out=out) | given))


def test_only_hopper_has_room_and_instructions(monkeypatch):
    def arrays(n):
        x = SimpleNamespace(shape=(2, 256), dtype=BFLOAT16, pointer=256)
        codes = SimpleNamespace(shape=(n, 128), dtype=np.dtype(np.uint8), pointer=256)
        return x, SimpleNamespace(codes=codes, scales=SimpleNamespace(shape=(2, n), dtype=FLOAT16), zeros=None, minimums=None)

    for hopper in (False, True):
        monkeypatch.setattr(gemv, "has_wgmma", lambda codes, hopper=hopper: hopper)
        for found in FORMS.values():
            assert gemv.fits(found, *arrays(4)) == hopper
            assert not gemv.fits(found, *arrays(gemv.MOST_CODE_BYTES // 128))


@pytest.mark.parametrize("k", LENGTHS)
def test_chosen_tilings_fit_an_sm_and_pad_little(k):
    steps = k // 128
    for m in (1, 8, 9, 16):
        for n in (1, 1024, 4096, 28672):
            tiling = gemv.choose_tiling(m, n, k)
            tiling.check()
            padded = tiling.steps_of_block(steps) * tiling.cluster
            assert tiling.tokens >= m and tiling.threads * tiling.blocks <= 16 * WARP
            assert steps <= padded < max(2 * steps, 2)
            assert tiling.blocks * (tiling.shared_bytes(steps) + 1024) <= SHARED_BYTES_PER_BLOCK + 1024


@pytest.mark.parametrize("k", [2048, 4096, 8192])
def test_chosen_tilings_of_common_models_pad_nothing(k):
    for m in (8, 16):
        for n in (1024, 4096, 28672):
            tiling = gemv.choose_tiling(m, n, k)
            assert tiling.steps_of_block(k // 128) * tiling.cluster == k // 128
