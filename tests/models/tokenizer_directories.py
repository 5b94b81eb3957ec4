"""Random tokenizer directories: kinds of backends, and the keys and files that speak of special tokens."""

import copy
import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tests.models.tokenizers_for_tests import TEXT, byte_level, sentencepiece, word_pieces

TOKENS = ["<|a|>", "<s>", "</s>", "[B]", "<|c d|>", "world", "Größe"]  # what may be added: also with a space, and words
FRAGMENTS = [*TOKENS, "hello", " ", "  ", "\n", "2026", "naïve", "東京", "🎉", ".", " ,", " n't", "don't", "worlds", "é", "▁", "a", "Ω"]
NAMES = ["bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "mask_token"]
FLAGS = ["lstrip", "rstrip", "single_word", "normalized", "special"]
CLASSES = [
    None,
    "PreTrainedTokenizerFast",
    "LlamaTokenizerFast",
    "GPT2Tokenizer",
    "Qwen2TokenizerFast",
    "GPTNeoXTokenizer",
    "CodeLlamaTokenizer",
]
CLASSES += ["GemmaTokenizerFast", "CodeGenTokenizer", "BertTokenizerFast", "T5TokenizerFast", "OfSomebodyTokenizer"]
MODEL_TYPES = ["llama", "mistral", "qwen2", "qwen3", "gpt2"]
KEYS = [*NAMES[:4], *FLAGS, "added_tokens", "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens list"]
KEYS += ["extra_special_tokens dict", "image_token", "special_tokens_map.json", "added_tokens.json", "add_prefix_space", "legacy"]
KEYS += [
    "split_special_tokens",
    "clean_up_tokenization_spaces",
    "add_bos_token",
    "add_eos_token",
    "post_processor",
    "padding",
    "tokenizer_class",
]


def unigram() -> tokenizers.Tokenizer:
    """As T5 and other SentencePiece Unigram models."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=150, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


BACKENDS = {"byte_level": byte_level, "sentencepiece": sentencepiece, "word_pieces": word_pieces, "unigram": unigram}


@functools.cache
def content_of(kind: str) -> dict[str, Any]:
    """tokenizer.json of a kind, as an object."""
    return json.loads(BACKENDS[kind]().to_str())


@dataclass
class TokenizerDirectory:
    """The contents of the files, and the keys that they have."""

    tokenizer: dict[str, Any]
    config: dict[str, Any]
    model_type: str
    files: dict[str, Any] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)

    def write(self, directory: Path) -> None:
        """Write the files of a model directory, but for its weights, and remove those of another."""
        for path in directory.iterdir():
            path.unlink()
        model = {"model_type": self.model_type}
        for name, content in {
            "tokenizer.json": self.tokenizer,
            "tokenizer_config.json": self.config,
            "config.json": model,
            **self.files,
        }.items():
            (directory / name).write_text(json.dumps(content), encoding="utf-8")


def random_text(rng: Random) -> str:
    """A text in which special tokens stand between words and spaces."""
    return "".join(rng.choices(FRAGMENTS, k=rng.randint(1, 8)))


def random_directory(rng: Random) -> TokenizerDirectory:
    """A directory with about half of the keys."""
    name = rng.choice(CLASSES)
    content = copy.deepcopy(content_of("unigram" if name == "T5TokenizerFast" else rng.choice(sorted(BACKENDS))))
    # These classes encode nothing if their unknown token is not in the vocabulary.
    needs_unknown = name in ("CodeLlamaTokenizer", "GemmaTokenizerFast", "BertTokenizerFast")
    for token in [*TOKENS, "<unk>", "[UNK]", "None"] if needs_unknown else _some(rng, least=0):
        _append(content["model"]["vocab"], token)
    case = TokenizerDirectory(content, {}, rng.choice(MODEL_TYPES))
    if name is not None:
        case.config["tokenizer_class"] = name
        case.keys.add("tokenizer_class")
    _put_into_tokenizer_json(rng, case)
    _put_into_config(rng, case)
    _put_into_other_files(rng, case)
    return case


def _append(vocabulary: Any, token: str) -> None:
    if isinstance(vocabulary, list):
        if token not in dict(vocabulary):
            vocabulary.append([token, -9.0])
    else:
        vocabulary.setdefault(token, len(vocabulary))


def _has(rng: Random, case: TokenizerDirectory, key: str, probability: float) -> bool:
    chosen = rng.random() < probability
    if chosen:
        case.keys.add(key)
    return chosen


def _entry(rng: Random, case: TokenizerDirectory, token: str) -> dict[str, Any]:
    """An added token with flags."""
    return {"content": token, **{flag: _has(rng, case, flag, 0.5) for flag in FLAGS}}


def _some(rng: Random, least: int = 1) -> list[str]:
    return rng.sample(TOKENS, rng.randint(least, 4))


def _put_into_tokenizer_json(rng: Random, case: TokenizerDirectory) -> None:
    content, added = case.tokenizer, case.tokenizer["added_tokens"]
    vocabulary = content["model"]["vocab"]
    ids = {token: i for i, (token, _) in enumerate(vocabulary)} if isinstance(vocabulary, list) else dict(vocabulary)
    if _has(rng, case, "added_tokens", 0.5):
        present = {entry["content"] for entry in added}
        for token in filter(lambda token: token not in present, _some(rng)):
            added.append({"id": ids.setdefault(token, len(ids)), **_entry(rng, case, token)})
    if _has(rng, case, "post_processor", 0.5):
        first, text = added[0], {"Sequence": {"id": "A", "type_id": 0}}
        token = {"SpecialToken": {"id": first["content"], "type_id": 0}}
        special = {first["content"]: {"id": first["content"], "ids": [first["id"]], "tokens": [first["content"]]}}
        pair = [text, {"Sequence": {"id": "B", "type_id": 0}}]
        content["post_processor"] = {"type": "TemplateProcessing", "single": [token, text], "pair": pair, "special_tokens": special}
    if _has(rng, case, "padding", 0.3):
        padding = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}
        content["padding"] = padding | {"pad_token": rng.choice(TOKENS)}
        content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}


def _put_into_config(rng: Random, case: TokenizerDirectory) -> None:
    config = case.config
    # The post-processors of two classes cannot be made without a token, or with one that has a space.
    writes_processor = config.get("tokenizer_class") in ("BertTokenizerFast", "T5TokenizerFast")
    for name in NAMES:
        if _has(rng, case, name, 0.4):
            config[name] = rng.choice([token for token in TOKENS if " " not in token] if writes_processor else [None, *TOKENS])
    if _has(rng, case, "image_token", 0.3):
        token = rng.choice(TOKENS)
        typed = {"__type": "AddedToken", "content": token, "lstrip": True}
        config["image_token"] = rng.choice([token, token, typed, {"content": token}, 256])
    if _has(rng, case, "added_tokens_decoder", 0.5):
        config["added_tokens_decoder"] = {str(300 + i): _entry(rng, case, token) for i, token in enumerate(_some(rng))}
    if _has(rng, case, "additional_special_tokens", 0.3):
        config["additional_special_tokens"] = _some(rng)
    if kind := rng.choice([None, "list", "dict"]):
        case.keys.add(f"extra_special_tokens {kind}")
        tokens = _some(rng, least=0)
        config["extra_special_tokens"] = tokens if kind == "list" else dict(zip(["video_token", "audio_token", "boi_token"], tokens))
    for flag in ("split_special_tokens", "clean_up_tokenization_spaces", "add_bos_token", "add_eos_token", "add_prefix_space", "legacy"):
        if _has(rng, case, flag, 0.4):
            config[flag] = rng.choice([False, True])


def _put_into_other_files(rng: Random, case: TokenizerDirectory) -> None:
    if _has(rng, case, "special_tokens_map.json", 0.5):
        names = {name: rng.choice(TOKENS) for name in rng.sample(NAMES, rng.randint(0, 4))}
        content = {name: _entry(rng, case, token) if rng.random() < 0.5 else token for name, token in names.items()}
        for key in ("additional_special_tokens", "extra_special_tokens"):
            if rng.random() < 0.3:
                content[key] = _some(rng)
        case.files["special_tokens_map.json"] = content
    if _has(rng, case, "added_tokens.json", 0.5):
        case.files["added_tokens.json"] = {token: 300 + i for i, token in enumerate(_some(rng))}
