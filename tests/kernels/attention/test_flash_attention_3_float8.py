"""FlashAttention-3 over fp8 codes: what changes no bit of its rows, when it serves, its tiles, its reference, and its machine code."""

import fnmatch

import ml_dtypes
import numpy as np
import pytest

from minllm.catalogue.attention.prompts import compiled_float8
from minllm.catalogue.attention.quantized import quantized_attention
from minllm.catalogue.kv.quantized import quantized_caches
from minllm.catalogue.noise import SHORT, Noise
from minllm.cli.inspection import has_nvdisasm
from minllm.kernels.attention.choice import choose_quantized
from minllm.kernels.attention.flash_attention_3.float8_reference import quantize_queries
from minllm.kernels.attention.flash_attention_3.prompts import CODES, LARGEST_HEAD_OF_CODES, shape_for
from minllm.kernels.attention.flash_attention_3.rows import sum_count
from minllm.kernels.attention.flash_attention_3.tiles import TileShape
from minllm.kernels.attention.flash_attention_3.work import WORK_SLOTS, WORK_WORDS
from minllm.kernels.quantization.cache import allocate
from minllm.kernels.quantization.formats import kv_format
from minllm.machine.devices import missing_compilers
from minllm.runtime.device import ADA, HOPPER
from tests.kernels.guarded import BFLOAT16
from tests.kernels.launches import HostOps

SHAPE = TileShape(16, 1, 32, codes=True)


def rows_of(query_lens, context_lens, arrays=None, **options):
    """The arrays of a launch with heads of 16, or these, and its output."""
    sizes = query_lens, context_lens, "fp8_e4m3", 2, 1, 16, BFLOAT16
    launch = quantized_attention("flash_attention_3_float8", *sizes, shape=SHAPE, **options)
    arrays = arrays or launch.arrays(Noise(length=SHORT))
    return arrays, launch.run(HostOps, arrays)["out"].view(np.uint16)


def test_rows_depend_neither_on_the_grid_nor_on_chunks():
    """Blocks take one work item or many; and the rows of a prompt are the same however it was cut."""
    arrays, whole = rows_of((70,), (70,), blocks=1)
    _, other = rows_of((70,), (70,), arrays | dict(out=np.zeros_like(arrays["out"])), blocks=7)
    np.testing.assert_array_equal(other, whole)
    for start, stop in ((0, 23), (23, 70)):
        chunk = dict(query=arrays["query"][start:stop], out=np.zeros_like(arrays["out"][start:stop]))
        chunk |= dict(query_start=np.array([0, stop - start], np.int32), context_lens=np.array([stop], np.int32))
        np.testing.assert_array_equal(rows_of((stop - start,), (stop,), arrays | chunk)[1], whole[start:stop])


def test_hopper_takes_it_for_prompts_over_e4m3():
    def cache(name):
        return allocate(kv_format(name, 64), 1, 16, 1, np.zeros, np.asarray)

    assert choose_quantized(2, cache("fp8"), BFLOAT16, HOPPER) == "flash_attention_3_float8"
    assert choose_quantized(1, cache("fp8"), BFLOAT16, HOPPER) == "split_quantized"
    others = [("fp8", ADA), ("fp8", None), ("fp8_e5m2", HOPPER), ("int8", HOPPER)]
    assert {choose_quantized(2, cache(name), BFLOAT16, capability) for name, capability in others} == {"flash_attention_2_quantized"}


@pytest.mark.parametrize(
    ("form", "head_dim", "block_size", "reason"),
    [("fp8_e5m2", 32, 16, "codes of fp8_e4m3"), ("fp8_e4m3", 144, 16, "heads of 144"), ("fp8_e4m3", 32, 4, "from blocks of 4")],
)
def test_what_it_cannot_serve_it_says_and_passes_on(form, head_dim, block_size, reason):
    sizes = (3,), (20,), form, 2, 1, head_dim, BFLOAT16, block_size
    launch = quantized_attention("flash_attention_3_float8", *sizes)
    arrays = launch.arrays(Noise(length=SHORT))
    caches = {name: one for name, one in arrays.items() if name.endswith(("codes", "scales"))}
    keys, _ = quantized_caches(kv_format(form, head_dim), caches)
    assert reason in CODES.why_not(arrays["query"], keys, arrays["block_tables"])
    served = quantized_attention("flash_attention_2_quantized", *sizes).run(HostOps, arrays | dict(out=np.zeros_like(arrays["out"])))["out"]
    np.testing.assert_array_equal(launch.run(HostOps, arrays)["out"].view(np.uint16), served.view(np.uint16))


def test_tiles_fit_into_shared_memory():
    for head_dim in range(16, LARGEST_HEAD_OF_CODES + 1, 16):
        for tokens, block_size in ((1, 16), (4096, 16), (4096, 64)):
            shape = shape_for(head_dim, tokens, True, block_size)
            assert shape.page_rows(block_size, 2) == block_size
            assert shape.shared_bytes + 4 * (sum_count(shape) + WORK_SLOTS * WORK_WORDS) <= 227 * 1024
            assert min(shape.keys.panels * shape.keys.swizzle, shape.queries.panels * shape.queries.panel_columns) >= head_dim


def test_scales_of_queries_are_powers_of_two_that_keep_every_magnitude():
    query = np.float32([[[3.0, -250.0]], [[1e-30, 0.0]], [[0.0, 0.0]], [[3e38, 1e37]]])
    codes, scales = quantize_queries(query)
    assert codes.dtype == ml_dtypes.float8_e4m3fn and (np.frexp(scales)[0] == 0.5).all()
    largest = np.abs(codes.astype(np.float32)).max(axis=-1)
    assert ((largest >= 128) & (largest <= 256)).tolist() == [[True], [True], [False], [True]]
    np.testing.assert_allclose(codes.astype(np.float32) * scales[..., None], query, rtol=2**-4, atol=1e-36)


@pytest.mark.skipif(bool(missing_compilers()) or not has_nvdisasm(), reason="needs the CUDA toolkit's compiler and nvdisasm")
def test_softmax_stays_between_the_products_in_flight():
    """As flash_attention_3's: in the loop all exponentials stand between the wait for the scores and the wait for the output."""
    sass = next(one for one in compiled_float8() if "/128/" in one.name).compile(HOPPER).sass()
    waits, products = ([i for i, line in enumerate(sass) if word in line] for word in ("WARPGROUP.DEPBAR", "QGMMA"))
    exponentials = [i for i, line in enumerate(sass) if fnmatch.fnmatch(line, "*MUFU.EX2*")]
    key_tile, head_dim = shape_for(128, 4096, codes=True).key_tile, 128
    assert (len(waits), len(products)) == (4, 2 * (head_dim + key_tile) // 32)
    assert sum(waits[0] < product < waits[1] for product in products) == (head_dim + key_tile) // 32
    of_two_rows = 2 * (key_tile // 4 + 1)  # a quarter of the columns of each, and the factor of what came before
    assert sum(waits[1] < i < waits[2] for i in exponentials) == of_two_rows and not any(waits[2] < i < waits[3] for i in exponentials)
