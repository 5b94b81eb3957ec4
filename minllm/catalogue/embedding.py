"""The launches of the embedding: T tokens of H features of b bytes."""

import numpy as np

from minllm.catalogue.launch import WIDE, Launch, MachineCode, Measured, Moved, beside, describes, each
from minllm.catalogue.rows import BFLOAT16, DTYPES
from minllm.kernels.embedding.lookup import embedding as launch_embedding

# (tokens, vocabulary, hidden): lengths around whole vectors and the block's 128 threads; 2056: the loop goes round twice.
PLAIN = ((3, 7, 67), (2, 11, 8), (1, 1, 1), (1, 5, 257), (1, 3, 2056))
WITH_POSITIONS = ((3, 7, 264), (5, 3, 7), (2, 11, 8), (2, 5, 40))


@describes
def embedding(tokens, vocabulary, hidden, dtype, learned_positions=False):
    """Rows of the table, distinct ones if there are enough; learned_positions: plus GPT-2's."""
    size = tokens * hidden * dtype.itemsize

    def arrays(noise):
        token_ids = noise.random.permutation(max(vocabulary, tokens))[:tokens].astype(np.int32) % vocabulary
        token_ids[-1] = vocabulary - 1
        given = dict(token_ids=token_ids, embedding=noise.array((vocabulary, hidden), dtype), positions=None, position_embedding=None)
        if learned_positions:
            given["positions"] = np.arange(tokens, dtype=np.int32)[::-1].copy()
            given["position_embedding"] = noise.array((tokens + 1, hidden), dtype)
        return dict(given, out=noise.unwritten((tokens, hidden), dtype))

    return Launch(
        arrays,
        **beside(launch_embedding, "out"),
        moved=Moved(dict(embedding=size, out=size) | (dict(position_embedding=size) if learned_positions else {})),
        indices=("token_ids", "positions"),
        rows=("token_ids", "positions", "out"),
        exact=not learned_positions,
    )


def compiled():
    """They are memory-bound, so they should fill most of the SM: 12 blocks of 128 threads."""
    for dtype in DTYPES:
        yield MachineCode(f"embedding/elements/{dtype}", embedding(1, 2, 67, dtype), blocks=12)
        yield MachineCode(f"embedding/vectors/{dtype}", embedding(1, 2, 64, dtype), blocks=12, contains=WIDE)
        name, launch = f"embedding/vectors_with_positions/{dtype}", embedding(1, 2, 64, dtype, learned_positions=True)
        yield MachineCode(name, launch, blocks=12, contains=WIDE)


def small():
    """With and without learned positions."""
    yield from each(embedding, PLAIN, dtype=DTYPES)
    yield from each(embedding, WITH_POSITIONS, dtype=DTYPES, learned_positions=[True])


def large():
    """Rows of models."""
    yield from each(embedding, ((2049, 1003, 2048), (17, 101, 5003)), dtype=DTYPES)
    yield from each(embedding, ((130, 1003, 1024),), dtype=DTYPES, learned_positions=[True])


def measured():
    """Distinct token ids, so that no row is in the cache already."""
    yield Measured(embedding(16384, 32768, 4096, BFLOAT16), "embedding", "16384x4096, bfloat16")
    yield Measured(
        embedding(16384, 32768, 4096, BFLOAT16, learned_positions=True), "embedding with positions", "16384x4096, bfloat16", for_tuning=True
    )
