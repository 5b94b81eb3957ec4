#!/usr/bin/env bash
# transformers 5.24.0, models whose RoPE scaling is "longrope" or "dynamic": a batch of a short and a long prompt.
#
# Input: a random Llama with original_max_position_embeddings=64, greedy decoding of a prompt of 20 tokens, alone and in a batch with one of
# 100, padded on the left with a mask, as generate() asks for.
# Expected: the same ten tokens, as without scaling and with "yarn": no row of a batch reads another.
# Seen: other tokens, from the first on; logits differ by up to 10, at a standard deviation of 2.4. The frequencies are chosen once for the
# batch, by the largest position in it: one prompt beyond 64 gives all of them the long factors (or another base). In one sequence as well:
# keys in the cache stay turned by the frequencies of their time, so that a prompt of 100 tokens in two parts of 50 gives other logits than
# in one part.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check transformers==5.24.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = dict(vocab_size=64, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, eos_token_id=None)
FACTORS = {"factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS = {
    "default": (256, {}),
    "yarn": (256, FACTORS),
    "longrope": (256, {**FACTORS, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}),
    "dynamic": (64, {"factor": 4.0}),
}
generator = torch.Generator().manual_seed(1)
short, long = (torch.randint(3, 64, (1, length), generator=generator) for length in (20, 100))
padded = torch.cat([torch.zeros(1, 80, dtype=torch.long), short], 1)
batch = torch.cat([padded, long])
mask = torch.ones_like(batch)
mask[0, :80] = 0
for name, (length, scaling) in SCALINGS.items():
    torch.manual_seed(0)
    parameters = {"rope_type": name, "rope_theta": 10000.0, **scaling}
    model = LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=length, rope_parameters=parameters)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, 0.3)

    def tokens(prompts, attention_mask):
        output = model.generate(prompts, attention_mask=attention_mask, max_new_tokens=10, do_sample=False, pad_token_id=0)
        return output[0, -10:].tolist()

    with torch.no_grad():
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        alone = model(short).logits[0]
        with_neighbour = model(batch, attention_mask=mask, position_ids=positions).logits[0, 80:]
        first = model(long[:, :50], use_cache=True).past_key_values
        in_parts = model(long[:, 50:], past_key_values=first).logits[0, -1]
        neighbour = (alone - with_neighbour).abs().max().item()
        parts = (in_parts - model(long).logits[0, -1]).abs().max().item()
    ten, ten_in_batch = tokens(short, torch.ones_like(short)), tokens(batch, mask)
    print(f"{name}: a neighbour changes logits by {neighbour:.4f}, two parts by {parts:.4f}; tokens {ten}, in the batch {ten_in_batch}")
    if name in ("default", "yarn"):
        assert neighbour < 1e-3 and parts < 1e-3 and ten == ten_in_batch
    else:
        assert neighbour > 1 and parts > 1 and ten[0] != ten_in_batch[0]
PYTHON
