#!/usr/bin/env bash
# ctranslate2 4.8.5 on the CPU, models converted from transformers 5.24.0: what the converter leaves out.
#
# Input: random models of Gemma 2 and Llama, each with one key of config.json that its class documents: attn_logit_softcapping,
# final_logit_softcapping (50 and 30 in Gemma 2's published files), sliding_window, query_pre_attn_scalar, and hidden_act="gelu" of a Llama.
# Expected: the logits of transformers, or an error, as the converter raises for what it knows that it lacks.
# Seen: none of the five is read, and no message says so. Without them both libraries agree within 1e-4. With the first, logits differ by
# 0.2, with the others by 2 to 7; their standard deviation is 2.5. The loader of Gemma 3 in the same file reads sliding_window, and final_logit_softcapping stands in that of Gemma 4.
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
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, PreTrainedTokenizerFast

letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
special = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(letters, [])), **special)
SIZES = dict(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, head_dim=16)
PLAIN = dict(attn_logit_softcapping=None, final_logit_softcapping=None, sliding_window=512, query_pre_attn_scalar=16)
CASES = [
    (Gemma2Config, PLAIN, {}),
    (Gemma2Config, PLAIN, {"attn_logit_softcapping": 50.0}),
    (Gemma2Config, PLAIN, {"final_logit_softcapping": 30.0}),
    (Gemma2Config, PLAIN, {"sliding_window": 8}),
    (Gemma2Config, PLAIN, {"query_pre_attn_scalar": 64}),
    (LlamaConfig, {}, {}),
    (LlamaConfig, {}, {"hidden_act": "gelu"}),
]
ids = torch.randint(0, 256, (1, 40), generator=torch.Generator().manual_seed(1))
for case, (family, plain, key) in enumerate(CASES):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(family(**SIZES, **{**plain, **key})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, 0.3)
        logits = model(ids).logits.numpy()
    model.save_pretrained(str(case))
    tokenizer.save_pretrained(str(case))
    ctranslate2.converters.TransformersConverter(str(case)).convert(f"{case}.ct2")
    generator = ctranslate2.Generator(f"{case}.ct2", compute_type="float32")
    difference = abs(np.array(generator.forward_batch([tokenizer.convert_ids_to_tokens(ids[0].tolist())])) - logits).max()
    print(f"{family.__name__} {key}: largest difference {difference:.5f}, standard deviation {logits.std():.2f}")
    assert difference > 0.1 if key else difference < 0.001
PYTHON
