"""The race of softmaxes: softmax(x, out), row by row.

The package has no softmax kernel of its own, because its attention never writes probabilities to memory. The rival is the one of the first
rung of attention, which works in place.
"""

import numpy as np

from minllm.course.race.contest import Case, Contest, in_float64
from minllm.kernels.attention.common.arguments import LOG2_E
from minllm.kernels.attention.ladder.materialized import THREADS, softmax_kernel
from minllm.runtime.kernel import launch

MOST_ROWS = 65_535  # the package's kernel takes no more, because its grid counts rows along z


def inputs(size, dtype, noise, spread):
    """x [rows, columns]."""
    return dict(x=noise.array(size, dtype, spread))


def reference(arrays):
    """softmax of each row, float32 [rows, columns]."""
    (x,) = in_float64(arrays)
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return (exponentials / exponentials.sum(axis=1, keepdims=True)).astype(np.float32)


def suspects(arrays):
    """Results of likely mistakes."""
    (x,) = in_float64(arrays)
    shifted = np.exp(x - x.max(axis=1, keepdims=True))
    yield "the exponentials are not divided by their sum.", shifted
    with np.errstate(all="ignore"):
        plain = np.exp(x.astype(np.float32))
        yield "exp overflows: subtract the row's maximum first.", plain / plain.sum(axis=1, keepdims=True)
        down = np.exp(x - x.max(axis=0, keepdims=True))
        yield "maximum and sum run down the columns, instead of along each row.", down / down.sum(axis=0, keepdims=True)


def launcher(name, arrays, ops):
    """A call that launches the softmax of the first rung of attention, in place on zeros: its time does not depend on the numbers."""
    rows, columns = arrays["x"].shape
    scores = ops.zeros((rows, 1, columns), arrays["x"].dtype)
    query_start, context_lens = ops.array(np.arange(rows + 1, dtype=np.int32)), ops.array(np.full(rows, columns, np.int32))
    arguments = (scores, query_start, context_lens, float(LOG2_E), 0)
    return lambda: launch(softmax_kernel, (1, 1, rows), THREADS, arguments, ops.stream)


SOFTMAX = Contest(
    name="softmax",
    equation="out[r, c] = exp(x[r, c] - max of row r) / (sum of the same over row r)",
    parameters=dict(x="[rows, columns]", out="[rows, columns]"),
    axes=("row", "column"),
    size_names=("rows", "columns"),
    cases=(
        Case("one element", "the softmax of one number is 1.", (1, 1)),
        Case("3 rows of 32", "one number per lane of a warp.", (3, 32)),
        Case("5 rows of 33", "a row that is no multiple of 32.", (5, 33)),
        Case("2 rows of 1031", "a row that is longer than the largest block has threads.", (2, 1031)),
        Case("67 rows of 3", "more rows than columns.", (67, 3)),
        Case("large numbers", "exp(89) overflows in float32: the maximum must be subtracted.", (4, 50), spread=300.0),
    ),
    traced_size=(16, 256),
    raced_size=(8192, 8192),
    inputs=inputs,
    out_shape=lambda arrays: arrays["x"].shape,
    reference=reference,
    suspects=suspects,
    flops=None,
    rivals=("attention's first rung",),
    why_not=lambda name, size, dtype, capability: "too many rows" if size[0] > MOST_ROWS else None,
    launcher=launcher,
    peers=lambda dtype: ("softmax",),
    peer_inputs=lambda arrays, ops: dict(arrays),
)
