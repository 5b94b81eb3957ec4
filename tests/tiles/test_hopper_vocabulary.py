"""The Hopper half of the vocabulary: the example of its docstring, operands in registers, pages, clusters."""

import re
import textwrap

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, int32, types, uint8, uint32

from minllm import ptx, tiles
from minllm.machine.devices import missing_compilers
from minllm.runtime.compiler import compile_kernel
from minllm.runtime.kernel import kernel, launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles import tma
from minllm.tiles.left_operand import make_load_left
from minllm.tiles.pipeline import make_pipeline
from minllm.tiles.shared import ALIGNMENT, SharedTile, first_tile_address, make_clear_rows
from minllm.tiles.warpgroup import sync_blocks, uniform
from minllm.tiles.wgmma import make_wgmma, sum_column, sum_row

BFLOAT16 = ml_dtypes.bfloat16


def random(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(BFLOAT16)


def example(x_tile, weight_tile, stages, path):
    """The kernel and the pipeline of the example in the docstring of minllm.tiles."""
    lines = re.findall(r"(?m)^    (?:X_BYTES, |pipeline =|wgmma =|SUMS =|\n).*\n|^    def gemm(?:.*\n)+", tiles.__doc__)
    text = textwrap.dedent("".join(lines))
    path.write_text(text)
    names = dict(globals(), X=x_tile, WEIGHT=weight_tile, STAGES=stages)
    exec(compile(text, str(path), "exec"), names)
    return names["gemm"], names["pipeline"]


@pytest.mark.parametrize(("k", "stages"), [(64, 2), (320, 2), (320, 3), (128, 4)])
def test_the_example_multiplies(k, stages, tmp_path):
    x_tile, weight_tile = SharedTile(64, 64), SharedTile(32, 64)
    gemm, pipeline = example(x_tile, weight_tile, stages, tmp_path / "example.py")
    x, weight, out = random((128, k), 0), random((64, k), 1), np.full((128, 64), np.nan, np.float32)
    maps = tensor_map(x, (64, 64)), tensor_map(weight, (32, 64))
    launch(kernel(gemm), (2, 2), 160, (*maps, out, k // 64), None, pipeline.bytes + pipeline.barrier_bytes + ALIGNMENT)
    np.testing.assert_allclose(out, x.astype(np.float64) @ weight.astype(np.float64).T, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(bool(missing_compilers()), reason="needs the CUDA toolkit's compiler")
def test_the_example_is_compiled_without_calls_or_local_memory(tmp_path):
    gemm, _ = example(SharedTile(64, 64), SharedTile(128, 64), 4, tmp_path / "example.py")
    made = compile_kernel(gemm, (types.uint64, types.uint64, types.float32[:, ::1], types.int32), (9, 0), launch_bounds=(160, 1))
    assert made.stack_bytes == made.spill_bytes == 0
    assert not [line for line in made.sass() if any(word in line for word in ("CALL", "STL", "LDL"))]


@pytest.mark.parametrize(("columns", "swizzle", "panels"), [(64, 128, 1), (128, 128, 2), (40, 128, 1), (96, 64, 3), (16, 64, 1)])
def test_tiles_lie_in_panels(columns, swizzle, panels):
    tile = SharedTile(32, columns, swizzle)
    assert (tile.panels, tile.panel_bytes, tile.bytes) == (panels, 32 * swizzle, panels * 32 * swizzle)


@pytest.mark.parametrize(("head_dim", "swizzle", "in_registers"), [(16, 64, True), (128, 128, True), (96, 64, False), (80, 64, True)])
def test_scores_and_outputs_of_attention(head_dim, swizzle, in_registers):
    """S = Q K^T with Q from shared memory or registers, several panels deep; then S V, with V's rows as depth."""
    queries, keys = SharedTile(64, head_dim, swizzle), SharedTile(32, head_dim, swizzle)
    pipeline = make_pipeline(1, queries.bytes + 2 * keys.bytes, consumers=1)
    scores_gemm = make_wgmma(keys, "bfloat16", left=None if in_registers else queries)
    output_gemm = make_wgmma(keys, "bfloat16", right_major="mn")
    load_left, score_count, out_count, query_words = make_load_left(queries), 16, head_dim // 2, -(-head_dim // 16) * 4
    panels, columns, query_bytes, key_bytes = keys.panels, keys.panel_columns, queries.bytes, keys.bytes
    query_panel, key_panel = queries.panel_bytes, keys.panel_bytes

    @cuda.jit(device=True, forceinline=True)
    def load(stage, query_map, key_map, value_map):
        pipeline.producer_expect(stage, query_bytes + 2 * key_bytes)
        for panel in range(panels):
            tma.load_3d(stage, panel * query_panel, query_map, panel * columns, 0, 0)
            tma.load_4d(stage, query_bytes + panel * key_panel, key_map, panel * columns, 0, 0, 0)
            tma.load_4d(stage, query_bytes + key_bytes + panel * key_panel, value_map, panel * columns, 0, 0, 0)

    @kernel
    def attend(query_map, key_map, value_map, scores_out, out):
        thread = int32(cuda.threadIdx.x)
        first = first_tile_address(cuda.shared.array(0, uint8, 1024))
        ring, state = pipeline.ring(first, first + pipeline.bytes, 0), pipeline.state(0)
        if thread == 0:
            pipeline.init(ring)
        cuda.syncthreads()
        if thread == 0:
            load(pipeline.producer_acquire(ring, state), query_map, key_map, value_map)
        pipeline.consumer_wait(ring, state)
        query = cuda.local.array(query_words, uint32)
        scores, acc = cuda.local.array(score_count, float32), cuda.local.array(out_count, float32)
        weights = cuda.local.array(8, uint32)
        tile, warp = pipeline.stage(ring, state).tiles, uniform(thread // 32)
        if in_registers:
            load_left(query, tile, warp * 16, thread % 32)
            scores_gemm.multiply(scores, query, scores_gemm.right(tile + query_bytes), 0)
        else:
            scores_gemm.multiply(scores, scores_gemm.left(tile), scores_gemm.right(tile + query_bytes), 0)
        scores_gemm.wait(scores)
        for i in range(score_count):
            scores_out[sum_row(i, thread), sum_column(i, thread)] = scores[i]
        for i in range(8):
            weights[i] = ptx.pack_bf16x2(scores[2 * i], scores[2 * i + 1])
        output_gemm.multiply(acc, weights, output_gemm.right(tile + query_bytes + key_bytes), 0)
        output_gemm.wait(acc)
        ptx.keep_registers(weights, 8)
        for i in range(out_count):
            out[sum_row(i, thread), sum_column(i, thread)] = acc[i]

    query, key, value = random((64, 1, head_dim), 0), random((1, 32, 1, head_dim), 1), random((1, 32, 1, head_dim), 2)
    maps = [tensor_map(array, (1, 32, 1, columns), swizzle) for array in (key, value)]
    scores, out = np.full((64, 32), np.nan, np.float32), np.full((64, head_dim), np.nan, np.float32)
    arguments = (tensor_map(query, (64, 1, columns), swizzle), *maps, scores, out)
    launch(attend, 1, 128, arguments, None, pipeline.bytes + pipeline.barrier_bytes + ALIGNMENT)
    exact = query[:, 0].astype(np.float64) @ key[0, :, 0].astype(np.float64).T
    np.testing.assert_allclose(scores, exact, rtol=1e-5, atol=1e-5)
    expected = scores.astype(BFLOAT16).astype(np.float64) @ value[0, :, 0].astype(np.float64)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_blocks_of_a_cluster_share_stages():
    """Each of two blocks loads half of a tile for both, over more steps than stages; rows that are never loaded are cleared."""
    half, tile, steps = SharedTile(8, 64), SharedTile(16, 64), 5
    pipeline = make_pipeline(2, 2 * tile.bytes, consumers=1, sharers=2)
    clear_rows, half_bytes, both = make_clear_rows(2, 2 * tile.bytes, 128, 128, 1), half.bytes, 2 * half.bytes

    @kernel
    def gather(source_map, out):
        memory, thread = cuda.shared.array(0, uint8, 1024), int32(cuda.threadIdx.x)
        first, rank = first_tile_address(memory), int32(ptx.cluster_ctarank())
        ring, state = pipeline.ring(first, first + pipeline.bytes, 0), pipeline.state(0)
        start = first - ptx.shared_address(memory, 0)
        if thread == 0:
            pipeline.init(ring)
        if thread < 128:
            clear_rows(memory, start + both, 16, thread)
        sync_blocks(2)
        for step in range(steps):
            if thread == 128:
                stage = pipeline.producer_acquire(ring, state)
                pipeline.producer_expect(stage, both)
                tma.load_2d_multicast(stage, rank * half_bytes, source_map, 0, step * 16 + rank * 8, 0b11)
            elif thread < 128:
                pipeline.consumer_wait(ring, state)
                for byte in range(16):
                    at = thread * 16 + byte
                    out[rank, step, 0, at] = memory[start + state.slot * 2 * both + at]
                    out[rank, step, 1, at] = memory[start + state.slot * 2 * both + both + at]
                ptx.bar_sync(1, 128)
                pipeline.consumer_release(ring, state)
            state = pipeline.advance(state)
        sync_blocks(2)

    source, out = random((steps * 16, 64), 0), np.full((2, steps, 2, both), 255, np.uint8)
    launch(gather, 2, 160, (tensor_map(source, (8, 64)), out), None, pipeline.bytes + pipeline.barrier_bytes + ALIGNMENT, (2, 1, 1))
    assert (out[:, :, 1] == 0).all() and (out[0] == out[1]).all()
    rows = source.view(np.uint8).reshape(steps, 16, 8, 16)  # 16-byte chunks, swizzled: chunk ^ (row % 8)
    swizzled = np.stack([rows[:, row, np.arange(8) ^ row % 8] for row in range(16)], axis=1)
    np.testing.assert_array_equal(out[0, :, 0].reshape(steps, 16, 8, 16), swizzled)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_state_is_its_number_of_steps(stages):
    pipeline = make_pipeline(stages, 1024, consumers=1)
    compiled_names = pipeline.state.py_func, pipeline.advance.py_func
    state_of, advance = compiled_names
    state = state_of(0)
    for step in range(3 * stages):
        assert tuple(map(int, state)) == tuple(map(int, state_of(step))) == (step % stages, step // stages % 2)
        state = advance(state)


def test_a_consumer_that_forgets_to_release_is_found(tmp_path):
    from minllm.errors import SimulationError

    gemm, pipeline = example(SharedTile(64, 64), SharedTile(32, 64), 2, tmp_path / "example.py")
    text = (tmp_path / "example.py").read_text().replace("pipeline.consumer_release(ring, state)", "pass")
    path = tmp_path / "forgetful.py"
    path.write_text(text)
    names = dict(globals(), X=SharedTile(64, 64), WEIGHT=SharedTile(32, 64), STAGES=2)
    exec(compile(text, str(path), "exec"), names)
    x, weight, out = random((64, 320), 0), random((32, 320), 1), np.zeros((64, 32), np.float32)
    maps = tensor_map(x, (64, 64)), tensor_map(weight, (32, 64))
    with pytest.raises(SimulationError):
        launch(kernel(names["gemm"]), (1, 1), 160, (*maps, out, 5), None, pipeline.bytes + pipeline.barrier_bytes + ALIGNMENT)
