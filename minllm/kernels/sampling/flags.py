"""Flags of slots and of tokens that the host sets and kernels test."""

from enum import IntFlag


class Adjustment(IntFlag):
    """The adjustments to a slot's logits before a token is chosen."""

    PENALTIES = 1  # reads token_flags and output_counts, and counts the tokens that are generated
    BIAS = 2  # reads logit_bias
    BANS = 4  # reads token_flags


class TokenFlag(IntFlag):
    """The flags of one token of the vocabulary, per slot."""

    IN_PROMPT = 1  # for the repetition penalty
    ENDS = 2  # ends the text: banned while step < min_tokens
    BANNED = 4  # never allowed
