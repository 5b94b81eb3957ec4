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
# The weights of a 70B model take 141 GB in bf16, and an H200 has 141 GB. So cut every matrix: each GPU keeps a part and
# computes with it, and what is left to do together is one sum. This lesson is about that sum.
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
# $$y = \phi(x A)\, B = \sum_{r=0}^{N-1} \phi(x A_r)\, B_r, \qquad
# t = s\,\alpha + m\,\frac{b}{\beta}$$
#
# $A_r$ are columns of $A$, and $B_r$ the rows of $B$ that belong to them. An all-reduce of $b$ bytes takes $s$ steps of latency $\alpha$
# and moves $m b$ bytes to each GPU at $\beta$ bytes per second. In the shortest form, one *shot*, every GPU reads the parts of all:

# %%
from numba import cuda, float32

from minllm.ptx import ld_acquire_sys_u32, st_release_sys_u32
from minllm.runtime.kernel import kernel


@kernel
def add_ranks(x, out, rank, copies, flags, epoch):  # copies, flags: one array per rank
    """One block per rank: out = the sum of all ranks' x, on each of them."""
    ranks, i = len(copies), cuda.threadIdx.x
    while i < x.shape[0]:
        copies[rank][i] = x[i]  # to where the peers can read it
        i += cuda.blockDim.x
    cuda.syncthreads()  # all threads have written
    peer = cuda.threadIdx.x
    if peer < ranks:  # one thread per peer
        st_release_sys_u32(flags[peer], rank, epoch)  # mine is there
        while ld_acquire_sys_u32(flags[rank], peer) < epoch:  # is yours?
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
# `copies[peer]` is memory of another GPU. A kernel reads it as its own; the loads cross NVLink.
#
# **What you will be able to do**
#
# - cut a layer so that it needs one all-reduce, and say what each GPU holds;
# - write an all-reduce, and say what orders two GPUs;
# - predict from latency and bandwidth which algorithm wins, and what a step gains.
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
)
guess.ask()

# %% [markdown]
# ## What one GPU cannot hold
#
# Cut heads, inner width and vocabulary by $N$, and what one GPU holds is a smaller model of the same kind (`minllm/costs/parallel.py`):

# %%
from minllm import costs
from minllm.models.shapes import find_config

CAPACITY, CACHE = 141e9, 20e9  # bytes of an H200, and what to leave for keys and values
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
# Room for tokens grows faster than the number of GPUs, since the weights are shared.
#
# ## Column, then row
#
# Cut the first matrix by columns. Each GPU then has whole elements of the inner layer, so $\phi$ needs nobody else. Cut the second by
# rows, and each GPU has what its rows multiply. Nothing crosses until the parts of $y$ are added:

# %%
import numpy as np

rng = np.random.default_rng(0)
x = rng.standard_normal(64)
gate, up, down = (rng.standard_normal(s) for s in ((64, 96), (64, 96), (96, 64)))


def mlp(x, gate, up, down):
    """A gated MLP (lesson 6)."""
    inner = x @ gate
    return inner / (1 + np.exp(-inner)) * (x @ up) @ down


RANKS = 2
mine = np.split(np.arange(96), RANKS)  # the inner elements of each rank
parts = [mlp(x, gate[:, own], up[:, own], down[own]) for own in mine]
assert np.allclose(sum(parts), mlp(x, gate, up, down))
assert not np.allclose(parts[0], mlp(x, gate, up, down))

# %% [markdown]
# Attention splits by heads: QKV by columns, the output projection by rows. A query head needs its KV head on the same GPU; with more GPUs
# than KV heads, neighbours store the same one. So a layer has two all-reduces, and the embedding, cut by vocabulary, a last one.
#
# The other way round, rows then columns, would need a sum *before* $\phi$, and another exchange after it.
#
# ## The sum, on two GPUs
#
# The simulator runs both ranks at once, each with its own memory. Its detectors know what orders two GPUs: a store with **release**
# and a load with **acquire**, both of *system scope*. A block barrier orders one block, and a fence of GPU scope one GPU.

# %%
from minllm.sim import detecting, simulate_ranks, tracing

x = [part.astype(np.float32) for part in parts]
out, copies = np.empty((2, RANKS, 64), np.float32)
flags = np.zeros((RANKS, RANKS), np.uint32)
arguments = [
    (x[rank], out[rank], rank, tuple(copies), tuple(flags), 1) for rank in range(RANKS)
]
with detecting(), tracing() as traces:
    simulate_ranks(add_ranks, 1, 32, arguments)
assert out[0].tobytes() == out[1].tobytes() == (x[0] + x[1]).tobytes()
for name, array in traces[0].arrays.items():
    if name.startswith("rank 0") and "flags" not in name:
        read, written = array.read.bytes, array.write.bytes
        print(f"{name:20} read {read:4}, written {written:4} bytes")
crossed = traces[0].arrays["rank 0's copies[1]"].read.bytes
assert crossed == x[0].nbytes

# %% [markdown]
# Of these loads only those of `copies[1]` leave rank 0's GPU: with $N$ ranks $(N - 1)\,b$ bytes, in one step.
#
# ## Latency against bandwidth
#
# The classic all-reduce is a **ring**. Cut the message into $N$ chunks; pass each on to the right, adding your own part, until every rank has
# the sum of one chunk; then pass the sums round. Each GPU receives $2 (N-1)/N\,b$ bytes, and no algorithm does with less. But that takes
# $2 (N-1)$ steps, each of which waits for the one before. Between the two stand **two shots**: each rank adds up one $N$-th for all
# (a reduce-scatter), then everybody collects the sums (an all-gather).

# %%
from minllm.costs.all_reduce import Link, all_reduce_seconds, collective, crossing

link = Link(latency=2e-6, bytes_per_second=360e9)  # assumed, not measured
NAMES = ("low_latency", "one_shot", "two_shot", "ring")
for name in NAMES:
    found = collective(name, 4)
    times = [1e6 * all_reduce_seconds(name, 2**k, 4, link) for k in (14, 19, 24)]
    print(f"{name:12} {found.steps:3} steps, {found.traffic} b in all,", end=" ")
    print("16 KiB, 512 KiB, 16 MiB:", *(f"{t:6.1f} µs" for t in times))
crossing_kib = crossing("one_shot", "two_shot", 4, link) / 1024
print(f"one_shot against two_shot: {crossing_kib:.0f} KiB")
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
# Set the times equal, and the crossing is $b = (s' - s)\,\alpha \beta / (m - m')$. The product $\alpha \beta$ is the number of bytes that a link
# moves while a step waits, here 720 KB; messages well below it are all latency. One sequence of the 70B shape adds up 16 KiB.
#
# **low_latency** takes half a step, because its flag does not follow the data: each word of 8 bytes holds 4 of data and 4 of flag,
# and a GPU writes and reads such a word whole. If the flag is new, so are the data. It pays with twice the bytes.
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
assert floors["ring"][8] > floors["ring"][2] > floors["ring"][4]
assert floors["low_latency"][8] < floors["low_latency"][4]

# %% [markdown]
# Around a ring, eight GPUs are slower than two: 65 all-reduces of 14 steps cost more than the weights. Small messages decide a
# decode step. A prefill of 2,048 tokens adds up 16 MiB at a time, and there bytes count, not steps.
#
# ## The same bits
#
# Every rank samples the next token for itself, from the same logits and the same seed. They must agree to the last bit, or their texts
# part:

# %%
a, b, c = (np.float32(value) for value in (1e8, 1.0, -1e8))
print("in rank order:", (a + b) + c, " from rank 2 on:", (c + a) + b)
pairs = rng.standard_normal((2, 100_000)).astype(np.float32)
assert (pairs[0] + pairs[1] == pairs[1] + pairs[0]).all()
assert (a + b) + c != (c + a) + b
two_orders = "no"  # a + b = b + a, also where it rounds

# %% [markdown]
# Two ranks hide the mistake, and three show it. One shot adds in rank order everywhere; in two shots and in a ring, one rank
# adds up each element for all.
#
# ## From one block to the package
#
# The package's kernels use many blocks, of which each waits for *the same block* of its peers, and vectors of 16 bytes. Flags are never reset:
# they count all-reduces, on the device, so a captured graph can be replayed. Two halves of the staging memory take turns, since a peer
# may still read the last message when the next one is copied. And each wait is bounded, and says for whom it waited.

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
    folded="Low latency: a word that says itself whether it is new",
    notes={
        "ld_relaxed_sys_v2_u64(inbox, here)": "Relaxed: the word holds all there is to say.",
        "gives_up(": "After this many polls the peer is noted as lost.",
    },
)

# %% [markdown]
# ## Measured against predicted

# %%
from minllm.course import listing, load_record, recorded

if "all-reduce" in {row["benchmark"] for row in load_record()["rows"]}:
    print(listing(recorded("all-reduce", listed=True)[:12]))
else:
    print("No row of 'all-reduce' is recorded yet: minllm bench all-reduce makes them.")
guess.against(
    gpus=fits[0],
    reductions=reductions,
    message_kib=message_kib,
    crossing_kib=crossing_kib,
    more_gpus=str(more_gpus),
    two_orders=two_orders,
)

# %% [markdown]
# Latency and bandwidth above are assumed. On your machine measure two sizes, a small one and a large one: the first gives $\alpha$, the second
# $\beta$, and the crossing follows.
#
# ## Exercises
#
# Write one shot yourself. The checks run two and three ranks, with all detectors.

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises(20)

# %% [markdown]
# ## Detective cases

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("yesterdays_news")

# %% tags=["hide-input"]
show_case("split_decision")

# %% tags=["hide-input"]
show_case("four_strangers")

# %% [markdown]
# ## Problems
#
# ??? question "1. A GPU costs 4 dollars per hour. By the floors above, what do a million tokens of one sequence of the 8B shape cost on 1 GPU and on 4, with low_latency?"
#     3.61 ms per token are 1.00 hours per million tokens: 4.01 dollars. On 4 GPUs 0.97 ms are 0.27 hours of 4 GPUs: 4.33 dollars. The
#     answer comes 3.7 times as fast and costs 8 % more.
#
# ??? question "2. Two servers are joined by a network of 20 µs per step and 50 GB/s. Should the 8B shape be cut across them, one GPU in each, for one sequence?"
#     65 all-reduces of one step are 1.3 ms and more, and half of the weights saves 1.8 ms: 3.1 ms instead of 3.6. Two GPUs of one host
#     take 1.9. Across hosts cut by layers instead: one message per step, and no sum.
#
# ??? question "3. A ring and two shots receive the same number of bytes. When is a ring still the better choice?"
#     Where not every pair of GPUs has a link of its own: a ring only uses the links to two neighbours. Behind a switch, or with links between all,
#     two shots take 2 steps instead of 2 (N - 1).
#
# ??? question "4. A model has 2 KV heads and is cut among 8 GPUs. How many GPUs store each KV head, and by what factor does the cache of one GPU shrink?"
#     4 GPUs each. A GPU stores one KV head of 2, so its cache is half of the whole, not an eighth: beyond the number of KV heads more GPUs
#     make no more room per token.
#
# ??? question "5. Why must the flag be a number that grows, and not 1 that is reset to 0 after each sum?"
#     Who resets it? If the waiting rank does, its peer may have raised it for the next sum already, and that flag is lost. A number needs no
#     reset: late readers see a larger one, and the wait is for at least this number.

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
# ## What next, and which measurement says so
#
# The floor of a step says it: with low_latency and four GPUs, all-reduces are 8 % of it. What follows each of them, residual and RMSNorm,
# can share its kernel (`minllm/kernels/all_reduce/fused_norm.py`), which saves 64 launches. Beyond one host, latency grows tenfold:
# cut by layers (pipeline parallelism), or give each host its own requests.
#
# ## Sources
#
# - M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019, section 3.
# - P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009, section 3.
# - R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, section 4.
# - R. Hockney, "The Communication Challenge for MPP: Intel Paragon and Meiko CS-2", 1994, section 2.
# - NVIDIA, "PTX ISA", chapter "Memory Consistency Model".
# - NVIDIA, NCCL, `src/device/prims_ll.h` (the protocol LL); vLLM, `csrc/custom_all_reduce.cuh` (one and two shots).
