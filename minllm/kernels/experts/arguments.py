"""Argument checks shared by the kernels of experts."""

import numpy as np

from minllm.kernels.arguments import FLOAT_DTYPES, check_array
from minllm.kernels.experts.codes import codes_of, is_quantized
from minllm.runtime.kernel import check
from minllm.tiles.warp import WARP

FLOAT32 = (np.dtype(np.float32),)


def check_gate_up(x, logits, gate_up, out):
    """((T, E, k), H, I) of x [T, H], logits [T, E], gate_up [E * 2 * I, H] and out [T * k, I], or raise KernelArgumentError."""
    check_array("x", x, FLOAT_DTYPES, tokens=None, hidden=None)
    tokens, hidden = x.shape
    check_array("out", out, (x.dtype,), pairs=None, intermediate=None)
    sizes = check_choice(logits, tokens, out.shape[0])
    check_stack("gate_up", gate_up, 2 * out.shape[1], hidden, x.dtype, sizes[1])
    return sizes, hidden, out.shape[1]


def check_down(activated, logits, down, out, residual):
    """((T, E, k), H, I) of activated [T * k, I], logits [T, E], down [E * H, I], out, residual [T, H], or raise as above."""
    check_array("out", out, FLOAT_DTYPES, tokens=None, hidden=None)
    tokens, hidden = out.shape
    check_array("activated", activated, (out.dtype,), pairs=None, intermediate=None)
    sizes = check_choice(logits, tokens, activated.shape[0])
    check_stack("down", down, hidden, activated.shape[1], out.dtype, sizes[1])
    if residual is not None:
        check_array("residual", residual, (out.dtype,), tokens=tokens, hidden=hidden)
    return sizes, hidden, activated.shape[1]


def check_choice(logits, tokens, pairs):
    """(T, E, k) of logits [T, E] and T * k pairs."""
    check_array("logits", logits, FLOAT32, tokens=tokens, experts=None)
    experts = logits.shape[1]
    most, whole = min(experts, WARP), tokens > 0 and pairs % tokens == 0
    check(whole and 1 <= pairs // tokens <= most, f"{pairs} pairs of {tokens} tokens: each token takes 1 to {most} experts")
    return tokens, experts, pairs // tokens


def check_stack(name, weight, rows, inputs, dtype, experts):
    """Raise KernelArgumentError unless `weight` stacks matrices of `rows` rows of `inputs` numbers, of `dtype` or quantised, per expert."""
    if not is_quantized(weight):
        check_array(name, weight, (dtype,), rows_of_experts=experts * rows, inputs=inputs)
        return
    codes_of(name, weight, inputs)
    given = weight.codes.shape[0]
    check(given == experts * rows, f"{name} has {given} rows; {experts} experts of {rows} rows each have {experts * rows}")
