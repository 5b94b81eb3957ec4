#!/usr/bin/env bash
# transformers 5.24.0, generate(generation_config=...).
#
# Input: a model whose generation_config has do_sample=True, top_k=1, top_p=0.8 and repetition_penalty=1.5, as the files of chat models have
# them, and constant logits whose largest is token 0; generate with a new GenerationConfig(do_sample=False, max_new_tokens=4), and with
# one that samples.
# Expected: the configuration that is given is the base, and the model's is not used. The documentation says that what it leaves open has
# the default values of GenerationConfig: greedy decoding gives 0 0 0 0.
# Seen: 0 1 0 0, since all that it leaves open comes from the model: the repetition penalty holds in "greedy" decoding. The only message
# says that top_p and top_k may be ignored. GenerationConfig(top_k=None) is not without a top_k: None means open, and only one token is
# ever drawn; generate(top_k=None) does turn it off, and so does GenerationConfig(top_k=0). A benchmark that gives its own configuration
# measures each model with other settings.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check transformers==5.24.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

size = dict(vocab_size=4, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
model = LlamaForCausalLM(LlamaConfig(**size, bos_token_id=3, eos_token_id=None, pad_token_id=3, tie_word_embeddings=False)).eval()
with torch.no_grad():  # the layer adds nothing, and every embedding is the same
    model.model.layers[0].self_attn.o_proj.weight.zero_()
    model.model.layers[0].mlp.down_proj.weight.zero_()
    model.model.embed_tokens.weight.fill_(1.0)
    model.lm_head.weight.copy_(torch.tensor([3.0, 2.5, 2.0, 1.5])[:, None].expand(4, 4) / 4)
model.generation_config = GenerationConfig(do_sample=True, top_k=1, top_p=0.8, repetition_penalty=1.5, pad_token_id=3)


def tokens(**options):
    return model.generate(torch.tensor([[3]]), **options)[0, 1:].tolist()


for penalty, expected in (({}, [0, 1, 0, 0]), ({"repetition_penalty": None}, [0, 1, 0, 0]), ({"repetition_penalty": 1.0}, [0, 0, 0, 0])):
    found = tokens(generation_config=GenerationConfig(do_sample=False, max_new_tokens=4, **penalty))
    print(f"GenerationConfig(do_sample=False, {penalty}): {found}")
    assert found == expected
torch.manual_seed(0)
sampled = dict(do_sample=True, max_new_tokens=60, repetition_penalty=1.0, top_p=1.0)
for name, options, drawn in (
    ("a configuration without top_k", {"generation_config": GenerationConfig(**sampled)}, {0}),
    ("a configuration with top_k=None", {"generation_config": GenerationConfig(**sampled, top_k=None)}, {0}),
    ("a configuration with top_k=0", {"generation_config": GenerationConfig(**sampled, top_k=0)}, {0, 1, 2, 3}),
    ("generate(top_k=None)", {**sampled, "top_k": None}, {0, 1, 2, 3}),
):
    found = set(tokens(**options))
    print(f"{name}: tokens {sorted(found)} are drawn")
    assert found == drawn
PYTHON
