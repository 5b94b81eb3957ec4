"""The launches for a vocabulary that is split over N ranks: R rows, P parts of a rank's logits."""

import numpy as np

from minllm.catalogue.launch import Launch, MachineCode, Moved, beside, describes, each
from minllm.catalogue.rows import DTYPES
from minllm.kernels.sampling.argmax import parts_of
from minllm.kernels.split_vocabulary.argmax import argmax_of_own
from minllm.kernels.split_vocabulary.argmax import argmax_of_ranks as launch_argmax_of_ranks
from minllm.kernels.split_vocabulary.join import join_parts as launch_join_parts
from minllm.kernels.split_vocabulary.lookup import split_embedding as launch_split_embedding


@describes
def split_embedding(tokens, size, hidden, dtype, learned_positions=False):
    """The embeddings of the tokens of rank 1 of 3, which owns the ids from `size` on, and zeros for the others."""

    def arrays(noise):
        token_ids = noise.random.integers(0, 3 * size, tokens).astype(np.int32)
        token_ids[:2] = size, 2 * size - 1
        return dict(
            token_ids=token_ids, rows=noise.array((size, hidden), dtype), out=noise.unwritten((tokens, hidden), dtype),
            positions=np.arange(tokens, dtype=np.int32) if learned_positions else None,
            position_embedding=noise.array((tokens, hidden), dtype) if learned_positions else None,
        )  # fmt: skip

    def moved(token_ids, **_):
        own = int(((token_ids >= size) & (token_ids < 2 * size)).sum()) * hidden * dtype.itemsize
        shift = dict(position_embedding=own) if learned_positions else {}
        return Moved(dict(rows=own, out=tokens * hidden * dtype.itemsize) | shift)

    return Launch(
        arrays,
        **beside(launch_split_embedding, "out", first=size),
        moved=moved,
        indices=("token_ids", "positions"),
        exact=True,
    )


@describes
def argmax_of_rank(rows, size, columns):
    """The largest of each part of a rank's logits, of which the first `columns` count; one part a row in the reference."""
    parts = 4 * rows * parts_of(size)
    return Launch(
        arrays=lambda noise: dict(
            logits=noise.array((rows, size), np.float32),
            values=noise.unwritten((rows, parts_of(size)), np.float32), tokens=noise.unwritten((rows, parts_of(size)), np.int32),
        ),
        **beside(argmax_of_own, "values", "tokens", columns=columns),
        moved=Moved(dict(logits=4 * rows * columns, part_values=parts, part_tokens=parts)),
        exact=True,
    )  # fmt: skip


@describes
def argmax_of_ranks(ranks, rows, parts, size):
    """The token of each row from the best of all ranks' parts, with equals among them."""
    best = 4 * ranks * rows * parts

    def arrays(noise):
        values = noise.random.integers(-3, 3, (ranks, rows, parts)).astype(np.float32)
        tokens, slots = noise.random.integers(0, size, values.shape).astype(np.int32), np.arange(rows, dtype=np.int32)
        slots[3::4] = -1
        return dict(values=values, tokens=tokens, slots=slots, out=noise.unwritten((rows,), np.int32))

    return Launch(
        arrays,
        **beside(launch_argmax_of_ranks, "out", size=size),
        moved=Moved(dict(values=best, tokens=best, out=4 * rows)),
        indices=("slots",),
        exact=True,
    )


@describes
def join_parts(ranks, rows, size, vocabulary):
    """The logits of all ranks, of which the last has some padding, as rows of `vocabulary`."""
    whole = 4 * rows * vocabulary
    return Launch(
        arrays=lambda noise: dict(parts=noise.array((ranks, rows, size), np.float32), out=noise.unwritten((rows, vocabulary), np.float32)),
        **beside(launch_join_parts, "out", vocab=vocabulary),
        moved=Moved(dict(parts=whole, out=whole)),
        exact=True,
    )


def compiled():
    """They are memory-bound."""
    for dtype in DTYPES:
        yield MachineCode(f"split_vocabulary/lookup/{dtype}", split_embedding(2, 4, 64, dtype), blocks=12)
    yield MachineCode("split_vocabulary/argmax_of_ranks", argmax_of_ranks(2, 1, 1, 64), blocks=16)
    yield MachineCode("split_vocabulary/join", join_parts(2, 1, 64, 128), blocks=6)


def small():
    """Odd sizes, ranks of several parts, padding; tests/kernels/split_vocabulary compares all ranks with the whole."""
    yield from each(split_embedding, [(3, 5, 40), (9, 13, 45)], dtype=DTYPES, learned_positions=(False, True))
    yield from each(argmax_of_rank, [(3, 68, 67), (2, 5, 5)])
    yield from each(argmax_of_ranks, [(2, 3, 1, 68), (4, 5, 3, 7)])
    yield from each(join_parts, [(2, 3, 68, 135), (3, 2, 335, 1003), (2, 1, 3, 5)])
