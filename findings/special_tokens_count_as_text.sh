#!/usr/bin/env bash
# xgrammar 0.2.8, TokenizerInfo.from_huggingface, with transformers 5.24.0: special tokens inside of a string.
#
# Input: a byte-level tokenizer with the special tokens <|start|> and <|end|>, the second its end of sequence; the schema of a string of
# at least five characters. TokenizerInfo.special_token_ids "include control tokens" and are "automatically detected from the vocabulary".
# Expected: <|start|> is forbidden inside of the string, as llguidance 1.9.1 forbids it for the same tokenizer.json, which marks it as
# special.
# Seen: special_token_ids is empty, and the mask allows <|start|> as a text of nine characters. The tokens '"', <|start|>, '"' are a
# complete string, long enough for the grammar, and decode(skip_special_tokens=True), as servers call it, makes "" of them, which breaks
# the schema. Only the end of sequence is kept out.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xgrammar==0.2.8 transformers==5.24.0 torch==2.13.0 llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json

import llguidance
import llguidance.torch
import xgrammar
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

bpe = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
bpe.add_special_tokens(["<|start|>", "<|end|>"])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>")
quote, start, end = tokenizer.convert_tokens_to_ids(['"', "<|start|>", "<|end|>"])
schema = {"type": "string", "minLength": 5}


def allowed(mask):
    """Which of the two special tokens a mask allows."""
    return [bool(int(mask[0][token // 32]) >> token % 32 & 1) for token in (start, end)]


info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(schema)))
mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
assert matcher.accept_token(quote)
matcher.fill_next_token_bitmask(mask)
found = allowed(mask)
complete = all(matcher.accept_token(token) for token in (start, quote, end)) and matcher.is_terminated()
text = tokenizer.decode([quote, start, quote, end], skip_special_tokens=True)
print(f"xgrammar: special_token_ids {info.special_token_ids}, inside of a string <|start|> and <|end|> are allowed: {found}")
print(f'" <|start|> " is complete: {complete}, and its text is {text}')
assert info.special_token_ids == [] and found == [True, False] and complete and text == '""'

peer = llguidance.LLTokenizer(bpe.to_str(), eos_token=end)
matcher = llguidance.LLMatcher(peer, llguidance.LLMatcher.grammar_from_json_schema(schema), log_level=0)
mask = llguidance.torch.allocate_token_bitmask(1, peer.vocab_size)
assert matcher.consume_token(quote)
llguidance.torch.fill_next_token_bitmask(matcher, mask)
print(f"llguidance: {allowed(mask)}")
assert allowed(mask) == [False, False]
PYTHON
