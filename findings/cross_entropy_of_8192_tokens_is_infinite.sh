#!/usr/bin/env bash
# torch 2.13.0 on the CPU and torchmetrics 1.9.0, the loss and the perplexity of logits in float16.
#
# Input: logits of 8,192 tokens from a vocabulary of 1,000, with a standard deviation of 2; and of four tokens, one of which is 18 nats less
# likely than the others.
# Expected: torch's cross_entropy is the mean of the tokens' losses, 8.9 nats, for 8,192 tokens as for 4,096. Perplexity of torchmetrics is
# its exponential, and 90 for the four tokens.
# Seen: cross_entropy of float16 is infinite from about 7,300 tokens on: it divides a sum in float16, which ends at 65,504 nats, by their
# number. With reduction="none", mean() of the same losses is 8.9. Perplexity sums in float16, too. It also takes the logarithm of a
# softmax in float16, so that one token with a probability of 1.5e-8 makes it infinite. In bfloat16 its sum of 36,000 nats is a multiple
# of 256, and the perplexity of 4,096 tokens is 7,612 in one update, 7,793 in eight, and 7,819 in float32.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import math

import torch
from torch.nn.functional import cross_entropy
from torchmetrics.text import Perplexity

torch.manual_seed(0)
logits, tokens = 2 * torch.randn(8192, 1000), torch.randint(0, 1000, (8192,))
half = logits.half()


def perplexity(logits, tokens, update=8192):
    metric = Perplexity()
    for start in range(0, len(tokens), update):
        metric.update(logits[None, start : start + update], tokens[None, start : start + update])
    return metric.compute().item()


for count in (4096, 7000, 7600, 8192):
    mean = cross_entropy(half[:count], tokens[:count]).item()
    mean_of_all = cross_entropy(half[:count], tokens[:count], reduction="none").mean().item()
    single = cross_entropy(logits[:count], tokens[:count]).item()
    found = perplexity(half[:count], tokens[:count])
    print(f"{count} tokens: {mean}, mean() {mean_of_all:.4f}, float32 {single:.4f}, perplexity {found}")
    assert abs(mean_of_all - single) < 0.01 and math.isinf(mean) == math.isinf(found) == (count > 7300)
unlikely, four = torch.tensor([18.0] + 9 * [0.0]).repeat(4, 1).half(), torch.tensor([0, 0, 0, 1])
loss = cross_entropy(unlikely, four).item()
print("one unlikely token:", perplexity(unlikely, four), perplexity(unlikely.float(), four), "cross_entropy", loss)
assert math.isinf(perplexity(unlikely, four)) and 89 < perplexity(unlikely.float(), four) < 91 and abs(loss - 4.5) < 0.01
bfloat = [perplexity(logits[:4096].bfloat16(), tokens[:4096], update) for update in (8192, 512)]
exact = perplexity(logits[:4096], tokens[:4096])
print("4,096 tokens in bfloat16, in one update and in eight:", bfloat, "float32:", exact)
assert bfloat[0] < 0.98 * exact and bfloat[1] > 0.99 * exact
PYTHON
