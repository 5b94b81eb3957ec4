"""The GEMV on tensor cores in the simulator, of one row and of several: bits from run to run, tilings, and errors."""

from types import SimpleNamespace

import numpy as np
import pytest

from minllm.catalogue.matmul.quantized import quantized_product
from minllm.errors import KernelArgumentError
from minllm.kernels.matmul.quantized.tensor_core_gemv import gemv
from minllm.kernels.quantization.int4 import Int4Weight
from minllm.machine.occupancy import WARP
from minllm.runtime.device import SHARED_BYTES_PER_BLOCK
from minllm.weights.formats import WEIGHT_FORMATS
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, bits, random
from tests.kernels.launches import result

FORMS = {name: WEIGHT_FORMATS[name].codec for name in ("int4", "nf4", "int8", "fp8")}
LAUNCHERS = {name: (gemv.make_gemv(form), gemv.make_gated_gemv(form), gemv.make_qkv_gemv(form)) for name, form in FORMS.items()}
FOUR_BITS = ("int4", "nf4")  # of several rows
Tiling = gemv.TensorCoreGemvTiling
TWO_WARPS = dict(norm=True, tiling=Tiling(2, 2, 1, 1, 1, 1))
SAME_BITS = [
    quantized_product("tensor_core_gemv", "int4/64", 1, 40, 384, residual="in place", **TWO_WARPS),
    quantized_product("tensor_core_gemv", "nf4/nested", 1, 24, 256, FLOAT16, gated=True, **TWO_WARPS),
    *(quantized_product("tensor_core_gemv", code, 1, 40, 192, out_dtype=FLOAT32, **TWO_WARPS) for code in ("int8", "fp8")),
    quantized_product("tensor_core_gemv", "int4/64", 3, 72, 384, bias=True, tiling=Tiling(2, 2, 2, 1, 8)),
    quantized_product("tensor_core_gemv", "int4/32_minimums", 9, 40, 256, FLOAT16, out_dtype=FLOAT32, tiling=Tiling(2, 1, 2, 1, 16)),
    quantized_product("tensor_core_gemv", "nf4/nested", 11, 40, 384, FLOAT16, gated=True, tiling=Tiling(2, 1, 1, 2, 16)),
]
LENGTHS = [128, 896, 1536, 2048, 2176, 3584, 4096, 5120, 8192, 8960, 11008, 14336, 18944, 28672]


@pytest.mark.results_only
@pytest.mark.parametrize("launch", SAME_BITS, ids=str)
def test_runs_and_grids_of_any_size_give_the_same_bits(launch, device):
    first, again, one_tile_each = (result(launch, device, sms) for sms in (1, 1, 99))
    np.testing.assert_array_equal(bits(first), bits(again))
    np.testing.assert_array_equal(bits(first), bits(one_tile_each))


@pytest.mark.parametrize("name, m", [*((name, 1) for name in FORMS), *((name, 2) for name in FOUR_BITS)])
def test_without_outputs_there_is_nothing_to_do(name, m):
    x, _, out = arrays_of(name, m)
    empty = WEIGHT_FORMATS[name].without_contents(SimpleNamespace(empty=np.empty), 0, 256)
    LAUNCHERS[name][0](x, empty, out[:, :0])
    LAUNCHERS[name][1](x, empty, out[:, :0])


def arrays_of(name, m=1, n=4, k=256):
    """Return x, a weight in this format, and out."""
    return random((m, k), BFLOAT16, 0), WEIGHT_FORMATS[name].encode(random((n, k), FLOAT32, 1)), np.empty((m, n), BFLOAT16)


@pytest.mark.parametrize("name, most, inputs", [("int4", 16, 128), ("nf4", 16, 128), ("int8", 1, 64), ("fp8", 1, 64)])
@pytest.mark.parametrize("gated", [False, True])
def test_rows_that_do_not_fit_are_refused(name, most, inputs, gated):
    (x, weight, out), launch = arrays_of(name, most), LAUNCHERS[name][gated]
    short, short_weight, _ = arrays_of(name, most, k=inputs * 3 // 2)
    shifted = np.zeros(x.size + 1, BFLOAT16)[1:].reshape(x.shape)
    shifted_codes = np.zeros(weight.codes.size + 1, weight.codes.dtype)[1:].reshape(weight.codes.shape)
    rows = "one row" if most == 1 else "up to 16 rows"
    words = f"takes {rows} of float16 or bfloat16 of a multiple of {inputs} inputs, rows that begin on multiples of 16 bytes"
    for wrong, of in (
        (np.zeros((most + 1, 256), BFLOAT16), weight), (np.zeros((0, 256), BFLOAT16), weight), (x.astype(FLOAT32), weight),
        (short, short_weight), (shifted, weight), (x, weight._replace(codes=shifted_codes)),
    ):  # fmt: skip
        with pytest.raises(KernelArgumentError, match=rf"x is {wrong.dtype} .*{words}"):
            launch(wrong, of, out)


@pytest.mark.parametrize("name", FOUR_BITS)
def test_rows_of_which_a_block_s_part_is_too_long_are_refused(name):
    for m, k in ((2, 1 << 17), (9, 1 << 16)):
        x, weight, out = arrays_of(name, m, k=k)
        with pytest.raises(KernelArgumentError, match=rf"x is bfloat16 \[{m}, {k}\].*take gemv, or widen the weight"):
            LAUNCHERS[name][0](x, weight, out)
        assert gemv.choose_tiling(FORMS[name], m, 4, k).shared_bytes(k // 128) > SHARED_BYTES_PER_BLOCK


@pytest.mark.parametrize("name", FORMS)
def test_a_weight_of_another_length_and_a_norm_between_vectors_are_refused(name):
    x, weight, out = arrays_of(name)
    for k in (128, 512):
        with pytest.raises(KernelArgumentError, match="codes is .* its shape must be" if name != "int4" else "codes|groups"):
            LAUNCHERS[name][0](random((1, k), BFLOAT16, 0), weight, out)
    with pytest.raises(KernelArgumentError, match="norm does not begin on a multiple of 16 bytes"):
        LAUNCHERS[name][0](x, weight, out, norm=np.zeros(257, BFLOAT16)[1:])
    for m in (1, 2):
        with pytest.raises(KernelArgumentError, match="x is bfloat16 .* with strides"):
            LAUNCHERS[name][0](np.zeros((m, 512), BFLOAT16)[:, ::2], weight, out)


def test_gate_and_up_are_an_even_number_of_rows():
    x, weight, _ = arrays_of("int8", n=17)
    with pytest.raises(KernelArgumentError, match="gate_up has 17 rows"):
        LAUNCHERS["int8"][1](x, weight, np.empty((1, 8), BFLOAT16))


def test_groups_that_do_not_fit_are_refused():
    x, weight, out = arrays_of("int4")
    for groups in (16, 3):  # groups of 16 inputs, and of a third of a row
        with pytest.raises(KernelArgumentError, match="groups of 32, 64 or multiples of 128"):
            LAUNCHERS["int4"][0](x, Int4Weight(weight.codes, np.ones((groups, 4), FLOAT16)), out)
    for other in (dict(minimums=weight.scales.astype(FLOAT32)), dict(scales=weight.scales.astype(np.float64))):
        with pytest.raises(KernelArgumentError, match="take gemv, or widen the weight"):
            LAUNCHERS["int4"][0](x, weight._replace(**other), out)


@pytest.mark.parametrize("name", FORMS)
def test_arrays_beside_x_that_do_not_fit_are_refused(name):
    (x, weight, out), (plain, gated, _) = arrays_of(name), LAUNCHERS[name]
    for launch, given, words in (
        (plain, dict(norm=np.ones(256, FLOAT32)), "norm is float32"), (plain, dict(norm=np.ones(255, BFLOAT16)), "norm is bfloat16"),
        (plain, dict(residual=np.zeros((1, 4), FLOAT16)), "residual is float16"),
        (plain, dict(residual=np.zeros((1, 5), BFLOAT16)), "residual is bfloat16"),
        (plain, dict(bias=np.zeros(4, FLOAT16)), "bias is float16"), (plain, dict(out=np.empty((1, 5), BFLOAT16)), "out is bfloat16"),
        (plain, dict(out=np.empty((1, 4), FLOAT16)), "out is float16"), (gated, dict(out=np.empty((1, 2), FLOAT32)), "out is float32"),
        (gated, dict(), "out is bfloat16"), (plain, dict(tiling=(4, 3, 1, 1, 1)), "divide evenly into groups of `splits`"),
        (plain, dict(tiling=(4, 4, 2, 1, 1)), "with one token 1"),
        (plain, dict(norm=np.ones(256, BFLOAT16), tiling=(4, 4, 1, 1, 8)), "norms and 8-bit codes take one token"),
    ):  # fmt: skip
        with pytest.raises(KernelArgumentError, match=words):
            launch(x, weight, **(dict(out=out) | given))


@pytest.mark.parametrize("name", FOUR_BITS)
def test_arrays_beside_several_rows_and_tilings_that_do_not_fit_are_refused(name):
    (x, weight, out), (plain, gated, _) = arrays_of(name, m=9), LAUNCHERS[name]
    for launch, given, words in (
        (plain, dict(bias=np.zeros(4, FLOAT16)), "bias is float16"), (plain, dict(bias=np.zeros(5, BFLOAT16)), "bias is bfloat16"),
        (plain, dict(out=np.empty((9, 5), BFLOAT16)), "out is bfloat16"), (plain, dict(out=np.empty((8, 4), BFLOAT16)), "out is bfloat16"),
        (plain, dict(out=np.empty((9, 4), FLOAT16)), "out is float16"), (gated, dict(out=np.empty((9, 2), FLOAT32)), "out is float32"),
        (gated, dict(), "out is bfloat16"), (plain, dict(residual=np.zeros((1, 4), BFLOAT16)), "residual is bfloat16"),
        (plain, dict(norm=np.ones(256, BFLOAT16)), "x has 9 rows; .* normalises one"),
        (gated, dict(norm=np.ones(256, BFLOAT16)), "x has 9 rows; .* normalises one"),
        (plain, dict(tiling=(4, 3, 1, 2, 16)), "divide evenly into groups of `splits`"),
        (plain, dict(tiling=(4, 4, 3, 2, 16)), "a cluster has 1, 2, 4 or 8 blocks"),
        (plain, dict(tiling=(4, 4, 16, 2, 16)), "a cluster has 1, 2, 4 or 8 blocks"),
        (plain, dict(tiling=(4, 4, 1, 2, 24)), "1, 8 or 16 tokens"),
        (plain, dict(tiling=(4, 4, 1, 2, 8)), "9 rows of x"), (plain, dict(tiling=(4, 4, 1, 2, 1)), "9 rows of x"),
        (plain, dict(tiling=(32, 4, 1, 2, 16)), "1 to 16 warps"), (plain, dict(tiling=(4, 4, 1, 0, 16)), "at least one step in flight"),
        (plain, dict(tiling=(4, 4, 1, 64, 16)), "bytes of shared memory; a block has"),
    ):  # fmt: skip
        with pytest.raises(KernelArgumentError, match=words):
            launch(x, weight, **(dict(out=out) | given))


def test_heads_that_do_not_fit_are_refused():
    x, weight, _ = arrays_of("int8", n=32)
    query, cache = np.zeros((1, 2, 8), BFLOAT16), np.zeros((1, 4, 1, 8), BFLOAT16)
    index, table = np.zeros(1, np.int32), np.zeros((4, 8), FLOAT32)
    arguments = [x, np.ones(256, BFLOAT16), 1e-5, weight, None, index, index, table, query, cache, cache]
    for place, wrong, words in (
        (1, np.ones(256, FLOAT32), "norm is float32"), (3, arrays_of("int8", n=40)[1], "codes is int8 .*rows=32"),
        (4, np.zeros(32, FLOAT32), "bias is float32"), (7, np.zeros((4, 6), FLOAT32), "cos_sin is float32"),
        (8, np.zeros((2, 2, 8), BFLOAT16), "query is bfloat16"), (0, np.zeros((2, 256), BFLOAT16), "takes one row"),
    ):  # fmt: skip
        with pytest.raises(KernelArgumentError, match=words):
            LAUNCHERS["int8"][2](*arguments[:place], wrong, *arguments[place + 1 :])
    with pytest.raises(KernelArgumentError, match="x has 2 rows; .* rotates one"):
        LAUNCHERS["nf4"][2](np.zeros((2, 256), BFLOAT16), None, 0.0, arrays_of("nf4", n=32)[1], *arguments[4:])


def test_gpus_need_the_instructions_of_the_format(monkeypatch):
    x = SimpleNamespace(shape=(1, 256), dtype=BFLOAT16, pointer=256)
    weight = SimpleNamespace(codes=SimpleNamespace(shape=(4, 256), dtype=np.dtype(np.uint8), pointer=256))
    for capability, taken in (((7, 5), ()), ((8, 0), ("nf4", "int8")), ((8, 9), ("nf4", "int8", "fp8"))):
        monkeypatch.setattr(gemv, "capability_here", lambda capability=capability: capability)
        assert tuple(name for name in ("nf4", "int8", "fp8") if gemv.fits(FORMS[name], x, weight)) == taken


def test_only_hopper_has_room_and_instructions_for_several_rows(monkeypatch):
    def arrays(n):
        x = SimpleNamespace(shape=(2, 256), dtype=BFLOAT16, pointer=256)
        codes = SimpleNamespace(shape=(n, 128), dtype=np.dtype(np.uint8), pointer=256)
        return x, SimpleNamespace(codes=codes, scales=SimpleNamespace(shape=(2, n), dtype=FLOAT16), zeros=None, minimums=None)

    for hopper in (False, True):
        monkeypatch.setattr(gemv, "has_wgmma", lambda codes, hopper=hopper: hopper)
        for name in FOUR_BITS:
            assert gemv.fits(FORMS[name], *arrays(4)) == hopper
            assert not gemv.fits(FORMS[name], *arrays(gemv.MOST_CODE_BYTES // 128))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("k", LENGTHS)
def test_chosen_tilings_divide_a_block_evenly(name, k):
    form = FORMS[name]
    for n in (1, 4096, 28672):
        tiling = gemv.choose_tiling(form, 1, n, k)
        tiling.check(1)
        assert tiling.warps * tiling.blocks <= 16
        assert k // form.inputs <= tiling.padded_steps(k // form.inputs) < 1.5 * (k // form.inputs)


@pytest.mark.parametrize("k", LENGTHS)
def test_chosen_tilings_of_several_rows_fit_an_sm_and_pad_little(k):
    steps = k // 128
    for m in (2, 8, 9, 16):
        for n in (1, 1024, 4096, 28672):
            tiling = gemv.choose_tiling(FORMS["int4"], m, n, k)
            tiling.check(m)
            assert tiling.threads * tiling.blocks <= 16 * WARP
            assert steps <= tiling.padded_steps(steps) < max(2 * steps, 2)
            assert tiling.blocks * (tiling.shared_bytes(steps) + 1024) <= SHARED_BYTES_PER_BLOCK + 1024


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("k", [2048, 3584, 4096, 8192, 14336, 28672])
def test_chosen_tilings_of_common_models_pad_nothing(name, k):
    form = FORMS[name]
    steps = k // form.inputs
    for n in (1024, 4096, 28672):
        assert gemv.choose_tiling(form, 1, n, k).padded_steps(steps) == steps
        assert k not in (2048, 4096, 8192) or {gemv.choose_tiling(form, m, n, k).padded_steps(k // 128) for m in (8, 16)} == {k // 128}


@pytest.mark.parametrize("name", FORMS)
def test_a_norm_is_fused_unless_float16_could_overflow(name):
    x, weight, _ = arrays_of(name)
    fits_normed = WEIGHT_FORMATS[name].kernels.fits_normed
    assert fits_normed(x, weight) and fits_normed(x.astype(FLOAT16), weight) == (name in ("int8", "fp8"))
    assert not fits_normed(arrays_of(name, 2)[0], weight)
