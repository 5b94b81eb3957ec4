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
# # 11. Paged blocks and shared prefixes
#
# The cache decides how many users a GPU serves ([lesson 8](08_the_kv_cache.py)), but before paging, most of it was
# reserved and empty. Paging allocates memory in blocks of 16 tokens, as an operating system allocates pages, and lets
# sequences with the same beginning share blocks.
#
# ```mermaid
# flowchart LR
#     A["block table of A<br/>[0, 1, 3]"] --> b0["block 0<br/>16 tokens"]
#     A --> b1["block 1"]
#     A --> b3["block 3<br/>half full"]
#     B["block table of B<br/>[0, 1, 5]"] --> b0
#     B --> b1
#     B --> b5["block 5"]
# ```
#
# $$\text{waste} \le 15 \text{ tokens per sequence} \qquad h_i = \text{SHA-256}(h_{i-1}, \text{tokens of block } i)$$
#
# Two sequences share a block until one of them has to write to it. The block is copied before the write (copy on
# write), by the simplest kernel of this course:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.kv import copy_blocks as copy_module

show_source(
    copy_module.copy_blocks_kernel,
    notes={
        "pair, layer = cuda.blockIdx.y": "The grid's second axis counts pairs, its third one layers: one launch copies many blocks.",
        "for i in range": "The first axis counts pieces of a block. A thread takes every 128th byte of its piece.",
    },
)

# %% [markdown]
# **What you will be able to do**
#
# - say how much of a cache is unused under each policy, and measure it on traffic of your own;
# - follow a block through its life: allocated, filled, shared, copied, kept, found again, evicted;
# - say why a block's hash covers all tokens before it, and what tenants have to do with that.
#
# You need lesson 8, slots and block tables. You need no GPU.
#
# ## Predict
#
# A model takes texts of up to 2,048 tokens. A prompt and its answer have about 500 tokens together; some requests are
# short, some very long.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    contiguous_holds_percent="Every sequence gets room for 2,048 tokens. "
    "What percentage of this room holds tokens?",
    paged_waste_percent="Sequences get blocks of 16 tokens as they grow. "
    "What percentage of their memory is unused?",
    tokens_found="Two prompts of 64 tokens agree up to token 40. How many tokens of the second "
    "need no computation, with blocks of 16?",
    batch_ratio="By what factor do blocks raise the number of sequences that run at once?",
)
guess.ask()

# %% [markdown]
# ## Write your own
#
# In the picture above, a sequence of 40 tokens holds three blocks. How many does a text of any length take?

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("cache.blocks_needed")

# %% [markdown]
# ## Reserved but unused
#
# Before paging, a cache was a tensor `[sequences, longest text, kv_heads, head_dim]`. A sequence had one row of it from
# its first token to its last. A short answer took as much room as a long one, and no other sequence could use the rest.
#
# The next cell replays synthetic chat traffic of known lengths with the engine's own policies. A policy only tracks
# which sequence has which slots, so it can be replayed without a model.

# %%
import numpy as np

from minllm.bench.replay import replay
from minllm.bench.traffic import Traffic
from minllm.cache.contiguous import ContiguousPolicy
from minllm.cache.paged import PagedPolicy

CACHE_TOKENS, LONGEST = 32_768, 2048
requests = Traffic(requests=300, rate=200.0).generate()
lengths = [len(one.prompt) + len(one.answer) for one in requests]
print(
    f"{len(requests)} requests of {min(lengths)} to {max(lengths):,} tokens, "
    f"{np.mean(lengths):.0f} on average"
)
contiguous = replay(ContiguousPolicy(CACHE_TOKENS // LONGEST, LONGEST), requests)
paged = replay(PagedPolicy(CACHE_TOKENS // 16, 16), requests)
for name, played in (("contiguous", contiguous), ("paged", paged)):
    print(
        f"{name:10} {played.mean_batch:5.1f} sequences at a time, "
        f"{100 * played.waste:4.1f} % of memory unused"
    )

# %% tags=["hide"]
assert (
    paged.mean_batch > 3 * contiguous.mean_batch
    and paged.waste < 0.04 < 0.5 < contiguous.waste
)

# %% [markdown]
# The two lines differ only in the policy. More sequences at a time mean more tokens per second, because a decode step
# reads the weights once for all of them ([lesson 4](04_arithmetic_intensity_and_the_roofline.py)).

# %% tags=["fold"]
from minllm.course import curves

steps = 400


def course_of(played):
    """(step, percentage of the cache that holds tokens)."""
    usages = list(enumerate(played.usage[:steps]))
    return [
        (step, 100 * usage.holding / usage.total)
        for step, usage in usages[:: max(1, steps // 100)]
    ]


curves(
    {"contiguous": course_of(contiguous), "paged, blocks of 16": course_of(paged)},
    "decode step",
    "% of the cache that holds tokens",
    "One cache, one traffic, two policies",
    caption="Replayed in the cell above, without a model: counts, not times.",
)

# %% [markdown]
# !!! tip "Takeaway"
#     Room for the longest text leaves most of a cache empty.
#
# ## Blocks
#
# When a sequence's last block is full, it gets any free block, and its block table stores the number. Only the rest of
# its last block is unused: 15 tokens at most, seven or eight on average, whatever the length of the text.

# %% tags=["hide-input"]

show_source(
    PagedPolicy.make_room,
    folded="The policy makes room for a token",
    notes={
        "_writes_shared_block": "Another sequence holds the block that the next token goes to: copy on write, below.",
        "blocks_needed": "Rounded up: the last block may be partly empty. This is all the waste there is.",
        "num_available": "Free blocks that are not promised to another sequence.",
        "holding.blocks.extend": "The block table grows. No key and no value moves.",
    },
)

# %%
policy = PagedPolicy(num_blocks=8, block_size=4)  # small enough to show it whole
policy.reserve("A", [1, 2, 3, 4, 5])  # a prompt of five tokens
policy.reserve("B", [9, 9])
for token in (6, 7, 8, 9):
    policy.append("A", [token])
print("A", policy.table("A"), "B", policy.table("B"))
usage = policy.usage()  # in bytes; here one token counts as one byte
print(f"allocated {usage.allocated}, holding {usage.holding}, wasted {usage.wasted}")
assert policy.table("A") == [0, 1, 3] and usage.wasted == 5
policy.check()  # every invariant: no block with two writers, free and used add up, ...

# %% [markdown]
# Small blocks waste less and can be shared sooner. But a kernel has to look up every block in the table, and TMA
# ([lesson 5b](05b_matrix_products_on_hopper.py)) loads one block at a time. The waste is easy to compute; the cost of
# lookups has to be measured.

# %% tags=["fold"]
from minllm.costs import AllocationPolicy, wasted_share

sizes = [8, 16, 32, 64, 128, 256]
short = [length for length in lengths if length <= 100]
curves(
    {
        name: [
            (size, 100 * wasted_share(AllocationPolicy("paged", size), some, 1))
            for size in sizes
        ]
        for name, some in (
            ("this traffic", lengths),
            ("only texts of 100 tokens or less", short),
        )
    },
    "tokens in a block",
    "% unused",
    "Unused memory in the last blocks",
    log_x=True,
    caption="Computed by minllm.costs for whole texts. Short texts suffer most.",
)

# %% tags=["fold"]
from minllm.course import Bar, bars, recorded

case = "64x1024, 32/8 heads, d 128, bfloat16"
by_case = {
    row.case: row for row in recorded("decode attention", case, "split_tensor_core")
}
plain, blocks = by_case[f"{case}, contiguous"], by_case[case]
bars(
    [
        Bar("contiguous", plain.value, "", 1),
        Bar("blocks of 16", blocks.value, f"{100 * blocks.value / plain.value:.0f} %"),
    ],
    unit="TB/s",
    title="Decode attention, 64 sequences of 1,024 tokens",
    caption=f"Keys and values read per second; {plain.label}.",
)

# %% [markdown]
# Looking up blocks costs the kernel little, because it loads the table's entries while it is waiting for keys.
#
# !!! tip "Takeaway"
#     With blocks, only the end of a sequence's last block is unused.
#
# ## One block, two sequences
#
# A client requests two answers to one prompt. Both answers continue the same text. Its keys and values never change, so
# both sequences hold the same blocks. This is called a fork, and it copies nothing.

# %%
policy = PagedPolicy(num_blocks=8, block_size=4)
policy.reserve("A", [1, 2, 3, 4, 5, 6])
policy.fork("A", "B")


def state(what):
    """Both block tables, and the copies that a kernel would make now."""
    tables, copies = [policy.table(name) for name in "AB"], policy.take_copies()
    print(f"{what:15} A {tables[0]}  B {tables[1]}  copies {copies}")


state("after the fork")
policy.append("B", [70])
state("B has written")
policy.append("A", [80])
state("A has written")
policy.check()

# %% [markdown]
# The full block stays shared. The second block is half full, and both sequences have to write to it. The first to write
# gets a copy. The other one is then the only holder of the old block, and writes to it. The rule: *a block with two
# holders is never written*.
#
# All pairs of a launch are copied at the same time. If one copy reads a block that another copy writes, the order
# matters, and the list has to be divided into several launches. `in_rounds` does this.

# %%
from minllm.kernels.kv.copy_blocks import copy_blocks, copy_blocks_reference
from minllm.kernels.kv.copy_rounds import in_rounds

copies = [(0, 3), (1, 4), (3, 5), (0, 2)]  # (3, 5) reads what (0, 3) wrote
print(in_rounds(copies))
cache = (
    np.random.default_rng(0).standard_normal((6, 4, 2, 8)).astype(np.float32)
)  # [blocks, tokens, heads, dim]
expected = cache.copy()
copy_blocks_reference(expected, copies)
for together in in_rounds(copies):
    copy_blocks(cache, np.int32(together))

# %% tags=["hide"]
assert np.array_equal(cache, expected) and len(in_rounds(copies)) == 2

# %% [markdown]
# !!! tip "Takeaway"
#     A block with two holders is never written: it is copied first.
#
# ## All policies on the same traffic
#
# The recorded run has two thousand requests and a 16 GiB cache of the 8B shape, under every policy, including virtual
# memory, the subject of [lesson 12](12_virtual_memory_and_swapping.py). PagedAttention became known for this
# comparison.

# %% tags=["fold"]
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
    unit="%",
    title="Share of the cache that holds tokens while requests wait",
    limit=100,
    caption=f"{next(iter(shares.values())).case}; counted by minllm bench cache, "
    "which needs no GPU.",
)

# %% tags=["hide"]
wasted = {
    row.variant: row.value
    for row in recorded("cache waste", record="cache_traffic")
    if "system" not in row.case
}
assert wasted["paged, blocks of 16"] < 4 and wasted["contiguous"] > 60

# %% [markdown]
# !!! tip "Takeaway"
#     On the same traffic, blocks leave less than 4 % of the cache unused.
#
# ## Prompts that begin alike
#
# Thousands of requests begin with the same instructions, and a conversation sends its whole history with every
# question. Their first blocks hold the same keys and values. They can be used again if they are kept when a sequence
# ends, and found when the next one arrives.
#
# To be found, a block needs a name for *its content*. Its own tokens are not enough, because a key depends on all
# tokens before it. So the name is a hash of the block's tokens and of the previous block's name. The first name is a
# hash of the tenant:
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
# The index is a table from hash to block, as in vLLM. SGLang keeps a radix tree of the texts instead.

# %% tags=["hide-input"]
from minllm.cache.hash_chain import HashChain

show_source(
    HashChain,
    folded="The index: HashChain",
    notes={
        "for digest in self._chain(token_ids, chain_root": "Block by block, until one is unknown.",
        "if digest not in self._block_of:": "Blocks behind an unknown one are useless: attention needs all keys.",
        "known = next": "Hashing continues where it ended: a long conversation is not hashed again for every token.",
    },
)

# %%
from minllm.cache.prefix_sharing import PrefixSharingPolicy

rng = np.random.default_rng(1)
instructions = rng.integers(0, 1000, 40).tolist()  # 40 tokens common to all requests
first, second = (instructions + rng.integers(0, 1000, 24).tolist() for _ in range(2))
policy = PrefixSharingPolicy(HashChain(16), num_blocks=12, block_size=16)
policy.reserve("first", first)
policy.commit("first", len(first))  # computed: others can now find its blocks
policy.free("first")  # its blocks can be found even after it has ended
found = policy.reserve("second", second)
print(
    f"{found} of {len(second)} tokens need no computation; table "
    f"{policy.table('second')}"
)

# %% tags=["hide"]
assert found == 32  # whole blocks

# %% tags=["hide-input"]
guess.against(
    contiguous_holds_percent=100 * (1 - contiguous.waste),
    paged_waste_percent=100 * paged.waste,
    tokens_found=found,
    batch_ratio=paged.mean_batch / contiguous.mean_batch,
)

# %% [markdown]
# The block in which the two texts diverge cannot be shared, so 32 tokens are found and not 40.
#
# No sequence holds the blocks of `first` now. They are *idle* and count as free. When memory is needed, the block that
# has been idle the longest is evicted, and the end of a text before its beginning. On [this
# page](../docs/paged-cache.md) you can fill, fork and evict blocks by hand, with the same rules.
#
# <!-- interactive: paged-cache -->
#
# **The whole prompt is in the cache.** What happens if a prompt is found from its first token to its last? The cache
# holds only keys and values, not logits. So at least one token is always computed.

# %%
policy.commit("second", len(second))
policy.free("second")
again = policy.reserve("the same once more", second)
print(f"{again} of {len(second)} tokens need no computation")

# %% tags=["hide"]
assert len(second) % 16 == 0 and again == len(second) - 16

# %% [markdown]
# **In the engine.** The bundled model gets two prompts with the same beginning. The second answer is the same as
# without a prefix cache, and most of its prompt was not computed.

# %%
import minllm
from minllm import LLM, SamplingParams

params = SamplingParams(temperature=0, max_tokens=8)
with LLM(dtype="float32", max_num_seqs=4) as plain_llm:
    text = plain_llm.tokenizer.encode(minllm.held_out_text()[:6000])
    prompts = [text[:600] + text[start : start + 8] for start in (900, 1000)]
    answers = [
        plain_llm.generate([prompt], params)[0].outputs[0].token_ids
        for prompt in prompts
    ]
with LLM(dtype="float32", max_num_seqs=4, enable_prefix_caching=True) as llm:
    for prompt, answer in zip(prompts, answers):
        output = llm.generate([prompt], params)[0]
        print(
            f"{output.num_cached_tokens:3} of {len(prompt)} prompt tokens were in the "
            "cache"
        )
        assert output.outputs[0].token_ids == answer
    salted = llm.generate([prompt], params, cache_salt="another tenant")[0]
    print(
        f"{salted.num_cached_tokens:3} of {len(prompt)} for the same prompt of "
        "another tenant"
    )

# %% tags=["hide"]
assert output.num_cached_tokens == 592  # 37 blocks of 16, of the 600 that both have
assert salted.num_cached_tokens == 0 and salted.outputs[0].token_ids == answer

# %% [markdown]
# The last request found nothing, although the cache contains all of its prompt. Its `cache_salt` is the tenant of the
# chain: only prompts with the same salt share blocks. Otherwise anyone could send a guess, measure the time, and learn
# whether somebody else has sent the same text, because a cached prompt is answered sooner.
#
# The traffic decides how often prompts begin alike. Here are eight system prompts of 512 tokens, some more popular than
# others:

# %%
from minllm.cache.radix_tree import RadixTree

alike = Traffic(
    requests=200, rate=200.0, system_prompts=8, system_prompt_tokens=512
).generate()
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

# %% tags=["hide"]
assert hits["paged"] == 0 and hits["hash chain"] > 0.5

# %% [markdown]
# !!! tip "Takeaway"
#     A block is found by a hash of its own and all earlier tokens.
#
# ## Measured against predicted
#
# A shared block counts once, so the batch grows too. Hash chain and radix tree find the same blocks, unless memory is
# so short that the order of eviction makes a difference. The chart of all policies above reproduces the comparison in
# the PagedAttention paper of 2023.
#
# ## Exercises

# %% tags=["hide-input"]
show_exercises("cache.find_prefix", "kv.copy_blocks")

# %% [markdown]
# ## Two detective cases

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("two_stories")

# %% tags=["hide-input"]
show_case("someone_elses_answer")

# %% [markdown]
# ## Problems
#
# ??? question "1. 100 sequences of 1 to 1,000 tokens, uniformly. How many tokens do blocks of 16 waste in all, and what would rows of 1,000 waste?"
#     7.5 on average, 750 tokens; rows waste 500 each, 50,000 of 100,000.
#
# ??? question "2. 64 requests share a system prompt of 1,000 tokens, blocks of 16. How much memory does sharing save, in the 8B shape (131 KB per token)?"
#     62 whole blocks, 992 tokens, stored once instead of 64 times: 63 · 992 · 131 KB = 8.2 GB.
#
# ??? question "3. At 45 ms per 2,048 tokens of prefill and 4 dollars per hour, what is a prefix hit of 2,000 tokens worth?"
#     44 ms of GPU time, 0.005 cents. A million such requests save 12 GPU hours, or 49 dollars, and every user waits 44
#     ms less for the first token.
#
# ??? question "4. A fork of a sequence of 1,000 tokens continues with its own text. How many blocks are copied, and how many bytes in the 8B shape?"
#     At most one, the last: 16 · 131 KB = 2.1 MB, read and written, 1 µs on an H200. A contiguous cache would copy all
#     131 MB.
#
# ??? question "5. Blocks grow from 16 to 256 tokens. How does the waste change for chats of 500 tokens, and what might still be a reason for large blocks?"
#     Half a block is 128 tokens: 20 % instead of 1.5 %. Large blocks need fewer lookups and allow longer TMA boxes. But
#     lookups, as measured, cost only a few percent with blocks of 16.
#
# ## What next
#
# The replay shows that blocks leave almost no memory unused. But every kernel has to look them up. Could the GPU's own
# page tables do that? And what happens when memory is full? Both questions are the subject of [lesson
# 12](12_virtual_memory_and_swapping.py).
#
# ## Sources
#
# - W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
#   sections 3 and 4; figure 11 for the lengths.
# - L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", 2024, section 3.
# - vLLM's documentation, "Automatic Prefix Caching"; its section "Cache Isolation for Security" for the salt.
# - G. Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022.
