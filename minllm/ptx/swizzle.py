"""The swizzle of tiles in shared memory, which avoids bank conflicts.

It permutes the 16-byte chunks of a 128-byte line by the line's number: with a swizzle of 128 bytes chunk c of line r is at c ^ (r % 8),
with 64 at c ^ (r % 4), with 32 at c ^ (r % 2). Lines are counted from address 0, so if a kernel computes addresses itself, its tiles must
begin at multiples of 1024 bytes (8 lines). TMA writes swizzled tiles and wgmma reads them. PTX ISA, "Shared memory matrix layout",
"Swizzling modes".
"""

CHUNK_BYTES = 16
LINE_MASKS = {0: 0, 32: 1, 64: 3, 128: 7}


def swizzled(chunks, swizzle):
    """The swizzled positions of chunks. chunks: shared addresses / 16, an int or a NumPy array; swizzle: 0, 32, 64 or 128."""
    return chunks ^ (chunks >> 3 & LINE_MASKS[swizzle])
