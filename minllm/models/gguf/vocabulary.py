"""The tokenizer in a GGUF file: byte-level BPE ("gpt2"), or Gemma's SentencePiece ("llama"), rebuilt with the `tokenizers` library.

    tokenizer.ggml.model         "gpt2" is byte-level BPE; "llama", SentencePiece, is read for Gemma (sentencepiece.py); others are refused
    tokenizer.ggml.pre           how a text is split before merging, see pre_tokenizers.py
    tokenizer.ggml.tokens        the text of each id, in the byte-level alphabet
    tokenizer.ggml.token_type    1 normal, 2 unknown, 3 control, 4 user defined, 5 unused
    tokenizer.ggml.merges        "left right", the first merge first
    tokenizer.ggml.{bos,eos,unknown,padding}_token_id, add_bos_token, add_eos_token
    tokenizer.chat_template      Jinja source; tokenizer.chat_template.NAME: one for another purpose

Other keys of tokenizer.ggml are for other kinds of tokenizers, or name tokens that only authors of prompts need.
"""

from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, models

from minllm.errors import CheckpointError, UnsupportedModelError, as_exception
from minllm.models.gguf.ends_of_text import is_well_known
from minllm.models.gguf.gguf_file import GgufFile
from minllm.models.gguf.hyperparameters import metadata_fields
from minllm.models.gguf.pre_tokenizers import SPLITTINGS, Splitting
from minllm.models.gguf.sentencepiece import GEMMA, merges_of, respelled, sentencepiece_options
from minllm.models.json_files import Fields
from minllm.models.named_templates import DEFAULT
from minllm.models.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
TOKENS, TEMPLATE = "tokenizer.ggml.tokens", "tokenizer.chat_template"


def read_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer. Raises CheckpointError if keys are missing or wrong, UnsupportedModelError for other kinds."""
    fields = metadata_fields(file)
    splitting = _splitting(fields)
    tokens, types = _strings(file, TOKENS), _types(file)
    if splitting is GEMMA:
        tokens = list(map(respelled, tokens))
        merges = merges_of(tokens)
    else:
        merges = _pairs(file, _strings(file, "tokenizer.ggml.merges"))
    if len(set(tokens)) < len(tokens):
        raise CheckpointError(f"{file.path}: {TOKENS} holds a token twice; the file is damaged, copy it again.")
    vocabulary = {token: token_id for token_id, token in enumerate(tokens) if types[token_id] != UNUSED}
    special = _special_tokens(fields, tokens, splitting)
    options = sentencepiece_options(special) if splitting is GEMMA else dict(ignore_merges=splitting.ignore_merges)
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, **options))
    except BaseException as error:  # the library raises a plain Exception, for example if a merge has unknown tokens, or panics
        raise CheckpointError(
            f"{file.path}: tokens and merges make no tokenizer ({as_exception(error)}); the file is damaged, copy it again."
        ) from error
    backend.pre_tokenizer, backend.decoder = splitting.pre_tokenizer, splitting.decoder
    if splitting.normalizer is not None:
        backend.normalizer = splitting.normalizer
    kinds = ((token, types[token_id]) for token, token_id in vocabulary.items())
    added = ((token, CONTROL if is_well_known(token, kind) else kind) for token, kind in kinds)
    backend.add_tokens(
        [
            AddedToken(token, special=kind != USER_DEFINED, normalized=False)
            for token, kind in added
            if token and kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ]
    )
    return Tokenizer(backend, special, _chat_templates(file))


def _splitting(fields: Fields) -> Splitting:
    """The split before the merges. Raises UnsupportedModelError for other kinds of tokenizers or unknown splits."""
    model = fields.text("tokenizer.ggml.model")
    if model == "llama" and fields.text("general.architecture").startswith("gemma"):
        return GEMMA
    if model != "gpt2":
        kind = " (SentencePiece)" if model == "llama" else ""
        raise UnsupportedModelError(
            f"{fields.source} has tokenizer.ggml.model {model!r}{kind}, and minllm reads 'gpt2', byte-level BPE, and Gemma's "
            "SentencePiece from GGUF files: take the model's Hugging Face directory."
        )
    pre = fields.text("tokenizer.ggml.pre", "")
    if pre not in SPLITTINGS:
        raise UnsupportedModelError(
            f"{fields.source} has tokenizer.ggml.pre {pre!r}, and minllm splits texts as {', '.join(SPLITTINGS)}: take the model's Hugging "
            "Face directory."
        )
    return SPLITTINGS[pre]


def _strings(file: GgufFile, key: str) -> list[str]:
    values = file.metadata.get(key)
    if not isinstance(values, list):
        raise CheckpointError(f"{file.path} lacks {key!r}, which must be a list of texts; the file is damaged, copy it again.")
    return values


def _types(file: GgufFile) -> list[int]:
    """The type of each token. Raises CheckpointError if types are missing or unknown."""
    key, tokens = "tokenizer.ggml.token_type", _strings(file, TOKENS)
    types = file.metadata.get(key)
    if not isinstance(types, np.ndarray) or types.dtype.kind not in "iu" or len(types) != len(tokens):
        raise CheckpointError(f"{file.path}: {key!r} must hold a whole number for each of {len(tokens)} tokens; copy the file again.")
    unknown = sorted(set(types.tolist()) - set(range(NORMAL, BYTE + 1)))
    if unknown:
        raise CheckpointError(f"{file.path}: {key!r} holds {unknown[0]}, and types go from {NORMAL} to {BYTE}; copy the file again.")
    return types.tolist()


def _pairs(file: GgufFile, merges: list[str]) -> list[tuple[str, str]]:
    """The two sides of each merge. Raises CheckpointError if a merge is not two tokens."""
    wrong = next((merge for merge in merges if merge.count(" ") != 1), None)
    if wrong is not None:
        raise CheckpointError(f"{file.path}: tokenizer.ggml.merges holds {wrong[:60]!r}, not two tokens and a space; copy the file again.")
    return [(left, right) for left, right in (merge.split(" ") for merge in merges)]


def _special_tokens(fields: Fields, tokens: list[str], splitting: Splitting) -> dict[str, Any]:
    """The special-token keys of tokenizer_config.json, and whether BOS and EOS are added to every text."""
    config: dict[str, Any] = {}
    for name, theirs in SPECIAL_TOKENS.items():
        token_id = fields.integer(f"tokenizer.ggml.{theirs}_token_id", None, minimum=0)
        if token_id is None:
            continue
        if token_id >= len(tokens):
            raise CheckpointError(
                f"{fields.source} says tokenizer.ggml.{theirs}_token_id = {token_id}, and has {len(tokens)} tokens; copy it again."
            )
        config[name] = tokens[token_id]
    config["add_bos_token"] = fields.flag("tokenizer.ggml.add_bos_token", splitting.add_bos)
    config["add_eos_token"] = fields.flag("tokenizer.ggml.add_eos_token", False)
    return config


def _chat_templates(file: GgufFile) -> dict[str, str]:
    """{name: Jinja source}: tokenizer.chat_template is the default, tokenizer.chat_template.NAME another."""
    templates = {}
    for key, template in file.metadata.items():
        if key != TEMPLATE and not key.startswith(f"{TEMPLATE}."):
            continue
        if not isinstance(template, str):
            raise CheckpointError(f"{file.path}: {key} must be a text; the file is damaged, copy it again.")
        if template:
            templates[key.removeprefix(TEMPLATE).removeprefix(".") or DEFAULT] = template
    return templates
