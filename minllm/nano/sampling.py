"""From logits to a token, on the host."""

import numpy as np

from minllm.nano.sequence import Sequence


def choose(logits: np.ndarray, sequence: Sequence) -> int:
    """The next token of a sequence with a temperature, drawn from float32 logits [vocab]; -1 if they are not finite.

    The noise follows from the sequence's seed and length, so that a token depends on its own request alone.
    """
    params = sequence.params
    if not np.isfinite(logits.max()):
        return -1
    scaled = logits.astype(np.float64) / params.temperature
    order = np.argsort(-scaled, kind="stable")  # the likeliest first
    probabilities = np.exp(scaled[order] - scaled[order[0]])
    probabilities /= probabilities.sum()
    kept = np.cumsum(probabilities) - probabilities < params.top_p  # the likeliest tokens before this one do not reach top_p
    kept[params.top_k or len(kept) :] = False
    kept[0] = True
    likeliest = np.flatnonzero(kept)
    # The largest of (log p + Gumbel noise) is a draw from p (Gumbel 1954).
    noise = np.random.default_rng((sequence.seed, sequence.num_tokens)).gumbel(size=len(likeliest))
    return int(order[likeliest[np.argmax(scaled[order[likeliest]] + noise)]])
