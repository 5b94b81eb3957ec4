"""Tiles of a matrix in shared memory, for the tensor-core GEMM: their swizzled layout, and how they are copied.

A tile is `rows` x tile_k elements of a row-major matrix, in chunks of 16 bytes (8 half-precision elements). One cp.async copies one chunk,
and ldmatrix reads eight rows at once, one chunk of each.

Swizzle. Shared memory has 32 banks of 4 bytes; 8 chunks fill them all. If chunk c of row r lay at index r * chunks + c, the same chunk of
eight rows of 128 bytes would lie in the same four banks, and ldmatrix would be serialised eightfold. So it lies at c xor (r mod 8) within
its row: the same chunk of eight neighbouring rows then lies in eight different bank groups. (xor is its own inverse and keeps a row's
chunks within the row.) If a row is shorter than 128 bytes, 8 / chunks rows share the banks, and r is divided by that number first.

Source: PTX ISA, "cp.async" (with src-size: bytes beyond it are filled with zeros) and "ldmatrix"; NVIDIA, "CUTLASS: Efficient GEMM in
CUDA".
"""

from numba import cuda, float32, int64, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.output_tiles import PACK
from minllm.runtime.device import AMPERE, capability_here

CHUNK = 8  # elements in 16 bytes
WAIT_FOR_ALL_BUT = tuple(getattr(ptx, f"cp_async_wait_group_{groups}") for groups in range(8))  # [n]: until at most n groups are in flight


def with_stages_for_gpu(tiling):
    """A tiling with a ring of two stages before compute capability 8.0: a copy is complete when it returns, so more would hide nothing."""
    return tiling if capability_here() >= AMPERE else tiling._replace(stages=2)


def make_place_of_chunk(tile_k: int):
    """The device function that swizzles: (row, chunk) of a tile -> index of the chunk from the tile's start."""
    chunks = tile_k // CHUNK
    rows_across_the_banks = max(CHUNK // chunks, 1)
    mask = min(chunks, CHUNK) - 1

    @cuda.jit(device=True)
    def place_of_chunk(row, chunk):
        return uint32(row * chunks + (chunk ^ ((row // rows_across_the_banks) & mask)))

    return place_of_chunk


def make_copy_tile(rows: int, tile_k: int, threads: int):
    """Two device functions for sources with all rows aligned to 16 bytes: (find_rows, copy_tile).

    find_rows computes once the source indices of the rows that this thread copies; copy_tile starts the cp.async of one tile. Rows
    beyond the edge repeat the last one: they only reach outputs that are not stored. Columns beyond the edge are zeros, because they are
    summed.
    """
    chunks = tile_k // CHUNK
    copies = ceil_div(rows * chunks, threads)  # 16-byte copies per thread
    all_copy = rows * chunks % threads == 0
    place_of_chunk = make_place_of_chunk(tile_k)

    @cuda.jit(device=True)
    def find_rows(source, first_row, thread, starts):
        """starts[copy] = the flat index, in source [*, K], of this thread's `copy`-th chunk of the first tile."""
        for copy in range(copies):
            row = first_row + thread // uint32(chunks) + uint32(copy * threads // chunks)
            starts[copy] = min(int64(row), source.shape[0] - 1) * source.shape[1] + thread % uint32(chunks) * CHUNK

    @cuda.jit(device=True)
    def copy_tile(source, starts, first_k, shared, first_word, thread):
        """Copy the tile that begins at column `first_k` of the source to `shared` (uint32), from word `first_word` on."""
        address = ptx.shared_address(shared, first_word)
        chunk = thread % uint32(chunks)
        # K is a multiple of 8, so a chunk is inside the row or beyond it; beyond it nothing is read, and zeros are written.
        valid_bytes = uint32(16) if first_k + chunk * CHUNK < source.shape[1] else uint32(0)
        for copy in range(copies):
            row = thread // uint32(chunks) + uint32(copy * threads // chunks)
            if all_copy or row < rows:
                place = uint32(address + uint32(16) * place_of_chunk(row, chunk))
                ptx.cp_async_16(place, source, starts[copy] + first_k, valid_bytes)

    return find_rows, copy_tile


def make_copy_tile_by_elements(rows: int, tile_k: int, threads: int, dtype: str):
    """(find_rows, copy_tile) for unaligned sources.

    Each thread reads 8 elements one by one, packs them and stores them at once.
    """
    chunks = tile_k // CHUNK
    copies = rows * chunks // threads
    place_of_chunk = make_place_of_chunk(tile_k)
    pack = PACK[dtype]

    @cuda.jit(device=True)
    def find_rows(source, first_row, thread, starts):
        """starts[copy] = the row of this thread's `copy`-th chunk."""
        for copy in range(copies):
            row = first_row + thread // uint32(chunks) + uint32(copy * threads // chunks)
            starts[copy] = min(int64(row), source.shape[0] - 1)

    @cuda.jit(device=True)
    def element(source, row, k):
        """source[row, k] as float32, which is exact; 0 beyond the edge."""
        if k < source.shape[1]:
            return float32(source[row, k])
        return float32(0.0)

    @cuda.jit(device=True)
    def copy_tile(source, starts, first_k, shared, first_word, thread):
        """Copy the tile that begins at column `first_k` of the source to `shared` (uint32), from word `first_word` on."""
        chunk = thread % uint32(chunks)
        for copy in range(copies):
            row = thread // uint32(chunks) + uint32(copy * threads // chunks)
            word = first_word + uint32(4) * place_of_chunk(row, chunk)
            for pair in range(4):
                k = first_k + chunk * CHUNK + 2 * pair
                shared[word + pair] = pack(element(source, starts[copy], k), element(source, starts[copy], k + 1))

    return find_rows, copy_tile
