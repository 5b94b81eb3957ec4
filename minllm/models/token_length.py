"""A bound on the characters per token, so that a text that is too long can be refused before it is tokenised.

A tokenizer may drop characters (a normaliser that strips, a pre-tokeniser that drops the spaces at which it splits), or return one id for a
long unknown word. Such tokenizers have no bound. Those of most models keep every character: they merge characters, or bytes of UTF-8.
"""

import json
from typing import Any

import tokenizers

COMPOSED = 4  # the largest number of characters that Unicode's normal forms compose into one
KEEPING_NORMALIZERS = {"NFC": COMPOSED, "NFKC": COMPOSED, "NFD": 1, "NFKD": 1, "Lowercase": 1, "Prepend": 1}
KEEPING_PRE_TOKENIZERS = ("ByteLevel", "Metaspace", "Digits", "Punctuation", "Split", "UnicodeScripts")


def most_chars_per_token(backend: tokenizers.Tokenizer) -> int | None:
    """The largest number of characters of a text that become one token; None if there is no bound."""
    if not isinstance(backend.model, tokenizers.models.BPE):
        return None
    splits = _parts(backend.pre_tokenizer, "pretokenizers")
    names = [part["type"] for part in splits]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet() if "ByteLevel" in names else [f"<0x{byte:02X}>" for byte in range(256)]
    if any(backend.token_to_id(byte) is None for byte in alphabet):
        return None  # bytes without a token are dropped, or become one unknown token
    if any(name not in KEEPING_PRE_TOKENIZERS for name in names):
        return None
    if any(part.get("behavior") == "Removed" for part in splits):
        return None
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None  # such a token absorbs all spaces beside it
    found = [_factor(part) for part in _parts(backend.normalizer, "normalizers")]
    factors = [factor for factor in found if factor is not None]
    if len(factors) < len(found):
        return None
    longest = max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)
    return longest * max(factors, default=1)


def _parts(step: Any, key: str) -> list[dict[str, Any]]:
    """The steps of a normaliser or a pre-tokeniser, with sequences flattened."""
    if step is None:
        return []
    parts, stack = [], [json.loads(step.__getstate__())]
    while stack:
        part = stack.pop()
        if part["type"] == "Sequence":
            stack.extend(part[key])
        else:
            parts.append(part)
    return parts


def _factor(part: dict[str, Any]) -> int | None:
    """The largest number of characters that a normaliser turns into one; None if there is no bound."""
    if part["type"] == "Replace":
        pattern = part["pattern"].get("String", "")
        return len(pattern) if pattern and part["content"] else None
    return KEEPING_NORMALIZERS.get(part["type"])
