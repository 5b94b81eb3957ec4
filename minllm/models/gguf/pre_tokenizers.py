"""How a text is split before BPE merges, by the value of tokenizer.ggml.pre.

GGUF only names the split; llama-vocab.cpp in llama.cpp defines it. Here each name maps to the parts of the tokenizer.json that the model's
makers published, so that token ids equal those of Hugging Face's tokenizer.
"""

from typing import NamedTuple

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

# The pattern of Llama 3 and Qwen2: contractions, words, numbers, punctuation, spaces. They differ in how many digits stay together.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class Splitting(NamedTuple):
    """What a tokenizer does before the merges, normalise and split, and what makes a text of its tokens."""

    pre_tokenizer: pre_tokenizers.PreTokenizer
    normalizer: normalizers.Normalizer | None = None
    ignore_merges: bool = False  # a word that is a token becomes that token without applying merges
    add_bos: bool = False  # llama.cpp's default for tokenizer.ggml.add_bos_token
    decoder: decoders.Decoder = decoders.ByteLevel()


def _split_at(digits: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(WORDS.replace("DIGITS", digits)), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


SPLITTINGS = {
    "gpt-2": Splitting(_gpt2()),
    "smollm": Splitting(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])),
    "llama-bpe": Splitting(_split_at(r"\p{N}{1,3}"), ignore_merges=True, add_bos=True),
    "qwen2": Splitting(_split_at(r"\p{N}"), normalizers.NFC()),
}
