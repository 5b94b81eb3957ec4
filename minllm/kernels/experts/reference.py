"""Mixture of experts, as equations.

A router gives each of E experts a logit. A token goes to the k experts with the largest ones, and their outputs are summed with the
softmax as weights:

    p = softmax(x Wr)                                    x [H], Wr [H, E]
    chosen = the k largest of p;  w = p[chosen], divided by its sum if the model normalises
    out = sum over e in chosen of w_e * down_e(silu(gate_e(x)) * up_e(x))

An expert is a gated feed-forward with an inner width of I. All E take E * 3 H I weights, a token multiplies by k / E of them: 6 k H I
FLOPs. With n tokens that choose independently and uniformly, E (1 - (1 - k / E)^n) experts are read, nearly all of them already at
n = 4 E / k.

Sources: Shazeer et al. 2017, "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", section 2; Fedus et
al. 2022, "Switch Transformers", section 2.1.
"""

import numpy as np

from minllm.kernels.activation.silu import silu_and_multiply_reference
from minllm.kernels.matmul.reference import matmul_reference


def route_reference(logits: np.ndarray, per_token: int, normalized: bool) -> tuple[np.ndarray, np.ndarray]:
    """(expert_ids int32 [T, k], weights float32 [T, k]) of float32 logits [T, E], the largest first.

    Of equal logits the lower expert is first. NaN counts as the smallest logit, so that ids are always distinct and in range.
    """
    ordered = np.where(np.isnan(logits), -np.inf, logits)
    expert_ids = np.argsort(-ordered, axis=1, kind="stable")[:, :per_token].astype(np.int32)
    exponentials = np.exp(logits - ordered.max(axis=1, keepdims=True))
    chosen = np.take_along_axis(exponentials, expert_ids, axis=1)
    return expert_ids, chosen / (chosen if normalized else exponentials).sum(axis=1, keepdims=True)


def activated_reference(x: np.ndarray, expert_ids: np.ndarray, gate_up: np.ndarray) -> np.ndarray:
    """silu(gate_e x) * (up_e x) of each row and its expert, [P, I] in x's dtype.

    x [P, H], expert_ids [P], gate_up [E, 2 * I, H], the gate first.
    """
    activated = np.empty((len(x), gate_up.shape[1] // 2), x.dtype)
    for expert in np.unique(expert_ids):
        rows = expert_ids == expert
        activated[rows] = silu_and_multiply_reference(matmul_reference(x[rows], gate_up[expert], out_dtype=np.float32))
    return activated


def projected_reference(activated: np.ndarray, expert_ids: np.ndarray, down: np.ndarray) -> np.ndarray:
    """down_e activated of each row and its expert, float32 [P, H]; activated [P, I], expert_ids [P], down [E, H, I]."""
    projected = np.empty((len(activated), down.shape[1]), np.float32)
    for expert in np.unique(expert_ids):
        rows = expert_ids == expert
        projected[rows] = matmul_reference(activated[rows], down[expert], out_dtype=np.float32)
    return projected


def combine_reference(outputs: np.ndarray, weights: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
    """The weighted sums of each token's experts, float32 [T, H], in the order of their places; outputs [T * k, H], weights [T, k]."""
    tokens, chosen = weights.shape
    each = outputs.reshape(tokens, chosen, -1).astype(np.float32, copy=False)
    total = np.zeros((tokens, each.shape[2]), np.float32)
    for place in range(chosen):
        total += weights[:, place, None] * each[:, place]
    return total if residual is None else total + residual.astype(np.float32)


def experts_reference(
    x: np.ndarray, expert_ids: np.ndarray, weights: np.ndarray, gate_up: np.ndarray, down: np.ndarray
) -> np.ndarray:  # fmt: skip
    """The weighted sum of each token's experts, [T, H] in x's dtype.

    x [T, H]; expert_ids, weights [T, k]; gate_up [E, 2 * I, H], the gate first; down [E, H, I].
    """
    of_pair = expert_ids.reshape(-1)
    activated = activated_reference(np.repeat(x, expert_ids.shape[1], axis=0), of_pair, gate_up)
    return combine_reference(projected_reference(activated, of_pair, down), weights).astype(x.dtype)
