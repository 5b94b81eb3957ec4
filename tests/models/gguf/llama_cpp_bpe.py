"""Byte-level BPE as llama.cpp does it (llama-vocab.cpp): split by its expressions, then merge by rank. An oracle for token ids."""

import regex
from tokenizers import pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
WORDS = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|{digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
EXPRESSIONS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [WORDS.replace("{digits}", r"\p{N}{1,3}")],
    "qwen2": [WORDS.replace("{digits}", r"\p{N}")],
}


def byte_alphabet() -> dict[int, str]:
    """GPT-2's bytes_to_unicode: printable bytes stand for themselves, others for letters from 256 on."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    letters = {byte: chr(byte) for byte in own} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    assert set(letters.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    return letters


ALPHABET = byte_alphabet()


def words(text: str, pre: str) -> list[str]:
    """unicode_regex_split: each expression splits the pieces that the one before it left, and what it does not match stays a piece."""
    pieces = [text]
    for expression in EXPRESSIONS[pre]:
        split = []
        for piece in pieces:
            at = 0
            for match in regex.finditer(expression, piece):
                split += [piece[at : match.start()], match[0]]
                at = match.end()
            split.append(piece[at:])
        pieces = [piece for piece in split if piece]
    return pieces


def merged(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """The symbols of a word after all merges, the lowest rank first and the leftmost of equals."""
    symbols = list(word)
    while len(symbols) > 1:
        pairs = [(ranks.get(pair, len(ranks)), at) for at, pair in enumerate(zip(symbols, symbols[1:]))]
        rank, at = min(pairs)
        if rank == len(ranks):
            break
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return symbols


def encode(text: str, pre: str, tokens: list[str], merges: list[str], specials: list[str]) -> list[int]:
    """Token ids of a text, without tokens put around it."""
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    found = []
    for part in regex.split("(" + "|".join(map(regex.escape, specials)) + ")", text):
        if part in specials:
            found.append(ids[part])
            continue
        for word in words(part, pre):
            spelled = "".join(ALPHABET[byte] for byte in word.encode())
            whole = pre == "llama-bpe" and spelled in ids
            found += [ids[symbol] for symbol in ([spelled] if whole else merged(spelled, ranks))]
    return found
