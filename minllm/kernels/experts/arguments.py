"""Argument checks shared by the kernels of experts."""

import numpy as np

from minllm.kernels.arguments import FLOAT_DTYPES, INDEX_DTYPES, check_array
from minllm.runtime.kernel import check

FLOAT32 = (np.dtype(np.float32),)


def check_gate_up(x, expert_ids, gate_up, out, dtypes=FLOAT_DTYPES):
    """((T, k), H, I) of x [T, H], expert_ids [T, k], gate_up [E * 2 * I, H] and out [T * k, I], or raise KernelArgumentError."""
    check_array("x", x, dtypes, tokens=None, hidden=None)
    tokens, hidden = x.shape
    check_array("expert_ids", expert_ids, INDEX_DTYPES, tokens=tokens, chosen=None)
    check_array("out", out, (x.dtype,), pairs=tokens * expert_ids.shape[1], intermediate=None)
    check_array("gate_up", gate_up, (x.dtype,), experts_gate_and_up=None, hidden=hidden)
    check_stack("gate_up", gate_up, 2 * out.shape[1])
    return expert_ids.shape, hidden, out.shape[1]


def check_down(activated, expert_ids, weights, down, out, residual=None, dtypes=FLOAT_DTYPES):
    """((T, k), H, I) of activated [T * k, I], expert_ids, weights [T, k], down [E * H, I], out, residual [T, H], or raise as above."""
    check_array("out", out, dtypes, tokens=None, hidden=None)
    tokens, hidden = out.shape
    check_array("expert_ids", expert_ids, INDEX_DTYPES, tokens=tokens, chosen=None)
    check_array("weights", weights, FLOAT32, tokens=tokens, chosen=expert_ids.shape[1])
    check_array("activated", activated, (out.dtype,), pairs=tokens * expert_ids.shape[1], intermediate=None)
    check_array("down", down, (out.dtype,), experts_hidden=None, intermediate=activated.shape[1])
    check_stack("down", down, hidden)
    if residual is not None:
        check_array("residual", residual, (out.dtype,), tokens=tokens, hidden=hidden)
    return expert_ids.shape, hidden, activated.shape[1]


def check_stack(name, weight, rows):
    """Raise KernelArgumentError unless `weight` is a stack of matrices of `rows` rows."""
    given = weight.shape[0]
    check(rows > 0 and given % rows == 0, f"{name} has {given} rows; it stacks matrices of {rows} rows, one per expert")
