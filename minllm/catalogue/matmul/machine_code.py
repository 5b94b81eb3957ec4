"""The GEMMs of plain weights as they are compiled."""

from minllm.catalogue.launch import FP8_TARGETS, HOPPER, TARGETS, MachineCode
from minllm.catalogue.matmul.fused import flat_qkv_rope_append, gated_of_deferred_norm, gemv_qkv_rope_append, linear_add
from minllm.catalogue.matmul.products import gated_product, product
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT32
from minllm.kernels.matmul import tensor_core, vectorized
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.flat import fixed_order, fused
from minllm.kernels.matmul.flat import mma_tiling as flat_mma_tiling
from minllm.kernels.matmul.flat import wgmma_tiling as flat_wgmma
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.gemv.gemv import choose_gated_tiling, choose_tiling
from minllm.kernels.matmul.gemv.gemv_qkv import choose_qkv_tiling
from minllm.kernels.matmul.ladder import tiled, warpgroup
from minllm.kernels.matmul.wgmma.tiling import GATED_TILES, TILINGS

BEFORE_HOPPER, FROM_HOPPER = TARGETS[:2], TARGETS[2:]
TENSOR_CORES = ("HMMA.16816.F32*", "LDSM.16.M88.4")
COPIED_BY_THREADS = "LDGSTS.E.BYPASS*128*"
COPY_ENGINE = ("HGMMA.64x*", "UTMALDG.2D*", "SYNCS.PHASECHK*")
WGMMA = (*COPY_ENGINE, "WARPGROUP.DEPBAR*")
STREAMED = ("LDG*NA*128*",)  # weights bypass L1, because each is used once
# (rows of x, N, K): one weight shape for each tiling that launchers choose.
GEMV_SHAPES = ((1, 128256, 2048), (1, 2048, 8192), (4, 2048, 8200), (4, 128256, 2048), (8, 128256, 2048))
GATED_SHAPES = ((1, 16384, 2048), (1, 28672, 4096), (4, 16384, 2048), (8, 28672, 4096))

# Addresses of single elements: only rows that do not begin on multiples of 16 bytes pay for them.
SPILLS_OF_ELEMENTS = {(8, 0): 104, (8, 9): 44, (9, 0): 32, (10, 0): 16}


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
            by_element, name = product("vectorized", 1, 8, 7, dtype, bias=True, tile=tile), f"matmul/vectorized_elements/{tile}/{dtype}"
            yield MachineCode(name, by_element, blocks=2, contains=("LDS.128",), spills=SPILLS_OF_ELEMENTS)
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
    """The five GEMVs of a decode step of one sequence, as they are launched in 1B and 8B models, and four by tensor ranks of the latter."""
    for hidden, head_dim, intermediate in ((2048, 64, 8192), (4096, 128, 14336)):
        step, heads = f"step/{hidden}", hidden // head_dim
        yield from compiled_layer(step, hidden, heads, 8, head_dim, intermediate, dtype)
        coded = gemv_qkv_rope_append(1, heads, 8, head_dim, hidden, dtype, codes="fp8_e4m3", smooth=True)
        tiling = choose_qkv_tiling(1, (heads + 2 * 8) * head_dim, hidden, dtype, HOPPER[0], has_codes=True)
        yield from gemv_code(f"{step}/qkv/fp8_e4m3", coded, tiling, (FP8_TARGETS,))
        tiling = choose_tiling(1, 128256, hidden, normed=True)
        yield from gemv_code(f"{step}/head", product("gemv", 1, 128256, hidden, dtype, FLOAT32, norm=True), tiling)
    for ranks in (2, 4):
        from_ada = FP8_TARGETS  # before, the kernel of queries, keys and values is that of a whole step
        yield from compiled_layer(f"rank/{ranks}", 4096, 32 // ranks, 8 // ranks, 128, 14336 // ranks, dtype, from_ada)


def compiled_layer(name, hidden, heads, kv_heads, head_dim, intermediate, dtype, targets=TARGETS):
    """The GEMVs of a layer. targets: for which that of queries, keys and values is compiled."""
    launch, width = gemv_qkv_rope_append(1, heads, kv_heads, head_dim, hidden, dtype), (heads + 2 * kv_heads) * head_dim
    for target in targets:
        tiling = choose_qkv_tiling(1, width, hidden, dtype, target)
        yield from gemv_code(f"{name}/qkv/{tiling.rows}_rows", launch, tiling, ((target,),))
    for part, k in (("output", heads * head_dim), ("down", intermediate)):
        yield from gemv_code(f"{name}/{part}", product("gemv", 1, hidden, k, dtype, residual=True), choose_tiling(1, hidden, k))
    tiling = choose_gated_tiling(1, 2 * intermediate, hidden, normed=True)
    yield from gemv_code(f"{name}/gate_up", gated_product("gemv", 1, intermediate, hidden, dtype, norm=True), tiling)


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
            tiling = flat_mma_tiling.choose_tiling(m, n, 4096, gated)
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
