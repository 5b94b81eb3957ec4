"""The launches around the experts' GEMMs: the router, its choice, the sort by expert, and the sum of what experts return."""

import numpy as np

from minllm.catalogue.experts.arrays import EPSILON, choices, router_logits, sorted_pairs
from minllm.catalogue.launch import Launch, Moved, beside, calls, describes, returns
from minllm.catalogue.rows import BFLOAT16, FLOAT32
from minllm.kernels.arguments import ceil_div
from minllm.kernels.experts.combine import combine as launch_combine
from minllm.kernels.experts.combine_norm import combine_norm as launch_combine_norm
from minllm.kernels.experts.counting_sort import sort_by_expert as launch_sort
from minllm.kernels.experts.gated_add import gated_add as launch_gated_add
from minllm.kernels.experts.gather_rows import gather_rows as launch_gather_rows
from minllm.kernels.experts.normed_router import ROWS, WARPS
from minllm.kernels.experts.normed_router import normed_router as launch_normed_router
from minllm.kernels.experts.reference import combine_reference, route_reference
from minllm.kernels.experts.routing import route as launch_route


@describes
def normed_router(tokens, experts, hidden, dtype=BFLOAT16):
    """The norm before the experts and the router's logits."""
    size, row, blocks = tokens * hidden * dtype.itemsize, hidden * dtype.itemsize, ceil_div(experts, WARPS * ROWS)
    of_router = blocks * WARPS * ROWS * row  # the last block's warps read the last row again
    asked = dict(x=blocks * size, norm=blocks * size, router=tokens * of_router, normalised=size, logits=4 * tokens * experts)
    return Launch(
        arrays=lambda noise: dict(
            x=noise.array((tokens, hidden), dtype), norm=noise.array((hidden,), dtype),
            router=noise.array((experts, hidden), dtype, hidden**-0.5), normalised=noise.unwritten((tokens, hidden), dtype),
            logits=noise.unwritten((tokens, experts), FLOAT32),
        ),
        **beside(launch_normed_router, "normalised", "logits", epsilon=EPSILON),
        moved=Moved(asked, dict(x=size, norm=row, router=experts * row)),
    )  # fmt: skip


@describes
def route(tokens, experts, chosen, normalized=True, special=False):
    """The router's choice; special: with equal logits, NaN and infinities."""

    def arrays(noise):
        empty = noise.unwritten((tokens, chosen), np.int32), noise.unwritten((tokens, chosen), FLOAT32)
        return dict(logits=router_logits(noise, tokens, experts, special), expert_ids=empty[0], weights=empty[1])

    return Launch(
        arrays,
        call=calls(launch_route, normalized=normalized),
        reference=returns(("expert_ids", "weights"), route_reference, per_token=chosen, normalized=normalized),
        moved=Moved(dict(weights=4 * tokens * chosen)),  # and at least 4 T E bytes of logits, 4 T k of expert_ids, which are read again
        indices=("logits", "expert_ids"),
        rows=("logits", "expert_ids", "weights"),
        exact=("expert_ids",),
    )


@describes
def sort_by_expert(tokens, experts, chosen):
    """The pairs in the order of experts."""
    pairs = tokens * chosen

    def arrays(noise):
        empty = noise.unwritten((pairs,), np.int32), noise.unwritten((experts + 1,), np.int32)
        return dict(expert_ids=choices(noise, tokens, experts, chosen), pairs=empty[0], offsets=empty[1])

    return Launch(
        arrays,
        **beside(launch_sort, "pairs", "offsets", experts=experts),
        moved=Moved(dict(expert_ids=8 * experts * pairs, pairs=4 * pairs, offsets=4 * (experts + 1)), dict(expert_ids=4 * pairs)),
        exact=True,
    )


@describes
def gather_rows(tokens, experts, chosen, hidden, dtype=BFLOAT16):
    """The rows of x in the order of experts."""
    size = tokens * chosen * hidden * dtype.itemsize

    def arrays(noise):
        pairs, _ = sorted_pairs(noise, tokens, experts, chosen)
        return dict(x=noise.array((tokens, hidden), dtype), pairs=pairs, out=noise.unwritten((len(pairs), hidden), dtype))

    return Launch(
        arrays,
        **beside(launch_gather_rows, "out"),
        moved=Moved(dict(x=size, out=size), dict(x=size // chosen)),
        indices=("pairs",),
        exact=True,
    )


@describes
def combine(tokens, chosen, hidden, dtype=BFLOAT16, residual=False):
    """The weighted sum of the outputs of each token's experts."""
    size = tokens * hidden * dtype.itemsize

    def arrays(noise):
        return dict(
            outputs=noise.array((tokens * chosen, hidden), dtype), weights=np.abs(noise.array((tokens, chosen), FLOAT32)),
            residual=noise.array((tokens, hidden), dtype) if residual else None, out=noise.unwritten((tokens, hidden), dtype),
        )  # fmt: skip

    return Launch(
        arrays,
        call=calls(launch_combine),
        reference=lambda outputs, weights, residual, out: dict(out=combine_reference(outputs, weights, residual).astype(dtype)),
        moved=Moved(dict(outputs=chosen * size, out=size) | (dict(residual=size) if residual else {})),
        indices=("weights",),
        slack=3e-6,
    )


@describes
def combine_norm(tokens, chosen, hidden, dtype=BFLOAT16):
    """That sum added to the residual stream, and the stream's RMSNorm."""
    size, row = tokens * hidden * dtype.itemsize, hidden * dtype.itemsize
    return Launch(
        arrays=lambda noise: dict(
            outputs=noise.array((tokens * chosen, hidden), dtype), weights=np.abs(noise.array((tokens, chosen), FLOAT32)),
            residual=noise.array((tokens, hidden), dtype), norm=noise.array((hidden,), dtype), out=noise.unwritten((tokens, hidden), dtype),
        ),
        **beside(launch_combine_norm, "out", "residual", epsilon=EPSILON),
        moved=Moved(dict(outputs=chosen * size, residual=2 * size, norm=size, out=size), dict(norm=row)),
        indices=("weights",),
        slack=3e-6,
    )  # fmt: skip


@describes
def gated_add(tokens, hidden, dtype=BFLOAT16):
    """A sum of which one part passes a gate."""
    size = tokens * hidden * dtype.itemsize
    return Launch(
        arrays=lambda noise: dict(
            x=noise.array((tokens, hidden), dtype), y=noise.array((tokens, hidden), dtype), gate=noise.array((tokens, 1), dtype, 20),
            out=noise.unwritten((tokens, hidden), dtype),
        ),
        **beside(launch_gated_add, "out"),
        moved=Moved(dict(x=size, y=size, out=size)),
        indices=("gate",),
        rows=("x", "y", "gate", "out"),
    )  # fmt: skip
