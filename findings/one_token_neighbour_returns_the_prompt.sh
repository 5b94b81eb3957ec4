#!/usr/bin/env bash
# ctranslate2 4.8.5 on the CPU, Generator.generate_batch with include_prompt_in_result=False, a model from transformers 5.24.0.
#
# Input: a Llama whose logits are the same at every position, so that every prompt goes on with "t0 t0 t0"; the prompt "t2 t1 t0 t1"
# alone, beside the prompt "t3", and beside "t3 t4"; greedy decoding of three tokens, also with no_repeat_ngram_size=2 and
# repetition_penalty=5.
# Expected: the same answer to a prompt, whatever is beside it in the batch; the penalties count the prompt, as in transformers, or leave
# it out. The documentation says that the prompts' common length is computed at once, and the rest in the loop.
# Seen: beside a prompt of one token, such as a begin of sequence alone, the answer is "t1 t0 t1", the rest of the prompt itself, and
# nothing else comes, as it counts for max_length; with eight tokens the prompt is in front of five. Beside two tokens it is right. The
# penalties count the part of the prompt that was computed in the loop: none of it alone, "t0 t1" beside two tokens, so that the same
# request has other tokens. With include_prompt_in_result=True all but the prompt's first token is counted.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    ctranslate2==4.8.5 transformers==5.24.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import ctranslate2
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

logits = torch.tensor([3.0, 2.0, 1.0, 0.5, -1.0, -2.0, -3.0, -30.0])
size = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
model = LlamaForCausalLM(LlamaConfig(**size, tie_word_embeddings=False))
with torch.no_grad():  # the layer adds nothing, and every embedding is the same
    model.model.layers[0].self_attn.o_proj.weight.zero_()
    model.model.layers[0].mlp.down_proj.weight.zero_()
    model.model.embed_tokens.weight.fill_(1.0)
    model.lm_head.weight.copy_(logits[:, None].expand(8, 8) / 8)
words = Tokenizer(models.WordLevel({**{f"t{number}": number for number in range(7)}, "</s>": 7}, unk_token="t6"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", bos_token="t6", unk_token="t6")
model.save_pretrained(sys.argv[1] + "/model")
tokenizer.save_pretrained(sys.argv[1] + "/model")
ctranslate2.converters.TransformersConverter(sys.argv[1] + "/model").convert(sys.argv[1] + "/converted")
generator = ctranslate2.Generator(sys.argv[1] + "/converted", device="cpu")
prompt = ["t2", "t1", "t0", "t1"]


def answer(*neighbour, max_length=3, **options):
    """The answer to `prompt`, in a batch with a prompt of these tokens."""
    prompts = [prompt, list(neighbour)] if neighbour else [prompt]
    results = generator.generate_batch(prompts, max_length=max_length, include_prompt_in_result=False, **options)
    print(f"beside {neighbour}, {max_length} tokens, {options}: {' '.join(results[0].sequences[0])}")
    return " ".join(results[0].sequences[0])


assert answer() == answer("t3", "t4") == answer("t3", "t4", "t5") == "t0 t0 t0"
assert answer("t3") == "t1 t0 t1" and answer("t3", max_length=8) == "t1 t0 t1 t0 t0 t0 t0 t0"
assert answer(no_repeat_ngram_size=2) == "t0 t0 t1" and answer("t3", "t4", no_repeat_ngram_size=2) == "t0 t0 t2"
assert answer(repetition_penalty=5.0) == "t0 t1 t2" and answer("t3", "t4", repetition_penalty=5.0) == "t2 t0 t0"
whole = generator.generate_batch([prompt], max_length=6, no_repeat_ngram_size=2)[0].sequences[0]
print(f"include_prompt_in_result=True, no_repeat_ngram_size=2: {' '.join(whole)}")
assert whole == [*prompt, "t1", "t2", "t0"]
PYTHON
