"""The added tokens and the named special tokens of a model directory, as transformers' AutoTokenizer finds them.

An added token is matched as it stands, before a text is split. It may be special (left out of decoded text), and has flags that say which
spaces around it it swallows (lstrip, rstrip), and whether it matches whole words only (single_word) or the normalised text (normalized).
A named token has a role: bos_token, eos_token and so on. Four files speak of them:

    tokenizer.json            added_tokens
    tokenizer_config.json     added_tokens_decoder, the names, extra_special_tokens (a list, or an object of more names) and its older name
                              additional_special_tokens; any other key that ends in _token names a token too
    special_tokens_map.json   the names again; read if tokenizer_config.json lacks added_tokens_decoder, and wins over it
    added_tokens.json         {text: id}; read in the same case

Ids in these files are not obeyed: a token that the vocabulary has keeps its id, another gets the next free one, as in transformers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import AddedToken

from minllm.errors import CheckpointError, shown

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA, OLDER_EXTRA = "extra_special_tokens", "additional_special_tokens"
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class SpecialTokens(NamedTuple):
    """What the files say."""

    named: dict[str, str]  # {"bos_token": text, ...}
    extra: list[str]  # special tokens without a name
    added: list[AddedToken]  # in the order in which they are added


def read_special_tokens(
    config: Mapping[str, Any],
    in_file: Mapping[int, AddedToken],
    special_tokens_map: Mapping[str, Any],
    added_tokens: Mapping[str, Any],
    defaults: Mapping[str, Any],
    extra_of_class: Sequence[str] = (),
    keeps_file: bool = True,
) -> SpecialTokens:
    """The special tokens of a directory. Raises CheckpointError if a token is neither a text nor an object with "content".

    config: tokenizer_config.json. in_file: the added tokens of tokenizer.json by id. special_tokens_map, added_tokens: the other files, or
    empty. defaults, extra_of_class: what the tokenizer's class names if no file does. keeps_file: the tokens of tokenizer.json are there
    already.
    """
    values = dict(config)
    if not values.get(EXTRA) and OLDER_EXTRA in values:
        values[EXTRA] = values.pop(OLDER_EXTRA)
    further: Mapping[str, Any] = {key: values.pop(key) for key in list(values) if _is_further_name(key) and isinstance(values[key], str)}
    further = {**further, **_popped_names(values)} or _object(values, "model_specific_special_tokens")
    if "added_tokens_decoder" in values:
        added = {int(token_id): _added_token(entry) for token_id, entry in _by_id(values, "added_tokens_decoder").items()}
    else:
        values |= _of_map(special_tokens_map, values)
        further = {**further, **_popped_names(values)}
        added = _of_added_tokens(added_tokens, values) | dict(in_file)
    values = {**defaults, **values}
    flagged = {token.content: token for token in added.values()}
    named = {name: flagged.get(str(token), token) for name in NAMES if (token := _token(values.get(name))) is not None}
    named |= {key: _token(value) for key, value in values.items() if _is_further_name(key) and is_token(value)}
    named |= {key: token for key, value in further.items() if (token := _token(value)) is not None}
    extra = _tokens(values.get(EXTRA, values.get(OLDER_EXTRA)), special=True)
    if EXTRA not in values:
        extra += [token for token in extra_of_class if token not in map(str, extra)]
    in_order = [token for _, token in sorted(added.items(), key=lambda item: item[0])]
    return SpecialTokens(
        {name: str(token) for name, token in named.items()},
        [str(token) for token in extra],
        _to_add(in_order, named, extra, in_file if keeps_file else {}),
    )


def _to_add(added: list[AddedToken], named: Mapping[str, Any], extra: Iterable[Any], in_file: Mapping[int, AddedToken]) -> list[AddedToken]:
    """The added tokens, then the named and extra ones that are none yet, with their flags.

    A token with a name is special, and so is one that any entry calls special.
    """
    tokens: list[Any] = list(added)
    known = {token.content for token in (*in_file.values(), *added)}
    for token in (*named.values(), *extra):
        if str(token) not in known and token not in tokens:
            tokens.append(token)
    special = {str(token) for token in named.values()} | {token.content for token in (*in_file.values(), *added) if token.special}
    return [_with_flags(token, special) for token in tokens]


def _with_flags(token: Any, special: set[str]) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=True)
    if token.content in special:
        token.special = True
    return token


def _of_map(special_tokens_map: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of special_tokens_map.json, objects made tokens; its extra tokens come after those of tokenizer_config.json."""
    found = {
        key: _token(value, special=True) if isinstance(value, dict) and key != EXTRA else value for key, value in special_tokens_map.items()
    }
    if isinstance(found.get(EXTRA), list):
        extra = list(values.get(EXTRA) or [])
        found[EXTRA] = extra + [token for token in _tokens(found[EXTRA], special=True) if token not in extra]
    return found


def _of_added_tokens(added_tokens: Mapping[str, Any], values: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The tokens of added_tokens.json; those that another key names are special."""
    special = {str(token) for name in NAMES if (token := _token(values.get(name))) is not None}
    special |= {str(token) for token in _tokens(values.get(EXTRA))}
    if not all(isinstance(token_id, int) for token_id in added_tokens.values()):
        raise CheckpointError(f"added_tokens.json must be an object from tokens to ids, and is {shown(added_tokens)}.")
    return {token_id: AddedToken(text, normalized=text not in special, special=text in special) for text, token_id in added_tokens.items()}


def _popped_names(values: dict[str, Any]) -> dict[str, Any]:
    """The names in an extra_special_tokens that is an object, taken out of the values."""
    return values.pop(EXTRA) if isinstance(values.get(EXTRA), dict) else {}


def is_token(value: object) -> bool:
    """Whether a key that ends in _token, and has no role, names a token: transformers ignores plain objects and numbers there."""
    return isinstance(value, str | AddedToken) or (isinstance(value, dict) and value.get("__type") == "AddedToken")


def _is_further_name(key: str) -> bool:
    return key.endswith("_token") and key not in NAMES and not key.startswith("add_")


def _object(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    entries = values.get(key) or {}
    if not isinstance(entries, dict):
        raise CheckpointError(f"tokenizer_config.json: {key} must be an object, and is {shown(entries)}.")
    return entries


def _by_id(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    entries = _object(values, key)
    if not all(token_id.isdecimal() for token_id in entries):
        raise CheckpointError(f"tokenizer_config.json: {key} must be an object from ids to tokens, and is {shown(entries)}.")
    return entries


def _tokens(values: object, special: bool = False) -> list[Any]:
    if values is not None and not isinstance(values, list):
        raise CheckpointError(f"{EXTRA} must be a list of tokens, or an object from names to tokens, and is {shown(values)}.")
    return [token for value in values or () if (token := _token(value, special)) is not None]


def _token(value: object, special: bool = False) -> Any:
    """A token as a text or an AddedToken; None for null and for an empty text. special: what objects without a "__type" are."""
    if isinstance(value, dict):
        return _added_token(value | {"special": True} if special and "__type" not in value else value)
    if value is not None and not isinstance(value, str | AddedToken):
        raise CheckpointError(f'A special token must be a text or an object with "content", and is {shown(value)}.')
    return value or None if isinstance(value, str) else value


def _added_token(entry: Any) -> AddedToken:
    if isinstance(entry, AddedToken):
        return entry
    content = entry.get("content") if isinstance(entry, dict) else None
    flags = {flag: entry[flag] for flag in FLAGS if flag in entry} if content is not None else {}
    if not isinstance(content, str) or not all(isinstance(value, bool) for value in flags.values()):
        raise CheckpointError(f'An added token must be an object with "content" and flags that are true or false, and is {shown(entry)}.')
    return AddedToken(content, **flags)
