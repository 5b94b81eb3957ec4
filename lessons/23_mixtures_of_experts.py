# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 23. Mixtures of experts
#
# A dense model multiplies every token by all of its weights. A mixture of experts has many feed-forwards in each
# layer, the experts, and a small router that sends each token to a few of them. One token is then as cheap as in a
# small model. A batch is not: its tokens choose different experts, and all of these must be read.
#
# ```mermaid
# flowchart LR
#     x["x, one token"] --> r["router: 128 logits"] --> c["the 8 largest"]
#     x --> e5["expert 5"] --> s["weighted sum"]
#     x --> e77["expert 77"] --> s
#     x --> more["6 more"] --> s
#     c --> s
# ```
#
# $$p = \mathrm{softmax}(x W_r), \quad y = \sum_{e \in \mathrm{top}_k(p)} w_e\, f_e(x), \quad
# r(n) = E \left(1 - \left(1 - \frac{k}{E}\right)^n\right)$$
#
# $W_r$ is the router's matrix, with a column per expert. $\mathrm{top}_k(p)$ are the $k$ experts with the largest $p$,
# and $w_e$ is $p_e$, in many models divided by the sum over the chosen ones. $f_e$ is the gated feed-forward of expert
# $e$. $r(n)$ is the mean number of the $E$ experts that $n$ tokens need, if they choose evenly. Each expert is a matrix
# product of its own. This kernel computes all of them, in one launch:

# %%
from numba import cuda, float32

from minllm.runtime.kernel import kernel


@kernel
def grouped_naive(x, pairs, offsets, weight, out, chosen):
    """x [tokens, K], pairs [P], offsets [E + 1], weight [E, N, K], out [P, N].

    A thread per column of out, a row of blocks per expert.
    """
    column, expert = cuda.grid(1), cuda.blockIdx.y
    if column < out.shape[1]:
        for place in range(offsets[expert], offsets[expert + 1]):
            pair = pairs[place]  # token * chosen + choice
            total = float32(0)
            for k in range(x.shape[1]):
                total += x[pair // chosen, k] * weight[expert, column, k]
            out[pair, column] = total


# %% [markdown]
# A *pair* is a token and one of its choices. `pairs` lists them expert by expert, and `offsets` says where each expert
# begins.
#
# **What you will be able to do**
#
# - say how many experts a batch reads, and so how long its step takes;
# - sort tokens by expert, in the same order in every run;
# - tell the cost of the router's bytes from that of its launches, and the mean load from its tail.
#
# You need [lesson 4](04_arithmetic_intensity_and_the_roofline.py) and
# [lesson 10](10_flash_decoding_plus_plus.py). You need no GPU.
#
# ## Predict

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    active="Qwen3-30B-A3B has 128 experts per layer, of which a token takes 8. What percentage of all its weights does one token multiply by?",
    read="16 tokens choose 8 of the 128 each. How many different experts do they need, on average?",
    factor="By what factor does a decode step of 16 sequences take longer than one of a single sequence, at 1,024 tokens of context?",
    router="What percentage of the bytes of a single token's step are the routers'?",
    fullest="64 tokens: each expert gets 4 of them on average. How many does the fullest get?",
    same=(
        "The sort takes each pair's place from an atomic counter of its expert. Is the list of pairs the same in every run?",
        "yes",
        "no",
    ),
)
guess.ask()

# %% [markdown]
# ## One layer
#
# A small layer in NumPy: 6 experts, 2 per token.

# %%
import numpy as np

from minllm.kernels.experts.reference import experts_reference, route_reference

rng = np.random.default_rng(0)
TOKENS, HIDDEN, INNER, EXPERTS, CHOSEN = 5, 32, 16, 6, 2
x = rng.standard_normal((TOKENS, HIDDEN), np.float32)
router = rng.standard_normal((HIDDEN, EXPERTS), np.float32)
gate_up = rng.standard_normal((EXPERTS, 2 * INNER, HIDDEN), np.float32) / 6
down = rng.standard_normal((EXPERTS, HIDDEN, INNER), np.float32) / 4

logits = x @ router
p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
expert_ids = np.argsort(-p, axis=1, kind="stable")[:, :CHOSEN].astype(np.int32)
weights = np.take_along_axis(p, expert_ids, axis=1)
weights /= weights.sum(axis=1, keepdims=True)
print(expert_ids.tolist())

# %% tags=["hide"]
of_package = route_reference(logits, CHOSEN, normalized=True)
assert (expert_ids == of_package[0]).all() and np.allclose(weights, of_package[1])

# %% [markdown]
# ## Write your own
#
# Each token has chosen its experts. A kernel that computes expert by expert needs the tokens in that order. Write the
# sort; the next section shows the engine's.

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("experts.sort")

# %% [markdown]
# ## The sort
#
# Tokens of one expert should be neighbours, so that its weights are read once for all of them. With few keys, a
# **counting sort** does that: count the pairs of each expert, add up the counts in front of it, and put each pair in
# its place.

# %%
from minllm.kernels.experts.counting_sort import sort_by_expert

pairs = np.empty(TOKENS * CHOSEN, np.int32)
offsets = np.empty(EXPERTS + 1, np.int32)
sort_by_expert(expert_ids, pairs, offsets)  # without a GPU: in the simulator
for expert in range(EXPERTS):
    own = pairs[offsets[expert] : offsets[expert + 1]]
    print(f"expert {expert}: pairs {own.tolist()}, tokens {(own // CHOSEN).tolist()}")

# %% [markdown]
# On a GPU, counting with atomics is the obvious way: each pair adds 1 to its expert's counter and takes the old value
# as its place. But threads reach the counter in no fixed order, so the list changes from run to run. That is harmless as
# long as each row is computed by itself. As soon as outputs are *added* in that order, float32 rounds differently, and
# equal prompts can end in different texts. In this kernel a block takes one expert and needs no atomics: each warp asks
# all of its lanes by a ballot which of them hold a pair of that expert, and counts the bits in front of its own.
#
# Now both products, with the activation between them:

# %%
from minllm.sim import tracing


def moe(x, expert_ids, weights):
    """The layer; also the bytes of weights that its threads loaded, and unique ones."""
    count = expert_ids.size
    pairs = np.empty(count, np.int32)
    offsets = np.empty(EXPERTS + 1, np.int32)
    sort_by_expert(expert_ids, pairs, offsets)
    both = np.empty((count, 2 * INNER), np.float32)
    each = np.empty((count, HIDDEN), np.float32)
    with tracing() as traces:
        run = grouped_naive.simulate[(1, EXPERTS), 32]
        run(x, pairs, offsets, gate_up, both, expert_ids.shape[1])
        gate, up = both[:, :INNER], both[:, INNER:]
        inner = gate / (1 + np.exp(-gate)) * up
        grouped_naive.simulate[(1, EXPERTS), 32](inner, pairs, offsets, down, each, 1)
    read = [trace.arrays["weight"].read for trace in traces]
    asked, unique = sum(r.bytes for r in read), sum(r.unique_bytes for r in read)
    chosen = each.reshape(len(x), -1, HIDDEN)
    return (weights[:, :, None] * chosen).sum(axis=1), asked, unique


y, asked, unique = moe(x, expert_ids, weights)
of_one = (gate_up[0].size + down[0].size) * 4  # bytes of an expert
print(f"loaded {asked // of_one} experts' weights, {unique // of_one} different ones")

# %% tags=["hide"]
right = experts_reference(x, expert_ids, weights, gate_up, down)
assert np.allclose(y, right, atol=1e-5)
assert asked == expert_ids.size * of_one
assert unique == len(np.unique(expert_ids)) * of_one

# %% [markdown]
# The naive kernel loads an expert once per pair. A better one loads it once per tile of pairs. None can load fewer than
# the different ones.
#
# !!! tip "Takeaway"
#     Sort the pairs by expert, then one reading of an expert serves all of its tokens. Sort in a fixed order.
#
# ## Why batches hurt
#
# A token misses a given expert with probability $1 - k/E$; $n$ tokens all miss it with that to the power of $n$. What is
# left gives $r(n)$:

# %%
from minllm import costs
from minllm.costs.experts import choice_probabilities, experts_read
from minllm.models.shapes import find_config

_, moe30 = find_config("qwen3-30b-a3b")
_, dense8 = find_config("llama-3.1-8b")
active = 100 * costs.active_parameters(moe30) / costs.parameter_count(moe30)
even = choice_probabilities(128, 8)
for n in (1, 2, 4, 16, 64, 256):
    print(f"{n:4} tokens read {experts_read(even, n):5.1f} of 128 experts")
read = experts_read(even, 16)

# %% tags=["fold"]
from minllm.course import curves

HBM = 4.25  # TB/s, a large copy on an H200


def floor_ms(config, batch):
    """The floor of a decode step with 1,024 tokens of context."""
    return costs.decode_step(config, batch, 1024).floor_ms(HBM)


batches = [2**i for i in range(9)]
curves(
    {
        "Qwen3-30B-A3B": [(n, floor_ms(moe30, n)) for n in batches],
        "Llama-3.1-8B, dense": [(n, floor_ms(dense8, n)) for n in batches],
    },
    "sequences per step",
    "ms, at least",
    "Decode step, bf16, 1,024 tokens of context",
    log_x=True,
    log_y=True,
    caption="Computed by minllm/costs, at 4.25 TB/s; tokens choose evenly.",
)

# %% tags=["hide"]
assert floor_ms(moe30, 1) < floor_ms(dense8, 1) / 2
assert floor_ms(moe30, 16) > 2 * floor_ms(dense8, 16)
assert 10 < active < 12 and 82 < read < 83

# %% [markdown]
# For one sequence the 30B model needs less than half the time of a dense 8B. For 16 it needs more than twice as long,
# because the dense model's weights serve all 16, and most of an expert's serve one. With 64 nearly all experts are
# read, and only then do further tokens become cheap. This is also why [speculation](19_speculative_decoding.py) gains
# little here: drafts are further tokens.
#
# !!! tip "Takeaway"
#     A step reads the experts that any of its tokens chose. One token is cheap; sixteen read most of the model.
#
# ## What a router costs
#
# Its matrix has 128 rows. That is little to read, but it needs launches before any expert can start: its product, and
# the choice.

# %%
stages = {stage.name: stage for stage in costs.decode_stages(moe30, 1, 1024)}
total = sum(stage.weight_bytes + stage.kv_bytes for stage in stages.values())
router_share = 100 * stages["router"].weight_bytes / total
print(f"the routers' bytes: {router_share:.2f} % of a step of one token")
LAUNCH = 3.1  # µs per kernel in a graph, fitted to steps of dense models
launch_ms = 2 * 48 * LAUNCH / 1e3
print(
    f"two launches in each of 48 layers: {launch_ms:.2f} ms, if each costs {LAUNCH} µs"
)

# %% [markdown]
# So the bytes are noise, and the waiting would be a fifth of the floor. For one row the package fuses the norm into the
# router's kernel, and for up to four tokens the choice into the experts' kernels: a warp of each block makes it again.
#
# !!! tip "Takeaway"
#     A router costs launches, not bytes.
#
# ## Load, and its tail
#
# Evenly chosen is not evenly loaded. An expert's tokens are a binomial count, and a layer is done when its *fullest*
# expert is:

# %%
from minllm.costs.experts import fullest_load

skewed = choice_probabilities(128, 8, skew=0.5)  # popularity 1 / sqrt(rank)
for n in (16, 64, 1024):
    loads = fullest_load(even, n), fullest_load(skewed, n)
    mean, most, skew = (round(load, 1) for load in (n / 16, *loads))
    print(f"{n:5} tokens: mean {mean:5}, fullest {most:5}, with favourites {skew:6}")
fullest = fullest_load(even, 64)

# %% tags=["hide"]
draws = rng.random((200, 64, 128)).argpartition(8, axis=2)[:, :, :8]
drawn = [np.bincount(one.ravel(), minlength=128).max() for one in draws]
assert abs(fullest - np.mean(drawn)) < 0.4 and 9 < fullest < 11
assert fullest_load(skewed, 1024) > 3 * fullest_load(even, 1024) > 1024 / 16 * 3

# %% [markdown]
# On one GPU the tail is mild: blocks of other experts fill the SMs meanwhile. If each expert lives on a GPU of its own,
# all wait for the fullest. Hence training adds a loss that evens the load out, and some engines drop tokens beyond a
# *capacity*. This one drops none.
#
# !!! tip "Takeaway"
#     The fullest expert ends last. Its load grows with favourites, not with the mean.
#
# Set batch, experts, top-k and favourites yourself: [experts, batch by batch](../docs/experts.md).
#
# ## From one thread to the package
#
# Up to four tokens, a **gather GEMV** reads each choice's rows and nothing else; it needs no sort. Beyond, a **grouped
# GEMM** on tensor cores takes a tile of an expert's pairs at a time. Its grid covers columns and experts, whatever the
# router chose, so that a CUDA graph can replay it: blocks of experts without tokens end at once. Tiles hold 8 to 128
# pairs; a larger tile would multiply padding, a smaller one read weights twice.

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.experts import gather_gemv, grouped_gemm

show_source(
    gather_gemv.gate_up_gemv_kernel,
    folded="Gather GEMV: gate and up of one choice",
    part="gate_up_gemv_kernel",
    notes={
        "gate = int64(expert_ids": "The row of the chosen expert: known only when the router has ended.",
        "value * sigmoid(value) * up": "SwiGLU, before anything is stored.",
    },
)

# %% tags=["hide-input"]
show_source(
    grouped_gemm.grouped_gemm_kernel,
    folded="Grouped GEMM: a tile of an expert's pairs",
    part="grouped_gemm_kernel",
    notes={
        "end = offsets[expert + 1]": "An expert without tokens begins at its end: the block returns.",
        "first = int32(first + cuda.gridDim.z * tokens)": "A popular expert takes several tiles, divided among the strides.",
    },
)

# %% [markdown]
# ## Measured against predicted
#
# Random weights of Qwen3-30B-A3B's shape, bf16, 1,024 tokens of context, measured on an NVIDIA H200 on 2026-11-28 at
# commit f29ffae0 (`minllm bench step --model qwen3-30b-a3b`). Predicted: the floor plus launches, by
# [step_time.py](../minllm/costs/step_time.py).

# %%
from minllm.costs.step_time import StepRates, decode_step_seconds
from minllm.machine.hardware import gpu_named

h200 = gpu_named("h200")[1]
rates = StepRates.of(h200.ceiling_tb_s, h200.measured_bf16_tflops)
measured = {1: 2.26, 16: 11.17, 64: 17.09}  # batch: ms
for n, ms in measured.items():
    predicted = 1e3 * decode_step_seconds(moe30, n, 1024, rates)
    floor = floor_ms(moe30, n)
    print(f"{n:3}: floor {floor:5.2f}, predicted {predicted:5.2f}, measured {ms} ms")
factor = measured[16] / measured[1]

# %% tags=["hide-input"]
guess.against(
    active=active,
    read=read,
    factor=factor,
    router=router_share,
    fullest=fullest,
    same="no",
)

# %% [markdown]
# One sequence is furthest from its floor; the prediction puts that down to launches. While the choice was a kernel of its
# own that step took 2.64 ms (commit f65a1017). Sixteen sequences take 5 times as long as one: each gets its token later,
# and together they still get 3.2 times as many. 64 take a tenth longer than their floor.
#
# ## Exercises
#
# This lesson's exercise is above.
#
# When your sort passes, the engine runs it: give
# `minllm generate --variant sort_by_expert=FILE` the folder of a Qwen3-MoE.
#
# ## Detective cases

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("wrong_when_quiet")

# %% [markdown]
# <!-- aside: Two more cases -->

# %% tags=["hide-input"]
show_case("lukewarm")

# %% tags=["hide-input"]
show_case("fickle_text")

# %% [markdown]
# <!-- end aside -->
#
# ## Problems
#
# ??? question "1. An H200 costs 4 dollars per hour. By the measurements above, what do a million tokens cost at batch 1, 16 and 64?"
#     2.26 ms per token is 0.63 hours per million: 2.51 dollars. 11.17 ms for 16 tokens is 0.78 dollars, 17.09 ms for 64
#     is 0.30. Batches hurt the step, and still pay.
#
# ??? question "2. A model has 8 experts of which a token takes 2, another 128 of which it takes 32. Which reads the larger share of its experts for 4 tokens?"
#     Neither: the share $1 - (1 - k/E)^n$ depends on $k/E$ alone, and is 68 % for both. More and smaller experts give
#     more combinations, at the same bytes.
#
# ??? question "3. From which batch on does multiplying take longer than reading, for the dense 8B and for the experts, on an H200 (ridge 190 FLOPs per byte)?"
#     A dense weight in bf16 has 2 bytes and does 2 FLOPs per token: 190 tokens. An expert sees only $k/E$ = 1/16 of the
#     tokens: about 3,000.
#
# ??? question "4. Four tokens per step: how many bytes does the gather GEMV load, compared with the different experts?"
#     It loads 4 · 8 = 32 experts per layer; 29.1 are different. At 16 tokens it would load 128 instead of 82, which is
#     why the grouped GEMM takes over.
#
# ??? question "5. Why may the grouped GEMM compute an expert's pairs in any order, while the sum of a token's experts may not change its order?"
#     Each pair has an output row of its own, whose bits depend on that row alone. The sum over a token's experts rounds
#     after every addition, so it has to take them in the order of the token's choices.

# %% tags=["hide"]
per_million = {n: ms / n / 3600 * 4 * 1e3 for n, ms in measured.items()}
assert [f"{per_million[n]:.2f}" for n in (1, 16, 64)] == ["2.51", "0.78", "0.30"]
assert round(100 * (1 - (1 - 2 / 8) ** 4)) == 68
assert round(experts_read(even, 4), 1) == 29.1
assert 180 < h200.measured_bf16_tflops / h200.ceiling_tb_s < 195
assert round(factor) == 5 and round(16 / factor, 1) == 3.2
assert 0.33 < 1 - floor_ms(moe30, 1) / measured[1] < 0.37
assert 0.18 < launch_ms / floor_ms(moe30, 1) < 0.22
assert measured[64] / floor_ms(moe30, 64) < 1.11
assert 0.865 < floor_ms(moe30, 16) / measured[16] < 0.875
of_experts = 48 * read * 3 * 2048 * 768 * 2
assert 0.88 < of_experts / costs.decode_step(moe30, 16, 1024).bytes < 0.92

# %% [markdown]
# ## What next, and the measurement behind it
#
# At batch 16, 87 % of the step is what its bytes take at full speed, and nine tenths of the bytes are experts. Fewer bits
# per weight shorten that, as in [lesson 18](18_quantised_weights.py): `quantization="int4_g128"` quantises experts too. At
# batch 1 a third of the step is not reading: launches, and kernels that wait for the one before.
#
# ## Sources
#
# - N. Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", 2017, section 2.
# - W. Fedus, B. Zoph, N. Shazeer, "Switch Transformers", 2022, section 2.2 (capacity, load balance).
# - T. Gale et al., "MegaBlocks: Efficient Sparse Training with Mixture-of-Experts", 2023, section 4.
# - G. Blelloch, "Prefix Sums and Their Applications", 1990, section 1.3.
# - Qwen Team, "Qwen3 Technical Report", 2025, section 2.
