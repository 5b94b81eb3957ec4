"""The launches of the merge of two outputs, each over a part of the keys."""

import numpy as np

from minllm.catalogue.launch import Launch, Moved, describes
from minllm.catalogue.rows import BFLOAT16, FLOAT16, FLOAT32
from minllm.kernels.attention.common.merge_states import merge_states as launch_merge_states
from minllm.kernels.attention.common.merge_states import merge_states_reference

VECTOR = 8  # elements of a thread, each of which asks for both of a row's weights
STATES = ("first", "first_lse", "second", "second_lse")


@describes
def merge_states(tokens, heads, head_dim, dtype, spare=0, place="out"):
    """Of the rows 0 to 2 the first, the second and both parts have no keys, and the last `spare` rows are of no sequence.

    place: "first" or "second" if the output is written over it.
    """
    shape, used = (tokens, heads, head_dim), tokens - spare

    def arrays(noise):
        found = {}
        for name, empty in (("first", slice(0, 3, 2)), ("second", slice(1, 3))):
            found |= {name: noise.array(shape, dtype), f"{name}_lse": noise.array(shape[:2], FLOAT32, 5)}
            found[name][empty], found[f"{name}_lse"][empty] = 0, -np.inf
        out = dict(out=noise.unwritten(shape, dtype)) if place == "out" else {}
        return found | out | dict(query_start=np.array([0, 1, used], np.int32))

    def call(ops, query_start, **arrays):
        launch_merge_states(*(arrays[name] for name in STATES), arrays[place], query_start, ops.stream)

    def reference(query_start, **arrays):
        merged = merge_states_reference(*(arrays[name][:used] for name in STATES)).astype(dtype)
        return {place: np.concatenate([merged, arrays[place][used:]])}

    numbers, rows = used * heads * head_dim, used * heads
    asked = dict.fromkeys(("first", "second", "out"), numbers * dtype.itemsize)
    asked |= dict.fromkeys(("first_lse", "second_lse"), numbers // VECTOR * 4)
    moved = Moved(asked, dict(first_lse=4 * rows, second_lse=4 * rows))
    return Launch(arrays, call, reference, moved, indices=("query_start",))


def small():
    """Head sizes of few and of many vectors; in place; rows of no sequence."""
    yield merge_states(7, 3, 80, BFLOAT16)
    yield merge_states(1, 1, 8, FLOAT16)
    yield merge_states(33, 2, 128, FLOAT16)
    for place in ("out", "first", "second"):
        yield merge_states(9, 2, 64, BFLOAT16, 2, place)


def large():
    """Many rows."""
    for dtype in (BFLOAT16, FLOAT16):
        for place in ("out", "second"):
            yield merge_states(1001, 8, 128, dtype, 2, place)
