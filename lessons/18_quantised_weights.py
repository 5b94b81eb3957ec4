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
# # 18. Quantised weights
#
# A decode step reads every weight once, whatever the batch. With half the bytes it can take half the time, and with a
# quarter of the bytes a quarter, if the kernel keeps up and the answers stay good. In this lesson weights become codes
# of 8 and 4 bits. You measure which numbers lose most, unpack a byte by hand, and write the GEMV that unpacks codes in
# registers.
#
# ```mermaid
# flowchart LR
#     w["32 weights<br/>64 bytes"] -- "one scale" --> c["32 codes of 4 bits<br/>16 + 2 bytes"]
#     c -- "16 bytes per load" --> r["registers:<br/>(code - 8) × scale"]
#     x["x, 16 bits"] --> r
#     r --> s["sum in float32"]
# ```
#
# One output is a sum of weights $w_k$ times inputs $x_k$. The inputs are cut into groups $g$ of 32 neighbours. Each group
# has a scale $s_g$, and each weight a code $c_k$ from 1 to 15:
#
# $$s_g = \frac{\max_{k \in g} |w_k|}{7}, \qquad c_k = \text{round}\frac{w_k}{s_g} + 8, \qquad
# \mathrm{out} = \sum_g s_g \sum_{k \in g} x_k\,(c_k - 8)$$
#
# Activations stay in 16 bits, so this is called W4A16: weights in 4 bits, activations in 16. The kernel never writes
# decoded weights to memory. A lane loads a byte of codes, decodes it in registers, and multiplies.

# %%
from numba import cuda, float32

from minllm.kernels.reduction import warp_sum
from minllm.runtime.kernel import kernel


@kernel
def int4_gemv(x, codes, scales, out):  # [K], [N, K / 2], [N, K / 32], [N]
    """The two codes of a byte are neighbours here: k in the low nibble, k + 1 above."""
    n, lane, total = cuda.blockIdx.x, cuda.threadIdx.x, float32(0)  # one warp per row
    for at in range(lane, codes.shape[1], 32):  # neighbouring lanes, neighbouring bytes
        k = 2 * at
        scale = scales[n, k // 32]
        low, high = codes[n, at] & 15, codes[n, at] >> 4
        total += scale * (float32(low) - float32(8)) * x[k]
        total += scale * (float32(high) - float32(8)) * x[k + 1]
    total = warp_sum(total)
    if lane == 0:
        out[n] = total


# %% [markdown]
# **What you will be able to do**
#
# - compute how many bytes per step each format needs, and when fewer bytes do not make a step faster;
# - predict the error of a code from the largest number in its group;
# - read and write packed nibbles, and find the cause when two programs pack them differently.
#
# You need [lesson 10](10_flash_decoding_plus_plus.py), and codes and scales from
# [lesson 13](13_quantised_kv_cache.py). You need no GPU.
#
# ## Predict

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    bits_per_number="How many bits per number take 4-bit codes with a float16 scale for every 32?",
    step_times="The 8B shape at batch 1, context 1,024: by what factor does int4 shorten the minimum decode step?",
    codes_that_are_zero="The bundled model's down projections multiply activations. Rounded to int8, token by token: "
    "what percentage of the codes is 0?",
    int4_perplexity_percent="All matrices of the bundled model rounded to int4, groups of 32. By what percentage does perplexity grow?",
    better_four_bits=(
        "NF4 takes fewer bits per number than int4 in groups of 32. Which model is better?",
        "int4",
        "nf4",
    ),
    ridge_tokens="From which batch on is a product with 4-bit weights limited by arithmetic, not memory? (4.2 TB/s, 800 TFLOP/s)",
)
guess.ask()

# %% [markdown]
# ## Nibbles by hand
#
# Which two codes share a byte is a convention, and each file format has its own. In the kernel above they are
# neighbours. The package's int4 packs eight codes into a word of 4 bytes so that neighbours are 16 bits apart, where a
# kernel needs them to make a pair of bfloat16. Unpack them yourself:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("matmul.int4")

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.matmul.ladder import int4_naive
from minllm.kernels.matmul.quantized import int4

show_source(
    int4_naive.int4_naive_kernel,
    folded="Now see the engine's first rung: any group, zero points, the order of the exercise",
    notes={
        "k = 8 * (at >> 2)": "The word, the odd byte, the upper two bytes: the table of the exercise.",
        "total = warp_sum(total)": "32 partial sums become one.",
    },
)

# %% [markdown]
# When your kernel passes, it can generate text: `minllm generate --quantization int4 --variant int4_matmul=FILE`. The
# report card then says `int4_matmul yours`.
#
# <!-- aside: Two codes become two floats without a conversion -->

# %%
import numpy as np

from minllm.kernels.quantization.reference import pack_nibbles

packed = pack_nibbles(np.arange(8, dtype=np.uint8))  # the codes 0 to 7, in order
word = int(packed.view("<u4")[0])
print("bytes", [f"0x{byte:02x}" for byte in packed], f"word 0x{word:08x}")
pairs = [word >> 4 * i & 0x000F000F for i in range(4)]
print("word >> 4 i & 0x000f000f:", [f"0x{pair:08x}" for pair in pairs])
magic = np.uint32(pairs[1] | 0x43004300)  # 0x4300 is 128 in bfloat16, and its ulp is 1
low, high = magic << np.uint32(16), magic & np.uint32(0xFFFF0000)
print("as bfloat16:", np.array([low, high], np.uint32).view(np.float32))

# %% tags=["hide"]
assert [(pair & 15, pair >> 16) for pair in pairs] == [(0, 1), (2, 3), (4, 5), (6, 7)]
assert [(byte & 15, byte >> 4) for byte in packed] == [(0, 2), (4, 6), (1, 3), (5, 7)]

# %% [markdown]
# A shift, an `and` and an `or` turn two codes into the floats 128 + code. AWQ files have the same order along columns,
# GPTQ files the natural order along rows, and GGUF files put input $k$ beside $k + 16$. NF4 keeps the order of
# bitsandbytes' files: neighbours share a byte, because each byte looks up a pair of numbers in a table.
#
# <!-- end aside -->
#
# !!! tip "Takeaway"
#     A packed file is readable only with its convention: which input each nibble belongs to, and which scale.
#
# ## Bytes per step

# %%
from minllm import costs
from minllm.models.shapes import find_config
from minllm.weights.formats import WEIGHT_FORMATS

_, llama8 = find_config("llama-3.1-8b")
step = {}
for name in ("bfloat16", "int8", "int4", "int4_g128", "nf4"):
    found = WEIGHT_FORMATS[name]
    step[name] = costs.decode_step(llama8, 1, 1024, weight_format=found)
    bits = 8 * found.matrix_bytes(4096, 4096) / 4096**2
    print(
        f"{name:10} {bits:5.2f} bits per number, {step[name].bytes / 1e9:5.2f} GB per "
        f"step, {step['bfloat16'].bytes / step[name].bytes:.2f}x"
    )
bits_per_number = 8 * WEIGHT_FORMATS["int4"].matrix_bytes(4096, 4096) / 4096**2
step_times = step["bfloat16"].bytes / step["int4"].bytes

# %% tags=["hide"]
assert bits_per_number == 4.5 and 2.8 < step_times < 3.2

# %% [markdown]
# The gain is less than 16 / 4.5 = 3.6, because the head, the keys and the values stay in 16 bits. It also shrinks as
# the batch grows. For $M$ tokens a GEMM does $2M$ FLOPs per weight, in 16 bits on tensor cores. Its lower bound is the
# longer of two times: reading the weights, and multiplying by them.

# %% tags=["fold"]
from minllm.course import curves

TB_S, TFLOPS = 4.2, 800  # round figures of an H200
N, K = 28672, 4096
batches = [2**i for i in range(11)]
lines = {}
for name in ("bfloat16", "int8", "int4"):
    reading = WEIGHT_FORMATS[name].matrix_bytes(N, K) / TB_S / 1e6  # µs
    lines[name] = [(M, max(reading, 2 * M * N * K / TFLOPS / 1e6)) for M in batches]
curves(
    lines,
    "tokens",
    "µs",
    f"The floor of a product with {N:,} x {K:,} weights, multiplied in bfloat16",
    log_x=True,
    log_y=True,
    caption="Computed from 4.2 TB/s and 800 TFLOP/s. int8 could also multiply in "
    "8 bits, at twice the rate.",
)

# %% [markdown]
# !!! tip "Takeaway"
#     Fewer bytes per weight help as long as reading the weights takes longer than multiplying by them.
#
# ## The error of a code
#
# Let the largest number of a group be $t$ times its root mean square. Then the relative error is $t / (127 \sqrt{12})$
# in int8 and $t / (7 \sqrt{12})$ in int4. Only $t$ matters.
#
# ??? note "Where this comes from"
#     Neighbouring codes stand for numbers that are one scale $s$ apart, so the error of a number is at most $s/2$. If a
#     number is equally likely to lie anywhere between two codes, the standard deviation of its error is $s / \sqrt{12}$.
#     The largest number has code 127 in int8 and 7 in int4, so $s$ is $t / 127$ or $t / 7$ times the root mean square.

# %%
import minllm
from minllm import LLM
from minllm.course import linear_inputs

llm = LLM(device="cpu", dtype="float32", max_num_seqs=1)
ids = llm.tokenizer.encode(minllm.held_out_text()[:3000])[:256]
layers = linear_inputs(llm, ids)[:-1]  # qkv, output, gate and up, down; not the head


def relative_error(x, name):
    """The relative error of x [rows, inputs] after rounding to a format."""
    found = WEIGHT_FORMATS[name]
    back = found.dequantize(found.encode(x))
    return float(np.linalg.norm(back - x) / np.linalg.norm(x))


print("error of the first layer's four matrices, %")
for name in ("int8", "fp8", "int4", "int4_zeros", "nf4"):
    errors = [100 * relative_error(weight, name) for _, weight in layers[:4]]
    print(f"{name:10}", *(f"{error:5.2f}" for error in errors))

# %% tags=["hide"]
assert len(layers) == 24
weight = layers[0][1]
groups = weight.reshape(-1, 32)
t = np.abs(groups).max(1) / np.sqrt(np.square(groups).mean(1))
expected = np.sqrt(np.mean(np.square(t * np.sqrt(np.square(groups).mean(1)))))
expected /= np.sqrt(np.square(groups).mean()) * 7 * 12**0.5
assert abs(relative_error(weight, "int4") / expected - 1) < 0.1

# %% [markdown]
# Weights are nearly normal, so $t$ is 2 to 4 in a group, and the error with 4 bits is 8 to 10 %. NF4 places its 16
# codes where normal numbers are frequent: closer together near 0. It needs fewer bits than int4 in groups of 32, and its
# error is smaller. fp8 has an error of 2.6 % whatever $t$ is, because the distance between floats grows with the number.
#
# Try it: [one matrix, its codes in each format](../docs/weight-codes.md).
#
# !!! tip "Takeaway"
#     The largest number of a group sets the error of all others. Small groups, or codes placed where numbers are, help.
#
# ## Outliers
#
# W8A8 quantises activations too, with one scale per token. Are activations as easy to quantise as weights? The chart
# shows the inputs of every Linear in the bundled model:

# %% tags=["fold"]
points = {"int8": [], "fp8": []}
for x, _ in layers:
    t = np.abs(x).max(1) / np.sqrt(np.square(x).mean(1))
    for name, line in points.items():
        line.append((float(np.median(t)), 100 * relative_error(x, name)))
curves(
    {name: sorted(line) for name, line in points.items()},
    "largest number of a token over its root mean square, median",
    "relative error, %",
    "Activations of 256 tokens, rounded",
    caption="The bundled model, the inputs of its 24 Linears; computed above.",
)

# %%
down = [x for x, _ in layers[3::4]]
others = [x for i, (x, _) in enumerate(layers) if i % 4 != 3]
zeros = [100 * np.mean(WEIGHT_FORMATS["int8"].encode(x).codes == 0) for x in down]
print("int8 codes that are 0 in the inputs of down, % by layer:", np.round(zeros, 1))
worst = [max(relative_error(x, "int8") for x in some) for some in (others, down)]
print(
    f"int8 error at most {100 * worst[0]:.1f} % elsewhere, {100 * worst[1]:.1f} % there"
)
codes_that_are_zero = float(np.mean(zeros))

# %% tags=["hide"]
assert worst[1] > 2 * worst[0] and 12 < codes_that_are_zero < 17

# %% [markdown]
# The points at the right end of the chart are the down projections. Their inputs are products,
# $\mathrm{silu}(g) \cdot u$, and the product of two large numbers is very large. It sets the scale of the whole token,
# and one code in seven is 0. This model is small and its outliers are mild. In models of 7B and more, a few channels are
# 20 to 100 times larger than all others in every token (Dettmers et al. 2022, Xiao et al. 2023). int8 then rounds most
# of the others to 0.
#
# ??? note "Three remedies"
#     - **fp8** rounds each number relative to its own size, so its line in the chart is flat.
#     - **SmoothQuant** divides such a channel of $x$ by a factor and multiplies the weight's column by the same factor,
#       because weights have no such outliers.
#     - **W4A16** does not quantise activations. They are a small part of a decode step's bytes, so 16 bits cost little.
#
# !!! tip "Takeaway"
#     Weights are easy to quantise. Activations have outliers, so they need fp8, SmoothQuant, or 16 bits.
#
# ## From one byte to sixteen
#
# The kernel at the top of this page loads one byte per lane. On four rows of 128 weights it computes:

# %%
rng = np.random.default_rng(0)
matrix = rng.standard_normal((4, 128)).astype(np.float32)
scales = np.abs(matrix.reshape(4, 4, 32)).max(2) / np.float32(7)
codes = np.rint(matrix.reshape(4, 4, 32) / scales[..., None]) + 8
codes = codes.reshape(4, 128).astype(np.uint8)
x, out = rng.standard_normal(128).astype(np.float32), np.empty(4, np.float32)
int4_gemv.simulate[4, 32](x, codes[:, ::2] | codes[:, 1::2] << 4, scales, out)
print("with codes  ", *(f"{value:6.2f}" for value in out))
print("with weights", *(f"{value:6.2f}" for value in matrix @ x))

# %% tags=["hide"]
stands_for = (codes.astype(np.float32) - 8) * np.repeat(scales, 32, axis=1)
assert np.allclose(out, stands_for @ x, atol=1e-4)

# %% tags=["hide-input"]
show_source(
    int4.int4_gemv_kernel,
    part="int4_gemv_kernel",
    folded="The engine's kernel",
    notes={
        "load_words(codes": "16 bytes per lane, 32 codes of one group: 16 times the bytes in flight.",
        "unpack_int4(words": "The trick with 128, eight codes per word.",
        "scale * part[i]": "The scale leaves the inner sum: one product per group, not per weight.",
    },
)

# %% [markdown]
# The fast rung keeps more bytes in flight, as in lesson 10, and uses fewer instructions. 4.2 TB/s over 132 SMs at
# 1.8 GHz is 18 bytes per cycle per SM: 35 weights of 4 bits. An SM's 128 lanes must unpack, convert and multiply them in
# one cycle. A 4-bit GEMV can therefore be limited by instructions when a 16-bit one is limited by memory.
#
# !!! tip "Takeaway"
#     A quarter of the bytes makes the arithmetic per byte four times as much. Unpacking must be nearly free.
#
# ## What the model loses

# %%
text = llm.tokenizer.encode(minllm.held_out_text()[50000:54000])[:700]
plain, excess = llm.perplexity(text), {}
for name in ("int8", "fp8", "int4", "nf4"):
    with LLM(device="cpu", dtype="float32", max_num_seqs=1, quantization=name) as other:
        excess[name] = 100 * (other.perplexity(text) / plain - 1)
    print(f"{name:5} perplexity {excess[name]:+.2f} %")
llm.close()

# %% tags=["hide"]
assert max(excess["int8"], excess["fp8"]) < 2 < excess["nf4"] < excess["int4"] < 25

# %% [markdown]
# This is rounding to nearest, each number by itself. GPTQ rounds one column, then adjusts the columns that are not
# rounded yet so that the outputs change least. It reduces int4's loss from 15.6 to 1.8 %. The [table of methods and
# formats](../docs/quantised-weights.md#what-the-bundled-model-loses) covers the whole held-out text. Small models lose
# most, because they have few redundant weights.
#
# !!! tip "Takeaway"
#     8 bits cost almost nothing. Rounding to 4 bits costs a small model a tenth or more, and GPTQ recovers most of it.
#
# ## Measured against predicted
#
# The first chart showed lower bounds. This one shows the fastest kernel of each format on an H200:

# %% tags=["fold"]
from minllm.course import recorded

fastest = {}  # format: {rows: microseconds}
for row in recorded("matmul, quantised", " x 28672x4096", record="h200_quantised"):
    size, name = row.case.split(" x 28672x4096, ")
    times, m = fastest.setdefault(name, {}), int(size.split()[0])
    times[m] = min(row.value, times.get(m, row.value))

curves(
    {
        name: [(m, us) for m, us in sorted(fastest[name].items()) if m <= 256]
        for name in ("bfloat16", "int8", "fp8", "int4 in groups of 128")
    },
    "tokens",
    "µs",
    "The same product, measured",
    log_x=True,
    log_y=True,
    caption=f"28,672 x 4,096 weights, all formats in one run; {row.label}.",
)

# %% tags=["hide-input"]
guess.against(
    bits_per_number=bits_per_number,
    step_times=step_times,
    codes_that_are_zero=codes_that_are_zero,
    int4_perplexity_percent=excess["int4"],
    better_four_bits="nf4",
    ridge_tokens=TFLOPS / TB_S * (bits_per_number / 8) / 2,
)

# %% [markdown]
# The bytes give only an upper bound on the speed. The MARLIN paper reports speeds close to this bound for 16 to 32
# tokens, on an A10 with 0.6 TB/s. An H200 has seven times the bandwidth and less than twice the SMs.
#
# <!-- aside: Whole steps, by format and batch -->
#
# A better prediction also needs the fixed cost of a kernel, and how far its loads and its arithmetic overlap. A model of
# some twenty numbers, fitted to recorded GEMMs, predicts whole steps: `minllm plan llama-3.1-8b --gpu h200 --formats`.

# %%
from minllm.machine.hardware import gpu_named
from minllm.planning.weight_table import compare_weights

steps = compare_weights(llama8, *gpu_named("h200"), context=1024)
print("ms per step; g128 is int4_g128")
names = {"bfloat16": "bf16", "int4_g128": "g128"}
print("batch", *(f"{names.get(name, name):>5}" for name in steps.milliseconds[1]))
for batch, times in steps.milliseconds.items():
    print(f"{batch:5}", *(f"{ms:5.2f}" for ms in times.values()))
ahead = steps.most_ahead["int4_g128"]

# %% tags=["hide"]
assert 16 <= ahead["int8"] < 64 and 128 < ahead["bfloat16"] <= 256
of_four = steps.milliseconds[4]
assert (
    steps.most_ahead["int4"]["int8"] == 1
    and 1.03 < of_four["int4"] / of_four["int8"] < 1.06
)

# %% [markdown]
# int4 is faster than int8 in small batches: int8's kernel reads more bytes, but decodes nothing. In large batches
# arithmetic is the limit, and tensor cores multiply 8-bit codes twice as fast as 16-bit numbers. Groups of 32 (`int4`)
# have four times as many scales as groups of 128. For two to eight sequences they take twice as long to decode, so from
# two sequences on int8 is some 4 to 6 % faster than int4. Measured steps are within 9 % of the predicted ones
# ([table](../docs/quantised-weights.md#whole-decode-steps)).
#
# <!-- end aside -->
#
# !!! tip "Takeaway"
#     int4 wins in small batches, 8 bits in large ones. Measure at your own batch size.
#
# ## Exercises
#
# This lesson's exercise is [above](#nibbles-by-hand).
#
# ## Detective cases
#
# Three checkpoints were written by other programs. What is wrong with each?

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("same_histogram")

# %% [markdown]
# <!-- aside: Two more cases -->

# %% tags=["hide-input"]
show_case("slightly_bright")

# %% tags=["hide-input"]
show_case("whole_rows_only")

# %% [markdown]
# <!-- end aside -->
#
# ## Problems
#
# ??? question "1. Groups of 128 with a float16 scale and a 4-bit zero point. How many bits per number? And groups of 32?"
#     4 + (16 + 4) / 128 = 4.16, and 4 + 20 / 32 = 4.63. With one byte per zero point, as in this package, 4.19 and 4.75.
#
# ??? question "2. A group of 32 weights has 31 numbers of size 1 and one of 20. What is the relative error of the small ones in int4, and in NF4?"
#     The step is 20 / 7 = 2.9, so the small ones round to 0, an error of 100 %. NF4's codes next to 0 stand for 0.08 · 20
#     = 1.6 and -0.09 · 20 = -1.8, so 1 and -1 become 60 and 80 % too large. A smaller group helps; another 4-bit format does not.
#
# ??? question "3. One H200 at 4 dollars per hour serves 64 sequences of the 8B shape with short contexts, 15 GB of weights per step at 4.2 TB/s. What does int8 save per million tokens?"
#     A step takes 3.6 ms and gives 64 tokens: 17,900 per second, 6.2 cents per million. int8 halves the layers' 14 GB,
#     which leaves 8 GB, 1.9 ms and 3.3 cents. int4 would save more only if its kernel multiplied 64 rows as fast as memory
#     delivers the codes.
#
# ??? question "4. A 70B model has 141 GB in 16 bits. On how many GPUs of 80 GB does it run in 16, 8 and 4.5 bits, with 20 GB for keys and values?"
#     It needs 161, 91 and 60 GB: three GPUs (in practice four), two, and one. The price per hour falls to a quarter even
#     if no kernel gets faster.
#
# ??? question "5. An engine dequantises int4 weights into a bfloat16 copy in HBM at every step and calls cuBLAS. How many bytes move per weight?"
#     0.56 read, 2 written, 2 read: 4.6 bytes, 2.3 times the bytes of bfloat16. For prompts of thousands of tokens the
#     arithmetic takes longer than this traffic. For decoding the traffic makes 4 bits slower than 16.

# %% tags=["hide"]
assert round(4 + 20 / 128, 2) == 4.16 and round(4 + 20 / 32, 3) == 4.625
assert abs(64 / (15 / 4.2e3) - 17_920) < 1 and abs(4 / 3600 / 17_920 * 1e8 - 6.2) < 0.1
assert abs(4 / 3600 / (64 / (8 / 4.2e3)) * 1e8 - 3.3) < 0.1

# %% [markdown]
# ## What next, and the measurement behind it
#
# A step at batch 1 now reads little more than the codes and the head, but each token still needs all of them once.
# [Speculative decoding](19_speculative_decoding.py) checks several drafted tokens per reading of the weights. In
# [the final project](../docs/project.md) five of your own kernels generate text together.
#
# ## Sources
#
# - T. Dettmers et al., "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale", NeurIPS 2022, sections 2
#   and 4 (outliers).
# - G. Xiao et al., "SmoothQuant", ICML 2023, section 4.
# - E. Frantar et al., "GPTQ", ICLR 2023, sections 3 and 4.
# - J. Lin et al., "AWQ: Activation-aware Weight Quantization", MLSys 2024, section 3.
# - T. Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", NeurIPS 2023, section 3.
# - P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022, section 3.
# - E. Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large Language Models", 2024,
#   section 3.4.
