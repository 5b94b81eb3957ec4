"""Reads the tokenizer of a Hugging Face directory: tokenizer.json and the files beside it, as transformers' AutoTokenizer does."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from minllm.errors import CheckpointError, as_exception
from minllm.models.json_files import read_json, refuse_special_file
from minllm.models.special_tokens import EXTRA, NAMES, OLDER_EXTRA, SpecialTokens, is_token, read_special_tokens
from minllm.models.tokenizer_classes import GENERAL, TOKENIZER_CLASSES, TokenizerClass, class_name

# Keys of tokenizer_config.json that are followed, or that change nothing of what an engine does with a tokenizer.
FOLLOWED_KEYS = frozenset(
    (*NAMES, EXTRA, OLDER_EXTRA)
    + tuple(
        "added_tokens_decoder model_specific_special_tokens chat_template tokenizer_class add_prefix_space legacy split_special_tokens "
        "do_lower_case tokenize_chinese_chars strip_accents extra_ids "
        "clean_up_tokenization_spaces clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output".split()
    )
)
HARMLESS_KEYS = frozenset(
    # transformers drops the first two for a directory with tokenizer.json, which has them in its post-processor
    "add_bos_token add_eos_token model_max_length max_len max_length padding padding_side pad_to_multiple_of pad_token_type_id "
    "truncation truncation_side truncation_strategy stride model_input_names return_tensors name_or_path processor_class special_tokens "
    "special_tokens_map_file tokenizer_file vocab_file merges_file backend files_loaded is_local local_files_only from_slow use_fast "
    "verbose errors trim_offsets sp_model_kwargs spaces_between_special_tokens use_default_system_prompt init_inputs device_map "
    "transformers_version response_schema response_template chat_control_tokens do_basic_tokenize never_split "
    "wordpieces_prefix unk_id remove_space keep_accents".split()
)


def read_backend(directory: Path, config: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The library's tokenizer with all added tokens, and `config` with the special tokens that any file names.

    config: tokenizer_config.json. Warns once, of all keys that are not followed. Raises CheckpointError if a file is missing or damaged.
    """
    text = _text(directory / "tokenizer.json")
    original = _parsed(text, directory)
    name = class_name(config, _optional(directory / "config.json"), '"ByteLevel"' in text)
    kind = TOKENIZER_CLASSES.get(name)
    defaults = {"pad_token": original.padding["pad_token"]} if original.padding else {}
    special_tokens_map, added_tokens = (_optional(directory / file) for file in ("special_tokens_map.json", "added_tokens.json"))
    defaults |= kind.tokens if kind is not None else {}
    extra = kind.extra(config) if kind is not None else ()
    tokens = read_special_tokens(
        config, original.get_added_tokens_decoder(), special_tokens_map, added_tokens, defaults, extra, keeps_file=kind is None
    )  # fmt: skip
    backend = original if kind is None else _rebuilt(json.loads(text), kind, config, tokens.named, directory)
    backend.add_tokens(tokens.added)
    if kind is not None:
        _finish(backend, kind, tokens)
    _warn(directory, [*_unknown_keys(config), *_class_remarks(name, original, backend)])
    return backend, {key: value for key, value in config.items() if not key.endswith("_token")} | tokens.named


def _rebuilt(content: dict[str, Any], kind: TokenizerClass, config: Mapping[str, Any], named: Mapping[str, str], directory: Path) -> Any:
    """The tokenizer that a class makes of the vocabulary, without added tokens."""
    content |= kind.entries(content, config, named) | {"added_tokens": []}
    return _parsed(json.dumps(content), directory)


def _finish(backend: tokenizers.Tokenizer, kind: TokenizerClass, tokens: SpecialTokens) -> None:
    """What a class does once all tokens have ids."""
    if kind.adds_again:
        texts = dict.fromkeys((*tokens.named.values(), *tokens.extra))
        backend.add_tokens([AddedToken(text, special=True) for text in texts])
    if kind.post_processor is not None:
        backend.post_processor = kind.post_processor(backend, tokens.named)


def _unknown_keys(config: Mapping[str, Any]) -> list[str]:
    unknown = config.keys() - FOLLOWED_KEYS - HARMLESS_KEYS
    return sorted(key for key in unknown if config[key] is not None and not (key.endswith("_token") and is_token(config[key])))


def _class_remarks(name: str, original: tokenizers.Tokenizer, backend: tokenizers.Tokenizer) -> list[str]:
    """What a user of this class should know: another split of texts than in tokenizer.json, or a class that is unknown here."""
    if name in GENERAL:
        return []
    if name not in TOKENIZER_CLASSES:
        return [f"tokenizer_class {name} (tokenizer.json is followed as it stands)"]
    before, after = (one.pre_tokenizer and one.pre_tokenizer.__getstate__() for one in (original, backend))
    if before is None or before == after:
        return []
    return [f"pre_tokenizer of tokenizer.json (tokenizer_class {name} has its own, as in transformers; TokenizersBackend keeps it)"]


def _warn(directory: Path, not_followed: list[str]) -> None:
    if not_followed:
        warnings.warn(f"The tokenizer of {directory} does not follow: {', '.join(not_followed)}.", UserWarning, stacklevel=4)


def _text(path: Path) -> str:
    if not path.exists():
        raise CheckpointError(
            f"tokenizer.json is missing from {path.parent}. A model with only tokenizer.model or vocab.json can be converted: "
            "AutoTokenizer.from_pretrained(PATH).save_pretrained(PATH)."
        )
    refuse_special_file(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read as a tokenizer: {error}.") from error


def _parsed(text: str, directory: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except BaseException as error:  # the library raises its plain Exception for any fault of the file, or panics
        raise CheckpointError(f"{directory / 'tokenizer.json'} cannot be read as a tokenizer: {as_exception(error)}.") from error


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
