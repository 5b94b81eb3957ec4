"""The launches of ranks that share contexts: their slots and lengths, prompts over one share, and the merge of the ranks' outputs."""

import numpy as np

from minllm.catalogue.all_reduce import FLAGS, left_out, memories_of, of_each, of_ranks, peers_of, together
from minllm.catalogue.attention.paged import BLOCK_SIZE, LENS, SLACK, TENSOR_CORES, batch_of, launch_variant, lengths, seen_slots
from minllm.catalogue.launch import WIDE, Launch, MachineCode, Moved, describes, returns
from minllm.catalogue.rows import BFLOAT16, FLOAT16, FLOAT32
from minllm.kernels.all_reduce.peers import MOST_RANKS
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.attention.shared_context.exchange import gather_queries as launch_gather_queries
from minllm.kernels.attention.shared_context.exchange import merge_of_peers as launch_merge_of_peers
from minllm.kernels.attention.shared_context.merge_ranks import StateArrays, merge_ranks_reference
from minllm.kernels.attention.shared_context.merge_ranks import merge_ranks as launch_merge_ranks
from minllm.kernels.attention.shared_context.share import ContextShare
from minllm.kernels.attention.shared_context.share import share_of_rank as launch_share_of_rank
from minllm.kernels.vector import VECTOR_BYTES


@describes
def share_of_rank(tokens, sequences, rank=1, ranks=3, block_size=4):
    """Slots of all ranks' tokens, some of padding, and contexts of all lengths."""
    share = ContextShare(rank, ranks, block_size)

    def arrays(noise):
        slots = noise.random.integers(-1, 9 * ranks * block_size, tokens).astype(np.int32)
        lens = noise.random.integers(0, 9 * ranks * block_size, sequences).astype(np.int32)
        return dict(
            slot_mapping=slots, context_lens=lens, slots=noise.unwritten((tokens,), np.int32),
            lengths=noise.unwritten((sequences,), np.int32),
        )  # fmt: skip

    def call(ops, slot_mapping, context_lens, slots, lengths):
        launch_share_of_rank(slot_mapping, context_lens, share, slots, lengths, ops.stream)

    def reference(slot_mapping, context_lens, **_):
        return dict(slots=share.slots(slot_mapping), lengths=share.lengths(context_lens))

    moved = Moved(dict(slot_mapping=4 * tokens, slots=4 * tokens, context_lens=4 * sequences, lengths=4 * sequences))
    return Launch(arrays, call, reference, moved, exact=True)


@describes
def merge_ranks(tokens, heads, head_dim, dtype, ranks=2, rank=1):
    """Of the rows 0 to 2 the first, the second and all ranks have no keys."""
    shape = (ranks, tokens, ranks * heads, head_dim)

    def arrays(noise):
        states = [StateArrays.allocate(lambda size, _: noise.array(size, FLOAT32), *shape[1:], dtype) for _ in range(ranks)]
        for i, state in enumerate(states):
            state.out[:], state.lse[:] = noise.array(shape[1:], dtype), noise.array(shape[1:3], FLOAT32, 5)
            for row in (i, 2):
                state.out[row : row + 1], state.lse[row : row + 1] = 0, -np.inf
        return dict(gathered=np.stack([one.words for one in states]), out=noise.unwritten((tokens, heads, head_dim), dtype))

    def call(ops, gathered, out):
        launch_merge_ranks(gathered, rank, out, ops.stream)

    def reference(gathered, **_):
        states = [StateArrays.allocate(lambda size, _, words=words: words, *shape[1:], dtype) for words in gathered]
        own = slice(rank * heads, (rank + 1) * heads)
        return dict(
            out=merge_ranks_reference(*(np.stack([getattr(one, name)[:, own] for one in states]) for name in ("out", "lse"))).astype(dtype)
        )

    numbers, rows = tokens * heads * head_dim, tokens * heads
    weights = ranks * 4 * (numbers * dtype.itemsize // VECTOR_BYTES)  # asked for twice by every thread
    asked = dict(outs=ranks * numbers * dtype.itemsize, lses=2 * weights, out=numbers * dtype.itemsize)
    return Launch(arrays, call, reference, Moved(asked, dict(lses=ranks * 4 * rows)))


@describes
def gather_queries(ranks, tokens, heads, head_dim, dtype):
    """The queries of all ranks, on every rank."""

    def arrays(noise):
        given = {f"query {rank}": noise.array((tokens, heads, head_dim), dtype) for rank in range(ranks)}
        given |= {f"out {rank}": noise.unwritten((tokens, ranks * heads, head_dim), dtype) for rank in range(ranks)}
        return given | memories_of(ranks, tokens * heads * head_dim * dtype.itemsize)

    def call(ops, **arrays):
        of_rank = zip(of_each(arrays, "query", ranks), of_each(arrays, "out", ranks), peers_of(arrays, ranks))
        together([launch_gather_queries(*one) for one in of_rank], ops.stream)

    def reference(**arrays):
        gathered = np.concatenate(of_each(arrays, "query", ranks), axis=1)
        return {f"out {rank}": gathered for rank in range(ranks)}

    sent = tokens * heads * head_dim * dtype.itemsize
    moved = Moved(of_ranks(("staging", 2 * sent), ("staging", sent), query=sent, out=2 * sent)) if ranks == 2 else {}
    return Launch(arrays, call, reference, moved, indices=left_out(ranks), exact=True, several_gpus=True)


@describes
def merge_of_peers(ranks, tokens, heads, head_dim, dtype):
    """Every rank's output for its own heads. Of the rows 0 to 2 the first, the second and all ranks have no keys."""
    shape = (tokens, ranks * heads, head_dim)

    def arrays(noise):
        given = {}
        for rank in range(ranks):
            out, lse = noise.array(shape, dtype), noise.array(shape[:2], FLOAT32, 5)
            for row in (rank, 2):
                out[row : row + 1], lse[row : row + 1] = 0, -np.inf
            given |= {f"outs {rank}": out, f"lses {rank}": lse, f"out {rank}": noise.unwritten((tokens, heads, head_dim), dtype)}
        return given | memories_of(ranks, 2 * ranks * tokens * heads * head_dim * dtype.itemsize)

    def call(ops, **arrays):
        outs, lses, out = (of_each(arrays, name, ranks) for name in ("outs", "lses", "out"))
        together([launch_merge_of_peers(*one) for one in zip(outs, lses, out, peers_of(arrays, ranks))], ops.stream)

    def reference(**arrays):
        merged = merge_ranks_reference(*(np.stack(of_each(arrays, name, ranks)) for name in ("outs", "lses"))).astype(dtype)
        return {f"out {rank}": merged[:, rank * heads : (rank + 1) * heads] for rank in range(ranks)}

    vectors = tokens * heads * head_dim * dtype.itemsize // VECTOR_BYTES
    copied, taken = ranks * vectors * (VECTOR_BYTES + 4), vectors * (VECTOR_BYTES + 4)
    asked = of_ranks(
        ("staging", copied + taken), ("staging", taken), outs=ranks * vectors * VECTOR_BYTES, lses=ranks * vectors * 4,
        out=vectors * VECTOR_BYTES,
    )  # fmt: skip
    different = {f"rank {rank}'s lses": ranks * tokens * heads * 4 for rank in range(2)}
    return Launch(arrays, call, reference, Moved(asked, different) if ranks == 2 else {}, indices=left_out(ranks), several_gpus=True)


@describes
def attention_over_a_share(query_lens: lengths, context_lens: lengths, heads, head_dim, dtype, rank=1, ranks=2, block_size=4):
    """FlashAttention-2 over the keys of a rank; its cache holds no others."""
    share, module, scale = ContextShare(rank, ranks, block_size), VARIANTS["flash_attention_2"], head_dim**-0.5

    def arrays(noise):
        owned = share.lengths(np.array(context_lens))
        blocks, lens = batch_of(noise, query_lens, owned, block_size)
        shape, rows = (blocks, block_size, 1, head_dim), (sum(query_lens), heads, head_dim)
        caches = dict(key_cache=noise.array(shape, dtype), value_cache=noise.array(shape, dtype))
        seen = seen_slots(shape[:2], owned, owned, lens["block_tables"])
        for cache in caches.values():
            cache[~seen] = np.nan
        lens["context_lens"] = np.array(context_lens, np.int32)
        return dict(query=noise.array(rows, dtype), **caches, out=noise.unwritten(rows, dtype), **lens)

    def call(ops, query, key_cache, value_cache, out, **lens):
        options = dict(max_query_len=max(1, *query_lens), share=share)
        return launch_variant(ops, module, query, key_cache, value_cache, out, lens, scale, True, **options)

    def reference(query, key_cache, value_cache, query_start, context_lens, block_tables):
        """Each row is a sequence of its own, with the keys of the share that it sees."""
        rows = np.repeat(np.arange(len(query_lens)), query_lens)
        after = query_start[rows + 1] - np.arange(len(rows)) - 1
        seen = share.lengths(np.maximum(0, context_lens[rows] - after))
        return attention_reference(query, key_cache, value_cache, np.arange(len(rows) + 1), seen, block_tables[rows], scale)

    return Launch(arrays, call, returns(("out",), reference), {}, indices=LENS, slack=SLACK[dtype])


def compiled():
    """All kernels of a rank among two and among the most, of shares of blocks of the usual size."""
    yield MachineCode("attention/shared_context/share_of_rank", share_of_rank(1, 1, block_size=BLOCK_SIZE), blocks=8)
    for ranks in (2, MOST_RANKS):
        launch = gather_queries(ranks, 3, 2, 128, BFLOAT16)
        yield MachineCode(f"attention/shared_context/gather_queries/{ranks}/bfloat16", launch, 1, WIDE + FLAGS)
        for head_dim in (64, 128):
            details = f"{head_dim}/{ranks}/bfloat16"
            launch = merge_ranks(3, 2, head_dim, BFLOAT16, ranks)
            yield MachineCode(f"attention/shared_context/merge_ranks/{details}", launch, 12, (*WIDE, "MUFU.EX2"))
            launch = merge_of_peers(ranks, 3, 2, head_dim, BFLOAT16)
            yield MachineCode(f"attention/shared_context/merge_of_peers/{details}", launch, 1, (*WIDE, *FLAGS, "MUFU.EX2"))
    for head_dim in (64, 128):
        launch = attention_over_a_share(9, 99, 8, head_dim, BFLOAT16, block_size=BLOCK_SIZE)
        yield MachineCode(f"attention/shared_context/prompt/{head_dim}/bfloat16", launch, 1, TENSOR_CORES)


def small():
    """Fewer threads than a block and more; all dtypes; contexts that end in every rank's blocks."""
    for tokens, sequences, *share in ((3, 2), (130, 5, 0, 2, 1), (1, 200, 7, 8, 16)):
        yield share_of_rank(tokens, sequences, *share)
    for ranks, tokens, heads, head_dim, dtype in ((2, 5, 3, 80, BFLOAT16), (2, 3, 2, 16, FLOAT32), (3, 4, 1, 8, FLOAT16)):
        yield gather_queries(ranks, tokens, heads, head_dim, dtype)
        yield merge_of_peers(ranks, tokens, heads, head_dim, dtype)
    yield merge_ranks(5, 3, 80, BFLOAT16)
    yield merge_ranks(3, 1, 8, FLOAT16, 8, 7)
    yield merge_ranks(7, 2, 16, FLOAT32, 3, 0)
    for dtype in (BFLOAT16, FLOAT32):
        yield attention_over_a_share(5, 21, 2, 16, dtype)
        yield attention_over_a_share((9, 1, 3), (9, 8, 4), 4, 16, dtype, 0, 3)
    yield attention_over_a_share(18, 40, 2, 40, FLOAT16, 2, 3, 1)


def large():
    """A chunk of a long prompt, and the outputs of many rows."""
    yield attention_over_a_share((70, 3), (999, 500), 8, 128, BFLOAT16, 1, 4, BLOCK_SIZE)
    yield merge_ranks(301, 8, 128, BFLOAT16, 4, 2)
