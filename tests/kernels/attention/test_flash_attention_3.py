"""FlashAttention-3: what changes no bit of its rows, what it passes on, its tiles, and its machine code."""

import fnmatch

import numpy as np
import pytest

from minllm.catalogue.attention.prompts import compiled_flash_attention_3
from minllm.cli.inspection import has_nvdisasm
from minllm.kernels.attention.flash_attention_3.prompts import PLAIN, shape_for
from minllm.kernels.attention.flash_attention_3.rows import sum_count
from minllm.kernels.attention.flash_attention_3.tiles import TileShape
from minllm.kernels.attention.flash_attention_3.work import WORK_SLOTS, WORK_WORDS
from minllm.machine.devices import missing_compilers
from tests.kernels.attention.case_lists import BFLOAT16
from tests.kernels.attention.cases import AttentionCase, make_arrays, run_variant


@pytest.mark.results_only
@pytest.mark.parametrize("blocks", [1, 7])
def test_the_answer_does_not_depend_on_the_grid(device, blocks):
    """Work is dealt out to fewer blocks or to more, over several rounds; the sums stay the same, bit by bit."""
    case, shape = AttentionCase((66, 5), (70, 5), heads=2, kv_heads=1, head_dim=16, dtype=BFLOAT16), TileShape(16, 1, 32)
    one, other = (run_variant(device, PLAIN, case, shape=shape, blocks=count) for count in (3, blocks))
    np.testing.assert_array_equal(one.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize(
    ("query_lens", "heads"),
    [((66, 0, 5), 2), pytest.param((1, 0, 0, 0) * 8 + (1, 18), 1, marks=pytest.mark.results_only)],
    ids=["few", "more than a warp has lanes"],
)
def test_a_loose_bound_on_the_query_length_changes_nothing(device, query_lens, heads):
    """A CUDA graph is captured for more tokens than a step has, so the longest query is found on the device."""
    contexts = tuple(max(length, 1) for length in query_lens)
    case, shape = AttentionCase(query_lens, contexts, heads=heads, kv_heads=heads, head_dim=16, dtype=BFLOAT16), TileShape(16, 1, 32)
    exact, loose = (run_variant(device, PLAIN, case, shape=shape, max_query_len=bound) for bound in (None, 2048))
    np.testing.assert_array_equal(exact.view(np.uint16), loose.view(np.uint16))


@pytest.mark.results_only
def test_chunks_of_a_prompt_give_the_same_rows(device):
    """Chunked prefill: the rows of a prompt do not depend on how it was cut, nor on the rows of other sequences in their tiles."""
    case, shape = AttentionCase((70,), (70,), heads=2, kv_heads=1, head_dim=16, dtype=BFLOAT16), TileShape(16, 1, 16)
    whole = run_variant(device, PLAIN, case, shape=shape)
    arrays = make_arrays(case)
    for start, stop in ((0, 23), (23, 70)):
        out = np.full((stop - start, 2, 16), np.nan, BFLOAT16)
        PLAIN.attention(
            np.ascontiguousarray(arrays.query[start:stop]), arrays.key_cache, arrays.value_cache, out,
            np.array([0, stop - start], np.int32), np.array([stop], np.int32), arrays.block_tables, arrays.scale, shape=shape,
        )  # fmt: skip
        np.testing.assert_array_equal(out.view(np.uint16), np.ascontiguousarray(whole[start:stop]).view(np.uint16))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (AttentionCase((5,), (40,), heads=2, head_dim=16), "the query is float32"),
        (AttentionCase((5,), (40,), heads=2, head_dim=16, dtype=BFLOAT16, block_size=5), "from blocks of 5"),
        (AttentionCase((5,), (40,), heads=2, head_dim=16, dtype=BFLOAT16, block_size=24), "from blocks of 24"),
        (AttentionCase((5,), (40,), heads=2, head_dim=16, dtype=BFLOAT16), None),
        (AttentionCase((5,), (40,), heads=2, head_dim=16, dtype=BFLOAT16, block_size=41), None),  # one block holds all
    ],
    ids=str,
)
def test_what_it_cannot_serve_it_says_and_passes_on(device, case, reason):
    arrays = make_arrays(case)
    found = PLAIN.why_not(arrays.query, arrays.key_cache, arrays.block_tables)
    assert found is None if reason is None else reason in found
    if reason:
        run_variant(device, PLAIN, case)


def test_tile_shapes():
    """Short prompts get few rows, small heads three consumers, large ones fewer keys; all fit into a multiprocessor's shared memory."""
    assert [shape_for(64, length).query_tile for length in (1, 64, 65, 1024, 1025)] == [64, 64, 128, 128, 192]
    assert [shape_for(head_dim, 4096).key_tile for head_dim in (8, 128, 136, 256)] == [128, 128, 64, 64]
    for head_dim in range(8, 257, 8):
        shape = shape_for(head_dim, 4096)
        static_bytes = 4 * (sum_count(shape) + WORK_SLOTS * WORK_WORDS)
        assert shape.keys.panels * shape.keys.panel_columns >= head_dim and shape.shared_bytes + static_bytes <= 227 * 1024
    assert [shape_for(head_dim, 1).keys.panel_columns for head_dim in (80, 96, 128)] == [32, 32, 64]


@pytest.mark.parametrize(
    ("head_dim", "length", "in_registers", "slots"), [(64, 512, True, 1), (64, 2048, False, 2), (128, 2048, True, 1), (256, 2048, False, 1)]
)
def test_where_queries_are(head_dim, length, in_registers, slots):
    """In registers where they fit; else two tiles of them in shared memory, where they fit."""
    shape = shape_for(head_dim, length)
    assert (shape.queries_in_registers, shape.query_slots) == (in_registers, slots)


@pytest.mark.skipif(bool(missing_compilers()) or not has_nvdisasm(), reason="needs the CUDA toolkit's compiler and nvdisasm")
def test_softmax_stays_between_the_products_in_flight():
    """In the loop, all exponentials stand between the wait for the scores and the wait for the output: ptxas tends to move them behind."""
    sass = next(one for one in compiled_flash_attention_3(np.dtype(BFLOAT16)) if "/128/" in one.name).compile((9, 0)).sass()
    waits = [i for i, line in enumerate(sass) if "WARPGROUP.DEPBAR" in line]
    products = [i for i, line in enumerate(sass) if "HGMMA" in line]
    # Scores of the first tile; in the loop scores and output, waited for one after the other; output of the last tile.
    assert (len(waits), len(products)) == (4, 32)
    assert sum(waits[0] < product < waits[1] for product in products) == 16
    exponentials = [i for i, line in enumerate(sass) if fnmatch.fnmatch(line, "*MUFU.EX2*")]
    assert sum(waits[1] < i < waits[2] for i in exponentials) == 66 and not any(waits[2] < i < waits[3] for i in exponentials)
