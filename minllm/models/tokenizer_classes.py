"""Tokenizer classes of transformers that take only the vocabulary from tokenizer.json, and bring the rest themselves.

AutoTokenizer chooses a class by tokenizer_class of tokenizer_config.json, by that of config.json, or by the model type. Most directories
get the general class, which follows tokenizer.json. The classes here replace its normalizer, pre_tokenizer, decoder and the options of its
model, which is where add_prefix_space has an effect. Source: transformers 5.24, models/auto/tokenization_auto.py and
models/*/tokenization_*.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import processors

from minllm.models.gguf.pre_tokenizers import WORDS

GENERAL = ("TokenizersBackend", "PreTrainedTokenizer", "BloomTokenizer")  # the class that follows tokenizer.json, by its names
# Classes of model types whose directories name none.
CLASS_OF_MODEL_TYPE = {"gpt2": "GPT2Tokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "mistral": "TokenizersBackend"}
CLASS_OF_MODEL_TYPE |= dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer")
ALWAYS_OF_MODEL_TYPE = frozenset({"qwen2"})  # taken even if tokenizer_config.json names another class

Entries = Mapping[str, Any]
Named = Mapping[str, str]


@dataclass(frozen=True)
class TokenizerClass:
    """What a class makes of a directory."""

    entries: Callable[[Entries, Entries, Named], dict[str, Any]]  # of (tokenizer.json, tokenizer_config.json, named tokens)
    tokens: Mapping[str, str | None]  # named tokens of a directory that names none
    extra: Callable[[Entries], list[str]] = lambda config: []  # special tokens without a name
    adds_again: bool = False  # its special tokens lose the flags of the files
    post_processor: Callable[[tokenizers.Tokenizer, Named], Any] | None = None  # instead of tokenizer.json's


def class_name(config: Entries, model_config: Entries, is_byte_level: bool) -> str:
    """The name of the class that AutoTokenizer takes, without its suffix Fast.

    model_config: config.json. is_byte_level: whether tokenizer.json has a ByteLevel step.
    """
    named = str(config.get("tokenizer_class") or model_config.get("tokenizer_class") or "").removesuffix("Fast")
    model_type = str(model_config.get("model_type"))
    of_type = CLASS_OF_MODEL_TYPE.get(model_type)
    if named == "LlamaTokenizer" and is_byte_level and model_type not in ALWAYS_OF_MODEL_TYPE:
        return GENERAL[0]
    if of_type is None or not named or named == of_type:
        return named or of_type or GENERAL[0]
    if of_type == GENERAL[0]:
        return GENERAL[0]
    return of_type if model_type in ALWAYS_OF_MODEL_TYPE else named


def _vocabulary(model: Entries) -> dict[str, int]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # of Unigram: pairs of a token and its score
        return {token: token_id for token_id, (token, _) in enumerate(vocabulary)}
    return vocabulary


def _bpe(content: Entries, **options: Any) -> dict[str, Any]:
    vocabulary, merges = _vocabulary(content["model"]), content["model"].get("merges") or []
    plain = dict(dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False)
    return {"type": "BPE", **plain, "ignore_merges": False, "vocab": vocabulary, "merges": merges} | options


def _byte_level(add_prefix_space: Any, **options: Any) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": bool(add_prefix_space), "trim_offsets": True, "use_regex": True} | options


def _sequence(kind: str, *steps: Entries) -> dict[str, Any]:
    return {"type": "Sequence", kind: list(steps)}


def _metaspace(scheme: str, split: bool) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def _sentencepiece_decoder(strips: bool) -> dict[str, Any]:
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strips else []
    return _sequence("decoders", _replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *strip)


def _gpt2(content: Entries, config: Entries, named: Named) -> dict[str, Any]:
    split = _byte_level(config.get("add_prefix_space"))
    return dict(model=_bpe(content), normalizer=None, pre_tokenizer=split, decoder=_byte_level(True))


def _gpt_neox(content: Entries, config: Entries, named: Named) -> dict[str, Any]:
    return _gpt2(content, config, named) | dict(normalizer={"type": "NFC"})


def _qwen2(content: Entries, config: Entries, named: Named) -> dict[str, Any]:
    words = {"type": "Split", "pattern": {"Regex": WORDS.replace("DIGITS", r"\p{N}")}, "behavior": "Isolated", "invert": False}
    split = _sequence("pretokenizers", words, _byte_level(config.get("add_prefix_space"), use_regex=False))
    return _gpt_neox(content, config, named) | dict(pre_tokenizer=split)


def _llama(content: Entries, config: Entries, named: Named) -> dict[str, Any]:
    adds = config.get("add_prefix_space") in (None, True)
    scheme = ("always" if config.get("legacy") else "first") if adds else "never"
    model = _bpe(content, fuse_unk=True, byte_fallback=True)
    return dict(model=model, normalizer=None, pre_tokenizer=_metaspace(scheme, split=False), decoder=_sentencepiece_decoder(adds))


def _code_llama(content: Entries, config: Entries, named: Named) -> dict[str, Any]:
    entries = _llama(content, dict(config) | {"legacy": False}, named) | dict(decoder=_sentencepiece_decoder(True))
    entries["model"]["unk_token"] = named.get("unk_token", "None")
    return entries


def _gemma(content: Entries, config: Entries, named: Named) -> dict[str, Any]:
    model = _bpe(content, fuse_unk=True, byte_fallback=True, unk_token=named.get("unk_token", "None"))
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return dict(model=model, normalizer=_replace(" ", "▁"), pre_tokenizer=split, decoder=_sentencepiece_decoder(False))


def _bert(content: Entries, config: Entries, named: Named) -> dict[str, Any]:
    pieces = {"type": "WordPiece", "unk_token": named.get("unk_token", "None"), "continuing_subword_prefix": "##"}
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": config.get("tokenize_chinese_chars", True)}
    return dict(
        model=pieces | {"max_input_chars_per_word": 100, "vocab": _vocabulary(content["model"])},
        normalizer=normalizer | {"strip_accents": config.get("strip_accents"), "lowercase": config.get("do_lower_case", True)},
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    )


def _t5(content: Entries, config: Entries, named: Named) -> dict[str, Any]:
    normalizer, metaspace = content.get("normalizer") or {}, _metaspace("always", split=True)
    steps = normalizer.get("normalizers", [normalizer])
    return dict(
        model={"type": "Unigram", "unk_id": 2, "vocab": content["model"]["vocab"], "byte_fallback": False},
        normalizer=next((step for step in steps if step.get("type") == "Precompiled"), None),
        pre_tokenizer=_sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace),
        decoder=metaspace,
    )


def _sentinels(config: Entries) -> list[str]:
    count = config.get("extra_ids", 100)
    return [f"<extra_id_{i}>" for i in range(count if isinstance(count, int) else 100)]


def _around(backend: tokenizers.Tokenizer, before: str | None, after: str | None) -> Any:
    ids = [(token, backend.token_to_id(token)) for token in dict.fromkeys((before, after)) if token]
    return processors.TemplateProcessing(single=[part for part in (before, "$A", after) if part], special_tokens=ids)


_OF_GPT2 = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
_OF_LLAMA = dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>")
_OF_CODE_LLAMA = dict(prefix_token="▁<PRE>", middle_token="▁<MID>", suffix_token="▁<SUF>", eot_token="▁<EOT>", fill_token="<FILL_ME>")
_OF_GEMMA = dict(unk_token="<unk>", bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", mask_token="<mask>")

_OF_BERT = dict(unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]", cls_token="[CLS]", mask_token="[MASK]")

TOKENIZER_CLASSES = {
    "GPT2Tokenizer": TokenizerClass(_gpt2, {**_OF_GPT2, "pad_token": None}),
    "CodeGenTokenizer": TokenizerClass(_gpt2, {**_OF_GPT2, "pad_token": None}),
    "GPTNeoXTokenizer": TokenizerClass(_gpt_neox, {**_OF_GPT2, "pad_token": "<|padding|>"}, post_processor=lambda backend, named: None),
    "Qwen2Tokenizer": TokenizerClass(_qwen2, {**_OF_GPT2, "bos_token": None, "pad_token": "<|endoftext|>"}, adds_again=True),
    "LlamaTokenizer": TokenizerClass(_llama, _OF_LLAMA),
    "CodeLlamaTokenizer": TokenizerClass(
        _code_llama,
        {**_OF_LLAMA, **_OF_CODE_LLAMA},
        extra=lambda config: list(_OF_CODE_LLAMA.values()),
        post_processor=lambda backend, named: _around(backend, named.get("bos_token"), None),
    ),
    "GemmaTokenizer": TokenizerClass(_gemma, _OF_GEMMA),
    "BertTokenizer": TokenizerClass(
        _bert, _OF_BERT, post_processor=lambda backend, named: _around(backend, named.get("cls_token"), named.get("sep_token"))
    ),
    "T5Tokenizer": TokenizerClass(
        _t5,
        dict(eos_token="</s>", unk_token="<unk>", pad_token="<pad>"),
        extra=_sentinels,
        post_processor=lambda backend, named: _around(backend, None, named.get("eos_token")),
    ),
}
