#!/usr/bin/env bash
# transformers 5.24.0, generate() of a Llama model whose config.json has a key of another family: "sliding_window".
#
# Input: LlamaConfig(sliding_window=8), as a conversion from Mistral may leave it; a prompt of 20 tokens.
# Llama has no sliding window, and forward() of the whole text ignores the key, as unknown keys are ignored.
# Expected: the same greedy tokens with and without the cache; or a window of 8 in both.
# Seen: without the cache the key changes nothing. With it, generate() builds the cache from the configuration, not from the model: keys and
# values older than 8 tokens are dropped at each step, and from the second token on the text is another, without a message.
# "use_sliding_window": false beside it does not help; "attention_chunk_size": 8 does the same. GPT-2, OLMo 2 and Granite fare the same.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 torch==2.13.0 numpy
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
prompt = torch.randint(3, 64, (1, 20), generator=torch.Generator().manual_seed(1))


def tokens(use_cache, **keys):
    """Twelve greedy tokens of a random model, the same weights each time."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, eos_token_id=None, **keys)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, 0.25)
    return model.generate(prompt, use_cache=use_cache, do_sample=False, max_new_tokens=12)[0, 20:].tolist()


right = tokens(True)
assert right == tokens(False)
for keys in ({"sliding_window": 8}, {"sliding_window": 8, "use_sliding_window": False}, {"attention_chunk_size": 8}):
    with_cache = tokens(True, **keys)
    print(keys, "without cache:", tokens(False, **keys), "with cache:", with_cache)
    assert tokens(False, **keys) == right != with_cache and with_cache[0] == right[0]
PYTHON
