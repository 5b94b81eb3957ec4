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
# # 12. Virtual memory and swapping
#
# With block tables, every kernel has to look up addresses. But a GPU's page tables translate every address anyway. In
# this lesson each sequence gets *addresses* for the longest text, and memory is mapped to them page by page
# (vAttention). The lesson also answers a question that every policy faces: what to do when memory is full.
#
# ```mermaid
# flowchart LR
#     subgraph addresses["addresses of a sequence"]
#         p0["page 0"]
#         p1["page 1"]
#         p2["page 2"]
#         p3["page 3: nothing mapped"]
#     end
#     p0 --> m5["memory 5"]
#     p1 --> m2["memory 2"]
#     p2 --> m9["memory 9: mapped ahead"]
# ```
#
# $$t_\text{swap} = \frac{2 \cdot \text{bytes}}{\text{link}} \qquad
# t_\text{recompute} = \max\left(\frac{\text{weights}}{\text{bandwidth}}, \frac{\text{FLOP}}{\text{peak}}\right)$$
#
# A kernel for such a cache contains no code for pages. Compare the index of a key in both layouts:

# %%
from numba import cuda, float32

from minllm.runtime.kernel import kernel

BLOCK_SIZE = 4


@kernel
def scores_paged(query, keys, block_table, scores):  # keys: [blocks, 4, d]
    """One thread per key; it looks up the block first."""
    key = cuda.threadIdx.x
    block = block_table[key // BLOCK_SIZE]
    total = float32(0)
    for i in range(query.shape[0]):
        total += query[i] * keys[block, key % BLOCK_SIZE, i]
    scores[key] = total


@kernel
def scores_virtual(query, keys, scores):  # keys: [longest text, d]
    """The same over contiguous addresses; the page tables look up."""
    key = cuda.threadIdx.x
    total = float32(0)
    for i in range(query.shape[0]):
        total += query[i] * keys[key, i]
    scores[key] = total


# %% [markdown]
# **What you will be able to do**
#
# - say why a page of 2 MB is large for a cache, and how layers side by side make it small;
# - decide between blocks and virtual memory;
# - decide between swapping a sequence out and recomputing it, from three rates.
#
# You need [lesson 11](11_paged_blocks_and_shared_prefixes.py). You need no GPU.
#
# ## Predict
#
# The 8B shape on an H200 (bandwidth 4.2 TB/s, 800 TFLOP/s). A preempted sequence is resumed.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    tokens_per_page="Keys of one layer take 2 KB per token. Layers lie side by side. "
    "How many tokens fill a page of 2 MB?",
    swap_ms="1,024 tokens go out and back over PCIe at 55 GB/s: how many milliseconds?",
    recompute_ms="How many milliseconds does it take to compute them again?",
    one_token=("A sequence of 16 tokens: which is faster?", "swap", "recompute"),
)
guess.ask()

# %% [markdown]
# ## Write your own
#
# Before the blocks go, count once more what they save. The texts of a batch begin alike, and the cache of [lesson
# 11](11_paged_blocks_and_shared_prefixes.py) stores that beginning once:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("costs.batch_bytes")

# %% [markdown]
# Now the two kernels from the top, with a table and without:

# %%
import numpy as np

rng = np.random.default_rng(0)
query, text = (
    rng.standard_normal(8).astype(np.float32),
    rng.standard_normal((12, 8)).astype(np.float32),
)
table = np.int32([2, 0, 1])
pages = np.empty((3, 4, 8), np.float32)
pages[table] = text.reshape(3, 4, 8)
paged, virtual = np.empty((2, 12), np.float32)
scores_paged.simulate[1, 12](query, pages, table, paged)
scores_virtual.simulate[1, 12](query, text, virtual)
print("both kernels give the same scores")

# %% tags=["hide"]
assert np.array_equal(paged, virtual) and np.allclose(paged, text @ query, atol=1e-5)

# %% [markdown]
# ## Virtual memory instead of blocks
#
# A page of 2 MB is large. Keys of one token in one layer of an 8B model take 2 KB. If each layer had its own array, a
# page would hold 1,024 tokens, far worse than blocks of 16. The solution is to put the layers of a token side by side:

# %%
from minllm import costs
from minllm.models.shapes import find_config

_, llama8 = find_config("llama-3.1-8b")
page = 2 * 2**20
keys_of_a_token = costs.kv_bytes_per_token(llama8) // 2
print(
    "one layer's keys alone: "
    f"{page // (keys_of_a_token // llama8.num_hidden_layers):,} tokens per page"
)
print(f"all layers side by side: {page // keys_of_a_token} tokens per page")

# %% tags=["hide"]
assert page // keys_of_a_token == 32

# %% [markdown]
# Mapping a page takes the driver tens of microseconds, longer than a kernel, so no step may wait for it. The policy
# maps pages ahead in a separate thread, for an answer of the mean length so far. It leaves the pages of a finished
# sequence mapped for the next one in that slot, and it unmaps pages only when no running kernel can access them. On a
# CPU, the host's virtual memory takes the place of the GPU's:

# %%
from minllm.cache.kv_cache import CacheShape
from minllm.cache.virtual.cache import VirtualKVCache
from minllm.cache.virtual.policy import VirtualPolicy
from minllm.runtime.host_pages import HostPages

shape = CacheShape(
    num_layers=2, block_size=16, kv_heads=2, head_dim=32, dtype=np.dtype(np.float32)
)
backend = HostPages(
    page_bytes=16 * 2 * 2 * 32 * 4
)  # 16 tokens per page: 2 layers, 2 heads of 32, 4 bytes
cache = VirtualKVCache(
    backend, shape, 4, 512, 24
)  # 4 slots of 512 tokens, 24 pairs of pages
policy = VirtualPolicy(cache, background=False, read_tile=16)
policy.reserve("A", list(range(40)))
before = policy.usage()
for token in range(60):
    policy.append("A", [token])
after = policy.usage()
print(f"40 tokens: {before.allocated:,} bytes mapped, {before.holding:,} filled")
print(f"100 tokens: {after.allocated:,} bytes mapped, {after.holding:,} filled")
policy.check()
policy.free("A")
print(f"A has ended: {policy.usage().retained:,} bytes stay mapped in its slot")
policy.reserve("B", list(range(50)))
print(policy.counts)

# %% tags=["hide-input"]
from minllm.course import show_source

show_source(VirtualPolicy.make_room, folded="The policy makes room for a token")

# %% [markdown]
# From the start, more is mapped than filled: room for the expected answer. The next sequence found most of its pages in
# the slot (`reused`). `mapped_late` counts the pages that a sequence had to wait for.
#
# | | contiguous | blocks | virtual |
# | --- | --- | --- | --- |
# | unused | the room up to the longest text | half a block | half a page of keys, half a page of values, pages mapped ahead |
# | kernels | simple | look up every block | simple; tokens are further apart |
# | sharing a beginning | no | yes, copy on write | no: a fork copies |
# | costs outside the kernels | none | block tables | driver calls, in a separate thread |

# %% tags=["fold"]
from minllm.course import Bar, bars, recorded

holds = recorded("cache with tokens", record="cache_traffic")
names = [
    row.variant
    for row in holds
    if "shared" not in row.variant and "system" not in row.case
]
shares = {
    row.variant: row
    for row in holds
    if row.variant in names and "system" not in row.case
}
bars(
    [Bar(name, row.value) for name, row in shares.items()],
    unit="% of the cache",
    title="Share of the cache that holds tokens while requests wait",
    limit=100,
    caption=f"{next(iter(shares.values())).case}; counted by minllm bench cache, "
    "which needs no GPU.",
)

# %% [markdown]
# Blocks of 16 leave less unused, and share prefixes. So the engine's default is the paged cache. Virtual memory is for
# kernels that cannot look up tables.
#
# !!! tip "Takeaway"
#     Virtual memory makes kernels simple, but its pages are large and cannot be shared.
#
# ## Out of room
#
# The sequences of a batch can grow until no block is free although none of them has ended. Then a sequence has to be
# preempted and resumed later. Either its keys and values are swapped to host memory and back, or they are dropped and
# recomputed. The rates of the link and of the GPU decide which is faster:

# %%
from minllm.costs.swap import SwapRates, recompute_ms, swap_ms, swap_wins
from minllm.course import load_record

ceilings = load_record()["ceilings"]
rates = SwapRates(
    55, ceilings["copy_tb_s"], ceilings["bf16_tflops"]
)  # PCIe 5 with page-locked memory: 55 GB/s
slow = SwapRates(12, ceilings["copy_tb_s"], ceilings["bf16_tflops"])  # PCIe 3
for tokens in (128, 1024, 8192):
    words = "swap" if swap_wins(llama8, tokens, rates) else "recompute"
    there_and_back, again = (
        swap_ms(llama8, tokens, rates),
        recompute_ms(llama8, tokens, rates),
    )
    print(
        f"{tokens:5,} tokens: out and in {there_and_back:6.1f} ms, computed again "
        f"{again:6.1f} ms: {words}"
    )

# %% tags=["hide"]
assert swap_wins(llama8, 8192, rates) and not swap_wins(llama8, 8192, slow)

# %% tags=["fold"]
from minllm.course import curves

counts = [2**k for k in range(4, 16)]
curves(
    {
        "compute again": [(n, recompute_ms(llama8, n, rates)) for n in counts],
        "swap at 55 GB/s": [(n, swap_ms(llama8, n, rates)) for n in counts],
        "swap at 12 GB/s": [(n, swap_ms(llama8, n, slow)) for n in counts],
    },
    "tokens of the sequence",
    "ms",
    "Resuming a preempted sequence of the 8B shape",
    log_x=True,
    log_y=True,
    caption="Computed by minllm.costs.swap with the recorded ceilings of an H200; "
    "minllm bench swap measures it.",
)

# %% tags=["hide-input"]
guess.against(
    tokens_per_page=page // keys_of_a_token,
    swap_ms=swap_ms(llama8, 1024, rates),
    recompute_ms=recompute_ms(llama8, 1024, rates),
    one_token="swap" if swap_wins(llama8, 16, rates) else "recompute",
)

# %% [markdown]
# Short sequences should be swapped, because recomputing even one token reads all weights. Grouped heads make the cache
# small and swapping cheap. A slow link reverses the answer.
#
# !!! tip "Takeaway"
#     Swap short sequences; recompute if the link is slow.
#
# ## Measured against predicted
#
# `minllm bench swap` measures both for a 1B shape, with page-locked ("pinned") and with ordinary ("pageable") host
# memory:

# %%
print(
    "tokens   "
    + "".join(f"{way:>27}" for way in ("recompute", "swap, pinned", "swap, pageable"))
)
for tokens in (16, 256, 4096, 16384):
    rows = recorded("preemption", f"llama-3.2-1b, {tokens} tokens")
    print(
        f"{tokens:6,}   "
        + "".join(f"{row.value:8.2f} ms ({row.limit:5.2f} pred)" for row in rows)
    )
print(rows[0].lines)

# %% [markdown]
# Swapping takes the time that its bytes predict. Recomputing takes longer than predicted. Below 4,096 tokens the GPU
# waits for the host, which launches a forward pass kernel by kernel. Above, the attention of a prompt does not reach
# the rate of the largest GEMMs. So the measurement favours swapping more than the prediction did. Most of a copy also
# overlaps with the prefill of another sequence. Under load the two are close: [serving
# metrics](../docs/serving-metrics.md#policies-and-preemption-measured) has a run in which recomputing wins by 3 %.
#
# ## Exercises
#
# This lesson's exercise is above. On [the page about a paged cache](../docs/paged-cache.md),
# see the same sharing block by block.
#
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("long_silence")

# %% [markdown]
# ## Problems
#
# ??? question "1. A model has 80 layers and 8 KV heads of 128 in 16 bits. How many tokens of keys fill a page of 2 MiB, with all layers side by side?"
#     Keys take 80 · 8 · 128 · 2 = 164 KB per token: 12.8 tokens. A tensor-parallel half of the model: 25.
#
# ??? question "2. Mapping a page takes 40 µs, a decode step 4 ms, and 64 sequences fill a page of 32 tokens each every 32 steps. What share of the time would mapping take if steps waited for it?"
#     Pages of keys and of values: 2 · 64 / 32 = 4 maps per step, 160 µs: 4 %. In a separate thread, it takes nothing
#     from the step.
#
# ??? question "3. PCIe 5 moves 55 GB/s, NVLink to a Grace CPU 450 GB/s. How long does it take to swap 8,192 tokens of the 8B shape (131 KB each) out and in?"
#     1.07 GB each way: 39 ms and 4.8 ms. Recomputing takes 150 ms or more. The link decides how often preemption is
#     worth it.
#
# ??? question "4. A server preempts 10 sequences of 500 tokens per second. What share of the GPU does recomputing take at 45,000 tokens per second of prefill?"
#     5,000 tokens: 11 %. The alternatives are 11 % more GPU or 10 % more cache; at 4 dollars per hour, 11 % is 44 cents
#     per hour.
#
# ??? question "5. Why must the pages of a finished sequence not be unmapped at once?"
#     A step that was launched before the sequence ended may still read or write them. An access to an unmapped address
#     is an error that ends the whole CUDA context. So unmapping waits for an event.
#
# ## What next
#
# The chart shows that nearly all of a paged or virtual cache holds tokens. Only the bytes per token are left to reduce,
# and with them the bytes that every decode step reads. [Lesson 13](13_quantised_kv_cache.py) keeps keys and values in
# eight bits and in four.
#
# ## Sources
#
# - R. Prabhu et al., "vAttention: Dynamic Memory Management for Serving LLMs without PagedAttention", 2024, sections
#   5 and 6.
# - W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
#   section 4.5: preemption.
# - NVIDIA, "CUDA Driver API", "Virtual Memory Management".
