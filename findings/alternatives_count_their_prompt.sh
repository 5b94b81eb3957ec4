#!/usr/bin/env bash
# ctranslate2 4.8.5 on the CPU, Generator.generate_batch with return_alternatives=True, a model from transformers 5.24.0.
#
# Input: a Llama with the same logits at every position: token t0 has the logarithm -0.61 of its probability, t1 -1.61, the end of sequence
# -2.11 and t2 -2.61; prompts of 1, 4 and 9 tokens, max_length=6, three alternatives with their scores, and plain decoding for comparison.
# Expected: three answers of six tokens that begin with the three likeliest first tokens, the end of sequence among them; the first is the
# greedy answer, and has its score, the mean of the logarithms of its tokens: -0.61.
# Seen: the alternatives to the prompt of four tokens have three tokens, and those to nine have one: all but one of the prompt's tokens
# count for max_length, though include_prompt_in_result is False. Plain decoding gives six tokens to each. The end is never an
# alternative: t2 stands in its place. The score is the logarithm of the first token, computed without the end of sequence, plus the mean
# of the others, so that the greedy answer has -1.09 as an alternative: scores of alternatives and of answers cannot be compared.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    ctranslate2==4.8.5 transformers==5.24.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - "$folder" 2>"$folder/messages" <<'PYTHON' || { cat "$folder/messages"; exit 1; }
import sys

import ctranslate2
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LOGITS = torch.tensor([3.0, 2.0, 1.0, 0.5, -1.0, -2.0, -3.0, 1.5])  # the last token is the end of sequence
size = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
model = LlamaForCausalLM(LlamaConfig(**size, tie_word_embeddings=False))
with torch.no_grad():  # the layer adds nothing, and every embedding is the same
    model.model.layers[0].self_attn.o_proj.weight.zero_()
    model.model.layers[0].mlp.down_proj.weight.zero_()
    model.model.embed_tokens.weight.fill_(1.0)
    model.lm_head.weight.copy_(LOGITS[:, None].expand(8, 8) / 8)
words = Tokenizer(models.WordLevel({**{f"t{number}": number for number in range(7)}, "</s>": 7}, unk_token="t6"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", bos_token="t6", unk_token="t6")
model.save_pretrained(sys.argv[1] + "/model")
tokenizer.save_pretrained(sys.argv[1] + "/model")
ctranslate2.converters.TransformersConverter(sys.argv[1] + "/model").convert(sys.argv[1] + "/converted")
generator = ctranslate2.Generator(sys.argv[1] + "/converted", device="cpu")


def answers(prompt_tokens, **options):
    """The texts and scores of the answers to a prompt of this many tokens."""
    prompt = ["t5"] * prompt_tokens
    found = generator.generate_batch([prompt], max_length=6, include_prompt_in_result=False, return_scores=True, **options)[0]
    texts, scores = [" ".join(sequence) for sequence in found.sequences], [round(score, 2) for score in found.scores]
    print(f"prompt of {prompt_tokens}, {options}: {dict(zip(texts, scores))}")
    return texts, found.scores


def is_near(found, right):
    return torch.allclose(torch.tensor(found), torch.tensor(right), atol=2e-3)


logarithms = LOGITS.log_softmax(0).tolist()
without_end = LOGITS[:7].log_softmax(0).tolist()
print("logarithms of the probabilities:", [round(number, 2) for number in logarithms])
for prompt_tokens, tokens in ((1, 6), (4, 3), (9, 1)):
    texts, scores = answers(prompt_tokens)
    assert texts == ["t0 t0 t0 t0 t0 t0"] and is_near(scores, [logarithms[0]])
    texts, scores = answers(prompt_tokens, num_hypotheses=3, return_alternatives=True)
    assert texts == [" ".join([first] + ["t0"] * (tokens - 1)) for first in ("t0", "t1", "t2")]
    rest = logarithms[0] if tokens > 1 else 0.0
    assert is_near(scores, [without_end[first] + rest for first in range(3)])
PYTHON
