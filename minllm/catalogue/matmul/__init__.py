"""The launches of the GEMMs: x [M, K] and weight [N, K] of b bytes an element, out [M, N]."""

import numpy as np

from minllm.catalogue.launch import (
    HOPPER,
    TARGETS,
    TB_S,
    TFLOP_S,
    Launch,
    MachineCode,
    Measured,
    Moved,
    calls,
    describes,
    in_place,
    returns,
)
from minllm.catalogue.matmul import mixed_input, quantized
from minllm.catalogue.rope import table
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, FLOAT32
from minllm.kernels.activation.silu import silu_and_multiply_reference
from minllm.kernels.kv.layout import by_slot
from minllm.kernels.matmul import tensor_core, tiled, vectorized, warpgroup
from minllm.kernels.matmul.arguments import HALF_DTYPES, MOST_ROWS_OF_FLAT
from minllm.kernels.matmul.flat import fixed_order, fused
from minllm.kernels.matmul.flat import tiles as flat_tiles
from minllm.kernels.matmul.flat import wgmma_tiling as flat_wgmma
from minllm.kernels.matmul.flat.deferred_norm import DeferredNorm
from minllm.kernels.matmul.flat.flat import gated_flat
from minllm.kernels.matmul.flat.tiles import FlatTiling
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.gemv.gemv import choose_gated_tiling, choose_tiling, gated_gemv
from minllm.kernels.matmul.gemv.gemv_qkv import choose_qkv_tiling
from minllm.kernels.matmul.gemv.gemv_qkv import gemv_qkv_rope_append as launch_gemv_qkv
from minllm.kernels.matmul.gemv.sums import GemvTiling
from minllm.kernels.matmul.reference import matmul_reference
from minllm.kernels.matmul.tensor_core import TensorCoreTiling
from minllm.kernels.matmul.variants import VARIANTS
from minllm.kernels.matmul.wgmma.tiling import GATED_TILES, TILINGS, WgmmaTiling
from minllm.kernels.matmul.wgmma.wgmma import matmul_silu_and_multiply
from minllm.kernels.normalization.rms_norm import rms_norm_reference
from minllm.kernels.rope.rotate import rope_reference

BEFORE_HOPPER, FROM_HOPPER = TARGETS[:2], TARGETS[2:]
HOPPER_RUNGS = ("warpgroup", "warp_specialized", "wgmma")
TENSOR_CORES = ("HMMA.16816.F32*", "LDSM.16.M88.4")
COPIED_BY_THREADS = "LDGSTS.E.BYPASS*128*"
COPY_ENGINE = ("HGMMA.64x*", "UTMALDG.2D*", "SYNCS.PHASECHK*")
WGMMA = (*COPY_ENGINE, "WARPGROUP.DEPBAR*")

STREAMED = ("LDG*NA*128*",)  # weights bypass L1, because each is used once
GATED = {"wgmma": matmul_silu_and_multiply, "gemv": gated_gemv, "flat": gated_flat}
EPSILON = 1e-5
# (rows of x, N, K): one weight shape for each tiling that launchers choose.
GEMV_SHAPES = ((1, 128256, 2048), (1, 2048, 8192), (4, 2048, 8200), (4, 128256, 2048), (8, 128256, 2048))
GATED_SHAPES = ((1, 16384, 2048), (1, 28672, 4096), (4, 16384, 2048), (8, 28672, 4096))
GEMV_TILINGS = (None, GemvTiling(2, 2, 1, 2), GemvTiling(4, 1, 1), GemvTiling(2, 4, 1, 4))
# One row of x or several, whole vectors or not, one step per warp or many.
FUSED_GEMVS = ((1, 7, 520), (1, 5, 19), (3, 9, 264), (2, 6, 1032))
FUSED_QKV_GEMVS = ((2, 1, 1, 32, 520), (1, 4, 2, 16, 264), (3, 3, 1, 6, 19))


def matmul_flops(m, n, k):
    """FLOPs of a GEMM: a multiply and an add for each of M N K terms."""
    return 2 * m * n * k


def matmul_bytes(m, n, k, itemsize):
    """Bytes to read each operand once and to write the result."""
    return (m * k + n * k + m * n) * itemsize


def whole_numbers(noise, shape, dtype):
    """Small integers, three quarters of them zeros: sums of a few hundred products are exact in float32, and in 16 bits."""
    return (noise.random.integers(-2, 3, shape) * (noise.random.random(shape) < 0.25)).astype(dtype)


def moved_by(variant, m, n, k, b, options):
    """What the variant moves, if tiles are whole; {} where no formula is given here."""
    plain, maps = dict(x=m * k * b, weight=n * k * b), dict(x_map=m * k * b, weight_map=n * k * b)
    out, work = dict(out=m * n * b), matmul_flops(m, n, k)
    if variant in ("naive", "warp_per_row"):
        operations = work if variant == "naive" else None
        return Moved(dict(x=m * n * k * b, weight=m * n * k * b) | out, plain, operations=operations)
    if variant == "gemv" and options:
        return Moved(dict(x=n // options["tiling"].rows * m * k * b, weight=n * k * b) | out, plain)
    if variant == "flat" and options:
        asked, by_maps = m * k * b * n // options["tiling"].rows, isinstance(options["tiling"], FlatWgmmaTiling)
        inputs = dict(x_map=asked, weight_map=n * k * b) if by_maps else dict(x=asked, weight=n * k * b)
        return Moved(inputs | out, maps if by_maps else plain, work)
    if variant in ("tiled", "vectorized") and options:
        asked = m * n * k // np.ravel(options["tile"])[0] * b
        return Moved(dict(x=asked, weight=asked) | out, plain, operations=work + m * n)  # the bias, 0, is added
    if variant == "tensor_core" and options:
        tiling = options["tiling"]
        asked = dict(x=m * n // tiling.tile_n * k * b, weight=m // tiling.tile_m * n * k * b)
        return Moved(asked | out, plain, work, work + m * n)
    if variant in ("warpgroup", "warp_specialized"):
        tiles = m // 64 * (n // 256)
        return Moved(dict(x_map=tiles * 64 * k * b, weight_map=tiles * 256 * k * b) | out, maps, work)
    if variant == "wgmma" and options:
        tiling = options["tiling"]
        rows = m if tiling.early else tiling.tile_m
        tiles = (1 if tiling.early else m // tiling.tile_m) * (n // tiling.tile_n)
        weight = n * k * b if tiling.early else tiles * tiling.tile_n * k * b // tiling.cluster
        return Moved(dict(x_map=tiles * rows * k * b, weight_map=weight, out_map=m * n * b), maps, work)
    return {}


@describes
def product(variant, m, n, k, dtype=BFLOAT16, out_dtype=None, bias=False, residual=False, norm=False, exact=False, **options):
    """x @ weight.T + bias + residual by one variant; options: those of its launcher.

    bias: True, or its dtype if that is not the output's. norm: of the RMSNorm of x. exact: of whole numbers.
    """
    result = out_dtype or dtype

    def arrays(noise):
        make = whole_numbers if exact else type(noise).array
        given = dict(x=make(noise, (m, k), dtype), weight=make(noise, (n, k), dtype)) | dict(out=noise.unwritten((m, n), result))
        given |= dict(bias=make(noise, (n,), result if bias is True else bias)) if bias else {}
        given |= dict(norm=make(noise, (k,), dtype)) if norm else {}
        return given | (dict(residual=make(noise, (m, n), result)) if residual else {})

    def reference(x, weight, bias=None, residual=None, norm=None):
        total = matmul_reference(normed(x, norm), weight, bias, np.float32)
        return (total if residual is None else total + residual.astype(np.float32)).astype(result)

    constants = options | (dict(epsilon=EPSILON) if norm else {})
    return Launch(
        arrays,
        call=lambda ops, **arrays: VARIANTS[variant](**arrays, **constants, stream=ops.stream),
        reference=returns(("out",), reference),
        moved={} if norm else moved_by(variant, m, n, k, dtype.itemsize, options),
        rows=("x", "residual", "out"),
        exact=exact,
    )


def normed(x, norm):
    """The RMSNorm of x in float32; x itself if norm is None."""
    return x if norm is None else rms_norm_reference(x.astype(np.float32), norm, EPSILON)[0]


@describes
def gated_product(variant, m, n, k, dtype, norm=False, **options):
    """silu(x @ gate.T) * (x @ up.T) by one variant: gate and up of n rows each. norm: of the RMSNorm of x."""

    def arrays(noise):
        given = dict(x=noise.array((m, k), dtype), gate_up=noise.array((2 * n, k), dtype), out=noise.unwritten((m, n), dtype))
        return given | (dict(norm=noise.array((k,), dtype)) if norm else {})

    def reference(x, gate_up, norm=None):
        return silu_and_multiply_reference(matmul_reference(normed(x, norm), gate_up, out_dtype=np.float32)).astype(dtype)

    call = calls(GATED[variant], **options, **(dict(epsilon=EPSILON) if norm else {}))
    return Launch(arrays, call, returns(("out",), reference), moved={}, rows=("x", "out"))


@describes
def gemv_qkv_rope_append(m, heads, kv_heads, head_dim, k, dtype=BFLOAT16, bias=False, skip=True, tiling=None):
    """Queries, turned, and keys and values in the cache, from the RMSNorm of x. skip: the last of several tokens has no slot."""
    width = (heads + 2 * kv_heads) * head_dim

    def arrays(noise):
        x, norm, weight = noise.array((m, k), dtype), noise.array((k,), dtype), noise.array((width, k), dtype)
        slots = noise.random.permutation(12)[:m].astype(np.int32)
        slots[m - 1 :] = -1 if skip and m > 1 else slots[m - 1]
        caches = {name: noise.array((3, 4, kv_heads, head_dim), dtype) for name in ("key_cache", "value_cache")}
        places = dict(positions=np.arange(m, dtype=np.int32)[::-1].copy(), slot_mapping=slots, cos_sin=table(m, head_dim))
        given = dict(x=x, norm=norm, weight=weight, bias=noise.array((width,), dtype) if bias else None)
        return given | places | dict(query=noise.unwritten((m, heads, head_dim), dtype)) | caches

    def reference(x, norm, weight, bias, positions, slot_mapping, cos_sin, key_cache, value_cache):
        qkv = matmul_reference(normed(x, norm), weight, bias, np.float32).reshape(m, -1, head_dim)
        turned, kept = rope_reference(qkv[:, : heads + kv_heads], positions, cos_sin), slot_mapping >= 0
        by_slot(key_cache)[slot_mapping[kept]] = turned[kept, heads:].astype(dtype)
        by_slot(value_cache)[slot_mapping[kept]] = qkv[kept, heads + kv_heads :].astype(dtype)
        return dict(query=turned[:, :heads].astype(dtype))

    return Launch(
        arrays,
        call=calls(launch_gemv_qkv, epsilon=EPSILON, tiling=tiling),
        reference=in_place(reference, "key_cache", "value_cache"),
        moved={} if skip else qkv_gemv_moved(m, heads, kv_heads, head_dim, k, dtype.itemsize, tiling),
    )


def qkv_gemv_moved(m, heads, kv_heads, head_dim, k, b, tiling):
    """What it moves if no warps share a row of weight: each warp asks for x, the norm, and the angles of its pairs."""
    n = (heads + 2 * kv_heads) * head_dim
    warps, kept = n // tiling.rows, m * kv_heads * head_dim * b
    index = 32 * 4 * m * warps
    inputs = dict(x=m * k * b * warps, norm=m * k * b * warps, weight=n * k * b)
    places = dict(positions=index, slot_mapping=index, cos_sin=index * tiling.rows)
    results = dict(query=m * heads * head_dim * b, key_cache=kept, value_cache=kept)
    return Moved(inputs | places | results, dict(x=m * k * b, norm=k * b, positions=4 * m, slot_mapping=4 * m, cos_sin=m * head_dim * 4))


# Each thread of the fused kernels' epilogue asks for an item of eight outputs before it knows whether the item is its own.
EPILOGUE_THREADS = 128


@describes
def linear_add(m, n, k, dtype=BFLOAT16, tiling=None):
    """A flat GEMM of whole numbers, whose result is added to the residual stream; its norm is left unfinished."""

    def arrays(noise):
        shapes = dict(x=(m, k), weight=(n, k), residual=(m, n), norm=(n,))
        return {name: whole_numbers(noise, shape, dtype) for name, shape in shapes.items()} | dict(bias=None)

    def reference(x, weight, residual, norm):
        stream = matmul_reference(x, weight, out_dtype=np.float32) + residual.astype(np.float32)
        rows = fused.choose_fused_tiling(m, n, k).rows if tiling is None else tiling.rows
        squares = np.square(stream).reshape(m, -1, rows).sum(axis=2).T.copy()
        return stream.astype(dtype), (stream * norm.astype(np.float32)).astype(dtype), squares

    call = calls(fused.linear_add, epsilon=EPSILON, tiling=tiling)
    moved = {} if tiling is None else linear_add_moved(m, n, k, dtype.itemsize, tiling)
    return Launch(arrays, call, returns(("stream", "scaled", "squares"), reference), moved, exact=True)


def linear_add_moved(m, n, k, b, tiling):
    """What it moves, if tiles are whole."""
    tiles, out = n // tiling.rows, m * n * b
    items = tiles * tiling.splits * EPILOGUE_THREADS * 8 * b
    asked = dict(x_map=m * k * b * tiles, weight_map=n * k * b, residual=items, norm=items, out=out, scaled=out, out_squares=4 * m * tiles)
    return Moved(asked, dict(x_map=m * k * b, residual=out, norm=n * b), matmul_flops(m, n, k))


def deferred(scaled, squares=None):
    """A DeferredNorm for GEMMs, which do not read its stream; `scaled` itself without squares."""
    return scaled if squares is None else DeferredNorm(scaled, scaled, squares, EPSILON)


def finished(scaled, squares=None):
    """The norm of a DeferredNorm in float32."""
    x = scaled.astype(np.float32)
    return x if squares is None else x / np.sqrt(squares.sum(axis=0)[:, None] / x.shape[1] + np.float32(EPSILON))


def unfinished(noise, m, k, parts, dtype):
    """The rows of x, of whole numbers, and squares in parts if there are any."""
    squares = dict(squares=np.abs(noise.array((parts, m), FLOAT32)) + FLOAT32.type(1)) if parts else {}
    return dict(scaled=whole_numbers(noise, (m, k), dtype)) | squares


@describes
def gated_of_deferred_norm(m, n, k, parts, dtype=BFLOAT16, tiling=None):
    """silu(y @ gate.T) * (y @ up.T), y being a norm with squares in parts that the kernel finishes."""

    def arrays(noise):
        return unfinished(noise, m, k, parts, dtype) | dict(gate_up=noise.array((2 * n, k), dtype), out=noise.unwritten((m, n), dtype))

    def call(ops, gate_up, out, **x):
        fused.gated(deferred(**x), gate_up, out, stream=ops.stream, tiling=tiling)

    def reference(scaled, squares, gate_up):
        return silu_and_multiply_reference(matmul_reference(finished(scaled, squares), gate_up, out_dtype=np.float32)).astype(dtype)

    return Launch(arrays, call, returns(("out",), reference), moved={})


@describes
def flat_qkv_rope_append(m, heads, kv_heads, head_dim, k, parts=0, dtype=BFLOAT16, tiling=None):
    """Queries, turned, and keys and values in the cache; of normalised rows, or of a norm with squares in parts, which is finished here."""
    width = (heads + 2 * kv_heads) * head_dim

    def arrays(noise):
        slots = np.arange(m, dtype=np.int32)
        caches = {name: noise.array((-(-m // 4), 4, kv_heads, head_dim), dtype) for name in ("key_cache", "value_cache")}
        places = dict(positions=slots % 4, slot_mapping=slots, cos_sin=table(4, head_dim))
        given = unfinished(noise, m, k, parts, dtype) | dict(weight=whole_numbers(noise, (width, k), dtype))
        return given | places | dict(query=noise.unwritten((m, heads, head_dim), dtype)) | caches

    def call(ops, weight, positions, slot_mapping, cos_sin, query, key_cache, value_cache, **x):
        places = positions, slot_mapping, cos_sin, query, key_cache, value_cache
        fused.qkv_rope_append(deferred(**x), weight, None, *places, stream=ops.stream, tiling=tiling)

    def reference(scaled, weight, positions, slot_mapping, cos_sin, key_cache, value_cache, squares=None):
        qkv = matmul_reference(finished(scaled, squares), weight, out_dtype=np.float32).reshape(m, -1, head_dim)
        turned = rope_reference(qkv[:, : heads + kv_heads], positions, cos_sin)
        by_slot(key_cache)[slot_mapping] = turned[:, heads:].astype(dtype)
        by_slot(value_cache)[slot_mapping] = qkv[:, heads + kv_heads :].astype(dtype)
        return dict(query=turned[:, :heads].astype(dtype))

    moved = {} if tiling is None else flat_qkv_moved(m, heads, kv_heads, head_dim, k, dtype.itemsize, tiling)
    return Launch(arrays, call, in_place(reference, "key_cache", "value_cache"), moved)


def flat_qkv_moved(m, heads, kv_heads, head_dim, k, b, tiling):
    """What it moves, if tiles are whole, of eight tokens at four positions."""
    n, kept = (heads + 2 * kv_heads) * head_dim, m * kv_heads * head_dim * b
    blocks, turned = (count * head_dim // tiling.rows * tiling.splits for count in (heads + 2 * kv_heads, heads + kv_heads))
    index = 4 * EPILOGUE_THREADS * blocks
    asked = dict(x_map=m * k * b * n // tiling.rows, weight_map=n * k * b, positions=index, slot_mapping=index)
    asked |= dict(cos_sin=EPILOGUE_THREADS * 16 * 4 * turned, query=m * heads * head_dim * b, key_cache=kept, value_cache=kept)
    different = dict(x_map=m * k * b, positions=4 * m, slot_mapping=4 * m, cos_sin=4 * head_dim * 4)
    return Moved(asked, different, matmul_flops(m, n, k))


def compiled():
    """All dtypes, then those of tensor cores. naive hides latency by threads alone: 6 blocks of 256."""
    for dtype in DTYPES:
        yield MachineCode(f"matmul/naive/{dtype}", product("naive", 1, 8, 8, dtype, bias=True), blocks=6)
        yield MachineCode(f"matmul/warp_per_row/{dtype}", product("warp_per_row", 1, 8, 8, dtype, bias=True), blocks=16)
        for tile in tiled.TILES:
            yield MachineCode(f"matmul/tiled/{tile[0]}/{dtype}", product("tiled", 1, 8, 8, dtype, bias=True, tile=tile), blocks=2)
        for tile in vectorized.TILES:
            launch, contains = product("vectorized", 1, 8, 8, dtype, bias=True, tile=tile), ("LDG.E.128*", "LDS.128")
            yield MachineCode(f"matmul/vectorized/{tile}/{dtype}", launch, blocks=2, contains=contains)
        yield from compiled_gemv(dtype)
    for dtype in HALF_DTYPES:
        yield from compiled_tensor_core(dtype)
        yield from compiled_flat(dtype)
        yield from compiled_fused(dtype)
        for rung, blocks in (("warpgroup", warpgroup.BLOCKS_PER_SM), ("warp_specialized", 1)):
            for name, options in (("pairs", {}), ("out float32", dict(out_dtype=FLOAT32, bias=dtype))):
                launch = product(rung, 64, 256, 64, dtype, **options)
                yield MachineCode(f"matmul/{rung}/{name}/{dtype}", launch, blocks, WGMMA, targets=HOPPER)
        yield from compiled_wgmma(dtype)
    yield from quantized.compiled()
    yield from mixed_input.compiled()


def compiled_gemv(dtype):
    """Decoding: the tilings that launchers choose, and rows that are not whole vectors. More warps mean more bytes in flight."""
    for m, n, k in GEMV_SHAPES:
        yield from gemv_code(f"{m}x{n}x{k}", product("gemv", m, n, k, dtype, FLOAT32), choose_tiling(m, n, k))
    for m, n, k in GATED_SHAPES:
        yield from gemv_code(f"gated/{m}x{n}x{k}", gated_product("gemv", m, n // 2, k, dtype), choose_gated_tiling(m, n, k))
    if dtype == BFLOAT16:  # the other dtypes differ only in how words are unpacked
        yield from compiled_steps(dtype)
    for targets in (BEFORE_HOPPER, FROM_HOPPER):
        yield MachineCode(f"matmul/gemv/elements/{dtype}", product("gemv", 8, 2048, 2047, dtype), 4, targets=targets)


def compiled_steps(dtype):
    """The five GEMVs of a decode step of one sequence, as they are launched in 1B and 8B models."""
    for hidden, head_dim, intermediate in ((2048, 64, 8192), (4096, 128, 14336)):
        step, narrow, normed = f"step/{hidden}", dict(residual=True), dict(norm=True)
        launch = gemv_qkv_rope_append(1, hidden // head_dim, 8, head_dim, hidden, dtype)
        for target in TARGETS:
            tiling = choose_qkv_tiling(1, hidden, dtype, target)
            yield from gemv_code(f"{step}/qkv/{tiling.rows}_rows", launch, tiling, ((target,),))
        for name, n, k in (("output", hidden, hidden), ("down", hidden, intermediate)):
            yield from gemv_code(f"{step}/{name}", product("gemv", 1, n, k, dtype, **narrow), choose_tiling(1, n, k))
        tiling = choose_gated_tiling(1, 2 * intermediate, hidden, normed=True)
        yield from gemv_code(f"{step}/gate_up", gated_product("gemv", 1, intermediate, hidden, dtype, **normed), tiling)
        tiling = choose_tiling(1, 128256, hidden, normed=True)
        yield from gemv_code(f"{step}/head", product("gemv", 1, 128256, hidden, dtype, FLOAT32, **normed), tiling)


def gemv_code(name, launch, tiling, kinds=(BEFORE_HOPPER, FROM_HOPPER)):
    """One launch on each kind of GPU: 24 warps should fit on an SM, and 16 that have 8 rows of x, which need more registers.

    tiling: the one from Hopper on; launchers choose fewer loads in flight for 8 rows of float32 before (gemv.is_short_of_registers).
    """
    warps = 24 if launch.shape["m"] <= 4 else 16
    for targets in kinds:
        yield MachineCode(f"matmul/gemv/{name}/{launch.dtype}", launch, warps // tiling.warps, STREAMED, targets=targets)


def compiled_tensor_core(dtype):
    """Prefill: all tilings. A block's outputs fill the registers: one large block, or two of the next size, and so on."""
    for tiling, blocks in zip(tensor_core.TILINGS, (1, 2, 2, 3, 4, 5), strict=True):
        name, contains = f"matmul/tensor_core/{tiling.tile_m}x{tiling.tile_n}/{dtype}", (*TENSOR_CORES, COPIED_BY_THREADS)
        launch = product("tensor_core", 1, 8, 8, dtype, bias=True, tiling=tiling)
        for targets in (BEFORE_HOPPER, FROM_HOPPER):  # before, the launcher limits registers (tensor_core.BLOCKS)
            yield MachineCode(name, launch, blocks, contains, targets=targets)
    launch = product("tensor_core", 1, 8, 7, dtype, FLOAT32, bias=dtype)
    yield MachineCode(f"matmul/tensor_core/elements/{dtype}", launch, 4, TENSOR_CORES)


def compiled_flat(dtype):
    """Decoding a batch: the tilings that launchers choose on Hopper, and on other GPUs, plain and gated."""
    for gated in (False, True):
        kind = "gated/" if gated else ""
        for m, n, blocks in ((8, 4096, 4), (32, 4096, 2), (32, 28672, 2), (64, 4096, 2), (128, 4096, 1)):
            tiling = flat_tiles.choose_tiling(m, n, 4096, gated)
            yield flat_code(f"flat/tiles/{kind}{m}x{n}", gated, m, n, 4096, dtype, tiling, blocks)
        for m, n, k in ((8, 4096, 14336), (32, 28672, 4096), (128, 28672, 4096), (64, 4096, 14336), (256, 6144, 4096)):
            yield flat_code(f"flat/wgmma/{kind}{m}x{n}x{k}", gated, m, n, k, dtype, flat_wgmma.choose_tiling(m, n, k, gated))
        if dtype != BFLOAT16:
            return  # float16 has the same instructions except for one letter
    for m, blocks in ((8, 3), (64, 2), (128, 2)):  # fixed_order: tilings that split K independently of the rows of x
        yield flat_code(f"fixed_order/tiles/{m}", False, m, 4096, 4096, dtype, fixed_order.mma_tiling(m), blocks)
    shapes = ((8, 6144, 4096), (8, 28672, 4096), (256, 2048, 8192), (256, 2048, 2048))
    for gated, (m, n, k) in (*((False, shape) for shape in shapes), (True, shapes[1])):
        name = f"fixed_order/wgmma/{'silu/' if gated else ''}{m}x{n}x{k}"
        yield flat_code(name, gated, m, n, k, dtype, fixed_order.wgmma_tiling(m, n, k))


def flat_code(name, gated, m, n, k, dtype, tiling, blocks=1):
    """A flat GEMM with a tiling of either kernel; that with wgmma is Hopper's alone."""
    by_wgmma = isinstance(tiling, FlatWgmmaTiling)
    contains = COPY_ENGINE if by_wgmma else ("HMMA.16816.F32*", COPIED_BY_THREADS)
    launch = (gated_product if gated else product)("flat", m, n, k, dtype, tiling=tiling)
    return MachineCode(f"matmul/{name}/{dtype}", launch, blocks, contains, targets=HOPPER if by_wgmma else TARGETS)


def compiled_fused(dtype):
    """Decoding a batch: flat GEMMs from residual stream to residual stream in 1B and 8B models; as many blocks as shared memory holds."""
    for m, hidden, intermediate, head_dim in ((16, 2048, 8192, 64), (64, 4096, 14336, 128)):
        parts = hidden // fused.choose_fused_tiling(m, hidden, intermediate).rows
        launches = {
            f"linear_add/{m}x{hidden}": linear_add(m, hidden, intermediate, dtype),
            f"gated/{m}x{intermediate}": gated_of_deferred_norm(m, intermediate, hidden, parts, dtype),
            f"qkv_rope_append/{m}x{hidden}": flat_qkv_rope_append(
                m, hidden // head_dim, hidden // head_dim // 4, head_dim, hidden, parts, dtype
            ),
        }
        for name, launch in launches.items():
            (recorded,) = launch.dry_run(HOPPER[0])
            blocks = 228 * 1024 // (recorded.launch.shared_bytes + 1024)
            yield MachineCode(f"matmul/flat/fused/{name}/{dtype}", launch, blocks, COPY_ENGINE, targets=HOPPER)
        if dtype != BFLOAT16:
            return  # float16 has the same instructions except for one letter


def compiled_wgmma(dtype):
    """All tilings, plain, gated, with everything fused, and with outputs that TMA cannot store."""
    copied = (*WGMMA, "UTMASTG.2D*", "STSM.16.M88.4*")
    for tiling in TILINGS if dtype == BFLOAT16 else TILINGS[:1]:
        name = f"matmul/wgmma/{tiling.tile_m}x{tiling.tile_n}{'/cluster' if tiling.cluster > 1 else ''}{'/early' if tiling.early else ''}"
        yield MachineCode(f"{name}/{dtype}", product("wgmma", 64, 512, 64, dtype, tiling=tiling), 1, copied, targets=HOPPER)
        if tiling.tile_n in GATED_TILES:
            launch = gated_product("wgmma", 64, 512, 64, dtype, tiling=tiling._replace(chunks=1))
            yield MachineCode(f"{name}/silu/{dtype}", launch, 1, copied, targets=HOPPER)
    if dtype != BFLOAT16:
        return  # float16 has the same instructions except for one letter
    large = dict(tiling=TILINGS[0])
    yield MachineCode(f"matmul/wgmma/bias/{dtype}", product("wgmma", 64, 512, 64, bias=True, **large), 1, copied, targets=HOPPER)
    launch, spills = product("wgmma", 64, 512, 64, residual=True, **large), {(9, 0): 40}  # once per tile, beside 128 sums and two addresses
    yield MachineCode(f"matmul/wgmma/residual/{dtype}", launch, 1, copied, spills=spills, targets=HOPPER)
    yield MachineCode(f"matmul/wgmma/pairs/{dtype}", product("wgmma", 64, 66, 64, bias=True, **large), 1, WGMMA, targets=HOPPER)
    launch = product("wgmma", 64, 512, 64, out_dtype=FLOAT32, **large)
    yield MachineCode(f"matmul/wgmma/out float32/{dtype}", launch, 1, WGMMA, targets=HOPPER)


def small():
    """Whole numbers, whose products are exact; tests/kernels/matmul has odd shapes, extremes, and every option."""
    exact = dict(exact=True)
    yield product("naive", 17, 18, 24, **exact)
    yield product("warp_per_row", 2, 5, 75, **exact)
    yield product("tiled", 32, 48, 12, FLOAT32, **exact, tile=(16, 4, 4))
    yield product("vectorized", 32, 48, 16, FLOAT32, **exact, tile=16)
    yield product("gemv", 3, 8, 520, **exact, tiling=GemvTiling(2, 2, 2))
    yield gemv_qkv_rope_append(2, 2, 1, 8, 520, skip=False, tiling=GemvTiling(2, 2, 2))
    yield product("flat", 8, 96, 128, **exact, tiling=FlatTiling(rows=32, warps=4, splits=2, stages=3))
    yield product("flat", 8, 128, 128, **exact, tiling=FlatWgmmaTiling(warpgroups=1, stages=2, splits=2))
    split = FlatWgmmaTiling(warpgroups=1, stages=2, splits=2)
    yield linear_add(8, 128, 128, tiling=split)
    yield flat_qkv_rope_append(8, 2, 1, 64, 128, tiling=split)
    yield product("tensor_core", 64, 96, 64, **exact, tiling=TensorCoreTiling(32, 32, 32, 1, 2, 3))
    yield product("warpgroup", 128, 256, 320, **exact)
    yield product("warp_specialized", 128, 256, 320, **exact)
    yield product("wgmma", 256, 128, 128, **exact, tiling=WgmmaTiling(1, 64, 2, 2))
    yield product("naive", 9, 7, 33, FLOAT32, **exact)
    yield product("tiled", 9, 17, 40, **exact, tile=(8, 8, 2))
    yield product("vectorized", 9, 17, 16, **exact, tile=16)
    for variant, rows in (("tensor_core", 9), ("gemv", 1), ("flat", 9), ("fixed_order", 9)):
        yield product(variant, rows, 18, 64, **exact)
    for number, tiling in enumerate(GEMV_TILINGS):
        yield from fused_gemvs(FUSED_GEMVS, FUSED_QKV_GEMVS, DTYPES[number % 3], tiling)
    yield from of_engines()
    yield from quantized.small()
    yield from mixed_input.small()


def of_engines():
    """What engines launch besides: heads, whose outputs are float32, and GPT-2's biases."""
    by_threads, by_maps = FlatTiling(rows=32, warps=4, splits=2, stages=3), FlatWgmmaTiling(warpgroups=1, stages=2, splits=2)
    for dtype, tiling in ((BFLOAT16, by_threads), (FLOAT16, by_threads), (BFLOAT16, by_maps)):
        yield product("flat", 8, 128, 128, dtype, FLOAT32, tiling=tiling)
    yield product("tensor_core", 9, 18, 64, FLOAT16)
    yield product("gemv", 1, 7, 520, FLOAT16, FLOAT32, norm=True)
    yield product("gemv", 1, 7, 520, FLOAT32, bias=True)
    yield product("gemv", 1, 7, 520, FLOAT32, bias=True, residual=True)


def fused_gemvs(shapes, qkv_shapes, dtype, tiling):
    """GEMVs with a norm, a residual, everything, a gate, and with what follows a product for queries, keys and values."""
    chosen = {} if tiling is None else dict(tiling=tiling)
    for around in (dict(norm=True), dict(residual=True), dict(norm=True, bias=True, residual=True)):
        yield from (product("gemv", *shape, dtype, **around, **chosen) for shape in shapes)
    yield from (gated_product("gemv", *shape, dtype, norm=True, **chosen) for shape in shapes)
    yield from (gemv_qkv_rope_append(*shape, dtype, tiling is None, **chosen) for shape in qkv_shapes)


def large():
    """Rows of models, and numbers of outputs that fill no block."""
    for tiling in GEMV_TILINGS:
        shapes, qkv_shapes = ((1, 1003, 4096), (1, 515, 14336)), ((1, 32, 8, 128, 4096), (1, 32, 8, 64, 2048))
        yield from fused_gemvs((*FUSED_GEMVS, *shapes), (*FUSED_QKV_GEMVS, *qkv_shapes), BFLOAT16, tiling)
    yield from mixed_input.large()


def measured():
    """All variants, named M x N x K: FLOPs per second for many rows, bytes per second for few."""
    ladder = [("naive", 2048, 2048, 2048)]
    for size in (2048, 4096):
        ladder += [(variant, size, size, size) for variant in ("tiled", "vectorized", "tensor_core", *HOPPER_RUNGS)]
    ladder += [(variant, 2048, 2048, 2048, FLOAT32) for variant in ("naive", "tiled", "vectorized")]
    ladder += [(variant, 8192, 8192, 8192) for variant in HOPPER_RUNGS]
    for n, k in ((6144, 4096), (28672, 4096), (4096, 14336)):
        ladder += [(variant, 2048, n, k) for variant in ("tensor_core", "wgmma")]
    one_row = [(6144, 4096), (28672, 4096), (4096, 14336), (16384, 2048), (128256, 2048)]
    decoding = [*(("gemv", 1, n, k) for n, k in one_row), ("gemv", 8, 6144, 4096)]
    batches = [("flat", m, n, k) for n, k in one_row[:3] for m in (1, 8, 16, 32, 64, 128, 256)]
    batches += [("fixed_order", m, n, k) for n, k in one_row[:3] for m in (1, 64, 256, 2048)]
    batches += [("wgmma", m, n, k) for n, k in one_row[:3] for m in (128, 256)]
    shapes = [*ladder, *decoding, *batches]
    others = [name for name in VARIANTS if name not in {shape[0] for shape in shapes}]
    shapes += [(name, min(2048, VARIANTS.entry(name).most_rows or 2048), 2048, 2048) for name in others]
    for variant, m, n, k, *dtype in shapes:
        launch = product(variant, m, n, k, *dtype)
        moved, few_rows = matmul_bytes(m, n, k, launch.dtype.itemsize), m <= MOST_ROWS_OF_FLAT
        unit, work = (TB_S, moved) if few_rows else (TFLOP_S, matmul_flops(m, n, k))
        case, size = f"{m}x{n}x{k}, {launch.dtype}", dict(work=work, set_bytes=moved, sample=16)
        yield Measured(launch, variant, case, unit=unit, peers=("cuBLAS",), **size)
