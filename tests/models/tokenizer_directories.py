"""Random tokenizer directories: kinds of backends, and the keys and files that speak of special tokens."""

import copy
import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from hypothesis import strategies as st
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
CLASSES += ["GemmaTokenizerFast", "OfSomebodyTokenizer"]
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


def texts():
    """Texts in which special tokens stand between words and spaces."""
    return st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=8).map("".join)


@st.composite
def directories(draw) -> TokenizerDirectory:
    """A directory with about half of the keys."""
    content = copy.deepcopy(content_of(draw(st.sampled_from(sorted(BACKENDS)))))
    config = {"tokenizer_class": name} if (name := draw(st.sampled_from(CLASSES))) is not None else {}
    # These two encode nothing if their unknown token is not in the vocabulary.
    needs_unknown = name in ("CodeLlamaTokenizer", "GemmaTokenizerFast")
    for token in [*TOKENS, "<unk>", "None"] if needs_unknown else draw(st.lists(st.sampled_from(TOKENS), unique=True, max_size=5)):
        _append(content["model"]["vocab"], token)
    case = TokenizerDirectory(content, config, draw(st.sampled_from(MODEL_TYPES)), keys={"tokenizer_class"} if config else set())
    _put_into_tokenizer_json(draw, case)
    _put_into_config(draw, case)
    _put_into_other_files(draw, case)
    return case


def _append(vocabulary, token):
    if isinstance(vocabulary, list):
        if token not in dict(vocabulary):
            vocabulary.append([token, -9.0])
    else:
        vocabulary.setdefault(token, len(vocabulary))


def _is(draw, case, key, one_in=2):
    chosen = draw(st.integers(0, one_in - 1)) == 0
    if chosen:
        case.keys.add(key)
    return chosen


def _entry(draw, case, token):
    """An added token with flags."""
    flags = {flag: draw(st.booleans()) for flag in FLAGS}
    case.keys.update(flag for flag, value in flags.items() if value)
    return {"content": token, **flags}


def _some(draw):
    return draw(st.lists(st.sampled_from(TOKENS), unique=True, min_size=1, max_size=3))


def _put_into_tokenizer_json(draw, case):
    content, added = case.tokenizer, case.tokenizer["added_tokens"]
    vocabulary = content["model"]["vocab"]
    ids = {token: i for i, (token, _) in enumerate(vocabulary)} if isinstance(vocabulary, list) else vocabulary
    if _is(draw, case, "added_tokens"):
        beyond = len(ids)
        for token in _some(draw):
            beyond += token not in ids
            added.append({"id": ids.get(token, beyond - 1), **_entry(draw, case, token)})
    if _is(draw, case, "post_processor"):
        first = added[0] if added else {"content": next(iter(ids)), "id": 0}
        token, around = {"SpecialToken": {"id": first["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        special = {first["content"]: {"id": first["content"], "ids": [first["id"]], "tokens": [first["content"]]}}
        pair = [around, {"Sequence": {"id": "B", "type_id": 0}}]
        content["post_processor"] = {"type": "TemplateProcessing", "single": [token, around], "pair": pair, "special_tokens": special}
    if _is(draw, case, "padding", 3):
        padding = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}
        content["padding"] = padding | {"pad_token": draw(st.sampled_from(TOKENS))}
        content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}


def _put_into_config(draw, case):
    config = case.config
    for name in NAMES:
        if _is(draw, case, name, 3):
            config[name] = draw(st.sampled_from([None, *TOKENS]))
    if _is(draw, case, "image_token", 3):
        config["image_token"] = draw(st.sampled_from(TOKENS))
    if _is(draw, case, "added_tokens_decoder"):
        config["added_tokens_decoder"] = {str(300 + i): _entry(draw, case, token) for i, token in enumerate(_some(draw))}
    if _is(draw, case, "additional_special_tokens", 3):
        config["additional_special_tokens"] = _some(draw)
    kind = draw(st.sampled_from([None, "list", "dict"]))
    if kind is not None:
        case.keys.add(f"extra_special_tokens {kind}")
        config["extra_special_tokens"] = (
            _some(draw) if kind == "list" else dict(zip(["video_token", "audio_token", "boi_token"], _some(draw)))
        )
    for flag in ("split_special_tokens", "clean_up_tokenization_spaces", "add_bos_token", "add_eos_token", "add_prefix_space", "legacy"):
        if _is(draw, case, flag, 3):
            config[flag] = draw(st.booleans())


def _put_into_other_files(draw, case):
    if _is(draw, case, "special_tokens_map.json"):
        named = {name: draw(st.sampled_from(TOKENS)) for name in draw(st.lists(st.sampled_from(NAMES), unique=True))}
        case.files["special_tokens_map.json"] = {
            name: _entry(draw, case, token) if draw(st.booleans()) else token for name, token in named.items()
        }
        if draw(st.booleans()):
            case.files["special_tokens_map.json"]["additional_special_tokens"] = _some(draw)
    if _is(draw, case, "added_tokens.json"):
        case.files["added_tokens.json"] = {token: 300 + i for i, token in enumerate(_some(draw))}
