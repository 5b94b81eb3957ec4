#!/usr/bin/env bash
# transformers 5.24.0, generate(stop_strings=..., tokenizer=...).
#
# Input: a model that answers "\nOne two.\n\n" in the tokens "\nOne", " two", "." and "\n\n"; the stop string "\n\n"; a prompt that ends
# with a line break, as the templates of most chat models do, and one that ends without.
# Expected: the whole answer to both prompts: a stop string is looked for in what is generated.
# Seen: behind the line break the answer ends after its first token, "\nOne", since the last character of the prompt and the first of the
# answer are "\n\n". Behind the other prompt all four tokens come. The criterion looks at the end of the whole sequence and does not know
# where the answer begins.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check transformers==5.24.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["assistant", "assistant\n", "\nOne", " two", ".", "\n\n"]
FOLLOWS = {0: 2, 1: 2, 2: 3, 3: 4, 4: 5, 5: 5}

# byte-level tokenizers write \u010a for a line break and \u0120 for a space
vocabulary = {word.replace("\n", "\u010a").replace(" ", "\u0120"): token for token, word in enumerate(WORDS)}
backend = Tokenizer(models.BPE(vocabulary, []))
backend.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
size = dict(vocab_size=6, hidden_size=6, intermediate_size=6, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=6)
model = LlamaForCausalLM(LlamaConfig(**size, bos_token_id=0, eos_token_id=None, pad_token_id=0, tie_word_embeddings=False)).eval()
with torch.no_grad():  # the layer adds nothing, so that the last token alone decides the next
    model.model.layers[0].self_attn.o_proj.weight.zero_()
    model.model.layers[0].mlp.down_proj.weight.zero_()
    model.model.embed_tokens.weight.copy_(torch.eye(6))
    model.lm_head.weight.zero_()
    for token, following in FOLLOWS.items():
        model.lm_head.weight[following, token] = 1.0


def answer(prompt):
    options = dict(do_sample=False, max_new_tokens=6, stop_strings=["\n\n"], tokenizer=tokenizer)
    ids = model.generate(torch.tensor([[WORDS.index(prompt)]]), **options)[0, 1:]
    print(f"{prompt!r}: {tokenizer.decode(ids)!r}")
    return tokenizer.decode(ids)


assert answer("assistant") == "\nOne two.\n\n"
assert answer("assistant\n") == "\nOne"
PYTHON
