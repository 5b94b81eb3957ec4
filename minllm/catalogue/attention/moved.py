"""What attention kernels move, by the formulas in their docstrings: of one sequence without a window, in tiles that divide it.

`pairs` are the visible (query, key) pairs of all heads. A formula returns {} for launches for which it does not hold.
"""

from typing import NamedTuple

from minllm.catalogue.launch import Moved
from minllm.kernels.attention.ladder.flash_attention_1 import KEY_TILE
from minllm.kernels.attention.residual_window.reference import window_start
from minllm.kernels.attention.split_tensor_core.cluster_step import CLUSTER


class Sizes(NamedTuple):
    """One sequence: T new tokens among `context` keys; b: bytes of a number."""

    T: int
    context: int
    heads: int
    kv_heads: int
    D: int
    b: int
    block_size: int

    @property
    def rows(self):
        """Bytes of the queries, or of the output."""
        return self.T * self.heads * self.D * self.b

    @property
    def cached(self):
        """Bytes of the keys, or of the values."""
        return self.context * self.kv_heads * self.D * self.b

    @property
    def is_prompt(self):
        """Whether all keys are those of new tokens."""
        return self.T == self.context

    def ends(self, tile):
        """One past the last key that each tile of a prompt's rows sees."""
        return [min(self.T, first + tile) for first in range(0, self.T, tile)]


def materialized(sizes, options):
    """Transposed keys, and scores of all pairs in memory."""
    T, _, heads, _, D, b, _ = sizes
    pairs = T * (T + 1) // 2 * heads
    if not sizes.is_prompt:
        return {}
    scores = dict(query=pairs * D * b, key_transposed=pairs * D * b, scores=4 * pairs)
    weighted = dict(scores=4 * D * pairs, value_cache=pairs * D * b, out=sizes.rows)
    return {
        "transpose_keys_kernel": Moved(dict(key_cache=sizes.cached, key_transposed=sizes.cached)),
        "scores_kernel": Moved(scores, dict(query=sizes.rows, key_transposed=sizes.cached), operations=2 * D * pairs),
        "softmax_kernel": Moved(dict(scores=4 * 5 * pairs), dict(scores=4 * 2 * pairs)),
        "weighted_values_kernel": Moved(weighted, dict(scores=4 * pairs, value_cache=sizes.cached), operations=2 * D * pairs),
    }


def flash_attention_1(sizes, options):
    """All 32 lanes read a row's maximum and sum together, one writes them."""
    T, _, heads, _, D, b, _ = sizes
    if not sizes.is_prompt:
        return {}
    row_tiles, rows = heads * sum(position // KEY_TILE + 1 for position in range(T)), T * heads
    asked = dict(key_cache=heads * T * D * b, value_cache=heads * T * D * b, query=row_tiles * D * b, out=2 * rows * D * b)
    asked |= dict(row_out=8 * row_tiles * D + 4 * rows * D)
    asked |= {name: (32 + 1) * 4 * row_tiles + 4 * rows for name in ("row_max", "row_sum")}
    different = dict(key_cache=sizes.cached, value_cache=sizes.cached, query=rows * D * b, out=rows * D * b)
    different |= dict(row_out=2 * 4 * rows * D, row_max=2 * 4 * rows, row_sum=2 * 4 * rows)
    return {"flash_attention_1_kernel": Moved(asked, different)}


def flash_attention_2(sizes, options):
    """Tiles of queries load the keys that they see; products are of whole tiles."""
    if not sizes.is_prompt or "tiles" not in options or sizes.b != 2:
        return {}
    query_tile, key_tile, _ = options["tiles"]
    loaded = sizes.heads * sum(sizes.ends(query_tile)) * sizes.D * sizes.b
    products = sizes.heads * sum(-(-end // key_tile) for end in sizes.ends(query_tile))
    asked = dict(query=sizes.rows, key_cache=loaded, value_cache=loaded, out=sizes.rows)
    flops = 4 * sizes.D * query_tile * key_tile * products
    return {"flash_attention_2_kernel": Moved(asked, dict(key_cache=sizes.cached, value_cache=sizes.cached), flops)}


def flash_attention_2_float32(sizes, options):
    """The same tiles without tensor cores: threads by rows and by keys, each of several."""
    if not sizes.is_prompt or "tiles" not in options:
        return {}
    thread_rows, _, rows, _ = options["tiles"]
    loaded = sizes.heads * sum(sizes.ends(thread_rows * rows)) * sizes.D * sizes.b
    asked = dict(query=sizes.rows, key_cache=loaded, value_cache=loaded, out=sizes.rows)
    return {"flash_attention_2_kernel": Moved(asked, dict(key_cache=sizes.cached, value_cache=sizes.cached))}


def flash_attention_3(sizes, options):
    """The same, in whole pages."""
    if not sizes.is_prompt or "shape" not in options:
        return {}
    page, shape = sizes.block_size, options["shape"]
    ends = sizes.ends(shape.query_tile)
    loaded = sizes.heads * sum(-(-end // page) * page for end in ends) * sizes.D * sizes.b
    touched = -(-sizes.T // page) * page * sizes.kv_heads * sizes.D * sizes.b
    products = sizes.heads * sum(-(-end // shape.key_tile) for end in ends)
    asked = dict(query_map=sizes.rows, key_map=loaded, value_map=loaded, out=sizes.rows)
    flops = 4 * sizes.D * shape.query_tile * shape.key_tile * products
    return {"flash_attention_3_kernel": Moved(asked, dict(key_map=touched, value_map=touched), flops)}


def split_kv(sizes, options):
    """A step in splits of equal length, whose blocks of 128 threads load 16 bytes of a query each."""
    if sizes.T > 1 or not options.get("splits") or sizes.context % (64 * options["splits"]) or sizes.D != 64 or sizes.b != 2:
        return {}
    threads, warps, lanes, group = 128, 4, 32, sizes.heads // sizes.kv_heads
    states = options["splits"] * sizes.heads * 4
    asked = dict(key_cache=sizes.cached, value_cache=sizes.cached, split_out=states * sizes.D, split_max=states, split_sum=states)
    asked |= dict(query=options["splits"] * sizes.kv_heads * threads * group * 16)
    merge = dict(split_out=states * sizes.D, split_sum=lanes * states, split_max=(warps + lanes) * states, out=sizes.rows)
    return {
        "split_kernel": Moved(asked, dict(query=sizes.rows)),
        "merge_kernel": Moved(merge, dict(split_sum=states, split_max=states)),
    }


def fixed_split(sizes, options):
    """A step in splits of 64 keys, of a block each; lanes without a split of their own ask for the last one again."""
    splits, lanes = options.get("parts", 1), 32
    if sizes.T > 1 or splits == 1 or sizes.context != 64 * splits or sizes.D % 32:
        return {}
    states, rows = splits * sizes.heads * 4, sizes.rows
    asked = dict(query=splits * rows, key_cache=sizes.cached, value_cache=sizes.cached, split_max=states, split_sum=states)
    of_threads = sizes.heads * sizes.D * 4
    merge = dict(split_out=lanes * of_threads, split_sum=of_threads, split_max=of_threads, out=rows)
    flops = 4 * 16 * sizes.D * sizes.kv_heads * sizes.context  # the group fills some of 16 rows
    return {
        "fixed_split_kernel": Moved(asked | dict(split_out=states * sizes.D), dict(query=rows), flops),
        "merge_splits_kernel": Moved(merge, dict(split_out=states * sizes.D, split_sum=states, split_max=states)),
    }


def parts(sizes, splits):
    """(bytes asked, bytes touched) of the parts of heads of 64, which are written, and read 16 at once; the last one in place of others."""
    states, at_once, lanes = splits * sizes.heads * 4, 16, 32
    asked = dict(part_max=2 * states, part_sum=2 * states, part_out=states * sizes.D + at_once * sizes.heads * lanes * 16)
    return asked, dict(part_out=2 * states * sizes.D)


def of_columns(sizes, keys):
    """FLOPs of a step's two products with these keys: a group fills some of 8 columns."""
    return 4 * 8 * sizes.D * sizes.kv_heads * keys


def split_tensor_core(sizes, options):
    """A step of heads of 64 in blocks of 4 warps, which take 128 keys at once by TMA; every warp loads the queries."""
    if sizes.T > 1 or "shape" in options or "splits" not in options or sizes.context % (128 * options["splits"]) or sizes.D != 64:
        return {}
    asked, different = parts(sizes, options["splits"])
    asked |= dict(key_map=sizes.cached, value_map=sizes.cached, query=options["splits"] * 4 * sizes.rows, out=sizes.rows)
    return {"split_tensor_core_kernel": Moved(asked, different | dict(query=sizes.rows), of_columns(sizes, sizes.context))}


def split_cluster(sizes, options):
    """The same in clusters, which leave no parts in memory."""
    if sizes.T > 1 or "shape" in options or sizes.context % 128 or sizes.D != 64:
        return {}
    asked = dict(key_map=sizes.cached, value_map=sizes.cached, query=CLUSTER * 4 * sizes.rows, out=sizes.rows)
    return {"split_cluster_kernel": Moved(asked, dict(query=sizes.rows), of_columns(sizes, sizes.context))}


FORMULAS = {
    one.__name__: one
    for one in (
        *(materialized, flash_attention_1, flash_attention_2, flash_attention_2_float32, flash_attention_3),
        *(split_kv, fixed_split, split_tensor_core, split_cluster),
    )
}


def codes_of(sizes, form, options):
    """(keys that the last row reads as codes, bytes of the codes of one key of a head, of a key's scales)."""
    codes = window_start(sizes.context - 1, options["residual_window"]) if "residual_window" in options else sizes.context
    return int(codes), form.code_bytes, form.scale_bytes


def flash_attention_2_quantized(sizes, form, options):
    """Tiles of queries load the codes that they see; each thread that loads 16 bytes of codes asks for their scale.

    Of keys by channel, all of one tile of queries see the same whole tiles, and each of these loads the scales of its group.
    """
    if "tiles" not in options or form.groups > 1 or form.is_float:
        return {}
    (query_tile, key_tile, _), (codes, code_bytes, scale_bytes) = options["tiles"], codes_of(sizes, form, options)
    if form.keys_by_channel:
        seen = [codes] if sizes.T <= query_tile and codes == window_start(sizes.context - sizes.T, options["residual_window"]) else []
    else:
        seen = sizes.ends(query_tile) if sizes.is_prompt else []
    if not seen:
        return {}
    tiles = sizes.heads * sum(-(-end // key_tile) for end in seen)
    loaded, pairs = sizes.heads * sum(seen), code_bytes // 16 * scale_bytes
    asked = dict(query=sizes.rows, out=sizes.rows, key_cache=loaded * code_bytes, value_cache=loaded * code_bytes)
    asked |= dict(key_scales=tiles * sizes.D * 4 if form.keys_by_channel else loaded * pairs, value_scales=loaded * pairs)
    cached = codes * sizes.kv_heads
    different = dict.fromkeys(("key_cache", "value_cache"), cached * code_bytes) | dict(value_scales=cached * scale_bytes)
    different |= dict(key_scales=cached // form.token_group * sizes.D * 4 if form.keys_by_channel else cached * scale_bytes)
    return {"flash_attention_2_kernel": Moved(asked, different, 4 * sizes.D * query_tile * key_tile * tiles)}


def flash_attention_3_float8(sizes, form, options):
    """As flash_attention_3, over codes; every consumer thread asks for the scales of each work item."""
    if not sizes.is_prompt or "shape" not in options:
        return {}
    page, shape, ends = sizes.block_size, options["shape"], sizes.ends(options["shape"].query_tile)
    loaded = sizes.heads * sum(-(-end // page) * page for end in ends) * form.code_bytes
    touched = -(-sizes.T // page) * page * sizes.kv_heads * form.code_bytes
    products, scales = sizes.heads * sum(-(-end // shape.key_tile) for end in ends), 4 * sizes.heads * len(ends) * 128 * shape.consumers
    asked = dict(query_map=sizes.rows, key_map=loaded, value_map=loaded, key_scales=scales, value_scales=scales, out=sizes.rows)
    different = dict.fromkeys(("key_map", "value_map"), touched) | dict.fromkeys(("key_scales", "value_scales"), 4 * sizes.kv_heads)
    flops = 4 * sizes.D * shape.query_tile * shape.key_tile * products
    return {"flash_attention_3_float8_kernel": Moved(asked, different, flops)}


def split_quantized(sizes, form, options):
    """A step of heads of 64 in two groups of 4 bits; keys by channel have as many bytes of scales."""
    shape, splits = options.get("shape"), options.get("splits")
    if sizes.T > 1 or not (shape and splits) or shape.tensor_copies or (sizes.D, form.groups, form.bits) != (64, 2, 4):
        return {}
    (codes, code_bytes, scale_bytes), by_channel = codes_of(sizes, form, options), form.keys_by_channel
    if codes % (splits * shape.tile):
        return {}
    asked, different = parts(sizes, splits)
    keys, pairs = codes * sizes.kv_heads * code_bytes, codes * sizes.kv_heads * scale_bytes
    asked |= dict(key_codes=keys, value_codes=keys, key_scales=pairs, value_scales=pairs, out=sizes.rows)
    halves = 1 if by_channel else 2  # parts of a warp's lanes; each part asks for a query
    asked |= dict(query=halves * splits * shape.warps * sizes.rows)
    of_zeros = 8 * sizes.D + 2 * 16 * 8 if by_channel else 2 * 8 * 16  # a key: those of a group of 32 keys and of a value, or of both
    flops = of_columns(sizes, codes) + of_zeros * sizes.kv_heads * codes
    return {"split_quantized_kernel": Moved(asked, different | dict(query=sizes.rows), flops)}


FORMULAS_OF_CODES = {one.__name__: one for one in (flash_attention_2_quantized, flash_attention_3_float8, split_quantized)}
