"""The NumPy references of an all-reduce, and of what takes its place for rows that the ranks divide."""

import numpy as np

from minllm.kernels.normalization.rms_norm import rms_norm_reference


def all_reduce_reference(messages):
    """The sum of the ranks' messages, added in float32 in rank order, rounded once to their dtype. messages: one array per rank."""
    total = np.zeros(messages[0].shape, np.float32)
    for message in messages:
        total += message.astype(np.float32)
    return total.astype(messages[0].dtype)


def owners_of_rows(tokens, ranks, group):
    """The rank that owns each of `tokens` rows: each rank in turn owns `group` rows side by side."""
    return np.arange(tokens) // group % ranks


def sequence_parallel_reference(messages, residual, weight, epsilon, group):
    """(y [T, H], or r without a weight; each rank's residual, with r in its own rows). messages: each rank's partial sums, [T, H]."""
    normed = np.ones(residual.shape[1], residual.dtype) if weight is None else weight
    y, r = rms_norm_reference(all_reduce_reference(messages), normed, epsilon, residual)
    owners = owners_of_rows(len(residual), len(messages), group)[:, None]
    return r if weight is None else y, [np.where(owners == rank, r, residual) for rank in range(len(messages))]
