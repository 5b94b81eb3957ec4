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
# # 8. The KV cache
#
# A model writes its thousandth token. Does it have to read the other 999 again? It could, and the result would be the
# same. In this lesson you count the cost of that, see why it is not needed, and follow a key to its slot in memory. The
# cache has a price: its size decides how many users a GPU can serve.
#
# ```mermaid
# flowchart LR
#     new["new token<br/>[1, hidden]"] --> qkv["query, key, value"]
#     qkv -->|"key, value"| cache[("KV cache<br/>[context, kv_heads, head_dim]<br/>twice in every layer")]
#     qkv -->|"query"| attention["attention<br/>[1, heads, head_dim]"]
#     cache -->|"all keys and values"| attention
#     attention --> rest["feed-forward,<br/>next layer, logits"]
# ```
#
# $$\text{slot} = \text{block table}[\lfloor p / 16 \rfloor] \cdot 16 + p \bmod 16$$
#
# $$\text{bytes per token} = 2 \cdot \text{layers} \cdot \text{KV heads} \cdot \text{head dim} \cdot \text{bytes per number}$$
#
# The cache consists of blocks of 16 slots. A sequence's block table lists its blocks in the order of its tokens, so the
# first equation gives the slot of position $p$. Given the slots, writing is a copy:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.kv.ladder import append as append_module

show_source(
    append_module.append_vector_kernel,
    notes={
        "token, row = cuda.blockIdx.x": "One block of threads per new token. A row is kv_heads * head_dim numbers.",
        "if slot < 0": "Padding: a row without a token writes nothing.",
        "key0, key1": "16 bytes, as four words of 32 bits: a copy does not depend on the dtype.",
        "store_128(key_cache": "The only line that depends on paging: it uses the slot's row, not the token's.",
    },
)

# %% [markdown]
# **What you will be able to do**
#
# - say which work the cache saves and why the result stays the same, and count it;
# - compute the bytes per token in the cache for any model, and the largest batch for any context;
# - find the slot of a token from its position and a block table, and read the kernels that write it there.
#
# You need [lesson 1](01_what_a_language_model_computes.py), [lesson 2](02_your_first_kernel.py), and queries, keys
# and values from [lesson 3](03_scaled_dot_product_attention.py). You need no GPU.
#
# ## Predict
#
# The bundled model has read 256 tokens and writes 256 more. It takes about 16 million operations to compute one token.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    flops_with_cache="How many operations does it take with a cache?",
    flops_without="And how many if each new token computes the whole text again?",
    bytes_per_token_of_llama_2_70b="Llama-2-70B has 80 layers and a hidden size of 8,192. "
    "How many bytes are one token's keys and values, in 16 bits?",
)
guess.ask()

# %% [markdown]
# ## Past keys and values do not change
#
# A token attends to itself and to the tokens before it, never to those after it. So its hidden states stay the same
# whatever follows, and so do its keys and values. The model confirms it: the logits of a text's first tokens do not
# change when the text continues.

# %%
import numpy as np

import minllm
from minllm import LLM

llm = LLM(
    dtype="float32"
)  # as in training; rounding to bfloat16 would hide the difference
tokens = llm.tokenizer.encode(minllm.held_out_text()[:3000])  # token ids
short, long = (
    llm.logits(tokens[:40]),
    llm.logits(tokens[:60]),
)  # [40, vocabulary], [60, vocabulary]
print(f"largest difference in the first 40 rows: {np.abs(short - long[:40]).max():.1e}")
print(f"logits are as large as {np.abs(long).max():.0f}")

# %% tags=["hide"]
assert len(tokens) > 600

# %% [markdown]
# A new token needs only the keys and values of the old ones, in each layer. Their queries, feed-forward outputs and
# logits are not needed. If keys and values are kept, a step computes one token.
#
# !!! tip "Takeaway"
#     Keys and values of past tokens never change, so they are computed once.
#
# ## Write your own
#
# So the keys and values are kept. How many bytes is that per token? Write the function that the engine plans its memory
# with:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("costs.kv_bytes_per_token")

# %% [markdown]
# ## Count what it saves
#
# Without a cache, the step for token $n$ computes $n$ tokens, and its attention $n^2 / 2$ pairs of a query and a key.
# With a cache it computes one token and $n$ pairs. Over a whole text, attention grows with the square of the length
# instead of the cube, and all other work grows linearly instead of with the square.

# %%
from minllm import costs

config = llm.engine.model.config
read, written = 256, 256
lengths = range(read + 1, read + written + 1)  # tokens in the text after each step
with_cache = [costs.decode_step(config, 1, n).flops for n in lengths]
without = [costs.prefill(config, n).flops for n in lengths]
print(f"with the cache   {sum(with_cache) / 1e9:8.1f} GFLOP")
print(
    f"without it       {sum(without) / 1e9:8.1f} GFLOP, "
    f"{sum(without) / sum(with_cache):.0f} times as many"
)

# %% tags=["fold"]
from minllm.course import curves

places = [2**k for k in range(4, 15)]
curves(
    {
        "without a cache": [(n, costs.prefill(config, n).flops) for n in places],
        "with it": [(n, costs.decode_step(config, 1, n).flops) for n in places],
    },
    "tokens in the text",
    "FLOP",
    "Operations for the next token, bundled model",
    log_x=True,
    log_y=True,
    caption="Counted by minllm.costs. With the cache, only attention grows, and that "
    "shows late.",
)

# %% [markdown]
# !!! tip "Takeaway"
#     A cache turns a step over all tokens into a step over one.
#
# ## See that nothing changes
#
# Here is the engine's own forward pass with a cache that we allocate ourselves. `logits_of` computes tokens that begin
# at position `start`. Without a cache we pass the whole text each time; with a cache, one token. The block table is
# shuffled on purpose: blocks may lie anywhere.

# %%
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.engine.running.batch_arrays import NewTokens, build_batch, to_backend
from minllm.models.decoder import forward

BLOCK_SIZE = 16
ops, model = llm.engine.ops, llm.engine.model
shape = CacheShape(
    config.num_hidden_layers,
    BLOCK_SIZE,
    config.num_key_value_heads,
    config.head_dim,
    ops.dtype,
)
rng = np.random.default_rng(0)
table = rng.permutation(40).tolist()  # 40 blocks: room for 640 tokens


def logits_of(token_ids, start, cache):
    """Logits [vocabulary] after the last of `token_ids`, which stand at the positions
    from `start` on."""
    batch = build_batch(
        [NewTokens(token_ids, start, table)], [len(token_ids) - 1], BLOCK_SIZE
    )
    return ops.to_host(forward(ops, model, to_backend(batch, ops), cache.layers))[0]


cache = KVCache(ops, shape, num_blocks=40)
logits_of(tokens[:64], 0, cache)  # the prompt fills 64 slots per layer
differences = []
for n in range(65, 97):
    one_token = logits_of(tokens[n - 1 : n], n - 1, cache)  # a step with the cache
    whole_text = logits_of(
        tokens[:n], 0, KVCache(ops, shape, num_blocks=40)
    )  # the same step without a cache
    differences.append(np.abs(one_token - whole_text).max())
print(f"32 steps, largest difference of any logit: {max(differences):.1e}")

# %% tags=["hide"]
assert max(differences) < 1e-2

# %% [markdown]
# Only the last bits differ, because sums are formed in another order. The first chart shows the time on this machine,
# the second the recorded time for a model of common size. (On a GPU the bundled model may show two flat lines: it is so
# small that launching its kernels takes longer than running them. See lesson 15.)

# %% tags=["fold"]
from minllm.course import machine_line, timed

marks = (32, 64, 128, 256, 512)
cache = KVCache(ops, shape, num_blocks=40)
logits_of(tokens[:512], 0, cache)
taken = {
    "without a cache": [
        (n, 1e3 * timed(lambda n=n: logits_of(tokens[:n], 0, cache), 3)) for n in marks
    ],
    "with it": [
        (n, 1e3 * timed(lambda n=n: logits_of(tokens[n - 1 : n], n - 1, cache), 3))
        for n in marks
    ],
}
curves(
    taken,
    "tokens in the text",
    "ms",
    "Time for the next token, bundled model",
    log_x=True,
    log_y=True,
    caption=f"Kernels launched one by one; {machine_line()}.",
)

# %% tags=["fold"]
from minllm.course import recorded

rows = recorded("length")


def by_length(variant):
    """(prompt, ms) of the recorded rows."""
    return [
        (int(row.case.split("prompt ")[1].split(",")[0]), row.value)
        for row in rows
        if row.variant == variant
    ]


first_token, decode_step = by_length("first token"), by_length("decode step")
curves(
    {"without a cache": first_token, "with it": decode_step},
    "tokens in the text",
    "ms",
    "Time for the next token, the shape of an 8B model",
    log_x=True,
    log_y=True,
    caption="Time to first token (TTFT) and time per output token (TPOT). Without a "
    "cache both cost the whole text; "
    f"{rows[0].label}.",
)

# %%
from minllm.course import comparable

(whole,) = recorded(
    "whole prefill", "llama-3.1-8b (random weights), 2048 tokens", "bfloat16"
)
(step,) = recorded(
    "decode step",
    "llama-3.1-8b (random weights), batch 1, context 1024",
    "graph replay",
)
comparable(whole, step)
slow, fast = whole.value, step.value / 1e3
print(
    f"8B shape, GPU time alone: a text of 2,048 tokens {slow:.0f} ms,\n"
    f"one token after 1,024 {fast:.2f} ms, {slow / fast:.0f} times"
)
print(whole.lines)

# %% tags=["hide"]
assert slow > 10 * fast

# %% [markdown]
# !!! tip "Takeaway"
#     The result is the same, up to the order of sums.
#
# ## Where a token goes
#
# The engine keeps two arrays per layer, keys and values, each
# `[num_blocks, block_size, kv_heads, head_dim]`.
# One line of [batch_arrays.py](../minllm/engine/running/batch_arrays.py) turns positions into slots:


# %%
def slots_of(block_table, positions, block_size):
    """The block's number, times the block size, plus the offset in the block."""
    return block_table[positions // block_size] * block_size + positions % block_size


# %%
spans = [
    NewTokens(
        token_ids=tokens[:37], start=0, block_table=[5, 2, 7]
    ),  # a prompt of 37 tokens
    NewTokens(
        token_ids=tokens[20:21], start=20, block_table=[0, 6]
    ),  # one new token at position 20
]
batch = build_batch(spans, [36, 37], BLOCK_SIZE)
print("slot_mapping, positions 14 to 18:", batch.slot_mapping[14:19])
print("slot_mapping, the new token     :", batch.slot_mapping[37], "= 6 * 16 + 4")
print("block_tables [sequences, most blocks]:", batch.block_tables.tolist())
print("context_lens [sequences]:", batch.context_lens)

# %% tags=["hide"]
assert batch.slot_mapping[37] == 6 * 16 + 4
assert np.array_equal(
    batch.slot_mapping[:37], slots_of(np.array([5, 2, 7]), np.arange(37), BLOCK_SIZE)
)

# %% tags=["fold"]
from minllm.course import heat_map

slots = np.full(8 * BLOCK_SIZE, np.nan)
slots[batch.slot_mapping[:37]] = np.arange(1, 38)
heat_map(
    slots.reshape(8, BLOCK_SIZE),
    "Slots of the first sequence, and the token in each (counted from 1)",
    row_names=[f"block {number}" for number in range(8)],
    show_values=True,
    caption="Block table [5, 2, 7]: tokens 1 to 16 in block 5, 17 to 32 in block 2, "
    "the rest in block 7.",
)

# %% [markdown]
# In the last block 11 slots are empty. No sequence ever wastes a whole block. Attention finds its keys through the same
# table. Lesson 11 explains what blocks make possible. Here is the kernel from the top, on three new tokens:

# %%
from minllm.kernels.kv.ladder.append import append
from minllm.kernels.kv.reference import append_reference
from minllm.sim import tracing

new, kv_heads, head_dim = 3, 2, 64
key, value = (
    rng.standard_normal((new, kv_heads, head_dim)).astype(np.float32) for _ in range(2)
)
slot_mapping = np.int32([37, 4, -1])  # the last is padding
caches = [np.zeros((4, BLOCK_SIZE, kv_heads, head_dim), np.float32) for _ in range(2)]
expected = [one.copy() for one in caches]
append_reference(key, value, *expected, slot_mapping)
with tracing() as traces:
    append(key, value, *caches, slot_mapping)
for name, array in traces[0].arrays.items():
    print(
        f"{name:13} read {array.read.bytes:5,} bytes, written {array.write.bytes:5,} "
        "bytes"
    )

# %% tags=["hide"]
assert all(np.array_equal(*pair) for pair in zip(caches, expected))
assert (
    traces[0].arrays["key_cache"].write.bytes == 2 * kv_heads * head_dim * 4
)  # two of the three tokens are stored

# %% [markdown]
# The projection writes queries, keys and values into one array. Keys have to be split off and rotated by their position
# before they are stored. The engine fuses these steps: load once, rotate in registers, write each part to its
# destination.

# %% tags=["hide-input"]
from minllm.kernels.kv import qkv_rope_append as fused_module

show_source(
    fused_module.qkv_rope_append_kernel(64, 64, False, False),
    folded="The fused kernel, qkv_rope_append",
    notes={
        "wait_for_predecessors": "This kernel may be started before the one that makes qkv has ended: lesson 15.",
        "head = uint32": "One warp per head and token: query heads, then key heads, then value heads.",
        "position, slot =": "All loads come before any use, so memory is waited for twice, not four times.",
        "a[r], b[r] = a[r] * cosine": "The rotation, in registers.",
        "elif slot >= 0": "Queries go to the attention kernel; keys and values to their slot.",
    },
)

# %% tags=["fold"]
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append
from minllm.kernels.rope.ladder.rope import rope
from minllm.kernels.rope.reference import rope_table

new, heads, kv_heads, head_dim = 16, 8, 2, 64
qkv = rng.standard_normal((new, (heads + 2 * kv_heads) * head_dim)).astype(np.float32)
positions = slot_mapping = np.arange(new, dtype=np.int32)  # [T]
angles = rope_table(
    32, head_dim, 10000.0 ** -(np.arange(0, head_dim, 2) / head_dim)
)  # [32, head_dim]
caches = [np.zeros((1, BLOCK_SIZE, kv_heads, head_dim), np.float32) for _ in range(2)]
query = np.empty((new, heads, head_dim), np.float32)
with tracing() as fused:
    qkv_rope_append(qkv, positions, slot_mapping, *caches, query, angles)

by_head = qkv.reshape(new, heads + 2 * kv_heads, head_dim)
parts = np.split(by_head, [heads, heads + kv_heads], axis=1)
q, k, v = (
    np.ascontiguousarray(part) for part in parts
)  # splitting is a copy: every byte is read and written once
turned_q, turned_k = np.empty_like(q), np.empty_like(k)
separate_caches = [np.zeros_like(one) for one in caches]
with tracing() as separate:
    rope(q, positions, angles, turned_q, False)
    rope(k, positions, angles, turned_k, False)
    append(turned_k, v, *separate_caches, slot_mapping)
assert np.allclose(turned_q, query, atol=1e-5)
assert all(np.allclose(*pair, atol=1e-5) for pair in zip(caches, separate_caches))

# %% tags=["fold"]
from minllm.course import Bar, bars

apart = 2 * qkv.nbytes + sum(trace.total.unique_bytes for trace in separate)
together = fused[0].total.unique_bytes
bars(
    [
        Bar("split, rope, rope, append", apart / 1e3, "4 launches", 1),
        Bar("qkv_rope_append", together / 1e3, "1 launch"),
    ],
    unit="kB",
    title="Unique bytes moved, 16 tokens",
    caption="Counted in the simulator; the split by its formula, every byte read and "
    "written once.",
)

# %% tags=["hide"]
assert apart > 1.9 * together

# %% [markdown]
# !!! tip "Takeaway"
#     A block table gives the slot of a token: one lookup, one addition.
#
# ## What it costs: memory
#
# Each token leaves a key and a value, in each layer, for each KV head: the formula at the top.
#
# A common shortcut, `2 * hidden_size * layers * bytes`, counts a key and a value for every *query* head. For Llama-2-70B it
# gives 2.6 MB per token, or 42.9 GB for 16 sequences of 1,024 tokens. But 8 of its query heads share one KV head.

# %%
from minllm.models.shapes import find_config

_, llama70 = find_config("llama-2-70b")
batch_tokens = 16 * 1024
for heads, name in (
    (llama70.num_attention_heads, "a KV head per query head"),
    (llama70.num_key_value_heads, "the model"),
):
    token = 2 * llama70.num_hidden_layers * heads * llama70.head_dim * 2
    print(
        f"{name:24} {heads:2} KV heads: {token:9,} bytes per token, "
        f"{token * batch_tokens / 1e9:4.1f} GB in all"
    )

# %% tags=["hide"]
assert token == costs.kv_bytes_per_token(llama70) == 327_680
assert costs.ungrouped_kv_bytes_per_token(llama70) == 2_621_440

# %% tags=["hide-input"]
guess.against(
    flops_with_cache=sum(with_cache),
    flops_without=sum(without),
    bytes_per_token_of_llama_2_70b=costs.kv_bytes_per_token(llama70),
)

# %% [markdown]
# If your guess with the cache is too low, it left out attention, which reads every earlier token. The model
# needs 5.4 GB, an eighth of the shortcut's figure. The difference decides whether that batch fits on one GPU beside the
# weights. Other models differ:

# %% tags=["fold"]
names = (
    "gpt2",
    "llama-2-7b",
    "llama-2-70b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "qwen2.5-7b",
    "qwen3-8b",
)
listed = {name: find_config(name)[1] for name in names}
bars(
    [
        Bar(
            name,
            costs.kv_bytes_per_token(one) / 1e3,
            f"{one.num_attention_heads} query heads, {one.num_key_value_heads} KV "
            "heads",
        )
        for name, one in listed.items()
    ],
    unit="kB",
    title="Keys and values of one token, 16 bits",
    caption="From each model's configuration. Llama-2-7B needs more than models ten "
    "times its size.",
)

# %% tags=["hide"]
assert costs.kv_bytes_per_token(listed["llama-2-7b"]) > costs.kv_bytes_per_token(
    listed["llama-3.1-70b"]
)

# %% [markdown]
# !!! tip "Takeaway"
#     Only KV heads count: grouped queries divide the size of the cache.
#
# ## The largest batch for a context
#
# The memory left beside weights and activations, divided by the bytes of one sequence, is the largest batch. `minllm
# plan` prints it; this chart shows it for many contexts.

# %% tags=["fold"]
from dataclasses import replace

from minllm.machine.hardware import gpu_named
from minllm.planning.plan import Wishes, make_plan

_, h200 = gpu_named("h200")
llama8 = listed["llama-3.1-8b"]
contexts = [2**k for k in range(9, 18)]


def largest(one, **wishes):
    """(context, largest batch) where at least one sequence fits."""
    found = [
        (context, make_plan(one, h200, Wishes(context=context, **wishes)).largest_batch)
        for context in contexts
    ]
    return [(context, batch) for context, batch in found if batch]


curves(
    {
        "8 KV heads": largest(llama8),
        "8 KV heads, 8 bits": largest(llama8, kv_dtype="float8"),
        "if it had 32 KV heads": largest(replace(llama8, num_key_value_heads=32)),
    },
    "tokens of context",
    "sequences",
    "Largest batch, the shape of Llama-3.1-8B on one H200",
    log_x=True,
    log_y=True,
    caption="Computed: 141 GB, of which 90 % to use, weights in bfloat16. Twice the "
    "context, half the batch.",
)

# %%
plan = make_plan(llama8, h200, Wishes(context=8192))
room = plan.budget_bytes - plan.weight_bytes
print(
    f"{room / 1e9:.0f} GB beside the weights hold "
    f"{room / costs.kv_bytes_per_token(llama8):,.0f} tokens"
)
print(f"sequences of 8,192 tokens: {plan.largest_batch}")

# %% [markdown]
# !!! tip "Takeaway"
#     Memory for the cache, not speed, often limits the number of users.
#
# ## What it costs: time
#
# Every step reads the whole cache. For one sequence that is little. In a batch, the weights are read once for all
# sequences, but each sequence has its own cache to read.

# %% tags=["fold"]
batch, limit_tb_s = 64, h200.ceiling_tb_s
weights_ms = [
    (
        n,
        1e3
        * sum(s.weight_bytes for s in costs.decode_stages(llama8, batch, n))
        / limit_tb_s
        / 1e12,
    )
    for n in contexts[:5]
]
cache_ms = [
    (
        n,
        1e3
        * sum(s.kv_bytes for s in costs.decode_stages(llama8, batch, n))
        / limit_tb_s
        / 1e12,
    )
    for n in contexts[:5]
]
curves(
    {"reading the weights": weights_ms, "reading keys and values": cache_ms},
    "tokens of context of each sequence",
    "ms",
    "A decode step of 64 sequences, 8B shape: the floors",
    caption=f"Computed with the measured copy of the H200, {limit_tb_s} TB/s.",
)

# %% [markdown]
# !!! tip "Takeaway"
#     A batch shares the weights, but each sequence reads its own cache.
#
# ## Measured against predicted
#
# Attention does 4 operations per byte of the cache in this shape: 4 query heads share each KV head. The fused kernel
# does less than one per byte. Both are left of the ridge, so memory is their limit. The rings on the slope are the
# predictions.

# %% tags=["fold"]
from minllm.course import Dot, load_record, roofline

ceilings = load_record()["ceilings"]
tb_s, tflops = ceilings["copy_tb_s"], ceilings["bf16_tflops"]
append_intensity = (
    3 * 40 / (2 * 2 * 48)
)  # 3 FLOP per number of 40 rotated heads; 4 bytes per number of 48
dots = [
    Dot("", intensity, tb_s * intensity, measured=False)
    for intensity in (append_intensity, 4.0)
]
(row,) = recorded("kv", variant="qkv_rope_append")
dots.append(
    Dot.of_bandwidth(
        f"qkv_rope_append: {row.value:.2f} TB/s", append_intensity, row.value, colour=1
    )
)
for case in ("64x1024", "1x8192", "1x1024"):
    row = recorded(
        "decode attention", f"{case}, 32/8 heads, d 128", "split_tensor_core"
    )[0]
    dots.append(
        Dot.of_bandwidth(
            f"attention {case}: {row.value:.2f} TB/s", 4.0, row.value, colour=2
        )
    )
roofline(
    dots,
    tb_s,
    tflops,
    "Writing the cache, and reading it",
    caption="Sequences x context; 32 query heads, 8 KV heads of 128, bfloat16; "
    f"{row.label}.",
)

# %% tags=["fold"]
floors = [
    (n, costs.decode_step(llama8, 1, n + 16).floor_ms(tb_s, tflops))
    for n, _ in decode_step
]
for (n, floor), (_, ms) in zip(floors, decode_step):
    print(
        f"context {n:5,}: predicted {floor:.2f} ms, measured {ms:.2f} ms per token, "
        f"{ms - floor:.2f} ms more"
    )

# %% [markdown]
# Nearly all of the difference is the same at every length: the GEMVs and the gaps that [lesson
# 4](04_arithmetic_intensity_and_the_roofline.py) took apart. It grows a little, because attention over a single
# sequence reads its cache far below full speed (the lowest dot above). One sequence has too few bytes to keep the whole
# GPU busy: [lesson 9](09_flash_decoding.py).
#
# ## Exercises
#
# You have the bytes per token. Now write the copy into the cache:

# %% tags=["hide-input"]
show_exercises("kv.append")

# %% [markdown]
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("every_fourth_token")

# %% [markdown]
# <!-- aside: Why is the fault not noticed at once? -->
#
# Here is the same bug in the bundled model, whose blocks hold 16 tokens. A text is computed token by token, once with
# the right slots and once with those of the case. The curve shows how far apart the logits are.


# %%
def mistaken_slots(block_table, positions, block_size):
    """The slots of the case."""
    return (
        block_table[(positions + 1) // block_size] * block_size + positions % block_size
    )


def drift(slots_of):
    """The largest difference from the right logits after each of 40 tokens, written to
    the slots that are given."""
    right, other = (KVCache(ops, shape, num_blocks=40) for _ in range(2))
    found = []
    for n in range(40):
        batch = build_batch([NewTokens(tokens[n : n + 1], n, table)], [0], BLOCK_SIZE)
        slot = slots_of(np.array(table), np.array([n]), BLOCK_SIZE).astype(np.int32)
        a, b = (
            ops.to_host(forward(ops, model, to_backend(one, ops), kept.layers))
            for one, kept in (
                (batch, right),
                (replace(batch, slot_mapping=slot), other),
            )
        )
        found.append(float(np.abs(a - b).max()))
    return found


drifts = drift(mistaken_slots)

# %% tags=["hide"]
assert max(drift(slots_of)) == max(drifts[:15]) == 0 and min(drifts[15:]) > 0.01

# %% tags=["fold"]
curves(
    {"the slots of the case": list(enumerate(drifts, 1))},
    "tokens in the text",
    "largest difference of a logit",
    "Where the text begins to drift",
    caption=f"The bundled model; {machine_line()}.",
)

# %% [markdown]
# Fifteen tokens are exact. Then the newest token no longer attends to itself, and later ones miss one token in sixteen.
# The model's text is still plausible most of the time. Tests with texts shorter than a block find nothing. Test with
# one token less than a block, with a full block, and with one token more.
#
# <!-- end aside -->

# %% [markdown]
# ## Problems
#
# ??? question "1. A block table is [7, 2, 9], blocks hold 16 tokens. Which slot does position 20 have? And position 40?"
#     20 = 1 · 16 + 4: block 2, slot 36. 40 = 2 · 16 + 8: block 9, slot 152.
#
# ??? question "2. Qwen3-8B has 36 layers, 8 KV heads of 128. How many bytes per token in bfloat16, and how many tokens fit in 40 GB?"
#     2 · 36 · 8 · 128 · 2 = 147,456 bytes; 271,000 tokens.
#
# ??? question "3. An H200 (141 GB, 90 % usable) serves Llama-3.1-8B (16 GB of weights, 131 KB per token) with contexts of 4,096. How many sequences fit, and how long does it take to read their caches at 4.2 TB/s?"
#     111 GB / 0.537 GB = 206 sequences. 111 GB take 26 ms per step: seven times as long as the weights. The cache,
#     not the model, is now the bottleneck.
#
# ??? question "4. Someone proposes to recompute keys and values of old tokens instead of storing them, to save memory. What does a token at position 1,000 of an 8B model then cost?"
#     A prefill of 1,000 tokens: 16 TFLOP, 20 ms at 800 TFLOP/s. Reading 131 MB takes 0.03 ms. Recomputing takes 600
#     times as long for one sequence.
#
# ??? question "5. A GPU at 4 dollars per hour holds 200 sequences and generates 6,000 tokens per second. With a cache of half the bytes it holds 400 and generates 10,000. What does a token cost?"
#     4 / 3,600 / 6,000 = 18.5 cents per million tokens, then 11.1. More memory for the cache is more throughput, and
#     more throughput is a lower price.
#
# ## What next
#
# The recorded curves rule out decoding without a cache. The bars show what the cache costs in memory, and the batch
# curve the consequence: at long contexts, the room for keys and values limits how many users a GPU serves. Lesson 11
# allocates blocks on demand and shares them. Lesson 13 stores keys and values in 8 bits, which doubles the batch.
# Before that, lesson 9 makes reading the cache as fast as the roofline allows.
#
# ## Sources
#
# - R. Pope et al., "Efficiently Scaling Transformer Inference", MLSys 2023, sections 2 and 3.
# - J. Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints", EMNLP
#   2023, section 2.2.
# - W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
#   section 4.
# - H. Touvron et al., "Llama 2: Open Foundation and Fine-Tuned Chat Models", 2023, section 2.2.
# - J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
