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
# # 20. Several GPUs
#
# The weights of a 70B model take 141 GB in bf16, and an H200 has 141 GB. So split every matrix: each GPU stores one
# part and computes with it. The GPUs then only have to add their results. This lesson is about that sum.
#
# An MLP takes activations $x$ through two weight matrices, $A$ and $B$, with a function $\phi$ of each number between
# them:
#
# ```mermaid
# flowchart LR
#     x["x, on all GPUs"] --> a0["GPU 0: columns A0"] --> b0["rows B0"] --> p0["a part of y"]
#     x --> a1["GPU 1: columns A1"] --> b1["rows B1"] --> p1["a part of y"]
#     p0 --> s["all-reduce"]
#     p1 --> s
#     s --> y["y, on all GPUs"]
# ```
#
# $$y = \phi(x A)\, B = \sum_{r=0}^{N-1} \phi(x A_r)\, B_r$$
#
# GPU $r$ of $N$, a *rank*, holds $A_r$, some columns of $A$, and $B_r$, the rows of $B$ that belong to them. The sum of
# the ranks' parts, on all ranks, is an *all-reduce*. In its simplest form, one *shot*, every GPU reads the parts of all
# GPUs:

# %%
from numba import cuda, float32

from minllm.ptx import ld_acquire_sys_u32, st_release_sys_u32
from minllm.runtime.kernel import kernel


@kernel
def add_ranks(x, out, rank, copies, flags, epoch):  # copies, flags: one array per rank
    """One block per rank: out = the sum of all ranks' x, on each of them."""
    ranks, i = len(copies), cuda.threadIdx.x
    while i < x.shape[0]:
        copies[rank][i] = x[i]  # into memory that peers can read
        i += cuda.blockDim.x
    cuda.syncthreads()  # all threads have written
    peer = cuda.threadIdx.x
    if peer < ranks:  # one thread per peer
        st_release_sys_u32(flags[peer], rank, epoch)  # my copy is ready
        while ld_acquire_sys_u32(flags[rank], peer) < epoch:  # until the peer's is, too
            pass
    cuda.syncthreads()  # all peers have written
    i = cuda.threadIdx.x
    while i < x.shape[0]:
        total = float32(0)
        for peer in range(ranks):  # in this order on every rank
            total += copies[peer][i]
        out[i] = total
        i += cuda.blockDim.x


# %% [markdown]
# `copies[peer]` is memory of another GPU. A kernel reads it like its own memory; the loads cross NVLink.
#
# **What you will be able to do**
#
# - split an MLP so that it needs one all-reduce, and say what each GPU holds;
# - write an all-reduce, and say which loads and stores order two GPUs;
# - predict from latency and bandwidth which algorithm wins, and what a step gains;
# - say when stages of layers wait, and what they are good for.
#
# You need [lesson 2](02_your_first_kernel.py) and [lesson 4](04_arithmetic_intensity_and_the_roofline.py). You need no GPU.
#
# ## Predict

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    gpus="70B weights in bf16, and 20 GB for the cache of each: on how many GPUs of 141 GB do they fit, if the number divides the heads?",
    reductions="How many all-reduces does one decode step of the 70B shape take (80 layers)?",
    message_kib="How many KiB does each of them add up, for one sequence (hidden size 8,192, bf16)?",
    crossing_kib="4 GPUs, 2 µs per step, 360 GB/s: from which message, in KiB, do two shots beat one?",
    more_gpus=(
        "The 8B shape, one sequence, and all-reduces around a ring, 2 µs per step. Which number of GPUs has the lowest floor?",
        "1",
        "2",
        "4",
        "8",
    ),
    two_orders=(
        "Two GPUs add a + b and b + a in float32. Can their results differ?",
        "yes",
        "no",
    ),
    idle="A prompt of 2,048 tokens passes through 4 stages of layers in 4 parts. What per cent of the time does a stage wait?",
    on_four="The engine, 8B shape, on four H200s: how many times as fast as on one is a step of one sequence?",
    prompt_on_four="And a prompt of 2,048 tokens?",
)
guess.ask()

# %% [markdown]
# ## The sum, on two GPUs
#
# The simulator runs both ranks at once, each with its own memory. Its detectors check what orders two GPUs: a store
# with **release** and a load with **acquire**, both of *system scope*. A block barrier orders only one block, and a
# fence of GPU scope only one GPU. Write the engine's version; the checks run two and three ranks, with all detectors:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("all_reduce.one_shot")

# %% [markdown]
# The kernel at the top of this page, on two ranks, and what each array of rank 0's launch moves:

# %%
import numpy as np

from minllm.sim import detecting, simulate_ranks, tracing

rng = np.random.default_rng(0)
RANKS = 2
x = rng.standard_normal((RANKS, 64)).astype(np.float32)  # a message per rank
out, copies = np.empty((2, RANKS, 64), np.float32)
flags = np.zeros((RANKS, RANKS), np.uint32)
arguments = [
    (x[rank], out[rank], rank, tuple(copies), tuple(flags), 1) for rank in range(RANKS)
]
with detecting(), tracing() as traces:
    simulate_ranks(add_ranks, 1, 32, arguments)
for name, array in traces[0].arrays.items():
    if name.startswith("rank 0") and "flags" not in name:
        read, written = array.read.bytes, array.write.bytes
        print(f"{name:20} read {read:4}, written {written:4} bytes")
crossed = traces[0].arrays["rank 0's copies[1]"].read.bytes

# %% tags=["hide"]
assert out[0].tobytes() == out[1].tobytes() == (x[0] + x[1]).tobytes()
assert crossed == x[0].nbytes

# %% [markdown]
# Of these loads only those of `copies[1]` leave rank 0's GPU. With $N$ ranks and messages of $b$ bytes that is
# $(N - 1)\,b$ bytes, in one step.
#
# !!! tip "Takeaway"
#     A peer's data are ready when its flag is: stored with release, loaded with acquire, both of system scope.
#
# ## What one GPU cannot hold
#
# Divide the heads, the inner width and the vocabulary by $N$, and each GPU holds a smaller model of the same kind
# (`minllm/costs/parallel.py`):

# %%
from minllm import costs
from minllm.models.shapes import find_config

CAPACITY, CACHE = 141e9, 20e9  # bytes of an H200; bytes left for keys and values
_, llama70 = find_config("llama-3.1-70b")
_, llama8 = find_config("llama-3.1-8b")
fits = []
for n in (1, 2, 4, 8):
    part = costs.shard(llama70, n)
    held, kv = costs.weight_bytes(part), costs.kv_bytes_per_token(part)
    tokens = max(0, int((CAPACITY - held) / kv))
    fits += [n] if held + CACHE <= CAPACITY else []
    print(f"{n} GPUs: {held / 1e9:5.1f} GB each, room for {tokens:9,} tokens")
reductions = 2 * llama70.num_hidden_layers + 1
message_kib = llama70.hidden_size * 2 / 1024

# %% [markdown]
# Room for tokens grows faster than the number of GPUs, because the GPUs together store the weights only once.
#
# !!! tip "Takeaway"
#     Each GPU stores an $N$-th of the weights and of the heads. The memory that is left is room for keys and values.
#
# ## Column, then row
#
# Split the first matrix by columns. Each GPU then computes whole elements of the inner layer, so $\phi$ needs no data
# from other GPUs. Split the second matrix by rows, and each GPU already has the inputs of its rows. Nothing is
# exchanged until the parts of $y$ are added:

# %%
token = rng.standard_normal(64)
gate, up, down = (rng.standard_normal(s) for s in ((64, 96), (64, 96), (96, 64)))


def mlp(x, gate, up, down):
    """A gated MLP (lesson 6)."""
    inner = x @ gate
    return inner / (1 + np.exp(-inner)) * (x @ up) @ down


mine = np.split(np.arange(96), RANKS)  # the inner elements of each rank
parts = [mlp(token, gate[:, own], up[:, own], down[own]) for own in mine]

# %% tags=["hide"]
assert np.allclose(sum(parts), mlp(token, gate, up, down))
assert not np.allclose(parts[0], mlp(token, gate, up, down))

# %% [markdown]
# Attention is split by heads: QKV by columns, the output projection by rows. A query head needs its KV head on the same
# GPU; with more GPUs than KV heads, neighbours store the same one. So a layer has two all-reduces, and the embedding,
# split by vocabulary, adds one more.
#
# The other way round, rows then columns, would need a sum *before* $\phi$, and another exchange after it.
#
# !!! tip "Takeaway"
#     Columns, then rows: two matrices and a function between them need one sum. A layer has two.
#
# ## Latency against bandwidth
#
# An all-reduce of $b$ bytes takes $s$ steps of latency $\alpha$, and moves $m b$ bytes to each GPU at $\beta$ bytes per
# second:
#
# $$t = s\,\alpha + m\,\frac{b}{\beta}$$
#
# One shot has $s = 1$ and $m = N - 1$. The classic all-reduce is a **ring**. The message is cut into $N$ chunks. Each
# rank adds its own part to a chunk and passes it on to the right, until every rank has the sum of one chunk; then the
# sums are passed round. So $m = 2 (N-1)/N$, and no algorithm needs less, but $s = 2 (N-1)$, and each step waits for the
# one before. **Two shots** lie between the two: each rank adds up one $N$-th for all (a reduce-scatter), then all ranks
# collect the sums (an all-gather).

# %%
from minllm.costs.all_reduce import Link, all_reduce_seconds, collective, crossing

link = Link(latency=2e-6, bytes_per_second=360e9)  # assumed, not measured
NAMES = ("low_latency", "one_shot", "two_shot", "ring")
for name in NAMES:
    found = collective(name, 4)
    times = [1e6 * all_reduce_seconds(name, 2**k, 4, link) for k in (14, 19, 24)]
    print(f"{name:12} {found.steps:3} steps, {found.traffic} b in all;", end=" ")
    print("16 and 512 KiB, 16 MiB:", *(f"{t:.1f}" for t in times), "µs")
crossing_kib = crossing("one_shot", "two_shot", 4, link) / 1024
print(f"one_shot against two_shot: {crossing_kib:.0f} KiB")

# %% tags=["hide"]
assert crossing("one_shot", "two_shot", 2, link) == float("inf")

# %% tags=["fold"]
from minllm.course import curves

sizes = [2**i for i in range(12, 27)]
curves(
    {
        name: [(b / 1024, 1e6 * all_reduce_seconds(name, b, 4, link)) for b in sizes]
        for name in NAMES
    },
    "KiB",
    "microseconds",
    "All-reduce on 4 GPUs",
    log_x=True,
    log_y=True,
    caption="Computed by costs/all_reduce.py; assumed: 2 µs per step, 360 GB/s.",
)

# %% [markdown]
# The product $\alpha \beta$ is the number of bytes that a link moves during the latency of one step, here 720 KB. For
# messages well below it, only latency counts. For one sequence of the 70B shape a message has 16 KiB.
#
# ??? note "Where two curves cross"
#     At $s\,\alpha + m\,b/\beta = s'\,\alpha + m'\,b/\beta$, so at $b = (s' - s)\,\alpha \beta / (m - m')$.
#
# ??? note "low_latency: half a step"
#     Its flag does not follow the data: each word of 8 bytes holds 4 of data and 4 of flag, and a GPU writes and reads
#     such a word whole. If the flag is new, so are the data. The price is twice the bytes.
#
# !!! tip "Takeaway"
#     Small messages need few steps, large messages few bytes. No algorithm has the fewest of both.
#
# ## What a step gains

# %%
HBM = 4.2e12  # bytes per second, a round figure of an H200


def floor_ms(config, n, algorithm):
    """A decode step of one sequence, 1,024 tokens cached, on n GPUs."""
    seconds = costs.decode_step(costs.shard(config, n), context=1024).bytes / HBM
    if n > 1:
        message, count = config.hidden_size * 2, 2 * config.num_hidden_layers + 1
        seconds += count * all_reduce_seconds(algorithm, message, n, link)
    return 1e3 * seconds


floors = {
    name: {n: floor_ms(llama8, n, name) for n in (1, 2, 4, 8)}
    for name in ("ring", "one_shot", "low_latency")
}
for name, by_ranks in floors.items():
    print(f"8B, {name:12}", *(f"{n}: {ms:.2f} ms  " for n, ms in by_ranks.items()))
more_gpus = min(floors["ring"], key=floors["ring"].get)

# %% tags=["hide"]
assert floors["ring"][8] > floors["ring"][2] > floors["ring"][4]
assert floors["low_latency"][8] < floors["low_latency"][4]

# %% [markdown]
# With a ring, eight GPUs are slower than two: 65 all-reduces of 14 steps take longer than reading each GPU's weights.
# The messages of a decode step are small, so the number of steps decides. A prefill of 2,048 tokens has messages of 16
# MiB, so the bytes decide.
#
# !!! tip "Takeaway"
#     More GPUs make a step faster only as long as its all-reduces take less time than they save.
#
# ## The same bits
#
# Every rank samples the next token itself, from the same logits and the same seed. Their logits must agree to the last
# bit, or their texts diverge:

# %%
a, b, c = (np.float32(value) for value in (1e8, 1.0, -1e8))
print("in rank order:", (a + b) + c, " from rank 2 on:", (c + a) + b)
two_orders = "no"  # a + b = b + a, also where it rounds

# %% tags=["hide"]
pairs = rng.standard_normal((2, 100_000)).astype(np.float32)
assert (pairs[0] + pairs[1] == pairs[1] + pairs[0]).all()
assert (a + b) + c != (c + a) + b

# %% [markdown]
# With two ranks a wrong order goes unnoticed; three ranks show it. One shot adds in rank order on every rank. In two
# shots and in a ring, one rank adds up each element for all.
#
# !!! tip "Takeaway"
#     Every rank must add in the same order, or the ranks' texts diverge.
#
# ## Layers instead of parts of layers
#
# A **pipeline** gives each GPU whole layers, a *stage*. No sums are needed: a stage sends its hidden states to the next
# one, a message per step that a network between hosts can carry. But a token passes through the stages one after the
# other, so one sequence gains nothing. Stages work at the same time only on different *micro-batches*:

# %%
from minllm.costs.pipeline import micro_batches

for tokens in (1, 256, 2048):  # of a step: sequences that decode, or a prompt
    step = micro_batches(tokens, 4)
    idle = f"each stage waits {100 * step.bubble:.0f} % of the time"
    print(f"{tokens:4} tokens: {step.count} parts of up to {step.tokens}; {idle}")
for stage in range(4):  # the last of these steps, a column per turn
    parts = [turn - stage for turn in range(3 + step.count)]
    turns = "".join(f"{part}" if part in range(step.count) else "." for part in parts)
    print(f"stage {stage}  {turns}")

# %% tags=["hide"]
assert step.bubble == 3 / 7 and turns == "...0123"

# %% [markdown]
# The dots are the *bubble*: $M - 1$ of $M - 1 + K$ turns, for $M$ stages and $K$ micro-batches. More and smaller ones
# would shrink it, but a stage reads all its weights for each; so the engine makes none of fewer than 128 tokens. A prompt
# is cut into parts: a stage has the keys of one part in its cache when the next part arrives.
#
# Run it: three stages of the bundled model, each a process with NumPy. With `device="cuda"` and
# `MINLLM_RANKS_PER_GPU=3` in the environment they share your GPU, which NCCL does not allow
# (`minllm/parallel/shared_gpu.py`):

# %%
import os

from minllm import LLM, SamplingParams

STAGES = 3 if os.name == "posix" else 1  # Windows cannot start ranks
texts = {}
for stages in (1, STAGES):
    split = dict(pipeline_parallel_size=stages, max_num_seqs=1, max_model_len=64)
    with LLM(device="cpu", dtype="float32", **split) as llm:
        (found,) = llm.generate(
            "def add(a, b):\n    ", SamplingParams(temperature=0, max_tokens=12)
        )
        texts[stages] = found.outputs[0].text
print(texts[STAGES])

# %% tags=["hide"]
assert texts[1] == texts[STAGES]

# %% [markdown]
# !!! tip "Takeaway"
#     Stages make room for larger models, over slow links too. They are busy only if a step has many tokens.
#
# ## From one block to the package
#
# The package's kernels use vectors of 16 bytes and many blocks, each of which waits for *the same block* of its peers.
# Flags are never reset: they count all-reduces, on the device, so a captured graph can be replayed. All-reduces
# alternate between two halves of the staging memory, because a peer may still read the last message when the next one
# is copied. Each wait is bounded, and its error names the missing peer.

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.all_reduce import low_latency, one_shot

show_source(
    one_shot.one_shot_kernel,
    folded="One shot: the kernel of the exercise",
    notes={
        "half = (epoch & 1)": "The half that the last all-reduce did not use.",
        "meet(signals": "A flag to every peer, with release; then a wait for each peer's flag, with acquire.",
    },
)

# %% tags=["hide-input"]
show_source(
    low_latency.receive,
    folded="Low latency: each word carries its own flag",
    notes={
        "ld_relaxed_sys_v2_u64(inbox, here)": "Relaxed: the flag and the data are in the same word.",
        "gives_up(": "After this many polls the peer is noted as lost.",
    },
)

# %% [markdown]
# ## The rows of a prompt
#
# Two shots are a **reduce-scatter**, after which each rank has the sums of its part, and an **all-gather**, which sends
# them to all. The residual and the norm that follow work on single rows. So if a rank's part is whole rows, it can add and
# normalise them between the two, and ranks divide this work as well: *sequence parallelism*. The reduce-scatter is hidden:
# the output of a GEMM is one array whose pages lie on the GPUs in turn, so each tile is stored where it will be added up.
# Here are six rows, of which two ranks own every second one, and the package's kernel:

# %%
from minllm.kernels.all_reduce.peers import launch_together, simulated_peers
from minllm.kernels.all_reduce.reference import all_reduce_reference
from minllm.kernels.all_reduce.sequence_parallel import (
    SequenceMemory,
    rows_of,
    sequence_parallel_norm,
)
from minllm.kernels.normalization.rms_norm import rms_norm_reference

HIDDEN = 64
stored = rng.standard_normal((2, 6, HIDDEN)).astype(np.float32)  # by the ranks' GEMMs
residuals, weight = np.ones((2, 6, HIDDEN), np.float32), np.ones(HIDDEN, np.float32)
whole = tuple(
    np.zeros(6 * 4 * HIDDEN, np.uint8) for _ in range(2)
)  # bytes, on each rank
launches = []
for rank, peers in enumerate(simulated_peers(2, most_bytes=16)):
    received = tuple(
        np.ascontiguousarray(x[rank::2]).reshape(-1).view(np.uint8) for x in stored
    )
    memory = SequenceMemory(4 * HIDDEN, whole[rank], received, whole)
    launches.append(
        sequence_parallel_norm(residuals[rank], weight, 1e-5, memory, peers)
    )
launch_together(launches)
found = [rows_of(one, (6, HIDDEN), np.dtype("float32")) for one in whole]
changed = [(one != 1).any(axis=1).astype(int) for one in residuals]
print("rows whose residual a rank has changed:", *changed)
print("all ranks have the same rows:", np.array_equal(*found))

# %% tags=["hide"]
norm, _ = rms_norm_reference(
    all_reduce_reference(list(stored)), weight, 1e-5, np.ones_like(stored[0])
)
np.testing.assert_allclose(found[0], norm, rtol=1e-5, atol=1e-6)
assert np.array_equal(*found) and list(changed[0]) == [1, 0] * 3

# %% [markdown]
# !!! tip "Takeaway"
#     Between reduce-scatter and all-gather, ranks divide even the work that tensor parallelism leaves to each of them.
#
# ## Measured against predicted

# %% tags=["fold"]
from minllm.course import recorded

BYTES = {"KiB": 2**10, "MiB": 2**20}
rows = recorded("all-reduce", "2 GPUs", record="h200_all_reduce")
measured = {name: {} for name in (*NAMES, "NCCL")}  # bytes -> microseconds
for row in rows:
    count, unit = row.case.split(", ")[1].split()
    size = int(count) * BYTES[unit]
    if row.variant in NAMES:
        measured[row.variant][size], measured["NCCL"][size] = row.value, row.peer_value
curves(
    {
        name: [(size / 1024, found) for size, found in times.items()]
        for name, times in measured.items()
    },
    "KiB",
    "microseconds",
    "All-reduce on 2 H200",
    log_x=True,
    log_y=True,
    caption=f"NCCL by PyTorch, in the same run; {rows[0].label}.",
)

# %%
few, many = 64 * BYTES["KiB"], 16 * BYTES["MiB"]  # alpha from one, beta from the other
times = measured["one_shot"]
beta = 1e6 * (many - few) / (times[many] - times[few])
h200 = Link(1e-6 * times[few] - few / beta, beta)
print(f"alpha {1e6 * h200.latency:.1f} µs, beta {beta / 1e9:.0f} GB/s")
for name in NAMES:
    for size in (few, BYTES["MiB"], many):
        if size in measured[name]:
            floor = 1e6 * all_reduce_seconds(name, size, 2, h200)
            found = f"{floor:5.1f} µs predicted, {measured[name][size]:5.1f} measured"
            print(f"{name:12} {size // 1024:6} KiB: {found}")

# %% [markdown]
# In place of an all-reduce, rows of 4,096 that two GPUs divide, with residual and norm:

# %%
for row in recorded(
    "all-reduce", variant="sequence_parallel", record="h200_all_reduce"
):
    print(
        f"{row.case}: {row.value:5.1f} µs; NCCL's all-reduce alone {row.peer_value:.1f}"
    )

# %% [markdown]
# Whole steps of the engine on one, two and four of these GPUs, before ranks divided rows (`minllm bench ranks`):

# %%
steps = {}  # what -> GPUs -> the recorded row
for n, split in ((1, "1 tensor rank"), (2, "2 tensor ranks"), (4, "4 tensor ranks")):
    for row in recorded("several GPUs", variant=split, record="h200_ranks"):
        steps.setdefault(row.case.removeprefix("llama-3.1-8b, "), {})[n] = row
gains = {}
for what, by_gpus in steps.items():
    alone = by_gpus[1]
    for n, row in by_gpus.items():
        faster = row.value / alone.value
        gains[what, n] = faster if row.unit == "tokens/s" else 1 / faster
        print(
            f"{what:26} {n} GPUs: {row.value:8,.2f} {row.unit:8} {gains[what, n]:.2f}"
        )
print(alone.label)

# %% tags=["hide-input"]
guess.against(
    on_four=round(gains["batch 1, context 1024", 4], 1),
    prompt_on_four=round(gains["prompt of 2048", 4], 1),
    gpus=fits[0],
    reductions=reductions,
    message_kib=message_kib,
    crossing_kib=crossing_kib,
    more_gpus=str(more_gpus),
    two_orders=two_orders,
    idle=round(100 * micro_batches(2048, 4).bubble),
)

# %% [markdown]
# On two GPUs a prompt of 2,048 tokens then took 27.8 ms instead of 30.5, and one GPU 46.0 (`docs/gpus.md`).
#
# Two sizes of one_shot give $\alpha$ and $\beta$, and these predict two_shot at 64 KiB. At 16 MiB it takes a fifth less
# than that, so its $\beta$ is larger than one_shot's. By the formulas above the two never cross with two ranks; as
# measured they do, at 2 MiB. low_latency falls behind its floor as messages grow, and the ring is far from its floor;
# the record does not show why.
#
# ## Exercises
#
# This lesson's exercise is [above](#the-sum-on-two-gpus).
#
# ## Detective cases

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("yesterdays_news")

# %% [markdown]
# <!-- aside: Two more cases -->

# %% tags=["hide-input"]
show_case("split_decision")

# %% tags=["hide-input"]
show_case("four_strangers")

# %% [markdown]
# <!-- end aside -->
#
# ## Problems
#
# ??? question "1. A GPU costs 4 dollars per hour. By the floors above, what do a million tokens of one sequence of the 8B shape cost on 1 GPU and on 4, with low_latency?"
#     3.61 ms per token is 1.00 hours per million tokens: 4.01 dollars. On 4 GPUs 0.97 ms is 0.27 hours of 4 GPUs: 4.33
#     dollars. The answer comes 3.7 times as fast and costs 8 % more.
#
# ??? question "2. Two servers are joined by a network of 20 µs per step and 50 GB/s. Should the 8B shape be split across them, one GPU in each, for one sequence?"
#     65 all-reduces of one step take at least 1.3 ms, and reading only half of the weights saves 1.8 ms: 3.1 ms instead
#     of 3.6. Two GPUs of one host take 1.9. Across hosts, split by layers instead: one message per step, and no sum.
#
# ??? question "3. A ring and two shots receive the same number of bytes. When is a ring still the better choice?"
#     When not every pair of GPUs has its own link: a ring only uses the links to two neighbours. Behind a switch, or
#     with links between all GPUs, two shots take 2 steps instead of 2 (N - 1).
#
# ??? question "4. A model has 2 KV heads and is split over 8 GPUs. How many GPUs store each KV head, and by what factor does the cache of one GPU shrink?"
#     4 GPUs each. A GPU stores one KV head of 2, so its cache is half of the whole, not an eighth. Beyond the number of
#     KV heads, more GPUs do not shrink it further.
#
# ??? question "5. Why must the flag be a number that grows, and not 1 that is reset to 0 after each sum?"
#     If the waiting rank resets it, its peer may have raised it for the next sum already, and that flag is lost. A
#     growing number needs no reset: a late reader sees a larger one, and each wait ends at its own number or a larger
#     one.

# %% tags=["hide"]
per_million = 1e6 / 3600 * 4
ours = floors["low_latency"]
assert round(per_million * ours[1] / 1e3, 2) == 4.01
assert abs(per_million * 4 * ours[4] / 1e3 - 4.33) < 0.01
assert round(ours[1] / ours[4], 1) == 3.7
network = Link(20e-6, 50e9)
across = 65 * 1e3 * all_reduce_seconds("one_shot", 8192, 2, network)
assert 1.3 < across < 1.35 and abs(floors["ring"][1] / 2 + across - 3.1) < 0.05
assert round(floors["low_latency"][2], 1) == 1.9
assert costs.kv_bytes_per_token(costs.shard(llama8, 8)) * 8 == (
    costs.kv_bytes_per_token(llama8)
)
assert round(100 * (1 - floors["ring"][1] / 4 / ours[4])) in (7, 8)
assert 700 < link.latency * link.bytes_per_second / 1e3 < 730

# %% [markdown]
# ## What next, and the measurement behind it
#
# With low_latency and four GPUs, all-reduces are 8 % of the floor of a step. For a few rows their kernel also adds the
# residual and computes the next RMSNorm (`minllm/kernels/all_reduce/fused_norm.py`), which saves 64 launches. Beyond one
# host, latency grows tenfold: split by layers, or give each host its own requests.
#
# ## Sources
#
# - M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019, section 3.
# - P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009, section 3.
# - R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, section 4.
# - R. Hockney, "The Communication Challenge for MPP: Intel Paragon and Meiko CS-2", 1994, section 2.
# - V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 4.2.2.
# - Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019, section 2.
# - NVIDIA, "PTX ISA", chapter "Memory Consistency Model".
# - NVIDIA, NCCL, `src/device/prims_ll.h` (the protocol LL); vLLM, `csrc/custom_all_reduce.cuh` (one and two shots).
