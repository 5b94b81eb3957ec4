"""The tokens that end a text in a GGUF file: those that its keys name, and those of the vocabulary with a well-known text.

    tokenizer.ggml.{eos,eot,eom}_token_id              ends of a text, of a turn, and of a message that calls a tool
    tokenizer.ggml.fim_{pad,rep,sep}_token_id          tokens that follow a text filled into a file
    <|im_end|>, <|eot_id|>, <end_of_turn>, ...         ends of turns, which files often do not name

llama.cpp ends a text at the same ones (src/llama-vocab.cpp, special_eog_ids), with one difference. A text between bars counts whatever the
token's type, because files have wrong types, but any other only if its token is not an ordinary one: "</s>", which closes a tag of HTML, is
an ordinary token of Qwen's vocabulary and a user-defined one of Gemma's, and a page that they write must not end there.
"""

import itertools
from collections.abc import Sequence

from minllm.models.json_files import Fields

NAMED = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|eom_id|>",
    "<EOT>", "_<EOT>", "[EOT]", "<end_of_utterance>",
)  # fmt: skip
FILL_IN = {  # the first that a vocabulary has, without a key
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
NORMAL, USER_DEFINED = 1, 4  # the types of ordinary tokens, and of tokens that are whole wherever a text has them
TAG = "</s>"
WELL_KNOWN = frozenset((*ENDS, *itertools.chain(*FILL_IN.values())))


def is_well_known(token: str, kind: int) -> bool:
    """Whether a token of this text and type ends a text, and so is a special token whatever its type."""
    ordinary = (NORMAL, USER_DEFINED) if token == TAG else (NORMAL,)
    return token in WELL_KNOWN and (token.startswith("<|") or kind not in ordinary)


def ends_of_text(fields: Fields, tokens: Sequence[str], types: Sequence[int]) -> list[int]:
    """The ids of the tokens that end a text, without repetitions.

    fields: the metadata. tokens, types: the text and the type of each id. Raises CheckpointError if a key holds no token id.
    """
    named = {name: fields.token_ids(f"tokenizer.ggml.{name}_token_id") for name in NAMED}
    known = {token: token_id for token_id, token in enumerate(tokens) if is_well_known(token, types[token_id])}
    for name, texts in FILL_IN.items():
        if not named[name]:
            named[name] = tuple(known[text] for text in texts if text in known)[:1]
    ids = [token_id for ids in named.values() for token_id in ids] + [known[text] for text in ENDS if text in known]
    return list(dict.fromkeys(ids))
