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
# # 9. Decode attention and Flash-Decoding
#
# A model writes one token at a time, so attention has one query and all keys of the past. Every byte is used once, so
# tiling does not help. Speed depends on reading fast, and that depends on how many bytes are in flight at any moment.
#
# ```mermaid
# flowchart LR
#     k0["keys 0 to 2,047"] --> b0["block 0<br/>m, l, o"]
#     k1["keys 2,048 to 4,095"] --> b1["block 1<br/>m, l, o"]
#     k2["keys 4,096 to 6,143"] --> b2["block 2<br/>m, l, o"]
#     k3["keys 6,144 to 8,191"] --> b3["block 3<br/>m, l, o"]
#     b0 & b1 & b2 & b3 --> merge["merge<br/>o / l"]
# ```
#
# $$M = \max_s m_s \qquad
# \mathrm{out} = \frac{\sum_s e^{m_s - M}\, o_s}{\sum_s e^{m_s - M}\, l_s}$$
#
# Flash-Decoding splits the keys over blocks. Each block stores the state of lesson 7: the largest score $m$, the sum
# $l$ and the undivided output $o$. Then the states are merged:

# %%
import math

from numba import cuda, float32

from minllm.runtime.kernel import kernel


@kernel
def split_kernel(query, keys, values, maxima, sums, parts):  # [d], [T, d] twice
    """One block per split, one thread per element of the head; queries are scaled
    already."""
    split, i = cuda.blockIdx.x, cuda.threadIdx.x
    share = (keys.shape[0] + cuda.gridDim.x - 1) // cuda.gridDim.x  # keys per split
    m, total, o = float32(-math.inf), float32(0), float32(0)
    for key in range(split * share, min((split + 1) * share, keys.shape[0])):
        score = float32(0)
        for j in range(query.shape[0]):  # every thread repeats this short sum
            score += query[j] * keys[key, j]
        new_m = max(m, score)
        correction, weight = math.exp(m - new_m), math.exp(score - new_m)
        total = total * correction + weight
        o = o * correction + weight * values[key, i]
        m = new_m
    maxima[split], sums[split], parts[split, i] = m, total, o


@kernel
def merge_kernel(maxima, sums, parts, out):  # [splits] twice, [splits, d], [d]
    i, largest, total, result = cuda.threadIdx.x, maxima[0], float32(0), float32(0)
    for split in range(1, maxima.shape[0]):
        largest = max(largest, maxima[split])
    for split in range(maxima.shape[0]):
        weight = math.exp(maxima[split] - largest)
        total, result = total + weight * sums[split], result + weight * parts[split, i]
    out[i] = result / total


# %% [markdown]
# **What you will be able to do**
#
# - predict the bytes of a step, and say how many of them must be in flight at any moment, by Little's law;
# - split a context over blocks, merge their states, and say why any order of merging gives the same result;
# - choose the number of splits, and say what limits a short context.
#
# You need online softmax from [lesson 7](07_prefill_and_flash_attention.py), and [lesson 8](08_the_kv_cache.py). You
# need no GPU.
#
# ## Predict
#
# A model with the shape of Llama-3.1-8B (32 layers, 32 query heads, 8 KV heads, 128 numbers per head, 16 bits) writes
# one token, with 8,192 tokens in its cache.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    step_bytes="How many bytes does the whole step read?",
    attention_bytes_per_layer="How many bytes does attention read in one layer?",
    flops_per_byte="How many operations does attention do per byte?",
    busy_sms="One block of threads takes a KV head with all its keys. How many of the H200's 132 SMs work?",
    best_over_one="How much faster is the best split count than a single split?",
)
guess.ask()

# %% [markdown]
# ## Write your own
#
# Which keys does a split take? The picture at the top cuts 8,192 keys into four equal parts. In the engine a split takes
# whole steps of keys, and a sliding window may hide the first ones:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("attention.share_of_split")

# %% [markdown]
# ## Attention of one token is two GEMVs
#
# For one query head, with the keys $K$ and values $V$ of a sequence:
#
# $$s = K q \qquad p = \mathrm{softmax}(s) \qquad \mathrm{out} = V^\top p$$
#
# These are two GEMVs (general matrix-vector multiplications) with a softmax in between. Grouped query heads share a
# cache, so each byte is used by the whole group: 4 operations per byte here. A cache belongs to one sequence, so a
# larger batch raises the intensity of the weights, but not that of attention.

# %%
from minllm import costs
from minllm.models.shapes import named_config

config = named_config("llama-3.1-8b")
stages = costs.decode_stages(config, batch=1, context=8192)
step = costs.decode_step(config, batch=1, context=8192)
(attention,) = [stage for stage in stages if stage.name == "attention"]
layer_bytes = attention.kv_bytes / config.num_hidden_layers
print(
    f"the step: {step.bytes / 1e9:.1f} GB, attention {attention.kv_bytes / 1e9:.2f} "
    "GB of them"
)
print(f"attention in one layer: {layer_bytes / 1e6:.1f} MB")
for batch in (1, 16, 64):
    here = {stage.name: stage for stage in costs.decode_stages(config, batch, 8192)}
    names = ("qkv projection", "attention")
    intensity = {name: here[name].flops / here[name].bytes for name in names}
    shown = ", ".join(f"{name} {value:5.1f}" for name, value in intensity.items())
    print(f"batch {batch:2}, FLOP per byte: {shown}")

# %% tags=["hide"]
assert intensity["qkv projection"] > 10 * intensity["attention"]
assert attention.flops / attention.kv_bytes == 4

# %% [markdown]
# The GPU can do close to 200 operations in the time that it takes to read one byte. So the time of a step is the time
# to read its bytes, and a kernel is good if HBM, the GPU's memory, is never idle.
#
# !!! tip "Takeaway"
#     In a decode step every key and value is read for one token only: memory is the limit.
#
# ## Bytes in flight
#
# A load from HBM takes about 0.8 µs (a round figure for an H200), whatever the kernel does. A kernel that loads, waits,
# and loads again receives data only every 0.8 µs. **Little's law** is the general rule:
#
# $$\text{bytes in flight} = \text{bandwidth} \times \text{latency}$$

# %%
from minllm.course import load_record

ceilings = load_record()["ceilings"]
tb_s, tflops = ceilings["copy_tb_s"], ceilings["bf16_tflops"]
SMS, LATENCY = 132, 0.8e-6  # of an H200; latency in seconds, rounded
needed = tb_s * 1e12 * LATENCY
print(f"{needed / 1e6:.1f} MB in flight, {needed / SMS / 1e3:.0f} KB for each SM")


def reachable(bytes_in_flight):
    """TB/s that this number of bytes in flight allows."""
    return min(tb_s, bytes_in_flight / LATENCY / 1e12)


# %% tags=["fold"]
from minllm.course import curves

curves(
    {
        "all 132 SMs": [(kb, reachable(kb * 1e3 * 132)) for kb in range(1, 65)],
        "8 of them": [(kb, reachable(kb * 1e3 * 8)) for kb in range(1, 65)],
    },
    "KB in flight on each SM",
    "TB/s",
    "Reachable bandwidth, by Little's law",
    caption="Computed with a latency of 0.8 µs and the measured copy of the H200. "
    "Keep the lower line in mind.",
)

# %% [markdown]
# !!! tip "Takeaway"
#     Memory is busy only while enough bytes are on their way: bandwidth times latency.
#
# ## One block per head leaves the machine idle
#
# An SM, streaming multiprocessor, is one of the processors of a GPU: an H200 has 132, and each holds a few blocks at a
# time. A *slot* is the room for one block. FlashAttention-2 launches one block per head and tile of queries, and one
# query is one tile. If one block takes all query heads of a group, so that keys are read once, there is one block per
# KV head and sequence:

# %% tags=["fold"]
from minllm.kernels.attention.split_kv import choice as split_choice

block_bytes = 2 * 4 * 128 * 16  # K and V, 4 keys per lane, 128 threads, 16 bytes each
for batch in (1, 16, 64):
    blocks = batch * config.num_key_value_heads
    slots = split_choice.BLOCKS_PER_SM * SMS
    resident = min(blocks, slots)
    print(
        f"batch {batch:2}: {blocks:3} blocks for {slots} slots, "
        f"at most {reachable(resident * block_bytes):.2f} TB/s by Little's law"
    )

# %% tags=["hide"]
assert reachable(8 * block_bytes) < 0.05 * tb_s < tb_s == reachable(slots * block_bytes)

# %% [markdown]
# A longer context does not help: eight blocks work longer, and the other SMs stay idle.
#
# !!! tip "Takeaway"
#     One block per KV head uses 8 of 132 SMs, however long the context.
#
# ## Flash-Decoding: split the context
#
# The solution is to divide the keys of a head among many blocks and merge their states, as in the kernels at the top.
# (A GEMM that divides its inner dimension among blocks does the same; this is called split-K.) Is the result exact? The
# states of two sets of keys merge into the state of their union. Merging is associative and commutative, and the state
# of no keys, $(-\infty, 0, 0)$, changes nothing.
#
# <!-- aside: A test with 200 random cuts and orders -->
#
# This cell cuts 300 keys at random into shares, some of them empty, and merges random pairs until one state is left. It
# also runs the two kernels.

# %%
import numpy as np

from minllm.kernels.attention.common.online_softmax import (
    merge_reference,
    state_reference,
)

rng = np.random.default_rng(0)

keys, head_dim = 300, 8
scores = 4 * rng.standard_normal((1, keys))  # [heads, keys]
values = rng.standard_normal((keys, head_dim))  # [keys, head_dim]
weights = np.exp(scores - scores.max())
at_once = weights @ values / weights.sum()  # [heads, head_dim]


def states_of(splits):
    """The states of `splits` shares between random cuts, in a random order."""
    cuts = np.sort(rng.integers(0, keys + 1, splits - 1))
    shares = np.split(np.arange(keys), cuts)
    rng.shuffle(order := list(range(splits)))
    return [state_reference(scores[:, shares[i]], values[shares[i]]) for i in order]


def merged(states):
    """Merge random pairs until one state is left."""
    while len(states) > 1:
        a, b = sorted(rng.choice(len(states), 2, replace=False))
        states.append(merge_reference(states.pop(b), states.pop(a)))
    return states[0]


worst = 0.0
for _ in range(200):
    _, total, o = merged(states_of(int(rng.integers(2, 20))))
    worst = max(worst, np.abs(o / total[:, None] - at_once).max())
print(f"200 random cuts and orders: largest difference {worst:.1e}")

q, K, V = (
    rng.standard_normal(8),
    rng.standard_normal((50, 8)),
    rng.standard_normal((50, 8)),
)
q, K, V = (array.astype(np.float32) for array in (q, K, V))
state = [np.empty(shape, np.float32) for shape in (7, 7, (7, 8))]  # 7 splits
out = np.empty(8, np.float32)
split_kernel.simulate[7, 8](q, K, V, *state)
merge_kernel.simulate[1, 8](*state, out)
print(
    "the two kernels from the top, 7 splits of 50 keys: the same as a softmax at once"
)

# %% tags=["hide"]
assert worst < 1e-13
assert np.allclose(out, np.exp(K @ q) @ V / np.exp(K @ q).sum(), atol=1e-5)

# %% [markdown]
# The difference is rounding.
#
# <!-- end aside -->
#
# Two other ways of merging give *different* results: averaging the outputs of the
# shares, or adding them without their weights. Both look reasonable, and both are right as long as there is one split.
#
# <!-- aside: The error of these two ways -->

# %% tags=["fold"]


def mistakes(splits):
    """Errors of (the mean of outputs, sums without weights) for equal shares."""
    shares = np.array_split(np.arange(keys), splits)
    states = [state_reference(scores[:, share], values[share]) for share in shares]
    mean = np.mean([o / total[:, None] for _, total, o in states], axis=0)
    unweighted = (
        sum(o for _, _, o in states) / sum(total for _, total, _ in states)[:, None]
    )
    return [float(np.abs(wrong - at_once).max()) for wrong in (mean, unweighted)]


errors = {splits: mistakes(splits) for splits in range(1, 17)}
assert max(errors[1]) < 1e-13 and min(errors[16]) > 0.01
curves(
    {
        "mean of the outputs": [(splits, found[0]) for splits, found in errors.items()],
        "sums without weights": [
            (splits, found[1]) for splits, found in errors.items()
        ],
    },
    "splits",
    "largest error",
    "Two ways to merge that are wrong",
    caption="300 random keys, values about 1 in size; computed when this page was "
    "built.",
)

# %% [markdown]
# <!-- end aside -->
#
# !!! tip "Takeaway"
#     States merge in any order, each weighted relative to the common maximum.
#
# ## The engine's first rung: split_kv
#
# The grid has one block per split, KV head and sequence. A few lanes of a warp read one key's row, and a warp has
# several rows in flight. The grid fixes the number of splits. Each block computes the size of its share from the
# context's length:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.attention.split_kv import merge as split_merge
from minllm.kernels.attention.split_kv import split_kv

show_source(
    split_merge.share_of_split,
    folded="Which keys a split takes",
    notes={
        "share = (share + step - 1)": "A share is a whole number of steps: only the last one is partial, and some may be empty.",
    },
)

# %% tags=["hide-input"]
show_source(
    split_kv.make_split_kernel,
    part="split_kernel",
    folded="The split kernel",
    notes={
        "split, sequence = ": "Which share of which sequence.",
        "start, stop = share_of_split": "From the context's length on the device: a captured graph serves contexts that grow.",
        "split_max[sequence, first_head + thread, split] = float32(MINUS_INFINITY)": "A share without keys also has a state.",
        "load_query(": "The query heads of the group, in registers.",
        "rows[i] = element_of": "Through the block table: where each key lies.",
        "load_rows(key_words": "All rows of K ...",
        "load_rows(value_words": "... and of V are loaded before the first is used: bytes in flight.",
        "fold_keys(": "Online softmax, for each head of the group. Its scaling is an exercise below.",
        "merge_subgroups(": "The same merge within a warp, by shuffles ...",
        "share_state(": "... and between warps, through shared memory.",
        "merge_warps(": "The block's state goes to memory, in float32, not divided.",
    },
    docstring=False,
)

# %% [markdown]
# A second kernel merges. Run both kernels with more and more splits, on 256 keys in blocks of 16 in a random order:

# %% tags=["fold"]
import ml_dtypes

from minllm.kernels.attention.reference import attention_reference
from minllm.sim import tracing

context, heads, head_dim = 256, 4, 64  # query heads of one KV head
query = rng.standard_normal((1, heads, head_dim)).astype(
    ml_dtypes.bfloat16
)  # [tokens, heads, head_dim]
cache = rng.standard_normal((2, context // 16, 16, 1, head_dim)).astype(
    ml_dtypes.bfloat16
)  # K and V
key_cache, value_cache = cache  # [num_blocks, block_size, kv_heads, head_dim]
block_table = rng.permutation(context // 16).astype(np.int32)[None]
layout = (
    np.int32([0, 1]),
    np.int32([context]),
    block_table,
)  # query_start, context_lens, block_tables
scale = head_dim**-0.5
expected = attention_reference(
    query.astype(np.float32), key_cache, value_cache, *layout, scale
)
counted, outs = {}, {}
for splits in (1, 2, 4, 8, 16):
    out = outs[splits] = np.empty_like(query)
    with tracing() as traces:
        options = dict(splits=splits, warps=1, keys_each=1)
        split_kv.attention(
            query, key_cache, value_cache, out, *layout, scale, **options
        )
    split, merge = traces
    cached = (
        split.arrays["key_cache"].total.bytes + split.arrays["value_cache"].total.bytes
    )
    states = (
        split.arrays["split_out"].total.bytes + merge.arrays["split_out"].total.bytes
    )
    counted[splits] = cached, states
    print(
        f"{splits:2} splits, grid {split.grid}: K and V {cached:,} bytes, outputs of "
        f"splits {states:6,}"
    )

# %% tags=["hide"]
for splits, (cached, states) in counted.items():
    assert np.allclose(outs[splits].astype(np.float32), expected, atol=0.01)
    assert cached == cache.nbytes and states == 2 * splits * heads * head_dim * 4

# %% tags=["fold"]
curves(
    {
        "keys and values": [
            (splits, found[0] / 1e3) for splits, found in counted.items()
        ],
        "outputs of splits, written and read": [
            (splits, found[1] / 1e3) for splits, found in counted.items()
        ],
    },
    "splits",
    "kB",
    "What splitting costs",
    log_x=True,
    caption="Counted in the simulator: 256 keys, 4 query heads on one KV head of 64 "
    "numbers, bfloat16.",
)

# %% [markdown]
# Each key is read once, whatever the number of splits. The traffic of the states grows:

# %%
state_bytes = counted[1][1]  # of one split, written and read
key_bytes = cache.nbytes / context  # a key and its value
print(f"a split's outputs cost as many bytes as {state_bytes / key_bytes:.0f} keys")

# %% tags=["hide"]
assert state_bytes == 8 * key_bytes

# %% [markdown]
# That is an eighth more bytes for a share of 64 keys, the shortest that the kernel makes.
#
# !!! tip "Takeaway"
#     Splitting reads no key twice. Its price is a state per split, as many bytes as eight keys.
#
# ## How many splits?
#
# Too few splits leave SMs empty. If there are a few more blocks than slots, these blocks run in a second wave while
# most of the machine is idle. The number of waves is blocks / slots, rounded up:

# %% tags=["fold"]


def times_the_ideal(blocks, splits):
    """How much longer whole waves take than blocks spread evenly over all slots."""
    waves = blocks * splits / slots
    return float(np.ceil(waves) / waves)


curves(
    {"1 sequence": [(splits, times_the_ideal(8, splits)) for splits in range(1, 129)]},
    "splits",
    "time / ideal time",
    "One sequence: more splits are better, up to 49 that fill the machine",
    log_x=True,
    log_y=True,
    caption="Computed: 8 KV heads, 132 SMs with 3 blocks each. Copies and merging are "
    "left out.",
)

# %% [markdown]
# The next chart shows one sequence of 8,192 keys, measured for many numbers of splits, beside an upper bound: Little's
# law until the machine is full, whole waves beyond that.

# %% tags=["fold"]
from minllm.course import recorded

splits_rows = recorded("splits", "1x8192", "split_kv")
measured = {
    int(row.case.split(", ")[-1].split()[0]): row.value for row in splits_rows
}  # splits -> TB/s


def allowed(splits):
    """TB/s by Little's law for the blocks that run at one time, and by whole waves."""
    at_once = reachable(min(8 * splits, slots) * block_bytes)
    return (
        min(at_once, tb_s / times_the_ideal(8, splits))
        if 8 * splits > slots
        else at_once
    )


curves(
    {
        "allowed": [(splits, allowed(splits)) for splits in measured],
        "measured": sorted(measured.items()),
    },
    "splits",
    "TB/s",
    "One sequence of 8,192 keys, split more and more",
    log_x=True,
    caption="split_kv, 32 query heads, 8 KV heads of 128, bfloat16; measured: "
    f"{splits_rows[0].label}.",
)

# %% tags=["fold"]
best = max(measured, key=measured.get)
print(
    f"1 split {measured[1]:.2f} TB/s, {best} splits {measured[best]:.2f}, 56 splits "
    f"{measured[56]:.2f}"
)
read_us = (
    8192 * 2 * 8 * 128 * 2 / tb_s / 1e6
)  # 8,192 keys and values, 8 heads of 128 numbers, 2 bytes each
besides_us = read_us * (tb_s / measured[best] - 1)
print(
    f"a copy would take {read_us:.1f} µs for these bytes; the best number of splits "
    f"takes {besides_us:.1f} µs more"
)

# %% tags=["hide"]
assert measured[1] < measured[4] < measured[32] and 24 <= best <= 50
assert max(value for splits, value in measured.items() if splits > 50) < min(
    measured[48], measured[49]
)

# %% tags=["hide-input"]
guess.against(
    step_bytes=step.bytes,
    attention_bytes_per_layer=layer_bytes,
    flops_per_byte=attention.flops / attention.kv_bytes,
    busy_sms=config.num_key_value_heads,
    best_over_one=measured[best] / measured[1],
)

# %% [markdown]
# <!-- interactive: split-waves -->
#
# Watch the waves above, or [on a page of their own](../docs/split-waves.md). Both rules are visible in the measured
# line: it rises as long as blocks are added, and falls where a second wave begins. They do not explain why it stays so
# far below the bound. Reading the bytes takes only the first of the two times printed last. The rest is fixed cost: a
# prologue, first loads that overlap with nothing, and a second launch that merges. No number of splits reduces it; a
# better kernel does.
#
# <!-- aside: Batches, and the kernel's own choice -->
#
# More sequences have more blocks, so they need fewer splits, and a new wave (a tooth of the curve) begins after fewer
# splits:

# %% tags=["fold"]
curves(
    {
        f"{batch} sequences": [
            (splits, times_the_ideal(8 * batch, splits)) for splits in range(1, 13)
        ]
        for batch in (16, 64)
    },
    "splits",
    "time / ideal time",
    "Batches: teeth, because only whole waves count",
    caption="Computed in the same way. A tooth begins where one wave more is needed.",
)

# %%
for batch, length in ((1, 1024), (1, 8192), (16, 1024), (64, 1024)):
    chosen = split_choice.choose_splits(batch, 8, 4, length, SMS)
    print(
        f"{batch:2} sequences of {length:5,}: {chosen:2} splits, "
        f"{8 * batch * chosen:3} blocks, "
        f"{times_the_ideal(8 * batch, chosen):.2f} times the ideal"
    )
chosen = split_choice.choose_splits(16, 8, 4, 1024, SMS)

# %% tags=["hide"]
assert chosen == 3 and times_the_ideal(128, 4) > 1.4 * times_the_ideal(128, 3)

# %% [markdown]
# The kernel chooses the fewest splits that come within 15 % of the best use of the slots, and no more than fill them
# about once. 64 sequences have more KV heads than there are slots, so they are not split, and their second wave is
# mostly empty. The measurements below show it.
#
# <!-- end aside -->
#
# On a machine with a GPU, this cell measures your GPU:

# %% tags=["fold"]
from minllm.course import has_gpu

if has_gpu():
    import functools

    from minllm.course import kernel_seconds, machine_line, sets_of_arrays
    from minllm.errors import MinLLMError
    from minllm.kernels.attention import VARIANTS
    from minllm.kernels.attention.common.workspace import make_workspace
    from minllm.ops.cuda_ops import CudaOps

    place, length = CudaOps(), 8192
    tables = rng.permutation(length // 16).astype(np.int32)[None]
    noise = rng.standard_normal((2, length // 16, 16, 8, 128)).astype(
        ml_dtypes.bfloat16
    )
    one_query = rng.standard_normal((1, 32, 128)).astype(ml_dtypes.bfloat16)
    result = place.empty(one_query.shape, one_query.dtype)
    lens = [
        place.array(array) for array in (np.int32([0, 1]), np.int32([length]), tables)
    ]
    sets = [  # copies of all arrays, together larger than the L2 cache
        [place.array(array) for array in (one_query, *noise)] + [result, *lens]
        for _ in range(sets_of_arrays(noise.nbytes))
    ]
    print(machine_line())
    for name, splits in (
        *(("split_kv", n) for n in (1, 2, 4, 8, 16, 32, 48, 64, 96)),
        ("split_tensor_core", None),
    ):
        module = VARIANTS[name]
        shapes = module.workspace_shapes(one_query, noise[0], tables, splits)
        options = dict(
            max_query_len=1,
            splits=splits,
            workspace=make_workspace(shapes, place.empty, place.zeros),
        )
        calls = [
            functools.partial(module.attention, *arrays, 128**-0.5, **options)
            for arrays in sets
        ]
        try:
            seconds = kernel_seconds(
                *[lambda stream, call=call: call(stream=stream) for call in calls]
            )
        except MinLLMError as error:
            print(f"{name}: not on this GPU: {error}")
            continue
        speed = noise.nbytes / seconds / 1e12
        print(
            f"{name:18} {str(splits or 'own plan'):>8}: {1e6 * seconds:7.1f} µs, "
            f"{speed:.2f} TB/s"
        )
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# !!! tip "Takeaway"
#     Fill every slot once. One block more than that begins a second wave.
#
# ## What the engine adds: split_tensor_core
#
# **Grouped heads on tensor cores.** A matrix instruction multiplies 16 rows by 8 columns. The transposed product
# $S^\top = K Q^\top$ puts keys on the 16 rows and the heads of a group on the 8 columns. With a group of 4, half of the
# columns stay empty, but it matters more that there are few instructions between two loads. Each warp has a ring of
# tiles in shared memory. 100 KB and more are in flight on each SM; Little's law requires 26 KB.

# %% tags=["hide-input"]
from minllm.kernels.attention.split_tensor_core import merge_parts as split_merge_parts
from minllm.kernels.attention.split_tensor_core import tile as split_tile

show_source(
    split_tile.make_products,
    part="score_tile",
    folded="S = K Q on tensor cores",
    notes={
        "ldmatrix_x4(key_fragments": "16 keys by 16 numbers, straight from the ring in shared memory.",
        "for column in range(columns)": "Up to 8 query heads per column tile: one for Llama-3.1-8B, whose group is 4.",
        "multiply(odd": "Two short chains of products instead of one long one: fewer waits.",
    },
)

# %% [markdown]
# **Fair shares.** The tiles of all sequences and heads are put in one line, and the line is cut into equal runs, one
# per block. Here are four contexts of very different lengths, two KV heads, and eight blocks:

# %% tags=["fold"]
from minllm.course import Span, timeline

lengths, kv_heads, tile, workers = (4096, 704, 2304, 512), 2, 64, 8
heads_of_line = [
    (sequence, length // tile)
    for sequence, length in enumerate(lengths)
    for _ in range(kv_heads)
]
alone = [
    Span(f"block {i}", 0, tiles, f"{sequence}", sequence)
    for i, (sequence, tiles) in enumerate(heads_of_line)
]
timeline(
    alone,
    "tiles",
    "One block per head: the short ones wait for the long ones",
    caption="Computed. Colours and numbers are the sequences. Tiles of 64 keys.",
)

# %% tags=["fold"]
line = [sequence for sequence, tiles in heads_of_line for _ in range(tiles)]
cuts = [round(len(line) * block / workers) for block in range(workers + 1)]
fair = []
for block in range(workers):
    run = line[cuts[block] : cuts[block + 1]]
    for sequence in sorted(set(run)):
        first, count = run.index(sequence), run.count(sequence)
        fair.append(
            Span(f"block {block}", first, first + count, f"{sequence}", sequence)
        )
assert max(span.end for span in alone) > 2 * max(span.end for span in fair)
timeline(
    fair,
    "tiles",
    "Fair shares of one line: all end together",
    caption="The same work. A head that is cut is merged afterwards; a block may end "
    "one head and begin the next.",
)

# %% [markdown]
# **One launch.** A block that has only part of a head writes its state to memory and increments a counter. The last
# block to arrive merges:

# %% tags=["hide-input"]
show_source(
    split_merge_parts.make_merges,
    part="arrive",
    folded="Merging in the last block to arrive",
    notes={
        "cuda.threadfence()  # this block": "First the state, then the count: a block that reads the count also reads the state.",
        "cuda.atomic.add": "How many blocks arrived before this one?",
        "return arrived[0]": "The one that gets parts - 1 merges all, in the order of the keys: the same bits every time.",
    },
)

# %% [markdown]
# <!-- aside: In the simulator, on a GPU with four slots -->

# %%
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.split_tensor_core.block_sizes import SplitShape

small = dict(
    sm_count=4, shape=SplitShape(warps=1, keys=16, stages=2, blocks=1)
)  # a GPU with four slots
out = np.empty_like(query)
with tracing() as traces:
    VARIANTS["split_tensor_core"].attention(
        query, key_cache, value_cache, out, *layout, scale, **small
    )
(trace,) = traces
cached = trace.arrays["key_cache"].total.bytes + trace.arrays["value_cache"].total.bytes
print(f"one launch, {trace.grid[0]} blocks: K and V {cached:,} bytes")
print(f"{trace.tensor_core_flops:,} operations on tensor cores")

# %% tags=["hide"]
assert np.allclose(out.astype(np.float32), expected, atol=0.01)
assert cached == cache.nbytes and trace.grid[0] == 4

# %% [markdown]
# <!-- end aside -->
#
# !!! tip "Takeaway"
#     Equal runs of tiles keep all blocks busy, and the last one to arrive merges.
#
# ## Measured against predicted
#
# The chart shows one sequence of growing length. The bytes grow; the fixed cost of a launch, a first load and a merge
# does not:

# %% tags=["fold"]
rows = recorded("decode attention", "32/8 heads, d 128, bfloat16")


def size_of(row):
    """(sequences, keys of each)."""
    sequences, length = row.case.split(",")[0].split("x")
    return int(sequences), int(length)


def layout_of(row):
    """How the keys lie: in blocks of 16, in one block per sequence, or ragged."""
    return row.case.split("bfloat16")[1].strip(", ") or "blocks of 16"


lines, library = {}, {}
for row in rows:
    sequences, length = size_of(row)
    if (
        sequences == 1
        and row.variant in ("split_kv", "split_tensor_core")
        and "ragged" not in layout_of(row)
    ):
        lines.setdefault(f"{row.variant}, {layout_of(row)}", {})[length] = row.value
        if row.peer_value:
            library[length] = row.peer_value
lines[next(row.peer for row in rows if row.peer).removeprefix("torch SDPA ")] = library
curves(
    {name: sorted(points.items()) for name, points in lines.items() if len(points) > 1},
    "keys",
    "TB/s",
    f"One sequence, against a copy's {tb_s:.2f} TB/s",
    log_x=True,
    caption=f"32 query heads, 8 KV heads of 128; {rows[0].label}. The library, "
    "through torch, gets contiguous keys.",
)

# %% [markdown]
# <!-- aside: Batches, and contiguous keys -->

# %% tags=["fold"]
from minllm.course import Bar, bars


def beside(row):
    """The library's figure for the same, if there is one."""
    return f"{row.peer} {row.peer_value:.2f}" if row.peer_value else ""


ladder = ("materialized", "split_kv", "split_tensor_core")
shown = [
    row
    for row in rows
    if row.variant in ladder
    and size_of(row)[1] == 1024
    and "ragged" not in layout_of(row)
]
shown.sort(key=lambda row: (size_of(row)[0], ladder.index(row.variant), layout_of(row)))
bars(
    [
        Bar(
            f"{size_of(row)[0]} x {size_of(row)[1]}: {row.variant}",
            row.value,
            f"{layout_of(row)}; {beside(row)}",
            ladder.index(row.variant),
        )
        for row in shown
    ],
    unit="TB/s",
    title="Sequences x keys",
    log=True,
    caption="A logarithmic axis; 32 query heads, 8 KV heads of 128, bfloat16; "
    f"{rows[0].label}.",
)

# %% [markdown]
# <!-- end aside -->

# %% tags=["fold"]
split_rows = {size_of(row): row.value for row in rows if row.variant == "split_kv"}
(slow,) = [
    row for row in rows if row.variant == "materialized" and size_of(row) == (1, 1024)
]
unsplit = reachable(8 * block_bytes)
print(
    f"one sequence of 1,024 keys: {slow.value:.3f} TB/s without splits, "
    f"{split_rows[1, 1024]:.2f} with them"
)
print(
    f"8,192 keys: {split_rows[1, 8192]:.2f} TB/s; Little's law gives eight blocks "
    f"{unsplit:.2f}"
)
waves_allow = tb_s / times_the_ideal(512, 1)
print(
    f"64 of 1,024: two waves of blocks allow {waves_allow:.2f} TB/s, split_kv reached "
    f"{split_rows[64, 1024]:.2f}"
)

# %% tags=["hide"]
assert split_rows[64, 1024] < waves_allow
assert all(
    max(row.value, row.peer_value or 0) < tb_s / 4
    for row in rows
    if size_of(row) == (1, 1024)
)
assert slow.value < unsplit < split_rows[1, 1024] < split_rows[1, 8192] < tb_s

# %% [markdown]
# - **Splitting pays.** The three kernels of lesson 3 stay below what eight blocks could reach. With splits over all
#   SMs, the same attention exceeds that limit.
# - **One short sequence stays far below the roofline** with every kernel, the library's included: 1,024 keys are 4 MB,
#   which memory delivers in a microsecond, less than the prologue and epilogue of a kernel take.
# - **With enough keys** in total, in one long context or in many, memory bandwidth is the limit: compare the library's
#   figure for the largest batch with ours.

# %% [markdown]
# ## Exercises

# %% tags=["hide-input"]
show_exercises("attention.split_kv", "attention.split_merge")

# %% [markdown]
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("short_neighbour")

# %% [markdown]
# ## Problems
#
# ??? question "1. Two splits leave (m, l, o) = (2, 3, 6) and (4, 1, 5), powers of 2. What is the output?"
#     M = 4: the first is scaled by 1/4. l = 0.75 + 1, o = 1.5 + 5, output 6.5 / 1.75 = 3.71. The mean of 2 and 5, 3.5,
#     is wrong.
#
# ??? question "2. A chip has 8 TB/s, a latency of 1 µs and 160 SMs. How many bytes must each SM have in flight?"
#     8 MB in all, 50 KB per SM: twice as many as on an H200. Faster memory needs deeper pipelines.
#
# ??? question "3. Batch 16, 8 KV heads, 132 SMs with 3 slots each. How many splits fill the machine once, and how many waves do 4 splits take?"
#     128 heads for 396 slots: 3 splits are 384 blocks, one wave at 97 %. 4 splits are 512 blocks: two waves, 1.55
#     times the ideal.
#
# ??? question "4. One sequence of 131,072 tokens, 8B shape, at 4.2 TB/s. How long does attention take per token, and per step beside 15 GB of weights?"
#     131,072 · 131 KB = 17.2 GB: 4.1 ms for attention, 3.6 ms for weights. Reading the cache of one long chat costs as
#     much as reading the whole model.
#
# ??? question "5. Without splits, 8 of 132 SMs work. What would a million tokens at 8,192 tokens of context cost at 4 dollars per hour, if eight blocks reach 0.16 TB/s for attention?"
#     Attention reads 1.07 GB per token: 6.7 ms instead of 0.26, on top of 3.6 ms of weights. 10.3 ms against 3.8 ms per token: 11.4 dollars against 4.3.
#
# ## What next
#
# The curve of one sequence shows what is left: at short contexts, time that the bytes do not explain. Launches,
# prologues and epilogues of kernels are the subject of lesson 15. Reading the weights follows the same rules, and there
# is one more idea for the softmax: [lesson 10](10_flash_decoding_plus_plus.py).
#
# ## Sources
#
# - T. Dao, D. Haziza, F. Massa, G. Sizov, "Flash-Decoding for long-context inference", 2023.
# - M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018 (arXiv 1805.02867), section 3.1.
# - Z. Ye et al., "FlashInfer", MLSys 2025 (arXiv 2501.01005), section 2.2: the algebra of states.
# - V. Volkov, "Better Performance at Lower Occupancy", GTC 2010: bytes in flight.
