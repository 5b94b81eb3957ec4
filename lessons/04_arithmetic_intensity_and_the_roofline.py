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
# # 4. Arithmetic intensity and the roofline
#
# How fast can a model write on this machine? You need two numbers of the model, two of the machine, and a division. In
# this lesson you learn the division, check it against the simulator and against an H200, and see what it does not
# explain.
#
# Each dot below is a GEMM. Its horizontal position is counted, its height was measured on an H200, and the line is the
# roof that no kernel can pass:

# %% tags=["fold"]
from minllm.course import Dot, load_record, recorded, roofline

ceilings = load_record()["ceilings"]
beta, pi = ceilings["copy_tb_s"], ceilings["bf16_tflops"]
ridge = pi / beta


def product(T, N, K, b):
    """(bytes, FLOP) of x [T, K] times w [N, K], b bytes per number."""
    return b * (N * K + T * K + T * N), 2 * T * N * K


def product_dot(case, variant, name, colour):
    """A recorded GEMM in bfloat16; case: "TxNxK"."""
    (row,) = recorded("matmul", f"{case}, bfloat16", variant)
    moved, flop = product(*map(int, case.split("x")), 2)
    if row.unit == "TB/s":
        return row, Dot.of_bandwidth(name, flop / moved, row.value, colour=colour)
    return row, Dot(name, flop / moved, row.value, colour=colour)


shown = [
    product_dot("1x28672x4096", "gemv", "gemv, 1 row", 0),
    product_dot("8x6144x4096", "gemv", "gemv, 8 rows", 0),
    product_dot("2048x2048x2048", "naive", "naive", 1),
    product_dot("2048x2048x2048", "tiled", "tiled", 1),
    product_dot("2048x2048x2048", "tensor_core", "tensor cores", 1),
]
roofline(
    [dot for _, dot in shown],
    beta,
    pi,
    "GEMMs with 1, 8 and 2,048 rows",
    caption=f"bfloat16. The roof: the measured copy, and cuBLAS; {shown[0][0].label}.",
)

# %% [markdown]
# $$\mathrm{intensity}\ I = \frac{\mathrm{FLOP}}{\mathrm{bytes}} \qquad
# \mathrm{attainable}(I) = \min(\pi,\ \beta I) \qquad \mathrm{ridge} = \pi / \beta$$
#
# A machine has two speeds: $\beta$ bytes per second from its memory, which is called HBM on an H200, and $\pi$
# operations per second. A kernel does $I$ operations with each byte. Left of the ridge memory is the limit, right of it
# arithmetic.
#
# A kernel whose dot is on the slope is as fast as memory allows: only fewer bytes would help. A kernel far below the
# roof has some other fault. The lowest dot is this kernel, the one that anybody would write first:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.matmul.ladder.naive import matmul_naive, matmul_naive_kernel

show_source(
    matmul_naive_kernel,
    notes={
        "total += float32(x": "Two operations for two numbers read; this line runs T * N * K times."
    },
)

# %% [markdown]
# **What you will be able to do**
#
# - count the bytes and operations of a GEMM by hand, and say whether memory or arithmetic is its limit;
# - read a roofline, and say where a dot moves when the batch grows;
# - predict latency, throughput and cost of a model on a GPU from two data sheets, and say how far to trust the
#   prediction.
#
# You need [lesson 1](01_what_a_language_model_computes.py). You need no GPU.
#
# ## Predict
#
# A model has 8 billion weights of 2 bytes. An H200 moves about 4.2 TB per second and does about 800 TFLOP per second:
# both were measured, with a large copy and with a large GEMM. The batch is one sequence.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    bytes="How many bytes does the step for one token read?",
    memory_ms="How many milliseconds does that take?",
    arithmetic_ms="How many milliseconds does its arithmetic take?",
    batch_at_the_ridge="How many sequences can be written together before arithmetic takes longer "
    "than reading the weights?",
    limit=("What limits the step of one sequence?", "memory", "arithmetic"),
)
guess.ask()

# %% [markdown]
# ## By hand: one GEMM
#
# Nearly all work of a language model is one operation: rows of activations times a matrix of weights. With many rows it
# is called a GEMM (general matrix multiply), with one row a GEMV (matrix times vector).
#
# $$\mathrm{out}_{t,n} = \sum_{k} x_{t,k} \, w_{n,k} \qquad
# x: [T, K], \quad w: [N, K], \quad \mathrm{out}: [T, N]$$
#
# Each of the $T N$ results takes $K$ multiplications and $K$ additions. Both inputs have to be read once, and the
# result written once, at $b$ bytes per number:
#
# $$\mathrm{FLOP} = 2\,T N K \qquad \mathrm{bytes} = b\,(N K + T K + T N)$$
#
# The intensity says how often a byte is used once it has arrived. With $T = 1$ it is about $2 / b$: one operation per
# byte in 16 bits, whatever the size of the matrix.

# %%
for T in (1, 4, 64, 512):
    moved, flop = product(T, 4096, 4096, 2)
    print(
        f"T = {T:3}  {moved / 1e6:6.1f} MB  {flop / 1e9:6.2f} GFLOP  "
        f"{flop / moved:6.1f} FLOP per byte"
    )

# %% [markdown]
# !!! tip "Takeaway"
#     Count operations and bytes. Their ratio, not the size, decides which limit binds.
#
# ## Write your own
#
# Two times, and the larger one is the limit. Write that as a function:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("costs.floor_ms")

# %% [markdown]
# ## Is it true? Ask the simulator
#
# A formula is a claim about a kernel. The simulator runs the kernel and counts every byte that every thread
# touches. Here are the naive kernel and the one that the engine uses for few rows:

# %%
import numpy as np

from minllm.kernels.matmul.gemv.gemv import matmul_gemv
from minllm.sim import tracing

T, N, K, b = 4, 64, 256, 4
rng = np.random.default_rng(0)
x = rng.standard_normal((T, K)).astype(np.float32)  # [T, K]
w = rng.standard_normal((N, K)).astype(np.float32)  # [N, K]
out = np.empty((T, N), np.float32)  # [T, N]

moved, flop = product(T, N, K, b)
print(
    f"{'by hand':14} {moved:10,} unique bytes                             {flop:8,} "
    "FLOP"
)
counted = {}
for launcher in (matmul_naive, matmul_gemv):
    with tracing() as traces:
        launcher(x, w, out)
    total = traces[0].total
    counted[launcher.__name__] = total
    multiplied = traces[0].flops["float32 multiply-add"]
    print(
        f"{launcher.__name__:14} {total.unique_bytes:10,} unique bytes, "
        f"{total.bytes:9,} requested, {multiplied:8,} FLOP"
    )
    assert np.allclose(out, x @ w.T, atol=1e-4)
    assert total.unique_bytes == moved and multiplied == flop

# %% [markdown]
# Both touch exactly the bytes of the formula. They *request* more, because threads request the same numbers again and
# again; caches serve most of these requests. So the formula is a lower bound, the floor.
#
# !!! tip "Takeaway"
#     The formula is a floor: no kernel moves fewer bytes, and caches hide the rest.
#
# ## A whole step
#
# [minllm/costs](../minllm/costs/stages.py) has this formula for every stage of a model. This is a decode step of the 8B
# shape with 576 tokens in its cache:

# %%
from minllm import costs
from minllm.models.shapes import find_config

_, config = find_config("llama-3.1-8b")
print(f"{'stage':20} {'MB':>9} {'GFLOP':>7} {'FLOP per byte':>14}")
for stage in costs.decode_stages(config, batch=1, context=576):
    operations = stage.flops + stage.other_flops
    print(
        f"{stage.name:20} {stage.bytes / 1e6:9,.1f} {operations / 1e9:7.3f} "
        f"{stage.arithmetic_intensity:14.2f}"
    )
step = costs.decode_step(config, batch=1, context=576)
print(
    f"{'weights and cache':20} {step.bytes / 1e6:9,.1f} {step.flops / 1e9:7.3f} "
    f"{step.arithmetic_intensity:14.2f}"
)

# %% tags=["hide"]
assert step.arithmetic_intensity < 2

# %% [markdown]
# The GEMVs have nearly all bytes and nearly all operations, at one operation per byte. The sum is below the 16 GB of
# all weights, because a step reads only one row of the embedding table.

# %%
memory_ms, arithmetic_ms = step.memory_ms(beta), step.compute_ms(pi)
print(f"H200: {beta} TB/s, {pi} TFLOP/s, ridge at {ridge:.0f} FLOP per byte")
(row,) = recorded("decode", "llama-3.1-8b")

# %% tags=["hide-input"]
guess.against(
    bytes=step.bytes,
    memory_ms=memory_ms,
    arithmetic_ms=arithmetic_ms,
    batch_at_the_ridge=ridge,
    limit="memory" if memory_ms > arithmetic_ms else "arithmetic",
    measured=dict(memory_ms=1e3 / row.value),
)

# %% [markdown]
# For weights of 2 bytes, the batch at the ridge equals the ridge: with $T$ rows each weight is used for $2T$
# operations, so the intensity is about $T$. The measured figure is a whole recorded step.
#
# !!! tip "Takeaway"
#     A decode step of one sequence does about 1 FLOP per byte: memory is its limit.
#
# ## The batch moves the dot
#
# Weights are read once for all sequences of a batch. So the bytes of a step hardly grow with the batch, while the
# operations do, and the dot moves to the right. Keys and values are different: each sequence has its own.

# %%
print(
    f"{'batch':>5} {'products':>10} {'attention':>10} {'whole step':>10}   FLOP per "
    "byte"
)
for batch in (1, 8, 64, 512):
    stages = {
        stage.name: stage for stage in costs.decode_stages(config, batch, context=576)
    }
    whole = costs.decode_step(config, batch, context=576)
    intensities = [
        stages[name].arithmetic_intensity for name in ("MLP up projection", "attention")
    ]
    print(
        f"{batch:5} {intensities[0]:10.1f} {intensities[1]:10.1f} "
        f"{whole.arithmetic_intensity:10.1f}"
    )
group = config.num_attention_heads // config.num_key_value_heads

# %% tags=["hide"]
assert abs(intensities[1] - group) < 0.1 * group

# %% [markdown]
# Attention stays at about 4 operations per byte for every batch, because 4 query heads share each key and value that is
# read, and sequences share none. These are measured steps beside the floor:

# %% tags=["fold"]
import re

from minllm.course import comparable

rows = recorded("decode step", "llama-3.1-8b", "graph replay", listed=True)
measured = comparable(*(row for row in rows if "context 192" in row.case))
steps = []  # (batch, predicted ms, measured ms, cost)
for row in measured:
    batch, context = map(int, re.findall(r"(?:batch|context) (\d+)", row.case))
    cost = costs.decode_step(config, batch, context)
    steps.append((batch, cost.floor_ms(beta, pi), row.value / 1e3, cost))
named = {1, 16, 64, 256}
dots = []
for batch, floor, ms, cost in steps:
    intensity, name = cost.arithmetic_intensity, f"{batch}" if batch in named else ""
    dots.append(Dot("", intensity, cost.flops / floor / 1e9, measured=False))
    dots.append(Dot(name, intensity, cost.flops / ms / 1e9, colour=1))
roofline(
    dots,
    beta,
    pi,
    "A decode step of an 8B model: the dot moves with the batch",
    caption="The number is the batch; rings are the floor, dots are measured by the "
    "GPU's clock, without the host. "
    f"{measured[0].case.split(', batch')[0]}; {measured[0].label}.",
)

# %% [markdown]
# !!! tip "Takeaway"
#     A batch shares the weights, so its dot moves right. It does not share the cache.
#
# ## Latency, throughput, cost
#
# Three people look at the same step:
#
# | who | what | how |
# | --- | --- | --- |
# | the user | latency: milliseconds per token | time of a step |
# | the operator | throughput: tokens per second | batch / time of a step |
# | whoever pays | cost of a million tokens | price per hour / (3,600 · tokens per second) · 1,000,000 |

# %% tags=["fold"]
from minllm.course import curves

curves(
    {
        "floor": [(batch, floor) for batch, floor, _, _ in steps],
        "measured": [(batch, ms) for batch, _, ms, _ in steps],
    },
    "batch",
    "ms",
    "Latency: what one token takes",
    log_x=True,
    caption=f"8B shape, 192 tokens of context; measured: {measured[0].label}.",
)

# %% tags=["fold"]
curves(
    {
        "at the floor": [(batch, 1e3 * batch / floor) for batch, floor, _, _ in steps],
        "measured": [(batch, 1e3 * batch / ms) for batch, _, ms, _ in steps],
    },
    "batch",
    "tokens/s",
    "Throughput: tokens per second of the whole batch",
    log_x=True,
    log_y=True,
    caption=f"The same steps; {measured[0].label}.",
)

# %%
price = 4.0  # per GPU per hour, in any currency: put your own here
for batch, floor, ms, _ in steps:
    cost_floor, cost = (
        price / (3600 * 1e3 * batch / time) * 1e6 for time in (floor, ms)
    )
    print(
        f"batch {batch:3}: a million tokens cost {cost:6.2f}, and at the floor "
        f"{cost_floor:6.2f}"
    )
floors = {batch: floor for batch, floor, _, _ in steps}

# %% tags=["hide"]
assert floors[64] < 1.4 * floors[1]

# %% [markdown]
# At the floor, 64 sequences take hardly longer than one, so each token costs a small fraction. This is why every
# serving engine batches: lesson 16a. These steps are replays of a CUDA graph, timed on the GPU. A served step also
# includes the host's time, unless that is hidden ([lesson 15](15_launch_overhead_and_cuda_graphs.py)).
#
# !!! tip "Takeaway"
#     Until the ridge, a larger batch makes tokens cheaper and hardly slower.
#
# ## Prefill and decode
#
# A prompt is a batch, too: its tokens share each weight. So prefill has an intensity that decode reaches only with
# hundreds of users.

# %%
for tokens in (1, 16, 128, 512, 2048):
    cost = costs.prefill(config, tokens)
    memory, arithmetic = cost.memory_ms(beta), cost.compute_ms(pi)
    bound = "memory" if memory > arithmetic else "arithmetic"
    print(
        f"prompt {tokens:5,}  {cost.arithmetic_intensity:7.1f} FLOP per byte  "
        f"memory {memory:5.2f} ms  arithmetic {arithmetic:6.2f} ms  {bound}"
    )

# %% tags=["hide"]
assert costs.prefill(config, 2048).arithmetic_intensity > ridge

# %% [markdown]
# `minllm plan llama-3.1-8b --gpu h100 --context 2048 --batch 32` does these sums for any `config.json` and any GPU that
# `minllm/machine/hardware.py` lists. In the browser there are [the calculator](../docs/calculator.md) and [a roofline
# whose dots you can move](../docs/roofline.md).
#
# <!-- aside: Choosing a GPU, by hand -->
#
# A V100 moves 900 GB/s and does 112 TFLOP/s. A model and its cache take 20 GB, and a step for a batch of 16 is 0.37
# TFLOP. How many tokens per second can it write?

# %%
v100_tb_s, v100_tflops, batch = 0.9, 112, 16
cost = costs.Cost(bytes=20 * 10**9, flops=370 * 10**9)
floor = cost.floor_ms(v100_tb_s, v100_tflops)
memory, arithmetic = cost.memory_ms(v100_tb_s), cost.compute_ms(v100_tflops)
print(f"memory {memory:.1f} ms, arithmetic {arithmetic:.1f} ms")
print(f"so {floor:.1f} ms per step and {1e3 * batch / floor:.0f} tokens per second")

# %% tags=["hide"]
assert round(floor, 1) == 22.2 and round(1e3 * batch / floor) == 720

# %% [markdown]
# Memory takes almost 7 times as long as arithmetic, so the arithmetic units are idle most of the time: try a larger batch
# before a faster GPU.
#
# <!-- end aside -->
#
# !!! tip "Takeaway"
#     A prompt is a batch of tokens: prefill is limited by arithmetic, decode by memory.
#
# ## Measured against predicted
#
# Whole models were measured on an H200. TPOT is the time per output token of one sequence, TTFT the time to first
# token. The output below compares the division with the measurement:

# %%
from minllm.planning.measured import comparisons

for one in comparisons("NVIDIA H200"):
    times = one.decode_ms / one.decode_floor_ms
    print(
        f"{one.model:13} decode step: predicted {one.decode_floor_ms:7.4f} ms, "
        f"measured {one.decode_ms:7.4f} ms, {times:5.2f} times"
    )
    times = one.prefill_ms / one.prefill_floor_ms
    print(
        f"{'':13} first token: predicted {one.prefill_floor_ms:7.4f} ms, "
        f"measured {one.prefill_ms:7.4f} ms, {times:5.2f} times"
    )

# %% [markdown]
# Decode of the 8B shape is close to its floor, and the bundled model is far from it. Where does the time go? The floor
# assumes that every byte moves at the speed of a copy, and that nothing waits. The next chart uses recorded speeds
# instead: the GEMVs at their own, and attention at its own. The rest is small kernels and the gaps between them.

# %% tags=["fold"]
from minllm.course import Bar, bars, parts_of

context = 1024  # tokens in the cache
(decode,) = recorded(
    "decode step",
    f"llama-3.1-8b (random weights), batch 1, context {context}",
    "graph replay",
    record="h200_step",  # a whole step and its kernels, measured in one run
)
total = decode.value / 1e3  # ms
step = costs.decode_step(config, 1, context)
floor = step.floor_ms(beta, pi)


def product_ms(name, case):
    """(the row of a product of that shape, milliseconds of a stage's weights at its
    speed)."""
    moved = next(
        stage.weight_bytes
        for stage in costs.decode_stages(config, 1, context)
        if stage.name == name
    )
    row = recorded("matmul", f"{case}, bfloat16", "gemv", "h200_step")[0]
    return row, moved / row.value / 1e9


(attention_row,) = recorded(
    "decode attention",
    f"1x{context}, 32/8 heads, d 128, bfloat16, contiguous",
    "split_tensor_core",
    "h200_step",
)
parts = {
    "qkv projection": product_ms("qkv projection", "1x6144x4096"),
    "output projection": product_ms(
        "output projection", "1x6144x4096"
    ),  # the nearest recorded shape
    "MLP up projection": product_ms("MLP up projection", "1x28672x4096"),
    "MLP down projection": product_ms("MLP down projection", "1x4096x14336"),
    "lm_head": product_ms("lm_head", "1x128256x2048"),
    "attention": (
        attention_row,
        context * costs.kv_bytes_per_token(config) / attention_row.value / 1e9,
    ),
}
rest = parts_of(decode, total, parts)  # fails if the parts exceed the whole
attention_ms = parts["attention"][1]
products = total - rest - attention_ms
bars(
    [
        Bar("the floor", floor, "weights and cache at the speed of a copy", 2),
        Bar("GEMVs", products, "weights at each GEMV's own speed"),
        Bar("attention", attention_ms, "too little data to fill the machine", 1),
        Bar("the rest", rest, "norms, RoPE, activations, gaps", 3),
        Bar("measured", total, "", 4),
    ],
    unit="ms",
    title="One decode step of the 8B shape, explained",
    caption="Each part from its own recorded kernel, so the sum is an estimate; "
    f"{decode.label}.",
)

# %%
print(
    f"measured {total:.2f} ms = GEMVs {products:.2f} + attention {attention_ms:.2f} + "
    f"the rest {rest:.2f}"
)
print(
    f"the rest is {1e3 * rest / config.num_hidden_layers:.1f} µs per layer, "
    f"{config.num_hidden_layers} layers"
)

# %% [markdown]
# TTFT is further from its floor: its GEMMs are bound by arithmetic, and are below the roof in the first roofline.
#
# A floor that is not reached does not refute the method. The difference is a list of what to look at next: GEMVs below
# the speed of a copy, attention over a short context, and time between kernels. The smaller the model, the larger the
# share of the last one: the bundled model's 16 MB take 4 µs at this bandwidth, less time than two kernels take to
# start.
#
# On a GPU, this cell compares your own machine with its data sheet.

# %%
from minllm.course import has_gpu, machine_line

if has_gpu():
    import ml_dtypes

    from minllm.bench.timing import CudaClock, median_seconds
    from minllm.machine import driver
    from minllm.machine.hardware import find_gpu
    from minllm.ops.cuda_ops import CudaOps

    ops, bfloat16 = CudaOps(), np.dtype(ml_dtypes.bfloat16)
    weight = ops.array(
        rng.standard_normal((28672, 4096), np.float32).astype(bfloat16)
    )  # [N, K], 235 MB
    one_row = ops.array(
        rng.standard_normal((1, 4096), np.float32).astype(bfloat16)
    )  # [1, K]
    result = ops.empty((1, 28672), bfloat16)  # [1, N]
    seconds = median_seconds(
        [lambda: matmul_gemv(one_row, weight, result, stream=ops.stream)], CudaClock()
    )
    gpu = find_gpu(driver.device_name())
    sheet = f", the data sheet says {gpu.bandwidth_tb_s} TB/s" if gpu else ""
    print(f"{weight.nbytes / seconds / 1e12:.2f} TB/s{sheet}; {machine_line()}")
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# ## Exercises
#
# A *linear layer* multiplies each token's vector by a matrix of weights. Both exercises are lines of `minllm.costs`. They
# are checked against numbers worked out by hand, and one also against the simulator's count.

# %% tags=["hide-input"]
show_exercises("costs.projection")

# %% [markdown]
# ## A detective case
#
# This kernel is below the roof. The roofline says that something is wrong, but not what.

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("idle_bytes")

# %% [markdown]
# <!-- aside: A second case: faster for nothing -->
#
# A colleague tidies up a benchmark of a GEMV, 4,096 by 4,096 weights in bfloat16. It used to make several matrices and
# use them in turn. Now it makes one, and the kernel is faster than before:

# %% tags=["fold"]
cache = recorded("cache")
bars(
    [
        Bar(row.variant, row.value, f"{100 * row.value / beta:.0f} % of a copy", i)
        for i, row in enumerate(cache)
    ],
    unit="TB/s",
    title="One kernel, two ways to time it",
    limit=beta,
    limit_name="a copy:",
    caption=f"{cache[0].case}; {cache[0].label}.",
)

# %% [markdown]
# The kernel and the timer are the same. Which of the two figures applies to decode? The weights are 33.5 MB, and the
# H200's L2 cache has 50 MB: from the second iteration on, part of the matrix comes from the cache. A model has hundreds
# of such matrices, so decode gets the lower figure. A speed above the roof is never a success; it means that the bytes
# are not what you think. `minllm bench kernels` uses enough matrices to fill the cache several times over.
#
# <!-- end aside -->

# %% tags=["hide"]
side = 4096
assert side * side * 2 < 50e6
assert cache[0].value > cache[1].value

# %% [markdown]
# ## Problems
#
# ??? question "1. x has 32 rows, the weight is 4,096 x 11,008, all in 16 bits. FLOP, bytes, intensity?"
#     2 · 32 · 4,096 · 11,008 = 2.89 GFLOP; 2 · (45.1 M + 0.13 M + 0.35 M) = 91.1 MB; 31.7 FLOP per byte: memory-bound
#     on any current GPU.
#
# ??? question "2. An H100 has 3.35 TB/s and 989 TFLOP/s, a consumer card 1.0 TB/s and 165 TFLOP/s. Which has its ridge further left, and what does that mean?"
#     295 and 165 FLOP per byte. The consumer card becomes compute-bound at a smaller batch; below both ridges only
#     bandwidth matters.
#
# ??? question "3. Weights go from 16 to 4 bits, arithmetic stays in bfloat16. What happens to the floor of a decode step and to the ridge batch?"
#     A quarter of the bytes, so a quarter of the time at batch 1. The ridge batch is a quarter too: arithmetic becomes
#     the limit at a smaller batch.
#
# ??? question "4. At 3 dollars per hour, a GPU serves an 8B model at 2,500 tokens per second. Another costs 6 dollars and has twice the bandwidth. Which is cheaper per token?"
#     They cost the same if both are memory-bound: 0.33 dollars per million tokens. The second halves the latency for
#     the same price.
#
# ??? question "5. A kernel reaches 30 TFLOP/s at 4 FLOP per byte on an H200 with a copy speed of 4.2 TB/s. What do you conclude?"
#     The slope allows 16.8 TFLOP/s, so its bytes cannot all have come from HBM. Either a cache served them or the
#     count is wrong. Check the benchmark.
#
# ## What next
#
# The first roofline has one dot far below its roof: the naive GEMM of 2,048 rows is three orders of magnitude too low.
# Neither limit of this lesson explains that: the fault is in how the kernel does its work. Prefill consists of such
# GEMMs. [Lesson 5a](05a_matrix_products_in_tiles.py) climbs from that dot to the roof, with the same equation.
#
# ## Sources
#
# - S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
#   architectures", CACM 52 (2009), section 3.
# - R. Pope et al., "Efficiently Scaling Transformer Inference", MLSys 2023, section 2: latency, throughput and cost.
# - J. Kaplan et al., "Scaling Laws for Neural Language Models", 2020, table 1: operations of a forward.
# - NVIDIA, data sheets of the V100, H100 and H200; `minllm/machine/hardware.py` names them all.
