"""The load of experts: how many of them a step reads, and how its tokens are divided among them.

Let a token choose expert e with probability p_e; these sum to k, the experts per token. n tokens that choose independently of one another

    read          sum over e of 1 - (1 - p_e)^n                              experts
    load          expert e with Binomial(n, p_e) tokens, n p_e on average
    fullest       sum over m of 1 - product over e of P(load of e <= m)      tokens, the mean of the largest load

The last line takes the loads for independent, though they add up to n k. A router without preference has p_e = k / E. With preferences p_e
is proportional to 1 / e^s, by Zipf's law, and at most 1. That is a model: real routers prefer experts by the kind of text.

Sources: Fedus, Zoph and Shazeer 2022, "Switch Transformers", section 2.2 (capacity and load balance); Zipf 1949, "Human Behavior and the
Principle of Least Effort".
"""

import math

import numpy as np


def choice_probabilities(experts: int, chosen: int, skew: float = 0.0) -> list[float]:
    """p_e of every expert, the most popular first; skew: s, 0 for a router without preference."""
    popularity = [(e + 1.0) ** -skew for e in range(experts)]
    certain = 0  # experts that every token takes
    while certain < chosen and (chosen - certain) * popularity[certain] >= sum(popularity[certain:]):
        certain += 1
    scale = (chosen - certain) / sum(popularity[certain:]) if certain < experts else 0.0
    return [1.0] * certain + [scale * one for one in popularity[certain:]]


def experts_read(probabilities: list[float], tokens: int) -> float:
    """The mean number of experts that at least one token chooses."""
    return sum(1 - (1 - p) ** tokens for p in probabilities)


def fullest_load(probabilities: list[float], tokens: int) -> float:
    """The mean number of tokens of the expert that has most."""
    if probabilities[0] == 1:
        return float(tokens)
    m = np.arange(tokens + 1)
    logs = np.array([math.lgamma(one + 1) for one in range(tokens + 1)])
    ways, p = logs[-1] - logs - logs[::-1], np.array(probabilities)[:, None]
    at_most = np.minimum(np.exp(ways + m * np.log(p) + (tokens - m) * np.log1p(-p)).cumsum(axis=1), 1)  # [experts, loads]
    return float((1 - at_most.prod(axis=0)).sum())
