"""The launches of tree attention: each sequence has rows for nodes of one draft tree, whose keys are its last."""

from minllm.catalogue.attention.paged import BLOCK_SIZE, LENS, SLACK, TENSOR_CORES, batch_of, lengths, seen_slots
from minllm.catalogue.attention.prompts import bounded_blocks
from minllm.catalogue.launch import TB_S, Launch, MachineCode, Measured, Moved, describes, returns
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, FLOAT32
from minllm.kernels.attention.tree import tree as of_trees
from minllm.kernels.attention.tree.reference import tree_attention_reference
from minllm.kernels.speculation.token_tree import TokenTree, TreeArrays, words_of

LONGEST = 100_000  # tokens of a sequence
TILE = 64  # rows, and keys, of a block's tiles
TREES = {
    "drafts": TokenTree.parse("[(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1)]"),  # seven, of depth up to three
    "levels": TokenTree.parse("[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (1, 0, 0)]"),
    "lookahead": TokenTree.lookahead(5, 4, 3),
    "tall lookahead": TokenTree.lookahead(20, 4, 12),  # more nodes than a tile has rows
}


@describes
def tree_attention(
    tree,
    query_lens: lengths,
    context_lens: lengths,
    first_node=0,
    heads=2,
    kv_heads=1,
    head_dim=16,
    dtype=BFLOAT16,
    sliding_window=0,
    block_size=8,
):
    """Sequence b has rows for query_lens[b] nodes from first_node on, and context_lens[b] keys, of which the last belongs to its last row.

    tree: a name in TREES.
    """
    found, scale, rows = TREES[tree], head_dim**-0.5, (sum(query_lens), heads, head_dim)

    def arrays(noise):
        blocks, lens = batch_of(noise, query_lens, context_lens, block_size)
        shape = (blocks, block_size, kv_heads, head_dim)
        caches = {name: noise.array(shape, dtype) for name in ("key_cache", "value_cache")}
        for cache in caches.values():
            cache[~seen_slots(shape[:2], query_lens, context_lens, lens["block_tables"])] = float("nan")
        nodes = dict(depths=found.depths, words=words_of(found.sees))
        return dict(query=noise.array(rows, dtype), **caches, out=noise.unwritten(rows, dtype), **lens, **nodes)

    def call(ops, depths, words, **arrays):
        nodes = TreeArrays(depths, depths, None, None, words, LONGEST, found)  # attention reads no parents and no children
        chosen = dict(first_node=first_node, scale=scale, sliding_window=sliding_window, max_query_len=max(query_lens))
        of_trees.attention(**arrays, tree=nodes, **chosen, stream=ops.stream)

    constants = dict(sees=found.sees, first_node=first_node, scale=scale, sliding_window=sliding_window)
    reference = returns(("out",), tree_attention_reference, **constants)
    moved, indices = tree_moved(query_lens, context_lens, heads, kv_heads, head_dim, dtype.itemsize), (*LENS, "depths", "words")
    return Launch(arrays, call, reference, {} if sliding_window else moved, indices=indices, slack=SLACK[dtype])


def tree_moved(query_lens, context_lens, heads, kv_heads, head_dim, b):
    """Of trees that fit a tile, on tensor cores: every head loads all keys once."""
    if max(query_lens) > TILE or b != 2:
        return {}
    rows, keys = sum(query_lens) * heads * head_dim * b, sum(context_lens) * head_dim * b
    tiles = sum(-(-context // TILE) for context in context_lens)
    asked = dict(query=rows, key_cache=heads * keys, value_cache=heads * keys, out=rows)
    different = dict(key_cache=kv_heads * keys, value_cache=kv_heads * keys)
    return {"tree_attention_kernel": Moved(asked, different, 4 * head_dim * TILE * TILE * tiles * heads)}


def compiled():
    """On tensor cores, and in float32."""
    for dtype in DTYPES:
        for head_dim in (64, 128, 256):
            launch = tree_attention("drafts", 8, 28, 0, 32, 8, head_dim, dtype, block_size=BLOCK_SIZE)
            contains, blocks = (("LDG*128*", "MUFU.EX2"), 1) if dtype == FLOAT32 else (TENSOR_CORES, bounded_blocks(launch))
            yield MachineCode(f"attention/tree/{head_dim}/{dtype}", launch, blocks, contains)


def small():
    """A tree of which formulas count the bytes; first nodes, other ones, windows, sequences without a context, two tiles of rows."""
    yield tree_attention("drafts", 8, 28, head_dim=32, block_size=BLOCK_SIZE)
    yield tree_attention("levels", (10, 6), (80, 9))
    yield tree_attention("lookahead", 24, 154, dtype=FLOAT16)
    yield tree_attention("levels", 3, 68, first_node=4, head_dim=40)
    yield tree_attention("levels", 8, 99, first_node=1, sliding_window=5)
    yield tree_attention("levels", (10, 1), (30, 1), head_dim=24, dtype=FLOAT32)
    yield tree_attention("lookahead", 21, 58, dtype=FLOAT32, sliding_window=9)
    # The second tile of rows begins with a node of depth 2, whose window begins at key 64; the next nodes, of depth 1, see key 63 too,
    # which lies in another tile of keys.
    for window in (22, 0):
        yield tree_attention("tall lookahead", 96, 179, sliding_window=window)


def large():
    """Contexts of thousands of keys, and a sequence with the first nodes of the tree."""
    for dtype in (FLOAT32, BFLOAT16):
        for before in (1000, 4093):
            yield tree_attention("lookahead", (24, 3), (before + 24, 20), head_dim=128, dtype=dtype)


def measured():
    """Steps that verify drafts of depth up to three, in bytes of keys and values per second."""
    tree, context, heads, kv_heads, head_dim = "drafts", 1024, 32, 8, 128
    rows = len(TREES[tree])
    for sequences in (1, 16, 64):
        lens = (rows,) * sequences, (context,) * sequences
        launch = tree_attention(tree, *lens, 0, heads, kv_heads, head_dim, block_size=BLOCK_SIZE)
        [moved] = launch.moved.values()
        case = f"{sequences}x{context}, {rows} nodes each, {heads}/{kv_heads} heads, d {head_dim}, {launch.dtype}"
        work = moved.different["key_cache"] + moved.different["value_cache"]
        yield Measured(launch, "tree", case, "decode attention of trees", unit=TB_S, work=work, for_tuning=True)
