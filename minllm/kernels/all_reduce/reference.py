"""The NumPy reference of an all-reduce."""

import numpy as np


def all_reduce_reference(messages):
    """The sum of the ranks' messages, added in float32 in rank order, rounded once to their dtype. messages: one array per rank."""
    total = np.zeros(messages[0].shape, np.float32)
    for message in messages:
        total += message.astype(np.float32)
    return total.astype(messages[0].dtype)
