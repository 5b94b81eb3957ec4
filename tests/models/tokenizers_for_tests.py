"""Small tokenizers of the kinds that real models come with, trained on a few lines of text."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from minllm.models.tokenizer import Tokenizer

TEXT = [
    "def main():\n    return 'hello world, hello again'\n",
    "Zażółć gęślą jaźń. Größe, naïve café, 東京の天気は晴れです。",
    "emoji 👩‍👩‍👧‍👦 and 🎉🎉, a tab\tand  two spaces    four",
] * 3


def byte_level(special: str = "<|endoftext|>") -> tokenizers.Tokenizer:
    """As GPT-2, Llama 3 and Qwen."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=[special], initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def sentencepiece() -> tokenizers.Tokenizer:
    """As Llama 2: spaces marked and one put in front, bytes for what the vocabulary lacks, <s> before every text."""
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=256 + 120, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator([text for text in TEXT if text.isascii()], trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # the byte tokens are ordinary ones
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace() -> tokenizers.Tokenizer:
    """As older SentencePiece conversions: a Metaspace decoder and no byte tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=260, special_tokens=["<unk>", "<s>"], show_progress=False))
    return tokenizer


def word_pieces() -> tokenizers.Tokenizer:
    """A kind that no decoder model uses, to go through the library's own stream."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=220, special_tokens=["[UNK]"], show_progress=False))
    return tokenizer


KINDS = {"byte_level": byte_level, "sentencepiece": sentencepiece, "metaspace": metaspace, "word_pieces": word_pieces}


def write_tokenizer(directory: Path, backend: tokenizers.Tokenizer, config: dict[str, Any] | None = None) -> Tokenizer:
    """Saves tokenizer.json and tokenizer_config.json as a model directory has them, and reads them back."""
    backend.save(str(directory / "tokenizer.json"))
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return Tokenizer.from_directory(directory)
