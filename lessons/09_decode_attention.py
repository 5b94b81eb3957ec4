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
# # 9. Decode attention: GEMV, Flash-Decoding, FlashDecoding++ and its unified maximum
#
# When a model writes, there is one token at a time. Every matrix of the model meets one vector, and attention's one
# query meets all keys of the past. Nothing is used twice, so no tile helps, and none of the arithmetic is hard. All that
# is left is to read fast, and that turns out to be a question of how much is asked for at one moment, and by how many.
#
# **What you will be able to do**
#
# - predict the bytes of a step, and say how many of them have to be on their way at any moment, by Little's law;
# - split a context over blocks, merge what they leave, and say why any order of merging gives the same;
# - choose the number of splits, and say what FlashDecoding++ changes and what that can and cannot gain.
#
# You need [lesson 5](05_the_ladder_of_matrix_products.py), the softmax in pieces of [lesson
# 7](07_prefill_and_flash_attention.py), and [lesson 8](08_the_kv_cache.py). You need no GPU.
#
# ## Predict
#
# A model of the shape of Llama-3.1-8B (32 layers, 32 query heads, 8 KV heads, 128 numbers a head, 16 bits) writes one
# token. There is one sequence, with 8,192 tokens in its cache.
#
# - How many bytes does the whole step read? And attention, in one layer?
# - How many operations does attention do for each byte?
# - If a block of threads takes a KV head with all its keys, how many of the H200's 132 SMs (streaming
#   multiprocessors) work?

# %%
from minllm.course import Prediction

guess = Prediction(
    step_bytes=16e9,
    attention_bytes_a_layer=33e6,
    flops_a_byte=1,
    busy_sms=32,
    limit="memory",
)
guess

# %% [markdown]
# ## One token, and every product is a matrix times a vector
#
# Each weight is read for one multiplication and one addition. At 2 bytes a number that is one operation a byte. Here
# are the stages of the step that do nearly all of its reading:

# %% tags=["fold"]
from minllm import costs
from minllm.course import Bar, bars
from minllm.models.shapes import named_config

config = named_config("llama-3.1-8b")
stages = costs.decode_stages(config, batch=1, context=8192)
large = [stage for stage in stages if stage.bytes > 0.005 * sum(one.bytes for one in stages)]
bars(
    [
        Bar(stage.name, stage.bytes / 1e9, f"{stage.arithmetic_intensity:.2g} FLOP a byte", int(stage.kv_bytes > 0))
        for stage in large
    ],
    unit="GB",
    title="What a step reads: 8B shape, one sequence of 8,192 tokens",
    caption="All layers together, from the model's shape, by minllm.costs. Second colour: keys and values.",
)

# %%
step = costs.decode_step(config, batch=1, context=8192)
(attention,) = [stage for stage in stages if stage.name == "attention"]
layer_bytes = attention.kv_bytes / config.num_hidden_layers
print(f"the step: {step.bytes / 1e9:.1f} GB, attention {attention.kv_bytes / 1e9:.2f} GB of them")
print(f"attention in one layer: {layer_bytes / 1e6:.1f} MB, {attention.flops / attention.kv_bytes:.0f} FLOP a byte")
assert all(0.9 < stage.arithmetic_intensity < 1.1 for stage in large if stage.weight_bytes)
assert attention.flops / attention.kv_bytes == 4

# %% [markdown]
# The machine would do close to 200 operations for each byte. So the time of a step is the time of its bytes, and a kernel
# is good if HBM, the GPU's memory, is never idle.
#
# ## Bytes in flight
#
# A load takes a while to come back: some 0.8 µs, whatever you do. A kernel that asks, waits, and asks again gets what it
# asked for every 0.8 µs. **Little's law** says it in general:
#
# $$\text{bytes in flight} = \text{bandwidth} \times \text{latency}$$

# %%
from minllm.course import load_record

ceilings = load_record()["ceilings"]
tb_s, tflops = ceilings["copy_tb_s"], ceilings["bf16_tflops"]
SMS, LATENCY = 132, 0.8e-6  # of an H200; seconds, the round figure of gemv's docstring
needed = tb_s * 1e12 * LATENCY
print(f"{needed / 1e6:.1f} MB in flight, {needed / SMS / 1e3:.0f} KB for each SM")


def reachable(bytes_in_flight):
    """TB/s that so many bytes on their way allow."""
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
    "What may be reached, by Little's law",
    caption="Computed with a latency of 0.8 µs and the measured copy of the H200. Keep the lower line in mind.",
)

# %% [markdown]
# ## GEMV
#
# The engine's kernel for one row of $x$ (a general matrix-vector product, GEMV) is built around this. A warp owns a
# few rows of the weight. Its lanes lie along a row and load 16 bytes each, and it issues *all* loads of a step before it
# uses the first:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.matmul.gemv import gemv
from minllm.kernels.matmul.gemv import sums as gemv_sums

show_source(
    gemv_sums.make_accumulate_step,
    part="accumulate_step",
    notes={
        "words = cuda.local.array": "Registers for everything that is on its way.",
        "w = load_128_streaming": "rows × unroll loads of 16 bytes, one behind another. None of them is waited for here, and "
        "none displaces x in the L1 cache.",
        "cuda.syncwarp()": "Keeps the compiler from moving a load down to its use, to save registers.",
        "x_words = load_128(x": "x comes out of L1: every warp reads all of it.",
        "total[i, r] = dot": "Only here is a weight needed.",
    },
)

# %%
import ml_dtypes
import numpy as np

from minllm.sim import tracing

rng = np.random.default_rng(0)
x = rng.standard_normal((1, 512)).astype(ml_dtypes.bfloat16)  # [1, K]
weight = rng.standard_normal((32, 512)).astype(ml_dtypes.bfloat16)  # [N, K]
out = np.empty((1, 32), np.float32)  # [1, N]
with tracing() as traces:
    gemv.matmul_gemv(x, weight, out)
assert np.allclose(out, x.astype(np.float64) @ weight.astype(np.float64).T, atol=0.01)
for name in ("weight", "x"):
    traffic = traces[0].arrays[name].read
    print(f"{name:6}: {traffic.bytes:7,} bytes asked for, {traffic.unique_bytes:7,} different ones")
assert traces[0].arrays["weight"].read.bytes == weight.nbytes

tiling = gemv.choose_tiling(1, 28672, 4096)
per_warp = tiling.rows * tiling.unroll * 32 * 16  # lanes, bytes a lane
warps_needed = needed / SMS / per_warp
print(f"a warp has {per_warp:,} bytes in flight: {warps_needed:.0f} warps per SM are enough, 64 fit")
assert warps_needed < 32

# %% tags=["fold"]
from minllm.course import recorded


def beside(row):
    """The library's figure for the same, where there is one."""
    return f"{row.peer} {row.peer_value:.2f}" if row.peer_value else ""


one_row = [row for row in recorded("matmul", "1x", "gemv") if row.case.startswith("1x")]
bars(
    [Bar(row.case.split(",")[0], row.value, beside(row)) for row in one_row],
    unit="TB/s",
    title="A row times a weight: tokens x features out x features in",
    limit=tb_s,
    limit_name="copy:",
    caption=f"bfloat16; {one_row[0].label}.",
)

# %% [markdown]
# So the products are near what memory can do; the smallest matrix is the furthest from it, because a kernel's beginning
# and end weigh most there. What about attention?
#
# ## Attention of one token is the same problem
#
# For one query head, with the keys $K$ and values $V$ of a sequence, $[\mathrm{context}, \mathrm{head\_dim}]$ each:
#
# $$s = K q \qquad p = \mathrm{softmax}(s) \qquad \mathrm{out} = V^\top p$$
#
# These are two products of a matrix and a vector, with a softmax in between. The cache takes the place of the weights.
# Two things differ. Grouped query heads share a cache, so each byte serves the whole group: 4 operations a byte here.
# And a cache belongs to one sequence: a larger batch makes the weights' intensity grow, but not that of attention.

# %%
for batch in (1, 16, 64):
    here = {stage.name: stage for stage in costs.decode_stages(config, batch, 8192)}
    intensity = {name: here[name].flops / here[name].bytes for name in ("qkv projection", "attention")}
    print(f"batch {batch:2}: " + ", ".join(f"{name} {value:5.1f} FLOP a byte" for name, value in intensity.items()))
assert intensity["qkv projection"] > 10 * intensity["attention"]

# %% [markdown]
# ## One block a head leaves the machine idle
#
# FlashAttention-2 gives a block to each head and each tile of queries. With one query there is one tile. If all query
# heads of a group go into one block, so that keys are read once, there is a block for each KV head and sequence.

# %%
from minllm.kernels.attention.split_kv import choice as split_choice

block_bytes = 2 * 4 * 128 * 16  # K and V, 4 keys a lane, 128 threads, 16 bytes each: split_kv, below
for batch in (1, 16, 64):
    blocks = batch * config.num_key_value_heads
    slots = split_choice.BLOCKS_PER_SM * SMS
    resident = min(blocks, slots)
    print(
        f"batch {batch:2}: {blocks:3} blocks for {slots} places, "
        f"at most {reachable(resident * block_bytes):.2f} TB/s by Little's law"
    )
assert reachable(8 * block_bytes) < 0.05 * tb_s < tb_s == reachable(slots * block_bytes)

# %%
guess.against(
    step_bytes=step.bytes,
    attention_bytes_a_layer=layer_bytes,
    flops_a_byte=attention.flops / attention.kv_bytes,
    busy_sms=config.num_key_value_heads,
    limit="memory",
)

# %% [markdown]
# A longer context does not help: the eight blocks work longer, and the rest of the machine looks on.
#
# ## Flash-Decoding: split the context
#
# The way out is to give the keys of a head to many blocks. Each computes attention over its share alone, and leaves the
# state of lesson 7: the largest score $m$, the sum $l$, and the output $o$ that is not divided yet. Then the states are
# merged. A GEMM that divides the dimension it sums over among blocks in this way is called split-K.
#
# ```mermaid
# flowchart LR
#     k0["keys 0 to 2,047"] --> b0["block 0: m, l, o"]
#     k1["keys 2,048 to 4,095"] --> b1["block 1: m, l, o"]
#     k2["keys 4,096 to 6,143"] --> b2["block 2: m, l, o"]
#     k3["keys 6,144 to 8,191"] --> b3["block 3: m, l, o"]
#     b0 & b1 & b2 & b3 --> merge["merge: o / l"]
# ```
#
# $$M = \max_s m_s \qquad
# \mathrm{out} = \frac{\sum_s e^{m_s - M}\, o_s}{\sum_s e^{m_s - M}\, l_s}$$
#
# Is that exact? The states of two sets of keys merge into the state of their union; merging is associative and
# commutative, and the state of no keys, $(-\infty, 0, 0)$, changes nothing. Try it: 200 times cut 300 keys at random
# places into shares, some of them empty, shuffle them, and merge random pairs until one state is left.

# %%
from minllm.kernels.attention.common.online_softmax import merge_reference, state_reference

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
assert worst < 1e-13

# %% [markdown]
# The rest is rounding. What is *not* the same: averaging the shares' outputs, or adding them without their weights. Both
# look reasonable, and both are right as long as there is one split.

# %% [markdown]
# <!-- aside: How wrong those two are -->

# %% tags=["fold"]


def mistakes(splits):
    """Errors of (the mean of outputs, sums without weights) for equal shares."""
    shares = np.array_split(np.arange(keys), splits)
    states = [state_reference(scores[:, share], values[share]) for share in shares]
    mean = np.mean([o / total[:, None] for _, total, o in states], axis=0)
    unweighted = sum(o for _, _, o in states) / sum(total for _, total, _ in states)[:, None]
    return [float(np.abs(wrong - at_once).max()) for wrong in (mean, unweighted)]


errors = {splits: mistakes(splits) for splits in range(1, 17)}
assert max(errors[1]) < 1e-13 and min(errors[16]) > 0.01
curves(
    {
        "mean of the outputs": [(splits, found[0]) for splits, found in errors.items()],
        "sums without weights": [(splits, found[1]) for splits, found in errors.items()],
    },
    "splits",
    "largest error",
    "Two ways to merge that are wrong",
    caption="300 random keys, values about 1 in size; computed when this page was built.",
)

# %% [markdown]
# <!-- end aside -->
#
# ## The kernel: split_kv
#
# The grid has a block for each split, KV head and sequence. A few lanes of a warp read one key's row, and a warp has
# several rows under way. The number of splits is fixed by the grid; how many keys a share has, each block computes
# from the context's length:

# %% tags=["hide-input"]
from minllm.kernels.attention.split_kv import merge as split_merge
from minllm.kernels.attention.split_kv import split_kv

show_source(
    split_merge.share_of_split,
    notes={
        "share = (share + step - 1)": "Whole steps, so that only the last share is ragged; the last ones may be empty.",
    },
)

# %% tags=["hide-input"]
show_source(
    split_kv.make_split_kernel,
    part="split_kernel",
    notes={
        "split, sequence = ": "Which share of which sequence.",
        "start, stop = share_of_split": "From the context's length on the device: a captured graph serves contexts that grow.",
        "split_max[sequence, first_head + thread, split] = float32(MINUS_INFINITY)": "A share without keys has a state, too.",
        "load_query(": "The query heads of the group, in registers.",
        "rows[i] = element_of": "Through the block table: where each key lies.",
        "load_rows(key_words": "All rows of K ...",
        "load_rows(value_words": "... and of V are asked for before the first is used: bytes in flight.",
        "fold_keys(": "Online softmax, for each head of the group: your exercise below.",
        "merge_subgroups(": "The same merge within a warp, by shuffles ...",
        "share_state(": "... and between warps, through shared memory.",
        "merge_warps(": "The block's state goes to memory, in float32, not divided.",
    },
    docstring=False,
)

# %% [markdown]
# A second kernel merges; it is your other exercise. Run both with more and more splits, on 256 keys that lie in blocks
# of 16 in a random order:

# %%
from minllm.kernels.attention.reference import attention_reference

context, heads, head_dim = 256, 4, 64  # query heads of one KV head
query = rng.standard_normal((1, heads, head_dim)).astype(ml_dtypes.bfloat16)  # [tokens, heads, head_dim]
cache = rng.standard_normal((2, context // 16, 16, 1, head_dim)).astype(ml_dtypes.bfloat16)  # K and V
key_cache, value_cache = cache  # [num_blocks, block_size, kv_heads, head_dim]
block_table = rng.permutation(context // 16).astype(np.int32)[None]
layout = np.int32([0, 1]), np.int32([context]), block_table  # query_start, context_lens, block_tables
scale = head_dim**-0.5
expected = attention_reference(query.astype(np.float32), key_cache, value_cache, *layout, scale)
counted = {}
for splits in (1, 2, 4, 8, 16):
    out = np.empty_like(query)
    with tracing() as traces:
        options = dict(splits=splits, warps=1, keys_each=1)
        split_kv.attention(query, key_cache, value_cache, out, *layout, scale, **options)
    assert np.allclose(out.astype(np.float32), expected, atol=0.01)
    split, merge = traces
    cached = split.arrays["key_cache"].total.bytes + split.arrays["value_cache"].total.bytes
    states = split.arrays["split_out"].total.bytes + merge.arrays["split_out"].total.bytes
    counted[splits] = cached, states
    print(f"{splits:2} splits, grid {split.grid}: K and V {cached:,} bytes, outputs of splits {states:6,}")
    assert cached == cache.nbytes and states == 2 * splits * heads * head_dim * 4

# %% tags=["fold"]
curves(
    {
        "keys and values": [(splits, found[0] / 1e3) for splits, found in counted.items()],
        "outputs of splits, written and read": [(splits, found[1] / 1e3) for splits, found in counted.items()],
    },
    "splits",
    "kB",
    "What splitting costs",
    log_x=True,
    caption="Counted in the simulator: 256 keys, 4 query heads on one KV head of 64 numbers, bfloat16.",
)

# %% [markdown]
# Each key is read once, however many splits there are. What grows is the states.

# %%
state_bytes = counted[1][1]  # of one split, written and read
key_bytes = cache.nbytes / context  # a key and its value
print(f"a split's outputs cost as many bytes as {state_bytes / key_bytes:.0f} keys")
assert state_bytes == 8 * key_bytes

# %% [markdown]
# In a share of 64 keys that is an eighth more; the kernel makes none shorter.
#
# ## How many splits?
#
# Too few, and places are empty. Too many, and there is another effect. If there are a few blocks more than places, they
# run in a second wave, and most of the machine waits for them. Blocks over places is the number of waves, and the
# waves that count are whole ones:

# %% tags=["fold"]


def times_the_ideal(blocks, splits):
    """How much longer whole waves take than blocks spread evenly over all places."""
    waves = blocks * splits / slots
    return float(np.ceil(waves) / waves)


curves(
    {"1 sequence": [(splits, times_the_ideal(8, splits)) for splits in range(1, 129)]},
    "splits",
    "times the ideal",
    "One sequence: more splits are better, up to 49 that fill the machine",
    log_x=True,
    log_y=True,
    caption="Computed: 8 KV heads, 132 SMs with 3 blocks each. Copies and merging are left out.",
)

# %% [markdown]
# Does the machine do as the picture says? One sequence of 8,192 keys, measured for many numbers of splits, beside what the
# rules so far allow: Little's law up to the fill, whole waves beyond it.

# %% tags=["fold"]
from minllm.course import recorded

splits_rows = recorded("splits", "1x8192", "split_kv")
measured = {int(row.case.split(", ")[-1].split()[0]): row.value for row in splits_rows}  # splits -> TB/s


def allowed(splits):
    """TB/s by Little's law for the blocks that run at one time, and by whole waves."""
    at_once = reachable(min(8 * splits, slots) * block_bytes)
    return min(at_once, tb_s / times_the_ideal(8, splits)) if 8 * splits > slots else at_once


curves(
    {"allowed": [(splits, allowed(splits)) for splits in measured], "measured": sorted(measured.items())},
    "splits",
    "TB/s",
    "One sequence of 8,192 keys, split more and more",
    log_x=True,
    caption=f"split_kv, 32 query heads, 8 KV heads of 128, bfloat16; measured: {splits_rows[0].label}.",
)

# %%
best = max(measured, key=measured.get)
print(f"1 split {measured[1]:.2f} TB/s, {best} splits {measured[best]:.2f}, 56 splits {measured[56]:.2f}")
assert measured[1] < measured[8] < measured[32] and 24 <= best <= 50
assert max(value for splits, value in measured.items() if splits > 50) < min(measured[48], measured[49])
read_us = 8192 * 2 * 8 * 128 * 2 / tb_s / 1e6  # keys and values of 8 heads of 128 numbers of 2 bytes
besides_us = read_us * (tb_s / measured[best] - 1)
print(f"a copy would take {read_us:.1f} µs for these bytes; the best number of splits takes {besides_us:.1f} µs more")

# %% [markdown]
# Both rules show: the line rises as long as blocks are added, and falls where the fill is passed and a second wave begins.
# What they do not say is why it stays so far below. The bytes need only the first of the two times in the last line. The
# rest is what every launch of this kernel costs: a beginning, first fetches that nobody hides, a second launch that
# merges. No number of splits helps against that; a better kernel does, further down.
#
# <!-- aside: Batches, and the kernel's own choice -->
#
# More sequences bring their own blocks, so they need fewer splits, and the teeth come sooner:

# %% tags=["fold"]
curves(
    {
        f"{batch} sequences": [(splits, times_the_ideal(8 * batch, splits)) for splits in range(1, 13)]
        for batch in (16, 64)
    },
    "splits",
    "times the ideal",
    "Batches: teeth, because only whole waves count",
    caption="Computed in the same way. A tooth begins where one wave more is needed.",
)

# %%
for batch, length in ((1, 1024), (1, 8192), (16, 1024), (64, 1024)):
    chosen = split_choice.choose_splits(batch, 8, 4, length, SMS)
    print(
        f"{batch:2} sequences of {length:5,}: {chosen:2} splits, {8 * batch * chosen:3} blocks, "
        f"{times_the_ideal(8 * batch, chosen):.2f} times the ideal"
    )
chosen = split_choice.choose_splits(16, 8, 4, 1024, SMS)
assert chosen == 3 and times_the_ideal(128, 4) > 1.4 * times_the_ideal(128, 3)

# %% [markdown]
# The kernel's rule is: the fewest splits that come within 15 % of the best use of the places, and no more than fill them
# about once. 64 sequences have more heads than there are places, so they are not split, and their second wave is mostly
# empty. You will find that in the measurements.
#
# <!-- end aside -->
#
# On a machine with a GPU, this cell measures the teeth there:

# %%
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
    noise = rng.standard_normal((2, length // 16, 16, 8, 128)).astype(ml_dtypes.bfloat16)
    one_query = rng.standard_normal((1, 32, 128)).astype(ml_dtypes.bfloat16)
    result = place.empty(one_query.shape, one_query.dtype)
    lens = [place.array(array) for array in (np.int32([0, 1]), np.int32([length]), tables)]
    sets = [  # of query, keys and values: so many that a cache does not hold them
        [place.array(array) for array in (one_query, *noise)] + [result, *lens]
        for _ in range(sets_of_arrays(noise.nbytes))
    ]
    print(machine_line())
    for name, splits in (*(("split_kv", n) for n in (1, 2, 4, 8, 16, 32, 48, 64, 96)), ("split_tensor_core", None)):
        module = VARIANTS[name]
        shapes = module.workspace_shapes(one_query, noise[0], tables, splits)
        options = dict(max_query_len=1, splits=splits, workspace=make_workspace(shapes, place.empty, place.zeros))
        calls = [functools.partial(module.attention, *arrays, 128**-0.5, **options) for arrays in sets]
        try:
            seconds = kernel_seconds(*[lambda stream, call=call: call(stream=stream) for call in calls])
        except MinLLMError as error:
            print(f"{name}: not on this GPU: {error}")
            continue
        speed = noise.nbytes / seconds / 1e12
        print(f"{name:18} {str(splits or 'own plan'):>8}: {1e6 * seconds:7.1f} µs, {speed:.2f} TB/s")
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# ## The kernel that the engine uses: split_tensor_core
#
# split_kv multiplies number by number, and merges in a second launch. Its shares are equal for a batch of equal contexts
# only. The next rung mends all three.
#
# **Grouped heads on tensor cores.** A matrix instruction multiplies 16 rows by 8 columns. One query would fill one row of
# 16. Turned round, $S^\top = K Q^\top$ puts keys on the 16 rows and the heads of a group on the 8 columns:

# %% tags=["hide-input"]
from minllm.kernels.attention.split_tensor_core import merge_parts as split_merge_parts
from minllm.kernels.attention.split_tensor_core import tile as split_tile
from minllm.kernels.attention.split_tensor_core import unified_maximum as split_unified_maximum

show_source(
    split_tile.make_products,
    part="score_tile",
    notes={
        "ldmatrix_x4(key_fragments": "16 keys by 16 numbers, straight from the ring in shared memory.",
        "for column in range(columns)": "Up to 8 query heads a column tile: one for Llama-3.1-8B, whose group is 4.",
        "multiply(odd": "Two short chains of products instead of one long one: fewer waits.",
    },
)

# %% [markdown]
# Half of the columns stay empty with a group of 4. It does not matter: operations are cheap here, what counts is that few
# instructions stand between two loads. Every warp has a ring of tiles in shared memory which `cp.async` fills, as
# in lesson 5; 100 KB and more are on their way on each SM, where Little's law asks for 26.
#
# **Fair shares.** The tiles of all sequences and heads are laid on one line, and the line is cut into equal runs, one for
# each block. Here are four contexts of very different lengths, two KV heads, and eight blocks:

# %% tags=["fold"]
from minllm.course import Span, timeline

lengths, kv_heads, tile, workers = (4096, 704, 2304, 512), 2, 64, 8
heads_of_line = [(sequence, length // tile) for sequence, length in enumerate(lengths) for _ in range(kv_heads)]
alone = [Span(f"block {i}", 0, tiles, f"{sequence}", sequence) for i, (sequence, tiles) in enumerate(heads_of_line)]
timeline(
    alone,
    "tiles",
    "A block for each head: the short ones wait for the long ones",
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
        fair.append(Span(f"block {block}", first, first + count, f"{sequence}", sequence))
assert max(span.end for span in alone) > 2 * max(span.end for span in fair)
timeline(
    fair,
    "tiles",
    "Fair shares of one line: all end together",
    caption="The same work. A head that is cut is merged afterwards; a block may end one head and begin the next.",
)

# %% [markdown]
# <!-- aside: Merging in the last block to arrive -->
#
# A block that shares a head leaves its state in memory and counts itself in. The
# block that finds all others there already is the last, so it merges. There is no second launch and nobody waits:

# %% tags=["hide-input"]
show_source(
    split_merge_parts.make_merges,
    part="arrive",
    notes={
        "cuda.threadfence()  # what this": "First the state, then the count: whoever sees the count sees the state.",
        "cuda.atomic.add": "How many were there before me?",
        "return arrived[0]": "The one that gets parts - 1 merges all, in the order of the keys: the same bits every time.",
    },
)

# %% [markdown]
# <!-- end aside -->
#
# In the simulator, on a machine of four places:

# %%
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.split_tensor_core.shape import SplitShape

small = dict(sm_count=4, shape=SplitShape(warps=1, keys=16, stages=2, blocks=1))  # a machine of four places
out = np.empty_like(query)
with tracing() as traces:
    VARIANTS["split_tensor_core"].attention(query, key_cache, value_cache, out, *layout, scale, **small)
assert np.allclose(out.astype(np.float32), expected, atol=0.01)
(trace,) = traces
cached = trace.arrays["key_cache"].total.bytes + trace.arrays["value_cache"].total.bytes
print(f"one launch, {trace.grid[0]} blocks: K and V {cached:,} bytes")
print(f"{trace.tensor_core_flops:,} operations on tensor cores")
assert cached == cache.nbytes and trace.grid[0] == 4

# %% [markdown]
# ## Measured against predicted
#
# One sequence, longer and longer. The bytes grow and the fixed cost of a launch, a first fetch and a merge does not:

# %% tags=["fold"]
rows = recorded("decode attention", "32/8 heads, d 128, bfloat16")


def size_of(row):
    """(sequences, keys of each)."""
    sequences, length = row.case.split(",")[0].split("x")
    return int(sequences), int(length)


def layout_of(row):
    """How the keys lie: in blocks of 16, in one block a sequence, or ragged."""
    return row.case.split("bfloat16")[1].strip(", ") or "blocks of 16"


lines, library = {}, {}
for row in rows:
    sequences, length = size_of(row)
    if sequences == 1 and row.variant in ("split_kv", "split_tensor_core") and "ragged" not in layout_of(row):
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
    caption=f"32 query heads, 8 KV heads of 128; {rows[0].label}. The library, through torch, gets contiguous keys.",
)

# %% tags=["fold"]
ladder = ("materialized", "split_kv", "split_tensor_core")
shown = [row for row in rows if row.variant in ladder and size_of(row)[1] == 1024 and "ragged" not in layout_of(row)]
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
    caption=f"A logarithmic axis; 32 query heads, 8 KV heads of 128, bfloat16; {rows[0].label}.",
)

# %%
split_rows = {size_of(row): row.value for row in rows if row.variant == "split_kv"}
(slow,) = [row for row in rows if row.variant == "materialized" and size_of(row) == (1, 1024)]
unsplit = reachable(8 * block_bytes)
print(f"one sequence of 1,024 keys: {slow.value:.3f} TB/s without splits, {split_rows[1, 1024]:.2f} with them")
print(f"8,192 keys: {split_rows[1, 8192]:.2f} TB/s; Little's law gives eight blocks {unsplit:.2f}")
waves_allow = tb_s / times_the_ideal(512, 1)
print(f"64 of 1,024: two waves of blocks allow {waves_allow:.2f} TB/s, split_kv reached {split_rows[64, 1024]:.2f}")
assert split_rows[64, 1024] < waves_allow
assert all(max(row.value, row.peer_value or 0) < tb_s / 4 for row in rows if size_of(row) == (1, 1024))
assert slow.value < unsplit < split_rows[1, 1024] < split_rows[1, 8192] < split_rows[16, 1024] < tb_s

# %% [markdown]
# - **Splits pay.** The three kernels of lesson 3, which write their scores, stay below what eight blocks could reach. Split
#   over the machine, the same attention passes that limit.
# - **One short sequence stays far from the roof**, whatever the kernel, the library's included. There is too little to
#   read: 1,024 keys are 4 MB, which memory delivers in a microsecond. Nothing starts, fetches, merges and ends in one.
# - **With enough keys** in all, in one long context or in many, memory's speed is the limit: look at the library's figure
#   for the largest batch, and at how near ours comes.
#
# On the roofline all of them stand on one line above 4 operations a byte, far left of the ridge:

# %% tags=["fold"]
from minllm.course import Dot, roofline

best = {}
for row in sorted(rows, key=lambda row: row.value):
    if row.variant in ladder[1:] and size_of(row) in ((1, 1024), (1, 8192), (64, 1024)):
        best[size_of(row)] = row
dots = [
    Dot.of_bandwidth(f"{n} x {length}: {row.value:.2f} TB/s", 4.0, row.value, colour=1)
    for (n, length), row in best.items()
]
dots.append(Dot.of_bandwidth(f"gemv: {max(row.value for row in one_row):.2f} TB/s", 1.0, max(r.value for r in one_row)))
roofline(
    dots,
    tb_s,
    tflops,
    "Reading weights, and reading the cache",
    caption=f"The best recorded kernel of each size; sequences x keys, bfloat16; {rows[0].label}.",
)

# %% [markdown]
# ## FlashDecoding++: one maximum for all
#
# FlashDecoding++ (2023) looks at what is left besides reading. The running maximum is a chain: a tile's weights have to
# wait for its largest score, which all lanes find together, and whatever was summed is rescaled. But the softmax is the
# same *whatever* is subtracted:
#
# $$\mathrm{softmax}(s)_j = \frac{e^{s_j - \varphi}}{\sum_i e^{s_i - \varphi}} \qquad \text{for any } \varphi$$
#
# So fix $\varphi$ beforehand, from a model's statistics. Shares then need no maximum, and their sums simply add up. What
# is the catch? Weights are rounded to 16 bits for the tensor cores. Far above $\varphi$ they overflow, far below they
# vanish:

# %%


def error_of(phi_above_maximum, dtype):
    """The output's error where phi is so many powers of 2 above the largest score."""
    base_2 = (scores - scores.max()) * np.log2(np.e)
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        weights = np.exp2((base_2 - phi_above_maximum).astype(np.float32)).astype(dtype).astype(np.float32)
        return float(np.abs(weights @ values / weights.sum() - at_once).max())


offsets = range(-24, 41)
usable = {}
for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
    points = [(offset, error_of(offset, dtype)) for offset in offsets]
    points = usable[name] = [(offset, error) for offset, error in points if np.isfinite(error)]
    print(f"{name:8}: usable from {points[0][0]} to {points[-1][0]} of {offsets[0]} to {offsets[-1]}")
assert usable["float16"][0][0] > -20 and len(usable["bfloat16"]) == len(offsets)

# %% tags=["fold"]
curves(
    usable,
    "powers of 2 by which φ is above the largest score",
    "largest error",
    "The band in which a unified maximum works",
    log_y=True,
    caption="300 random keys; computed. Where a line ends, weights overflow or all of them vanish.",
)

# %% [markdown]
# In float16 the band is narrow. bfloat16 has fewer digits, but almost the range of float32, and is at its ease everywhere
# in the picture. So somebody has to watch.
#
# <!-- aside: The two ways to fold a tile in, and the guard -->
#
# With the running maximum, and below it with the unified one:

# %% tags=["hide-input"]
show_source(
    split_tile.make_softmax,
    part="fold",
    notes={
        "maximum = maximum_over_rows": "Three exchanges between lanes, which everything below waits for.",
        "*= correction": "The output is rescaled.",
    },
)

# %% tags=["hide-input"]
show_source(
    split_unified_maximum.make_unified_softmax,
    part="fold_unified",
    notes={
        "exponent = ": "maxima holds φ and never changes.",
        "highest = max": "Each lane for itself: the guard's witness.",
    },
)

# %% tags=["hide-input"]
show_source(
    split_unified_maximum.make_unified_softmax,
    part="failed",
    notes={
        "return int32(1)": "Too high anywhere, or a sum so small that its weights have lost their digits: this share is not valid.",
    },
)

# %% [markdown]
# <!-- end aside -->
#
# A block whose share has left the band takes its tiles again, with the running maximum, in the same launch. A state says
# which maximum it was made with, so both kinds merge. Watch it happen: one key out of 256 is made to fit the query
# so well that its score leaves the band.

# %%
moved = {}
for name, factor in (("ordinary keys", 0), ("one huge score", 30)):
    changed = key_cache.copy()
    if factor:
        changed[block_table[0, 5], 3] = (factor * query[0, 0].astype(np.float32)).astype(key_cache.dtype)
    right = attention_reference(query.astype(np.float32), changed, value_cache, *layout, scale)
    with tracing() as traces:
        VARIANTS["split_unified_maximum"].attention(query, changed, value_cache, out, *layout, scale, **small)
    assert np.allclose(out.astype(np.float32), right, atol=0.01)
    (trace,) = traces
    moved[name] = trace.arrays["key_cache"].total.bytes
    print(f"{name:15} {moved[name]:,} bytes of keys, result right")
assert moved["one huge score"] == moved["ordinary keys"] * 5 / 4  # one share of four, taken again

# %% [markdown]
# Does it pay? The paper reports 1.14 times the speed of decode attention, on GPUs and against kernels of its time. A step
# waits for memory. What the unified maximum saves is arithmetic and exchanges, and if these hide behind the loads
# already, there is nothing to win. What the record of this page says:

# %%
pairs = 0
for row in rows:
    for other in rows:
        if (row.variant, other.variant) == ("split_unified_maximum", "split_tensor_core") and row.case == other.case:
            pairs += 1
            print(f"{row.case.split(',')[0]}: {row.value:.2f} TB/s with the unified maximum, {other.value:.2f} without")
            print(f"  {row.value / other.value:.2f} times as fast ({row.label})")
if not pairs:
    print("The record has no figures of the unified maximum yet; nothing is claimed for it.")

# %% [markdown]
# The engine chooses [split_tensor_core](../minllm/kernels/attention/split_tensor_core/split_tensor_core.py) for its steps: where the two
# are level, the one that needs no statistics and no guard is the better one.
#
# ## Flat products
#
# The paper's second idea concerns the weights once more, for a batch of a few sequences. GEMV multiplies number by number,
# and with 8 rows of $x$ that is too slow to keep up with memory. Tensor cores are quick enough, but libraries gave the
# tokens the large side of the tile and multiplied padding. Turned round, $\mathrm{out}^\top = W x^\top$, the weight
# takes the large side, and the tokens the one that is a multiple of 8.

# %% tags=["fold"]
tokens = 8
bars(
    [
        Bar("tokens on 128 rows", 128 / tokens, "the tiles of lesson 5", 1),
        Bar("tokens on 64 rows", 64 / tokens, "what the paper found in libraries", 1),
        Bar("tokens on 8 columns", -(-tokens // 8) * 8 / tokens, "flat"),
    ],
    unit="times",
    title="Products computed for each one that is wanted, 8 tokens",
    caption="Computed from the sizes of tiles.",
)

# %% tags=["fold"]
N, K = 6144, 4096
microseconds, library = {}, {}
for row in recorded("matmul", f"x{N}x{K}, bfloat16"):
    M = int(row.case.split("x")[0])
    work = 2 * M * N * K if row.unit == "TFLOP/s" else 2 * (M * K + N * K + M * N)
    if M <= 256:
        microseconds.setdefault(row.variant, {})[M] = work / row.value / 1e6
        if row.peer_value:
            library[M], library_name = work / row.peer_value / 1e6, row.peer
        label = row.label
microseconds[library_name] = library
curves(
    {name: sorted(points.items()) for name, points in microseconds.items() if len(points) > 1},
    "tokens",
    "µs",
    f"A weight of {N:,} x {K:,}",
    log_x=True,
    caption=f"bfloat16. Reading the weight once takes {2 * N * K / tb_s / 1e6:.1f} µs at a copy's speed; {label}.",
)

# %%
slower = microseconds["gemv"][8] / microseconds["gemv"][1]
print(f"gemv, 8 tokens instead of 1: {slower:.2f} times the time, though the bytes are nearly the same")
assert slower > 1.05

# %% [markdown]
# The third idea is to choose: in the paper, GEMV for the fewest rows, flat products for more, and large tiles for the
# rest. Where one ends and the next begins is a matter of measurement, as the picture shows.
# [dataflow.py](../minllm/kernels/matmul/dataflow.py) chooses from a table that was measured on the GPU in question.
#
# ## Exercises

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises(9)

# %% [markdown]
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("short_neighbour")

# %% [markdown]
# ## What next, and which measurement says so
#
# The curve of one sequence says what is left: at short contexts, time that no byte explains. Launches, beginnings and
# ends of kernels are the subject of lesson 13. And the first bars say what remains even if every kernel were perfect: a
# step reads what it reads. So the next gains come from reading less. Sequences that share a beginning read its keys once:
# lesson 10. Keys and values in 8 bits are half as many bytes: lesson 11. Before all that, the logits are
# there and a token has to be chosen: [lesson 12](12_choosing_the_next_token.py).
#
# ## Sources
#
# - T. Dao, D. Haziza, F. Massa, G. Sizov, "Flash-Decoding for long-context inference", 2023.
# - K. Hong et al., "FlashDecoding++: Faster Large Language Model Inference on GPUs", MLSys 2024 (arXiv 2311.01282),
#   sections 3 to 5.
# - M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018 (arXiv 1805.02867), section 3.1.
# - Z. Ye et al., "FlashInfer", MLSys 2025 (arXiv 2501.01005), section 2.2: the algebra of states.
# - V. Volkov, "Better Performance at Lower Occupancy", GTC 2010: bytes in flight.
# - NVIDIA, "PTX ISA", sections "ld", "ldmatrix", "mma", "movmatrix", "cp.async".
