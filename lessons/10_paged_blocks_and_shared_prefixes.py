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
# # 10. Paged blocks and shared prefixes
#
# The cache decides how many users a GPU serves, says [lesson 8](08_the_kv_cache.py). Most of it used to hold nothing
# at all. In this lesson you meet four ways to give out the same memory: room for the longest text, blocks, blocks
# that are shared, and addresses without memory behind them. All stand behind one interface, so the same traffic can
# ask each of them.
#
# **What you will be able to do**
#
# - say how much of a cache waits unused under each policy, and measure it on traffic of your own;
# - follow a block through its life: taken, filled, shared, copied, kept, found again, evicted;
# - decide between blocks and virtual memory, and between swapping a sequence out and computing it again.
#
# You need lesson 8, slots and block tables. You need no GPU.
#
# ## Predict
#
# - A model takes texts of up to 2,048 tokens. Prompts and answers have about 500 tokens together, some few, some very
#   many. If every sequence gets room for 2,048 tokens, which share of the cache holds tokens, in per cent?
# - And if it gets blocks of 16 tokens as it grows, which share of what it was given waits unused?
# - Two prompts of 64 tokens are the same up to token 40. How many tokens of the second need not be computed, with
#   blocks of 16?

# %%
from minllm.course import Prediction

guess = Prediction(contiguous_holds_percent=100 * 500 / 2048, paged_waste_percent=100 * 8 / 500, tokens_found=40)
guess

# %% [markdown]
# ## Room that waits
#
# Before there were blocks, a cache was a tensor `[sequences, longest text, kv_heads, head_dim]`. A sequence had one
# row of it from its first token to its last. Whoever asks for a short answer pays for a long one, and nobody else can
# use what is left.
#
# Here is a traffic of chat requests, made up but of known lengths, and the same policy that the engine uses. A policy
# only counts: who may keep how many tokens where. So it can be played without a model.

# %%
import numpy as np

from minllm.bench.replay import replay
from minllm.bench.traffic import Traffic
from minllm.cache.contiguous import ContiguousPolicy
from minllm.cache.paged import PagedPolicy

CACHE_TOKENS, LONGEST = 32_768, 2048
requests = Traffic(requests=300, rate=200.0).generate()
lengths = [len(one.prompt) + len(one.answer) for one in requests]
print(f"{len(requests)} requests of {min(lengths)} to {max(lengths):,} tokens, {np.mean(lengths):.0f} on average")
contiguous = replay(ContiguousPolicy(CACHE_TOKENS // LONGEST, LONGEST), requests)
paged = replay(PagedPolicy(CACHE_TOKENS // 16, 16), requests)
for name, played in (("contiguous", contiguous), ("paged", paged)):
    print(f"{name:10} {played.mean_batch:5.1f} sequences at a time, {100 * played.waste:4.1f} % of their memory unused")
assert paged.mean_batch > 3 * contiguous.mean_batch and paged.waste < 0.04 < 0.5 < contiguous.waste

# %% [markdown]
# The two lines differ in nothing but the policy. More sequences at a time means more answers a second, because a
# decode step reads the weights once for all of them ([lesson 4](04_arithmetic_intensity_and_the_roofline.py)).

# %% tags=["fold"]
from minllm.course import curves

steps = 400


def course_of(played):
    """(step, per cent of the cache that holds tokens)."""
    usages = list(enumerate(played.usage[:steps]))
    return [(step, 100 * usage.holding / usage.total) for step, usage in usages[:: max(1, steps // 100)]]


curves(
    {"contiguous": course_of(contiguous), "paged, blocks of 16": course_of(paged)},
    "decode step",
    "per cent of the cache that hold tokens",
    "One cache, one traffic, two policies",
    caption="Replayed in the cell above, without a model: counts, not times.",
)

# %% [markdown]
# ## Blocks
#
# A block holds 16 tokens, say. A sequence gets the next one when the last one is full, wherever it lies, and its
# block table remembers where. What waits unused is the rest of its last block: 15 tokens at most, seven or eight on
# average, however long the text becomes.

# %% tags=["hide-input"]
from minllm.course import show_source

show_source(
    PagedPolicy.make_room,
    notes={
        "_writes_shared_block": "Somebody else holds the block that the next token goes to. More of this below.",
        "blocks_needed": "Rounded up: the last block may be partly empty. This is all the waste there is.",
        "num_available": "Free blocks that are promised to nobody. What the sequence itself was promised, it may take.",
        "holding.blocks.extend": "The block table grows. No key and no value moves.",
    },
)

# %%
policy = PagedPolicy(num_blocks=8, block_size=4)  # small, so that we can see it whole
policy.reserve("A", [1, 2, 3, 4, 5])  # a prompt of five tokens
policy.reserve("B", [9, 9])
for token in (6, 7, 8, 9):
    policy.append("A", [token])
print("A", policy.table("A"), "B", policy.table("B"))
usage = policy.usage()  # in bytes; here a token counts as one
print(f"allocated {usage.allocated}, holding {usage.holding}, wasted {usage.wasted}")
assert policy.table("A") == [0, 1, 3] and usage.wasted == 5
policy.check()  # every invariant: no block with two writers, free and used add up, ...

# %% [markdown]
# ### How large is a block?
#
# Small blocks waste less and can be shared sooner. But a kernel looks up a block for every block that it reads, and a
# tensor copy of [lesson 5](05_the_ladder_of_matrix_products.py) fetches one block at a time. The waste is easily
# computed; what the lookups cost has to be measured.

# %% tags=["fold"]
from minllm.costs import AllocationPolicy, wasted_share

sizes = [8, 16, 32, 64, 128, 256]
short = [length for length in lengths if length <= 100]
curves(
    {
        name: [(size, 100 * wasted_share(AllocationPolicy("paged", size), some, 1)) for size in sizes]
        for name, some in (("this traffic", lengths), ("only texts of 100 tokens or less", short))
    },
    "tokens in a block",
    "per cent unused",
    "What waits in the last blocks",
    log_x=True,
    caption="Computed by minllm.costs for whole texts. Short texts suffer most.",
)

# %% tags=["fold"]
from minllm.course import Bar, bars, recorded

case = "64x1024, 32/8 heads, d 128, bfloat16"
by_case = {row.case: row for row in recorded("decode attention", case, "split_tensor_core")}
plain, blocks = by_case[f"{case}, contiguous"], by_case[case]
bars(
    [
        Bar("contiguous", plain.value, "", 1),
        Bar("blocks of 16", blocks.value, f"{100 * blocks.value / plain.value:.0f} %"),
    ],
    unit="TB/s",
    title="Decode attention, 64 sequences of 1,024 tokens",
    caption=f"Keys and values read a second; {plain.label}.",
)

# %% [markdown]
# Looking up blocks costs the kernel little, because it fetches the table's entries while it waits for keys anyway.
#
# ## One block, two sequences
#
# Ask for two answers to one question. Both continue the same text, whose keys and values never change: so both hold
# the same blocks. That is called a fork, and it copies nothing.

# %%
policy = PagedPolicy(num_blocks=8, block_size=4)
policy.reserve("A", [1, 2, 3, 4, 5, 6])
policy.fork("A", "B")
print("after the fork   A", policy.table("A"), "B", policy.table("B"), "copies", policy.take_copies())
policy.append("B", [70])
print("B has written    A", policy.table("A"), "B", policy.table("B"), "copies", policy.take_copies())
policy.append("A", [80])
print("A has written    A", policy.table("A"), "B", policy.table("B"), "copies", policy.take_copies())
policy.check()

# %% [markdown]
# The full block stays shared for ever. The second one is half full, and both want to write to it; the first to do so
# gets a copy. Then the other one is alone with the old block, and writes to it as it is. This is copy on write, and
# the rule behind it is short: *a block with two holders is never written*.
#
# The copy itself happens on the GPU, before the next forward. It is the simplest kernel of this course:

# %% tags=["hide-input"]
from minllm.kernels.kv import copy_blocks as copy_module

show_source(
    copy_module.copy_blocks_kernel,
    notes={
        "pair, layer = cuda.blockIdx.y": "The grid's second axis counts pairs, its third one layers: one launch copies many blocks.",
        "for i in range": "The first axis counts pieces of a block. A thread takes every 128th byte of its piece.",
    },
)

# %% [markdown]
# All pairs of a launch are copied at the same time. Where the copy of one reads what another writes, the order
# matters, and the list has to be cut into launches: `in_rounds` does it.

# %%
from minllm.kernels.kv.copy_blocks import copy_blocks, copy_blocks_reference
from minllm.kernels.kv.copy_rounds import in_rounds

copies = [(0, 3), (1, 4), (3, 5), (0, 2)]  # block 5 gets what block 3 got from block 0
print(in_rounds(copies))
cache = np.random.default_rng(0).standard_normal((6, 4, 2, 8)).astype(np.float32)  # [blocks, tokens, heads, dim]
expected = cache.copy()
copy_blocks_reference(expected, copies)
for together in in_rounds(copies):
    copy_blocks(cache, np.int32(together))
assert np.array_equal(cache, expected) and len(in_rounds(copies)) == 2

# %% [markdown]
# ## All of them on one traffic
#
# The record has two thousand requests and a cache as the 8B shape has it in 16 GiB, under every policy, the virtual
# one of further below among them. This is the figure that PagedAttention became known for.

# %% tags=["fold"]
holds = recorded("cache with tokens", record="cache_traffic")
names = [row.variant for row in holds if "shared" not in row.variant and "system" not in row.case]
shares = {row.variant: row for row in holds if row.variant in names and "system" not in row.case}
bars(
    [Bar(name, row.value, f"{row.value:.0f} %") for name, row in shares.items()],
    unit="per cent of the cache",
    title="What holds tokens while requests wait",
    limit=100,
    caption=f"{next(iter(shares.values())).case}; counted by minllm bench cache, which needs no GPU.",
)

# %% tags=["hide"]
wasted = {row.variant: row.value for row in recorded("cache waste", record="cache_traffic") if "system" not in row.case}
assert wasted["paged, blocks of 16"] < 4 and wasted["contiguous"] > 60

# %% [markdown]
# ## Prompts that begin alike
#
# Thousands of requests begin with the same instructions, and a conversation sends all of its past with every
# question. Their first blocks hold the same keys and values, if they are kept when a sequence ends, and found again
# when the next one comes.
#
# To be found, a block needs a name for *what is in it*. Its own tokens do not suffice: the keys of a word depend on
# all words before it. So the name is a hash of the block's tokens and of the name of the block before:
#
# $$h_0 = \text{SHA-256}(\text{tenant}), \qquad h_i = \text{SHA-256}(h_{i-1}, \text{tokens of block } i)$$
#
# ```mermaid
# flowchart LR
#     tenant["tenant"] --> h0["h0"]
#     h0 --> h1["h1: tokens 0 to 15"]
#     h1 --> h2["h2: tokens 16 to 31"]
#     h2 --> h3["h3: tokens 32 to 47"]
#     h2 --> h4["h3': another question"]
# ```
#
# A table from hash to block is the whole index. vLLM works this way. SGLang keeps a radix tree of the texts instead;
# the policy does not care which of the two finds its blocks.

# %% tags=["hide-input"]
from minllm.cache.hash_chain import HashChain

show_source(
    HashChain,
    notes={
        "for digest in self._chain(token_ids, chain_root": "Block by block, until one is unknown.",
        "if digest not in self._block_of:": "Behind an unknown block nothing is of use: attention needs all keys.",
        "known = next": "Hashing goes on where it ended: a long conversation is not hashed again at every token.",
    },
)

# %%
from minllm.cache.prefix_sharing import PrefixSharingPolicy

rng = np.random.default_rng(1)
instructions = rng.integers(0, 1000, 40).tolist()  # 40 tokens that all requests have in common
first, second = (instructions + rng.integers(0, 1000, 24).tolist() for _ in range(2))
policy = PrefixSharingPolicy(HashChain(16), num_blocks=12, block_size=16)
policy.reserve("first", first)
policy.commit("first", len(first))  # computed: from now on others may find its blocks
policy.free("first")  # and even though it has ended
found = policy.reserve("second", second)
print(f"{found} of {len(second)} tokens need no computation; table {policy.table('second')}")
assert found == 32  # whole blocks

# %%
guess.against(
    contiguous_holds_percent=100 * (1 - contiguous.waste), paged_waste_percent=100 * paged.waste, tokens_found=found
)

# %% [markdown]
# The block in which the two texts part cannot be shared, so 32 tokens are found and not 40.
#
# Nobody holds the blocks of `first` now; they are *idle*. They count as free: as soon as somebody needs room, the one
# that has been idle the longest is evicted, and the end of a text goes before its beginning. On [this
# page](../docs/paged-cache.md) you can fill, fork and evict blocks by hand; it plays the same rules.
#
# ### The whole prompt is known
#
# What if a prompt is found from its first token to its last? Its logits are not: the cache holds keys and values, and
# what the next token is drawn from was never kept. So at least one token is always computed.

# %%
policy.commit("second", len(second))
policy.free("second")
again = policy.reserve("the same once more", second)
print(f"{again} of {len(second)} tokens need no computation")
assert len(second) % 16 == 0 and again == len(second) - 16

# %% [markdown]
# ### In the engine
#
# The bundled model, asked twice with the same beginning. The second answer is the same as without a prefix cache, and
# most of its prompt was not computed.

# %%
import minllm
from minllm import LLM, SamplingParams

params = SamplingParams(temperature=0, max_tokens=8)
with LLM(dtype="float32", max_num_seqs=4) as plain_llm:
    text = plain_llm.tokenizer.encode(minllm.held_out_text()[:6000])
    prompts = [text[:600] + text[start : start + 8] for start in (900, 1000)]
    answers = [plain_llm.generate([prompt], params)[0].outputs[0].token_ids for prompt in prompts]
with LLM(dtype="float32", max_num_seqs=4, enable_prefix_caching=True) as llm:
    for prompt, answer in zip(prompts, answers):
        output = llm.generate([prompt], params)[0]
        print(f"{output.num_cached_tokens:3} of {len(prompt)} prompt tokens were in the cache")
        assert output.outputs[0].token_ids == answer
    salted = llm.generate([prompt], params, cache_salt="another tenant")[0]
    print(f"{salted.num_cached_tokens:3} of {len(prompt)} for the same prompt of another tenant")
assert output.num_cached_tokens == 592  # 37 blocks of 16, of the 600 that both have
assert salted.num_cached_tokens == 0 and salted.outputs[0].token_ids == answer

# %% [markdown]
# The last request found nothing, although all of its prompt is there. Its `cache_salt` is the tenant of the chain: only
# prompts of one salt share blocks. Otherwise whoever sends a guess and takes the time would learn whether somebody else
# has sent the same, because a prompt that is in the cache answers sooner.
#
# How often prompts begin alike is up to the traffic. With eight system prompts of 512 tokens, some more popular than
# others:

# %%
from minllm.cache.radix_tree import RadixTree

alike = Traffic(requests=200, rate=200.0, system_prompts=8, system_prompt_tokens=512).generate()
hits = {}
for name, policy in (
    ("paged", PagedPolicy(CACHE_TOKENS // 16, 16)),
    ("hash chain", PrefixSharingPolicy(HashChain(16), CACHE_TOKENS // 16, 16)),
    ("radix tree", PrefixSharingPolicy(RadixTree(16), CACHE_TOKENS // 16, 16)),
):
    played = replay(policy, alike)
    hits[name] = played.hit_rate
    found = f"{100 * played.hit_rate:4.1f} % of prompt tokens found"
    print(f"{name:10} {played.mean_batch:5.1f} sequences at a time, {found}")
assert hits["paged"] == 0 and hits["hash chain"] > 0.5

# %% [markdown]
# A shared block counts once, so the batch grows too. Hash chain and radix tree find the same, unless memory is so
# short that what is evicted first makes a difference.
#
# ## Virtual memory instead of blocks
#
# Block tables make every kernel look up addresses. But looking up addresses is what a processor's page tables do, and
# a GPU has them too. So give each sequence *addresses* for the longest text, and put memory behind them page by page
# (vAttention). Kernels see one contiguous array and need not know.
#
# A page is 2 MB, and that is large. Keys of one token in one layer of an 8B model take 2 KB: a page an array would be
# 1,024 tokens, far worse than blocks of 16. The way out is to lay the layers of a token side by side:

# %%
from minllm import costs
from minllm.models.shapes import find_config

_, llama8 = find_config("llama-3.1-8b")
page = 2 * 2**20
keys_of_a_token = costs.kv_bytes_per_token(llama8) // 2
print(f"one layer's keys alone: {page // (keys_of_a_token // llama8.num_hidden_layers):,} tokens a page")
print(f"all layers side by side: {page // keys_of_a_token} tokens a page")
assert page // keys_of_a_token == 32

# %% [markdown]
# Mapping a page takes the driver tens of microseconds, longer than a kernel, so it must never be waited for. The
# policy maps ahead in a thread of its own, for an answer of about the length that answers have had so far; it leaves
# the pages of a sequence that has ended where they are, for the next one in that slot; and it takes pages away only
# when nothing that runs may touch them. On a CPU, the host's virtual memory plays the GPU's:

# %%
from minllm.cache.kv_cache import CacheShape
from minllm.cache.virtual.cache import VirtualKVCache
from minllm.cache.virtual.policy import VirtualPolicy
from minllm.runtime.host_pages import HostPages

shape = CacheShape(num_layers=2, block_size=16, kv_heads=2, head_dim=32, dtype=np.dtype(np.float32))
backend = HostPages(page_bytes=16 * 2 * 2 * 32 * 4)  # 16 tokens a page: 2 layers, 2 heads of 32, 4 bytes
cache = VirtualKVCache(backend, shape, 4, 512, 24)  # 4 slots of 512 tokens, 24 pairs of pages
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

# %% [markdown]
# More is mapped than filled from the start: room for the answer that is expected. The next sequence found most of its
# pages in the slot (`reused`), and `mapped_late` counts those that had to be waited for.
#
# | | contiguous | blocks | virtual |
# | --- | --- | --- | --- |
# | waits unused | the rest of the longest text | half a block | half a page of keys, half a page of values, what is mapped ahead |
# | kernels | simple | look up every block | simple; tokens lie further apart |
# | sharing a beginning | no | yes, copy on write | no: a fork copies |
# | costs beside the kernels | none | tables to keep | calls of the driver, hidden in a thread |
#
# ## Out of room
#
# A batch grows as it writes, and one day no block is free and nobody has ended. Then a sequence has to go, and come
# back later. Either its keys and values move to the host's memory and back, or they are thrown away and computed
# again. Which is faster? That is a question of rates, and you can answer it before you measure:

# %%
from minllm.costs.swap import SwapRates, recompute_ms, swap_ms, swap_wins
from minllm.course import load_record

ceilings = load_record()["ceilings"]
rates = SwapRates(55, ceilings["copy_tb_s"], ceilings["bf16_tflops"])  # GB/s of PCIe 5 with page-locked memory
slow = SwapRates(12, ceilings["copy_tb_s"], ceilings["bf16_tflops"])  # PCIe 3
for tokens in (128, 1024, 8192):
    words = "swap" if swap_wins(llama8, tokens, rates) else "recompute"
    there_and_back, again = swap_ms(llama8, tokens, rates), recompute_ms(llama8, tokens, rates)
    print(f"{tokens:5,} tokens: out and in {there_and_back:6.1f} ms, computed again {again:6.1f} ms: {words}")
assert swap_wins(llama8, 8192, rates) and not swap_wins(llama8, 8192, slow)

# %% tags=["fold"]
counts = [2**k for k in range(4, 16)]
curves(
    {
        "compute again": [(n, recompute_ms(llama8, n, rates)) for n in counts],
        "swap at 55 GB/s": [(n, swap_ms(llama8, n, rates)) for n in counts],
        "swap at 12 GB/s": [(n, swap_ms(llama8, n, slow)) for n in counts],
    },
    "tokens of the sequence",
    "ms",
    "A preempted sequence of the 8B shape comes back",
    log_x=True,
    log_y=True,
    caption="Computed by minllm.costs.swap with the recorded ceilings of an H200; minllm bench swap measures it.",
)

# %% [markdown]
# Short sequences should be swapped: computing even one token again reads all weights. Grouped heads make the cache
# small and swapping cheap, and a slow link turns the answer around.
#
# So much for the prediction. `minllm bench swap` measures both ways, for a 1B shape, with page-locked ("pinned") host
# memory and with ordinary ("pageable") memory:

# %%
from minllm.course import recorded

print("tokens   " + "".join(f"{way:>28}" for way in ("recompute", "swap, pinned", "swap, pageable")))
for tokens in (16, 256, 4096, 16384):
    rows = recorded("preemption", f"llama-3.2-1b, {tokens} tokens")
    print(f"{tokens:6,}   " + "".join(f"{row.value:9.2f} ms ({row.limit:5.2f} said)" for row in rows))
print(rows[0].label)

# %% [markdown]
# Swapping takes what the bytes take. Computing again does not: below 4,096 tokens the GPU waits for the host, which
# launches a forward kernel by kernel, and above, attention of a prompt does not reach the rate of the largest products.
# So the real answer favours swapping more than the predicted one. And it need not be waited for: most of a copy hides
# behind the prefill of another sequence.
#
# ## Exercises

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises(10)

# %% [markdown]
# ## Two detective cases

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("two_stories")

# %% tags=["hide-input"]
show_case("someone_elses_answer")

# %% [markdown]
# ## What next, and which measurement says so
#
# The replay says that blocks leave next to nothing unused. What a token takes is now the only thing left to cut, and
# with it the bytes that every decode step reads. [Lesson 11](11_quantised_kv_cache.py) keeps keys and values in eight
# bits and in four.
#
# ## Sources
#
# - W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
#   sections 3 and 4; figure 11 for the lengths.
# - L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", 2024, section 3.
# - vLLM's documentation, "Automatic Prefix Caching"; its section "Cache Isolation for Security" for the salt.
# - R. Prabhu et al., "vAttention: Dynamic Memory Management for Serving LLMs without PagedAttention", 2024, sections
#   5 and 6.
# - G. Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022.
