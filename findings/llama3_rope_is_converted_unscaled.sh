#!/usr/bin/env bash
# ctranslate2 4.8.5 on the CPU, a model converted from transformers 5.24.0: RoPE scaling of type "llama3".
#
# Input: a random Llama with the scaling of Llama 3.1 (factor 8, low_freq_factor 1, high_freq_factor 4, original_max_position_embeddings
# 8192), with heads of 64 and rope_theta 500000; 300 tokens. The converter names llama3 among the four types that it supports, and refuses
# the others, such as "yarn", with an error.
# Expected: the logits of transformers, as without scaling and with the type "linear" (differences below 1e-4 of logits of about 2.5).
# Seen: they differ by up to 4.8, and are those of the same weights without any scaling: slow frequencies are not divided by 8. The type is
# accepted and changes nothing, so long texts get positions that the model was not trained with, at lengths far below 8192, too.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ctranslate2==4.8.5 transformers==5.24.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import ctranslate2
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
special = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(letters, [])), **special)
SIZES = dict(vocab_size=len(tokenizer), hidden_size=256, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SCALINGS = {"none": {"rope_type": "default"}, "linear": {"rope_type": "linear", "factor": 8.0}, "llama3": LLAMA3}
ids = torch.randint(0, 256, (1, 300), generator=torch.Generator().manual_seed(1))
original, converted = {}, {}
for name, scaling in SCALINGS.items():
    torch.manual_seed(0)
    parameters = {**scaling, "rope_theta": 500000.0}
    model = LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=131072, rope_parameters=parameters)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, 0.3 if weight.shape[1] == 96 else 0.15)
        original[name] = model(ids).logits.numpy()
    model.save_pretrained(name)
    tokenizer.save_pretrained(name)
    ctranslate2.converters.TransformersConverter(name).convert(f"{name}.ct2")
    generator = ctranslate2.Generator(f"{name}.ct2", compute_type="float32")
    converted[name] = np.array(generator.forward_batch([tokenizer.convert_ids_to_tokens(ids[0].tolist())]))
    print(f"{name}: largest difference {abs(converted[name] - original[name]).max():.5f}, standard deviation {original[name].std():.2f}")
unscaled = abs(converted["llama3"] - original["none"]).max()
print(f"llama3 in ctranslate2 and no scaling in transformers: {unscaled:.5f}")
assert all(abs(converted[name] - original[name]).max() < 0.01 for name in ("none", "linear"))
assert abs(converted["llama3"] - original["llama3"]).max() > 1 and unscaled < 0.01
PYTHON
