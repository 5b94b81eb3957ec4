"""Gemma's SentencePiece tokenizer: BPE over characters, in which "▁" stands for a space, and bytes for characters without a token.

A GGUF file lists no merges. A BPE vocabulary implies them, because a token's merge was learned when the token was added: every way to cut a
token into two tokens is a merge, in the order of the tokens' ids, and longer left sides first. The file's scores have another order for
tokens that Gemma's makers added by hand, so they are not used. Tokens of two or more spaces are stored as spaces and not as "▁".

The result is that of transformers' GemmaTokenizer (transformers 5.24, integrations/gguf/gguf_tokenizer_mapping.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import decoders, normalizers, pre_tokenizers

from minllm.models.gguf.pre_tokenizers import Splitting

SPACE = "▁"
GEMMA = Splitting(
    pre_tokenizers.Split(" ", behavior="merged_with_previous"),
    normalizers.Replace(" ", SPACE),
    add_bos=True,
    decoder=decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]),
)


def sentencepiece_options(special: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the BPE model; special: the named special tokens."""
    return dict(unk_token=special.get("unk_token", "<unk>"), fuse_unk=True, byte_fallback=True)


def respelled(token: str) -> str:
    """A token as the normalised text spells it."""
    return SPACE * len(token) if token.isspace() and " " in token else token


def merges_of(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """All merges of a vocabulary, the first merge first."""
    known = set(tokens)
    cuts = ((token[:at], token[at:]) for token in tokens for at in range(len(token) - 1, 0, -1))
    return [(left, right) for left, right in cuts if left in known and right in known]
