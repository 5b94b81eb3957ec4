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
# # 13. A quantised KV cache
#
# A key of 128 numbers in bfloat16 takes 256 bytes. Attention needs fewer. In this lesson keys and values are stored in
# eight bits and in four. Twice and three times as many tokens fit, and every decode step reads half or a third of the
# bytes. You see how much accuracy is lost, where, and how to lose less.
#
# ```mermaid
# flowchart LR
#     x["128 numbers<br/>256 bytes"] -- "scale, zero" --> c["128 codes of 8 bits<br/>132 bytes"]
#     x --> c4["128 codes of 4 bits<br/>80 bytes, 4 scales"]
#     c --> k["kernel: codes<br/>in registers"]
#     c4 --> k
#     k --> s["scores"]
# ```
#
# $$\text{scale} = \frac{\max - \min}{2^b - 1}, \qquad \text{code} = \text{round}\frac{x - \min}{\text{scale}}, \qquad
# x' = \text{code} \cdot \text{scale} + \min$$
#
# Think of a ruler from the smallest to the largest number, with $2^b$ marks. Each number is rounded to the nearest
# mark, so its error is at most half a step. A kernel never writes $x'$ to memory. It multiplies the codes themselves,
# and applies scale and zero once per key:

# %%
from numba import cuda, float32

from minllm.runtime.kernel import kernel


@kernel
def scores_of_codes(query, codes, scales, zeros, scores):
    """q . (s c + z) = s (q . c) + z sum(q): one thread per key. query [d], codes [T, d]
    uint8, scales, zeros and scores [T]."""
    key = cuda.threadIdx.x
    product, query_sum = float32(0), float32(0)
    for i in range(query.shape[0]):
        product += query[i] * float32(codes[key, i])
        query_sum += query[i]
    scores[key] = scales[key] * product + zeros[key] * query_sum


# %% [markdown]
# **What you will be able to do**
#
# - turn numbers into codes with a scale and a zero, and say how large the error is;
# - choose which numbers share a scale, and see in a model's own keys why it matters;
# - read a kernel that computes with codes directly, and predict its speed from its bytes.
#
# You need [lesson 8](08_the_kv_cache.py), and for the kernels at the end [lesson 9](09_flash_decoding.py). You need
# no GPU.
#
# ## Predict
#
# A head has 128 numbers. In int8, each head of each token has a scale and a zero of two bytes each. In int4, each group
# of 32 numbers has them.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    int8_times_the_tokens="By what factor does int8 raise the number of tokens that fit, over 16 bits?",
    int4_times_the_tokens="And with int4?",
    int8_perplexity_percent="The bundled model has a perplexity of about 6.5. "
    "By what percentage does it grow with a cache of int8?",
    int4_perplexity_percent="And with int4?",
)
guess.ask()

# %% [markdown]
# ## Codes and scales

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.quantization import reference

show_source(
    reference.quantize_groups,
    folded="The reference, quantize_groups",
    notes={
        "by_group = x.reshape": "Numbers that share a scale: neighbours in a head.",
        "pairs = np.stack": "Scale and zero are kept in float16, and codes are computed from the stored values.",
        "inverse = np.divide": "If all numbers are equal, the scale is 0, and nothing is divided by it.",
    },
)

# %%
import numpy as np

from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.reference import (
    dequantize_reference,
    quantize_reference,
)

x = (
    np.random.default_rng(0).standard_normal((1, 1, 128)).astype(np.float32)
)  # [tokens, kv_heads, head_dim]
for name in ("int8", "int4"):
    form = kv_format(name, 128)
    codes, pairs = quantize_reference(x, form)
    back = dequantize_reference(codes, pairs, form)
    step = float(pairs[..., 0].max())
    print(
        f"{name}: {codes.nbytes} bytes of codes, {pairs.nbytes} of scales, zeros; "
        f"a step is {step:.4f}, the largest error {np.abs(back - x).max():.4f}"
    )
    assert (
        np.abs(back - x).max() < 0.51 * step + 2e-3
    )  # half a step, plus the rounding of the zero

# %%
keys = np.random.default_rng(3).standard_normal((4, 1, 128)).astype(np.float32)
form = kv_format("int8", 128)
codes, pairs = quantize_reference(
    keys, form
)  # the kernel from the top reads these codes
query, scores = (
    np.random.default_rng(4).standard_normal(128).astype(np.float32),
    np.empty(4, np.float32),
)
scale, zero = (pairs.reshape(4, 2)[:, i].astype(np.float32) for i in range(2))
scores_of_codes.simulate[1, 4](
    query, codes.reshape(4, 128).view(np.uint8), scale, zero, scores
)
assert np.allclose(
    scores, dequantize_reference(codes, pairs, form)[:, 0] @ query, atol=1e-2
)
print(
    "scores from codes:",
    np.round(scores, 2),
    "\nscores from keys: ",
    np.round(keys[:, 0] @ query, 2),
)

# %% [markdown]
# !!! tip "Takeaway"
#     A code is the nearest mark on a ruler; the error is at most half a step.
#
# ## Write your own
#
# Write the step from numbers to codes, for groups of any size:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("quantization.quantize_groups")

# %% [markdown]
# ## Which numbers share a scale
#
# One large number makes the scale large and the marks far apart for all numbers that share the scale. So it matters
# which numbers share it. Here are the keys of the bundled model, as its cache holds them after 256 tokens of text.

# %% tags=["fold"]
import minllm
from minllm import LLM
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.engine.running.batch_arrays import NewTokens, build_batch, to_backend
from minllm.models.decoder import forward

TOKENS = 256
llm = LLM(dtype="float32", max_num_seqs=1)
ops, model, config = llm.engine.ops, llm.engine.model, llm.engine.model.config
text = llm.tokenizer.encode(minllm.held_out_text()[:3000])[:TOKENS]
shape = CacheShape(
    config.num_hidden_layers,
    TOKENS,
    config.num_key_value_heads,
    config.head_dim,
    ops.dtype,
)
cache = KVCache(ops, shape, num_blocks=1)
forward(
    ops,
    model,
    to_backend(build_batch([NewTokens(text, 0, [0])], [TOKENS - 1], TOKENS), ops),
    cache.layers,
)
keys = np.stack(
    [layer.key[0] for layer in cache.layers]
)  # [layers, tokens, kv_heads, head_dim]
values = np.stack([layer.value[0] for layer in cache.layers])
print("keys [layers, tokens, kv_heads, head_dim]:", keys.shape)

# %% tags=["fold"]
from minllm.course import heat_map

layer = config.num_hidden_layers // 2
shown = keys[layer, ::16, 0]  # every sixteenth token of one head
heat_map(
    np.abs(shown),
    f"Size of the keys of a head in layer {layer}",
    [f"token {16 * i}" if i % 4 == 0 else "" for i in range(len(shown))],
    [str(i) if i % 8 == 0 else "" for i in range(config.head_dim)],
    show_values=False,
)

# %% [markdown]
# Some columns stand out: some components of the keys are large in *every* token, and others small in every one. (The
# rotation of [lesson 6](06_norms_rope_swiglu_fusion.py) turns some components so slowly that they hardly change over
# 256 positions.) Values have no such columns. How much of a key is the same in all tokens?


# %%
def share_of_mean(x):
    """How much of the squares is the mean over tokens, 1 if all are alike; x [layers,
    tokens, kv_heads, head_dim]."""
    return float(np.square(x.mean(axis=1)).sum() / np.square(x).mean(axis=1).sum())


print(
    f"keys {100 * share_of_mean(keys):.0f} %, values "
    f"{100 * share_of_mean(values):.0f} %"
)

# %% tags=["hide"]
assert share_of_mean(keys) > 2 * share_of_mean(values)

# %% [markdown]
# **Smaller groups.** Give every 64 numbers, or every 32, their own scale. Then a large number affects fewer neighbours,
# but each group needs four bytes for its scale and zero.

# %% tags=["fold"]
from minllm.course import curves


def error(x, form):
    """Relative error of numbers that went through a format."""
    codes, pairs = quantize_reference(x, form)
    return float(
        np.linalg.norm(dequantize_reference(codes, pairs, form) - x) / np.linalg.norm(x)
    )


groups = [size for size in (32, 64, 128) if config.head_dim % size == 0]
formats = [kv_format("int4", config.head_dim, size) for size in groups]
curves(
    {
        "keys": [
            (8 * form.bytes_per_head / config.head_dim, 100 * error(keys, form))
            for form in formats
        ],
        "values": [
            (8 * form.bytes_per_head / config.head_dim, 100 * error(values, form))
            for form in formats
        ],
    },
    "bits per number, scales and zeros included",
    "relative error, %",
    f"int4 with groups of {', '.join(map(str, groups))}",
    caption="The bundled model's keys and values of 256 tokens, computed in the cell.",
)

# %% [markdown]
# **Subtract the mean.** For keys there is a better way, which needs no extra bytes. The part that is the same in every
# token adds the same number to every score of a query: $q \cdot (k - \bar{k}) = q \cdot k - q \cdot \bar{k}$. Softmax
# does not change if the same number is added to all scores. So the engine subtracts the mean before quantising, and
# never adds it again. It measures the mean on a fixed text while it loads.

# %%
mean = keys.mean(axis=1, keepdims=True)  # [layers, 1, kv_heads, head_dim]
query = np.random.default_rng(1).standard_normal(config.head_dim).astype(np.float32)


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


plain, without_mean = (
    softmax(some[layer, :, 0] @ query) for some in (keys, keys - mean)
)
form = kv_format("int4", config.head_dim)
errors = [
    np.linalg.norm(dequantize_reference(*quantize_reference(k, form), form) - k)
    for k in (keys, keys - mean)
]
print(
    f"int4: the error without the mean is {100 * errors[1] / errors[0]:.0f} % of the "
    "error with it"
)

# %% tags=["hide"]
assert np.abs(plain - without_mean).max() < 1e-5
assert errors[1] < 0.8 * errors[0]

# %% [markdown]
# **Keys by channel.** A component of a head, a *channel*, has a similar size in all tokens. If the numbers of one
# channel share a scale, over 32 consecutive tokens, a large channel does not affect the others:

# %% tags=["fold"]
one_head = {
    "keys": keys[layer, :, 0],
    "values": values[layer, :, 0],
}  # [tokens, head_dim]
curves(
    {
        name: list(enumerate(np.abs(x).max(axis=0).tolist()))
        for name, x in one_head.items()
    },
    "channel",
    "largest in 256 tokens",
    f"Channels of a head in layer {layer}",
    caption="The bundled model, the tokens from above.",
)

# %%
from minllm.kernels.quantization.reference import (
    dequantize_by_channel,
    quantize_by_channel,
)

kivi = kv_format("kivi_int4", config.head_dim)


def error_by_channel(x):
    """Relative error of x [layers, tokens, kv_heads, head_dim] with a scale for each
    channel of 32 tokens."""
    groups = x.reshape(len(x), -1, kivi.token_group, *x.shape[2:]).swapaxes(
        2, 3
    )  # [..., kv_heads, 32, head_dim]
    codes, pairs = quantize_by_channel(groups, kivi)
    back = dequantize_by_channel(codes, pairs[..., None, :, :])
    return float(np.linalg.norm(back - groups) / np.linalg.norm(groups))


for name, x in (("keys", keys), ("values", values)):
    print(
        f"{name:6} by token {100 * error(x, form):.1f} %, by channel "
        f"{100 * error_by_channel(x):.1f} %"
    )

# %% tags=["hide"]
assert error_by_channel(keys) < 0.8 * error(keys, form)

# %% [markdown]
# This is the layout of KIVI, `kivi_int4` here: keys by channel, values by token. It takes the same number of bytes, and
# no mean has to be measured beforehand. But a scale for 32 tokens can only be computed when the last of them has
# arrived.
#
# **A window for the newest tokens.** So KIVI keeps the newest 128 tokens, the *residual window*, in full precision. The
# window does not grow with the context, and it helps any format, because the next token depends most on the newest
# ones. Attention then has two parts, codes and recent tokens. Two kernels compute them, and they are merged like the
# splits of [lesson 9](09_flash_decoding.py): each part comes with the logarithm of its sum of exponentials.


# %% tags=["fold"]
def part(scores, rows):
    """A part of attention: the mean of `rows` by its own softmax, and how much it
    weighs."""
    largest = scores.max()
    weights = np.exp(scores - largest)
    return weights @ rows / weights.sum(), largest + np.log(weights.sum())


scores, rows = keys[layer, :, 0] @ query / config.head_dim**0.5, values[layer, :, 0]
(old, old_size), (new, new_size) = (
    part(scores[:128], rows[:128]),
    part(scores[128:], rows[128:]),
)
share = 1 / (1 + np.exp(new_size - old_size))  # weight of the old part
assert np.allclose(share * old + (1 - share) * new, softmax(scores) @ rows, atol=1e-5)

# %% [markdown]
# **Floats with eight bits.** Integer codes have equal steps; the steps of a float are proportional to the number. fp8
# e4m3 has 3 fraction bits, so the error is at most a sixteenth of the number, down to the smallest normal number. So it
# needs only one scale that keeps everything in range.

# %% tags=["fold"]
sizes = np.logspace(-3, 0, 60).astype(np.float32)
spread = np.random.default_rng(2).standard_normal((60, 1, 64)).astype(np.float32)
lines = {}
for name in ("int8", "fp8_e4m3", "fp8_e5m2"):
    form = kv_format(name, 64)
    scales = (
        np.full(1, 4 / 448, np.float32) if form.is_float else None
    )  # for numbers up to 4
    line = []
    for size in sizes[::4]:
        mixed = (
            np.where(np.arange(64) < 4, 1.0, size) * spread
        )  # four large components among small ones
        codes, pairs = quantize_reference(mixed.astype(np.float32), form, scales)
        small = (dequantize_reference(codes, pairs, form) - mixed)[..., 4:]
        line.append(
            (
                float(size),
                100 * float(np.linalg.norm(small) / np.linalg.norm(mixed[..., 4:])),
            )
        )
    lines[name] = line
curves(
    lines,
    "size of the small components, of the large ones'",
    "their relative error, %",
    "Small numbers beside large ones",
    log_x=True,
    log_y=True,
    caption="64 normal numbers, four of them larger than the others; computed in the "
    "cell.",
)

# %% [markdown]
# If all numbers have about the same size, int8 is far better, because all its bits are significant. If they do not, the
# float is safer.
#
# !!! tip "Takeaway"
#     Numbers of a similar size should share a scale. Keys are similar along a channel.
#
# ## Bytes

# %%
for name in ("int8", "int4", "fp8_e4m3"):
    form = kv_format(name, 128)
    print(
        f"{name:9} {form.code_bytes:3} bytes of codes, {form.scale_bytes} of scales "
        "and zeros per head: "
        f"{256 / form.bytes_per_head:.2f} times the tokens"
    )
int8_times, int4_times = (
    256 / kv_format(name, 128).bytes_per_head for name in ("int8", "int4")
)

# %% tags=["hide"]
assert round(int8_times, 2) == 1.94 and round(int4_times, 2) == 3.2

# %% [markdown]
# ## Perplexity
#
# The effect on the model matters most. This cell computes its perplexity on a text, with all keys and values read from
# the cache:

# %%
passage = llm.tokenizer.encode(minllm.held_out_text()[50000:54000])[:700]
plain = llm.perplexity(passage)
print(f"float32   {plain:.4f}")
for name in ("int8", "fp8_e4m3", "int4"):
    with LLM(dtype="float32", max_num_seqs=1, kv_cache_dtype=name) as other:
        perplexity = other.perplexity(passage)
    print(f"{name:9} {perplexity:.4f}, {100 * (perplexity / plain - 1):+.2f} %")
    assert abs(perplexity / plain - 1) < 0.06

# %% tags=["hide"]
assert abs(plain - 6.5) < 0.3  # close to that of the whole held-out text

# %% [markdown]
# The same with the newest 128 tokens in full precision:

# %%
for name in ("fp8_e4m3", "int4", "kivi_int4"):
    with LLM(
        dtype="float32",
        max_num_seqs=1,
        kv_cache_dtype=name,
        kv_cache_residual_window=128,
    ) as other:
        perplexity = other.perplexity(passage)
    print(f"{name:9} {perplexity:.4f}, {100 * (perplexity / plain - 1):+.2f} %")
    assert abs(perplexity / plain - 1) < 0.02

# %% [markdown]
# One page is a small sample. The recorded run covers all of the held-out text:

# %% tags=["fold"]
from minllm.course import Bar, bars, comparable, recorded

found = recorded("KV cache accuracy", "perplexity above the plain cache's", listed=True)
excess = {row.variant: row for row in found if row.case.startswith("bundled")}


def perplexities(title, names):
    """Bars of these formats' perplexities."""
    rows = comparable(*(excess[name] for name in names))
    return bars(
        [Bar(name, excess[name].value) for name in names],
        unit="%",
        title=title,
        caption=f"The bundled model, all of its held-out text; {rows[0].label}.",
    )


perplexities(
    "Perplexity above that of a plain cache",
    [name for name in excess if "window" not in name],
)

# %% tags=["fold"]
with_window = [name for name in excess if name.endswith(("window 128", "window 256"))]
perplexities("The same, with a window of the newest tokens in 16 bits", with_window)

# %% tags=["hide-input"]
guess.against(
    int8_times_the_tokens=int8_times,
    int4_times_the_tokens=int4_times,
    int8_perplexity_percent=excess["int8"].value,
    int4_perplexity_percent=excess["int4"].value,
)

# %% [markdown]
# !!! tip "Takeaway"
#     Eight bits hardly change the perplexity; four need smaller groups or a window.
#
# ## Codes are never unpacked in memory
#
# A kernel that wrote the numbers to memory in 16 bits, to read them again, would move more bytes than before. So the
# kernel that writes the cache makes the codes, and the kernel that reads the cache converts them in its registers.
#
# How can bytes become numbers quickly? Keys stay bytes: tensor cores multiply bytes by bytes, so the query is split
# into two bytes per number. Values are multiplied by softmax weights, which are fractions, so their codes must become
# float16. One conversion instruction per code would take too long. Instead, the kernel puts a zero byte above each
# code. Read as a float16, this is *exactly* the code times $2^{-24}$. Tensor cores take it like any other number, and
# the factor $2^{24}$ goes into the scale of the result. One instruction (`prmt`, which selects bytes) makes two
# numbers:

# %%
codes = np.array([0, 1, 2, 128, 255], np.uint8)
as_float16 = codes.astype(np.uint16).view(np.float16)  # a zero byte above each
print(as_float16)

# %% tags=["hide"]
assert np.array_equal(as_float16.astype(np.float64) * 2**24, codes)

# %% tags=["hide-input"]
from minllm.kernels.quantization import cache_decoder

show_source(
    cache_decoder.make_byte_halves,
    folded="Operands of the tensor cores, made of bytes",
    notes={
        "def value_operands": "A word holds two channels of two keys: ldmatrix has transposed them."
    },
)

# %% [markdown]
# !!! tip "Takeaway"
#     Convert codes in registers: memory must only see the codes.
#
# ## Measured against predicted
#
# A decode step reads each byte of the cache once. If memory is the limit, the tokens of context per second increase by
# the factor by which the bytes decrease.

# %% tags=["fold"]
rows = recorded(
    "decode attention, quantised", "64x4096, 32/8 heads, d 128", "split_quantized"
)
by_format = {row.case.split(", ")[3]: row for row in rows if row.case.count(", ") == 3}
bars(
    [
        Bar(
            name,
            row.value / row.peer_value,
            f"{256 / kv_format(name, 128).bytes_per_head:.2f} by its bytes",
        )
        for name, row in by_format.items()
    ],
    unit="times the tokens",
    title="Decode attention, 64 sequences of 4,096 tokens",
    caption="Tokens of context per second, against split_tensor_core in bfloat16 in "
    f"the same run; {rows[0].label}.",
)

# %% [markdown]
# Eight bits give nearly the speed that their bytes predict, four bits a little less. The rest is time that does not
# depend on bytes: planning, first loads, merging. It is about 10 µs in every format, so it matters more with fewer
# bytes.
#
# The other gain is room, and it is exact:

# %%
from minllm.machine.hardware import gpu_named
from minllm.models.shapes import find_config
from minllm.planning.plan import Wishes, make_plan

_, h200 = gpu_named("h200")
_, llama8 = find_config("llama-3.1-8b")
for name in ("bfloat16", "int8", "int4"):
    plan = make_plan(llama8, h200, Wishes(context=8192, kv_dtype=name))
    print(f"{name:9} {plan.largest_batch:4} sequences of 8,192 tokens")

# %% [markdown]
# The gains of policy and format multiply. How many tokens fit in 100 GB if each policy wastes the same share as on the
# traffic of [lesson 11](11_paged_blocks_and_shared_prefixes.py)?

# %%
from minllm import costs
from minllm.planning.formats import kv_itemsize

counted = recorded("cache waste", record="cache_traffic")
waste = {row.variant: row.value / 100 for row in counted if "system" not in row.case}
names = ("bfloat16", "float8", "int8", "int4")
print(f"{'thousands of tokens':20}" + "".join(f"{name:>10}" for name in names))
for policy in ("contiguous", "paged, blocks of 16", "virtual"):
    room = 100e9 * (1 - waste[policy])
    held = [
        room / costs.kv_bytes_per_token(llama8, kv_itemsize(name, llama8.head_dim))
        for name in names
    ]
    print(f"{policy:20}" + "".join(f"{tokens / 1e3:10,.0f}" for tokens in held))

# %% [markdown]
# ## Exercises
#
# This lesson's exercise is above. Its file is also a notebook, beside it.
#
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("louder_and_louder")

# %% [markdown]
# ## Problems
#
# ??? question "1. Numbers from -1 to 3 in 4 bits. What are the scale, the zero, the code of 0.5, and its error?"
#     Scale 4 / 15 = 0.267, zero -1; 1.5 / 0.267 = 5.6, so the code is 6, which stands for 0.6: an error of 0.1, less
#     than half a step.
#
# ??? question "2. One component of a key is 50, the other 127 lie within 1. What is the error of the small ones in int8, and what helps?"
#     A step is 51 / 255 = 0.2, so numbers below 1 have errors of up to 0.1. Smaller groups confine the damage; scales
#     by channel remove it.
#
# ??? question "3. How many bytes do the 128 numbers of a head take in int4 with groups of 32? By what factor do more tokens fit than in bfloat16?"
#     64 + 4 · 4 = 80 bytes: 3.2x.
#
# ??? question "4. 8B shape, 64 sequences of 4,096 tokens at 4.2 TB/s: 34 GB of keys and values and 15 GB of weights per step. What does int8 save per step, and per million tokens at 4 dollars per hour?"
#     16.7 GB, 4.0 of 11.8 ms. 64 tokens per step: 20.5 cents per million tokens before, 13.5 after.
#
# ??? question "5. When does int4 for the cache gain nothing on a server?"
#     If its steps are limited by something else: by the weights at short contexts, by arithmetic at large batches of
#     short texts. 64 sequences of 128 tokens read 1 GB of cache beside 15 GB of weights.
#
# ## What next
#
# The bars show that the cache can be made so small that reading it no longer limits a step. The weights remain, and
# they are read once for all sequences of a batch. So lesson 16a keeps the batch full while sequences start and end.
# Before that, [lesson 14](14_choosing_the_next_token.py) chooses the next token.
#
# ## Sources
#
# - LMDeploy, "INT4/INT8 KV Cache": a scale and a zero for each head of each token.
# - Z. Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", ICML 2024, section 3.
# - J. Zhang et al., "SageAttention: Accurate 8-Bit Attention for Plug-and-play Inference Acceleration", 2024, section
#   4.2.
# - Y. Lin et al., "QServe: W4A8KV4 Quantization and System Co-design for Efficient LLM Serving", 2024, section 4.2.
# - P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
# - E. Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large Language Models", 2024.
