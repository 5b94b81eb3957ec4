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
# # 11. A quantised KV cache
#
# A key of 128 numbers in bfloat16 takes 256 bytes: each number has eight significant bits and an exponent of eight
# more. Attention needs fewer. In this lesson keys and values are kept in eight bits and in four: twice and three times
# as many tokens fit, and every decode step reads that much less. You see what is lost, where it is lost, and how little
# has to be done to lose less.
#
# **What you will be able to do**
#
# - turn numbers into codes with a scale and a zero, and say how far off they come back;
# - choose which numbers share a scale, and see in a model's own keys why it matters;
# - read a kernel that computes with codes as they are, and predict its speed from its bytes.
#
# You need [lesson 8](08_the_kv_cache.py), and for the kernels at the end [lesson 9](09_decode_attention.py). You need
# no GPU.
#
# ## Predict
#
# A head has 128 numbers. An int8 code is a byte; each head of each token has a scale and a zero of two bytes each.
#
# - How many times as many tokens fit as in 16 bits? And with int4, where each 32 numbers have a scale and a zero?
# - The bundled model has a perplexity of about 6.5 on its held-out text. By how many per cent does it grow with a
#   cache in eight bits, and in four?

# %%
from minllm.course import Prediction

guess = Prediction(
    int8_times_the_tokens=256 / 128,
    int4_times_the_tokens=256 / 64,
    int8_perplexity_percent=1.0,
    int4_perplexity_percent=10.0,
)
guess

# %% [markdown]
# ## A ruler with 256 marks
#
# Take some numbers. Lay a ruler from the smallest to the largest, with 256 marks at equal distances, and keep for
# each number only the mark next to it. To read them again you need the distance of two marks, the *scale*, and where
# the ruler begins, the *zero*:
#
# $$\text{scale} = \frac{\max - \min}{2^b - 1}, \qquad \text{code} = \text{round}\frac{x - \min}{\text{scale}}, \qquad
# x' = \text{code} \cdot \text{scale} + \min$$
#
# No number comes back further than half a mark from where it was.

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.quantization import reference

show_source(
    reference.quantize_groups,
    notes={
        "by_group = x.reshape": "Numbers that share a ruler: neighbours in a head.",
        "pairs = np.stack": "Scale and zero are kept in float16, and codes are made with what is kept.",
        "inverse = np.divide": "Where all numbers are alike, the scale is 0, and nothing is divided by it.",
    },
)

# %%
import numpy as np

from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.reference import dequantize_reference, quantize_reference

x = np.random.default_rng(0).standard_normal((1, 1, 128)).astype(np.float32)  # [tokens, kv_heads, head_dim]
for name in ("int8", "int4"):
    form = kv_format(name, 128)
    codes, pairs = quantize_reference(x, form)
    back = dequantize_reference(codes, pairs, form)
    step = float(pairs[..., 0].max())
    print(
        f"{name}: {codes.nbytes} bytes of codes, {pairs.nbytes} of scales and zeros; "
        f"a step is {step:.4f}, the largest error {np.abs(back - x).max():.4f}"
    )
    assert np.abs(back - x).max() < 0.51 * step + 2e-3  # half a step, and the rounding of the zero

# %% [markdown]
# ## Which numbers share a ruler
#
# One large number makes the ruler long and the marks far apart, for all that share it. So it matters who does. Let us
# look at the numbers that matter: the keys of the bundled model, as they lie in its cache after 256 tokens of text.

# %%
import minllm
from minllm import LLM
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.engine.running.batch_arrays import NewTokens, build_batch, to_backend
from minllm.models.decoder import forward

TOKENS = 256
llm = LLM(dtype="float32", max_num_seqs=1)
ops, model, config = llm.engine.ops, llm.engine.model, llm.engine.model.config
text = llm.tokenizer.encode(minllm.held_out_text()[:3000])[:TOKENS]
shape = CacheShape(config.num_hidden_layers, TOKENS, config.num_key_value_heads, config.head_dim, ops.dtype)
cache = KVCache(ops, shape, num_blocks=1)
forward(ops, model, to_backend(build_batch([NewTokens(text, 0, [0])], [TOKENS - 1], TOKENS), ops), cache.layers)
keys = np.stack([layer.key[0] for layer in cache.layers])  # [layers, tokens, kv_heads, head_dim]
values = np.stack([layer.value[0] for layer in cache.layers])
print(keys.shape)

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
# The columns stand out. Some components of the keys are large in *every* token, and some small in every one. (The
# rotation of [lesson 6](06_norms_rope_swiglu_fusion.py) turns some components so slowly that they hardly change over
# 256 positions.) Values have no such columns. How much of a key is the same in all tokens?

# %%
def share_of_mean(x):
    """How much of the squares is the mean over tokens, 1 if all are alike; x [layers, tokens, kv_heads, head_dim]."""
    return float(np.square(x.mean(axis=1)).sum() / np.square(x).mean(axis=1).sum())


print(f"keys {100 * share_of_mean(keys):.0f} %, values {100 * share_of_mean(values):.0f} %")
assert share_of_mean(keys) > 2 * share_of_mean(values)

# %% [markdown]
# ### Smaller groups
#
# Give each 64 numbers, or each 32, a ruler of their own: the large ones spoil fewer neighbours, and each ruler costs
# four bytes more.

# %% tags=["fold"]
from minllm.course import curves


def error(x, form):
    """Relative error of numbers that went through a format."""
    codes, pairs = quantize_reference(x, form)
    return float(np.linalg.norm(dequantize_reference(codes, pairs, form) - x) / np.linalg.norm(x))


groups = [size for size in (32, 64, 128) if config.head_dim % size == 0]
formats = [kv_format("int4", config.head_dim, size) for size in groups]
curves(
    {
        "keys": [(8 * form.bytes_per_head / config.head_dim, 100 * error(keys, form)) for form in formats],
        "values": [(8 * form.bytes_per_head / config.head_dim, 100 * error(values, form)) for form in formats],
    },
    "bits a number, scales and zeros included",
    "relative error, per cent",
    f"int4 with groups of {', '.join(map(str, groups))}",
    caption="The bundled model's keys and values of 256 tokens, computed in the cell.",
)

# %% [markdown]
# ### What all tokens have in common says nothing
#
# There is a better way for keys, and it costs no byte. The part that is the same in every token adds the same number
# to every score of a query: $q \cdot (k - \bar{k}) = q \cdot k - q \cdot \bar{k}$. And softmax does not see what is
# added to all scores. So subtract the mean before the codes are made, and never add it again.

# %%
mean = keys.mean(axis=1, keepdims=True)  # [layers, 1, kv_heads, head_dim]
query = np.random.default_rng(1).standard_normal(config.head_dim).astype(np.float32)


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


plain, without_mean = (softmax(some[layer, :, 0] @ query) for some in (keys, keys - mean))
assert np.abs(plain - without_mean).max() < 1e-5
form = kv_format("int4", config.head_dim)
errors = [np.linalg.norm(dequantize_reference(*quantize_reference(k, form), form) - k) for k in (keys, keys - mean)]
print(f"int4: the error without the mean is {100 * errors[1] / errors[0]:.0f} % of the error with it")
assert errors[1] < 0.8 * errors[0]

# %% [markdown]
# The engine does so: it reads a fixed text while it loads, and remembers each component's mean, and how much it
# varies.
#
# ### Keys by channel
#
# One can read the same picture another way. A component of a head, a *channel*, has its own size in all tokens. So let
# the numbers of one channel share a ruler, those of 32 tokens in a row, and no channel spoils another:

# %% tags=["fold"]
one_head = {"keys": keys[layer, :, 0], "values": values[layer, :, 0]}  # [tokens, head_dim]
curves(
    {name: list(enumerate(np.abs(x).max(axis=0).tolist())) for name, x in one_head.items()},
    "channel",
    "largest in 256 tokens",
    f"Channels of a head in layer {layer}",
    caption="The bundled model, the tokens from above.",
)

# %%
from minllm.kernels.quantization.reference import dequantize_by_channel, quantize_by_channel

kivi = kv_format("kivi_int4", config.head_dim)


def error_by_channel(x):
    """Relative error of x [layers, tokens, kv_heads, head_dim] with a ruler for each channel of 32 tokens."""
    groups = x.reshape(len(x), -1, kivi.token_group, *x.shape[2:]).swapaxes(2, 3)  # [..., kv_heads, 32, head_dim]
    codes, pairs = quantize_by_channel(groups, kivi)
    back = dequantize_by_channel(codes, pairs[..., None, :, :])
    return float(np.linalg.norm(back - groups) / np.linalg.norm(groups))


for name, x in (("keys", keys), ("values", values)):
    print(f"{name:6} by token {100 * error(x, form):.1f} %, by channel {100 * error_by_channel(x):.1f} %")
assert error_by_channel(keys) < 0.8 * error(keys, form)

# %% [markdown]
# It takes as many bytes, and no mean has to be known beforehand. This is KIVI's form, `kivi_int4` here: keys by
# channel, values by token. It has a price: a ruler for 32 tokens can be made when the last of them has come, and until
# then they must be kept as they are.
#
# ### A window for the newest tokens
#
# KIVI makes a virtue of that. The newest 128 tokens, the *residual window*, stay in full precision, and whatever
# leaves the window has its codes by then. The window does not grow with the context. And it helps any format, because
# the newest tokens are those that the next one depends on most.
#
# Attention then has two parts, codes and recent tokens. They are computed by two kernels as different as their
# numbers, and joined as [lesson 9](09_decode_attention.py) joins parts of a context: each part comes with the
# logarithm of the sum of its exponentials, which says how much it weighs.


# %%
def part(scores, rows):
    """A part of attention: the mean of `rows` by its own softmax, and how much it weighs."""
    largest = scores.max()
    weights = np.exp(scores - largest)
    return weights @ rows / weights.sum(), largest + np.log(weights.sum())


scores, rows = keys[layer, :, 0] @ query / config.head_dim**0.5, values[layer, :, 0]
(old, old_size), (new, new_size) = part(scores[:128], rows[:128]), part(scores[128:], rows[128:])
share = 1 / (1 + np.exp(new_size - old_size))  # of the old part
assert np.allclose(share * old + (1 - share) * new, softmax(scores) @ rows, atol=1e-5)

# %% [markdown]
# Which tokens a query reads as codes depends on where it stands, and on nothing else. So a text means the same whether
# it is read at once, in chunks or token by token (`residual_window/reference.py` has the rule).
#
# ### Floats with eight bits
#
# A ruler has equal steps; a float has steps in proportion to the number. fp8 e4m3 has 3 bits of fraction: it comes
# back within a sixteenth of itself, large or small, down to its smallest. So it needs no ruler for each token, only
# one scale that keeps everything in range.

# %% tags=["fold"]
sizes = np.logspace(-3, 0, 60).astype(np.float32)
spread = np.random.default_rng(2).standard_normal((60, 1, 64)).astype(np.float32)
lines = {}
for name in ("int8", "fp8_e4m3", "fp8_e5m2"):
    form = kv_format(name, 64)
    scales = np.full(1, 4 / 448, np.float32) if form.is_float else None  # numbers up to 4
    line = []
    for size in sizes[::4]:
        mixed = np.where(np.arange(64) < 4, 1.0, size) * spread  # four large components among small ones
        codes, pairs = quantize_reference(mixed.astype(np.float32), form, scales)
        small = (dequantize_reference(codes, pairs, form) - mixed)[..., 4:]
        line.append((float(size), 100 * float(np.linalg.norm(small) / np.linalg.norm(mixed[..., 4:]))))
    lines[name] = line
curves(
    lines,
    "size of the small components, of the large ones'",
    "their relative error, per cent",
    "Small numbers beside large ones",
    log_x=True,
    log_y=True,
    caption="64 normal numbers, four of them larger than the others; computed in the cell.",
)

# %% [markdown]
# Where all are of one size, int8 is far better: all its bits are significant. Where they are not, the float forgives.
#
# ## What it takes

# %%
for name in ("int8", "int4", "fp8_e4m3"):
    form = kv_format(name, 128)
    print(
        f"{name:9} {form.code_bytes:3} bytes of codes, {form.scale_bytes} of scales and zeros a head: "
        f"{256 / form.bytes_per_head:.2f} times the tokens"
    )
int8_times, int4_times = (256 / kv_format(name, 128).bytes_per_head for name in ("int8", "int4"))
assert round(int8_times, 2) == 1.94 and round(int4_times, 2) == 3.2

# %% [markdown]
# ## What it costs
#
# The model itself says what matters. Its perplexity on a text, with everything that a token sees read back from the
# cache:

# %%
passage = llm.tokenizer.encode(minllm.held_out_text()[50000:54000])[:700]
plain = llm.perplexity(passage)
print(f"float32   {plain:.4f}")
assert abs(plain - 6.5) < 0.3  # near that of the whole held-out text
for name in ("int8", "fp8_e4m3", "int4"):
    with LLM(dtype="float32", max_num_seqs=1, kv_cache_dtype=name) as other:
        perplexity = other.perplexity(passage)
    print(f"{name:9} {perplexity:.4f}, {100 * (perplexity / plain - 1):+.2f} %")
    assert abs(perplexity / plain - 1) < 0.06

# %% [markdown]
# And with the newest 128 tokens as they are:

# %%
for name in ("fp8_e4m3", "int4", "kivi_int4"):
    with LLM(dtype="float32", max_num_seqs=1, kv_cache_dtype=name, kv_cache_residual_window=128) as other:
        perplexity = other.perplexity(passage)
    print(f"{name:9} {perplexity:.4f}, {100 * (perplexity / plain - 1):+.2f} %")
    assert abs(perplexity / plain - 1) < 0.02

# %% [markdown]
# One page is a small sample. The record has all of the held-out text:

# %% tags=["fold"]
from minllm.course import Bar, bars, comparable, recorded

found = recorded("KV cache accuracy", "perplexity above the plain cache's", listed=True)
excess = {row.variant: row for row in found if row.case.startswith("bundled")}


def perplexities(title, names):
    """Bars of these formats' perplexities."""
    rows = comparable(*(excess[name] for name in names))
    return bars(
        [Bar(name, excess[name].value, f"{excess[name].value:+.2f} %") for name in names],
        unit="per cent",
        title=title,
        caption=f"The bundled model, all of its held-out text; {rows[0].label}. Command: minllm bench accuracy.",
    )


perplexities("Perplexity above that of a plain cache", [name for name in excess if "window" not in name])

# %% tags=["fold"]
with_window = [name for name in excess if name.endswith(("window 128", "window 256"))]
perplexities("The same, with a window of the newest tokens in 16 bits", with_window)

# %%
guess.against(
    int8_times_the_tokens=int8_times,
    int4_times_the_tokens=int4_times,
    int8_perplexity_percent=excess["int8"].value,
    int4_perplexity_percent=excess["int4"].value,
)

# %% [markdown]
# ## Codes are never unpacked in memory
#
# A kernel that wrote the numbers out in 16 bits, to read them again, would move more bytes than before. So codes are
# made on the way into the cache, by the kernel that writes it, and numbers are made of them in the registers of the
# kernel that reads.
#
# How does one make numbers of bytes quickly? Keys need not become any: tensor cores multiply bytes by bytes, so it is
# the query, of which there is one, that is split into two bytes a number. The weights of values are fractions, and
# their bytes must become float16. Not with a conversion for each: there are not enough instructions in the time. Put a
# zero byte above a code. Read as a float16, that is one of the smallest numbers there are, the code times $2^{-24}$,
# *exactly*. Tensor cores take it like any other, and the factor $2^{24}$ goes into the scale of the whole product. One
# instruction (`prmt`, which picks bytes) makes two numbers:

# %%
codes = np.array([0, 1, 2, 128, 255], np.uint8)
as_float16 = codes.astype(np.uint16).view(np.float16)  # a zero byte above each
print(as_float16)
assert np.array_equal(as_float16.astype(np.float64) * 2**24, codes)

# %% tags=["hide-input"]
from minllm.kernels.attention.split_quantized import codes as split_codes

show_source(
    split_codes.make_byte_halves,
    notes={"def value_operands": "A word holds two channels of two keys: ldmatrix has transposed them."},
)

# %% [markdown]
# And the scales? A key's score is $q \cdot (s\,c + z) = s\,(q \cdot c) + z \sum q$: one multiplication and one
# addition a score, after the product of the codes. Values are the same the other way round: the weights are
# multiplied by the scales before the product. So the inner loop multiplies codes as they are. Where channels have the
# scales, the query is multiplied by them, once for a group: $\sum_i q_i (s_i c_i + z_i) = \sum_i (q_i s_i) c_i +
# \sum_i q_i z_i$.
#
# ## Measured against predicted
#
# A decode step reads each byte of the cache once. If memory is the limit, tokens of context a second go up by what
# the bytes went down.

# %% tags=["fold"]
rows = recorded("decode attention, quantised", "64x4096, 32/8 heads, d 128", "split_quantized")
by_format = {row.case.split(", ")[3]: row for row in rows if row.case.count(", ") == 3}
bars(
    [
        Bar(name, row.value / row.peer_value, f"{256 / kv_format(name, 128).bytes_per_head:.2f} by its bytes")
        for name, row in by_format.items()
    ],
    unit="times the tokens",
    title="Decode attention, 64 sequences of 4,096 tokens",
    caption=f"Tokens of context a second, against split_tensor_core in bfloat16 in the same run; {rows[0].label}.",
)

# %% [markdown]
# Eight bits give nearly what their bytes promise, four a little less. What is missing is time that belongs to no byte:
# who computes what is decided, the first keys are on their way, the last parts are merged. That takes about 10 µs in
# every format, and the fewer the bytes, the more it counts.
#
# Room is the other gain, and it is exact. `minllm plan` compares them for any model, GPU and context:

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
# Policy and format multiply: how many tokens are there in 100 GB, if each policy wastes what it wasted on the traffic
# of [lesson 10](10_paged_blocks_and_shared_prefixes.py)?

# %%
from minllm import costs
from minllm.planning.formats import kv_itemsize

counted = recorded("cache waste", record="cache_traffic")
waste = {row.variant: row.value / 100 for row in counted if "system" not in row.case}
names = ("bfloat16", "float8", "int8", "int4")
print(f"{'thousands of tokens':20}" + "".join(f"{name:>10}" for name in names))
for policy in ("contiguous", "paged, blocks of 16", "virtual"):
    room = 100e9 * (1 - waste[policy])
    held = [room / costs.kv_bytes_per_token(llama8, kv_itemsize(name, llama8.head_dim)) for name in names]
    print(f"{policy:20}" + "".join(f"{tokens / 1e3:10,.0f}" for tokens in held))

# %% [markdown]
# ## Exercises

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises(11)

# %% [markdown]
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("louder_and_louder")

# %% [markdown]
# ## What next, and which measurement says so
#
# The bars say that the cache can be made so small that reading it is no longer what a step waits for. What remains
# are the weights, which are read once for all sequences of a batch. So the batch has to stay full, although sequences
# come and go: lesson 14. Before that, [lesson 12](12_choosing_the_next_token.py) chooses the token that all of this
# was for.
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
