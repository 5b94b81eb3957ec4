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
# # 13. Launch overhead, CUDA graphs, programmatic dependent launch
#
# One token of a small model is a hundred kernels, most of them over in a few microseconds. To ask for a kernel takes
# the host some microseconds, too, and between two kernels the GPU is idle. In this lesson you count the launches of a
# step and what they cost, take the host out of the loop, and then make the gaps between kernels smaller.
#
# **What you will be able to do**
#
# - say what happens in a launch, what it costs, and when a program is bound by its host;
# - say what a CUDA graph records, what must stay where it is, and which batches may share one;
# - let a kernel begin before its predecessor has ended, and say what it may read until then.
#
# You need [lesson 4](04_arithmetic_intensity_and_the_roofline.py) for floors and [lesson 8](08_the_kv_cache.py) for
# slots and block tables. You need no GPU.
#
# ## Predict
#
# A model with the shape of Llama-3.2-1B has 16 layers and 2.5 GB of weights in bfloat16. An H200 copies 4.3 TB/s.
#
# - How many kernels does one decode step launch?
# - How many microseconds does the host need to launch them all, one by one?
# - How many microseconds does reading the weights take? And which of the two is the limit?

# %%
from minllm.course import Prediction

guess = Prediction(
    launches=16 * 10,
    host_microseconds=16 * 10 * 5,  # 5 for each
    floor_microseconds=2.5e9 / 4.3e6,
    limit="memory",
)
guess

# %% [markdown]
# ## What happens in a launch
#
# `kernel[grid, block](x, out, 2.0)` is a line of Python. What reaches the driver is a function that was compiled for
# these types, two times three sizes, a stream, and a table of addresses, one for each parameter. Somebody has to make
# the one from the other, at every launch:
#
# ```mermaid
# flowchart LR
#     call["kernel[grid, block](arrays, scalars)"] --> types["which types?<br/>find the compiled kernel"]
#     types --> values["every array becomes<br/>5 + 2 * axes numbers"]
#     values --> table["a table of<br/>their addresses"]
#     table --> driver["cuLaunchKernel"]
#     driver --> queue["the GPU's queue"]
# ```
#
# An array is not just a pointer, because `x[i, j]` needs strides and `x.shape` needs sizes. Numba's layout is: two
# pointers that kernels do not use, the number of elements, the bytes of each, the address, then shape and strides.

# %%
import numpy as np

from minllm.runtime.array import DeviceArray
from minllm.runtime.parameters import parameter

x = DeviceArray(0x7F0000001000, (16, 2048), np.float16, None, None)  # an address, a shape, a dtype; no memory
kind, packed = parameter(x)
print(np.frombuffer(packed, np.uint64).tolist())
assert len(packed) == 8 * (5 + 2 * x.ndim)

# %% [markdown]
# Numba's dispatcher is made to be right in every case. It looks the configuration up, takes a fingerprint of every
# argument's type, takes every array apart into those numbers, wraps each of them for C, and builds an object with the
# launch's settings. minllm leaves Numba the compiling, and launches by itself. An array is packed once in its life and
# keeps the result; every value has 8 bytes in one buffer, so that the table of addresses is made once in the
# program's life.

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.runtime.kernel import Launch

show_source(
    Launch.__call__,
    notes={
        "types, packed": "What decides the types, and the bytes. Both were kept from the array's first launch.",
        "self.kernel.loaded.get(types)": "Compiled for these types before? Only the first launch compiles.",
        "table = write_parameters": "One copy of some hundred bytes into the buffer.",
        "driver.cuLaunchKernel(": "From here on it is the driver's time. The call returns before the kernel has begun.",
        "driver.cuLaunchKernelEx": "The form for launches with attributes: clusters, and what this lesson ends with.",
    },
)

# %% [markdown]
# ## Time it on your machine
#
# Without a GPU there is no driver to call. A stub stands in for it, a function that does nothing, so what is left is
# our own share of a launch. The second figure is what would come on top if arrays did not keep what they were packed
# into.

# %%
import platform
import timeit
from statistics import median
from types import SimpleNamespace
from unittest.mock import patch

from cuda.bindings import driver

from minllm.runtime.kernel import Kernel, kernel
from minllm.runtime.parameters import array_parameter

COUNT = 1000


@kernel
def idle_kernel(*arguments):
    """Never compiled here: only its launch is timed."""


def loaded_stub(kernel, arguments):
    """What `Kernel.load` gives back, without a cubin."""
    return SimpleNamespace(function=None, shared_bytes_allowed=48 * 1024, dependent_launch=False)


def microseconds(function):
    """Median microseconds of one call of `function`, which is the host's work alone."""
    return 1e6 / COUNT * median(timeit.repeat(function, number=COUNT, repeat=5))


eight = [DeviceArray(4096 * n, (16, 2048), np.float16, None, None) for n in range(1, 9)]
configured = idle_kernel[16, 128]


def host_cost(name, arrays, scalars):
    """Print what a launch with these arguments costs, less the driver's part."""
    whole = microseconds(lambda: configured(*arrays, *scalars))
    anew = microseconds(lambda: [array_parameter(array) for array in arrays])
    print(f"{name:20} a launch {whole:5.1f} µs, packing the arrays anew {anew:5.1f} µs more")


with patch.object(Kernel, "load", loaded_stub), patch.object(driver, "cuLaunchKernel", lambda *given: (0,)):
    host_cost("1 array", [x], [])
    host_cost("8 arrays, 4 scalars", eight, [1, 2, 3, 0.5])
print(f"measured on this machine's processor, {platform.machine()}")

# %% [markdown]
# With the driver, on the machine with the H200, `minllm bench launch` measured the same launches. The first bars are what
# cannot be avoided, as long as every kernel is asked for by itself; the last is a launch's share of a graph's replay, to
# which we come below.

# %% tags=["fold"]
from minllm.course import Bar, bars, recorded


def host_us(case, way):
    """Recorded microseconds of the host for one launch."""
    (row,) = recorded("launch", case, way, record="lessons/h200")
    return row.value


FEW, MANY = "1 array", "8 arrays, 4 scalars"
DRIVER, OURS, NUMBA = (
    [host_us(case, way) for case in (FEW, MANY)] for way in ("driver", "minllm", "numba-cuda")
)
RMS_NORM = host_us("rms_norm", "minllm, with checks")
bars(
    [
        Bar("driver, 1 array", DRIVER[0], "cuLaunchKernel alone", 1),
        Bar("driver, 8 arrays", DRIVER[1], "and 4 scalars", 1),
        Bar("minllm, 1 array", OURS[0], "the whole launch"),
        Bar("minllm, 8 arrays", OURS[1], "and 4 scalars"),
        Bar("rms_norm", RMS_NORM, "with its checks of shapes and dtypes"),
        Bar("numba-cuda, 1 array", NUMBA[0], "its own dispatcher", 2),
        Bar("numba-cuda, 8 arrays", NUMBA[1], "and 4 scalars", 2),
        Bar("in a graph", host_us(MANY, "in a graph"), "one of a hundred, replayed together", 1),
    ],
    unit="µs",
    title="Host time of a launch",
    caption=f"By minllm bench launch; {recorded('launch', record='lessons/h200')[0].label}. Other hosts differ.",
)

# %% [markdown]
# What Numba's dispatcher does for an array it does at every launch, so that it grows with their number; the driver
# hardly minds.
#
# ## Count the launches of a step
#
# How many are there in a step? The engine can tell, without a GPU and without weights. Below, memory is handed out as
# addresses with nothing behind them, and the launch of every kernel is replaced by a note in a list. All else is what
# runs on a GPU: the same decode step, the same choice of kernels.

# %%
import itertools

from minllm.engine.decode_graph import DecodeGraph

from minllm import SamplingParams
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.engine.running.batch_arrays import decode_batch
from minllm.kernels.sampling.parameters import build_sampling_tensors
from minllm.models.layout import layout_of
from minllm.models.model import Model, make_rope_table
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.shapes import find_config
from minllm.models.weights import load_weights
from minllm.ops.cuda_ops import CudaOps
from minllm.runtime import tensor_map
from minllm.runtime.memory import DeviceMemory


class PaperMemory:
    """Addresses with nothing behind them."""

    def __init__(self):
        self.addresses = itertools.count(1 << 32, 1 << 32)

    def allocate(self, nbytes):
        return next(self.addresses)

    def copy_to_device(self, pointer, address, nbytes):
        pass

    def fill(self, pointer, value, nbytes):
        pass


class PaperOps(CudaOps):
    """The operations of an H200, on paper."""

    def __init__(self):
        super().__init__("bfloat16", {"matmul": "gemv"}, simulated=True)  # gemv: what one row of x takes
        self.memory, self.capability = DeviceMemory(PaperMemory()), (9, 0)

    def weight(self, host_array, dtype=None):
        return self.empty(host_array.shape, self.dtype if dtype is None else dtype)


class PaperCheckpoint(RandomCheckpoint):
    """Tensors of the right shape, all of them zeros that take no memory."""

    def __init__(self, config):
        self._shapes = layout_of(config).shapes()

    def tensor(self, name):
        return np.broadcast_to(np.float32(0), self._shapes[name])


def paper_step(config):
    """(the launches of a decode step at batch 1 as (kernel, arguments), the graph object whose step it was)."""
    ops, launches = PaperOps(), []
    model = Model(
        config, load_weights(ops, config, PaperCheckpoint(config)), make_rope_table(ops, config, 1024)
    )
    shape = CacheShape(config.num_hidden_layers, 16, config.num_key_value_heads, config.head_dim, ops.dtype)
    tables = np.arange(48, dtype=np.int32)[None]  # [1, 48]: blocks for 768 tokens
    batch = decode_batch(np.int32([7]), np.int32([512]), tables, shape.block_size)
    sampling = build_sampling_tensors([SamplingParams(temperature=0)], config.vocab_size)
    graph = DecodeGraph(ops, model, KVCache(ops, shape, 64), batch, sampling, np.int32([700]), machine=None)
    noted = patch.object(Launch, "__call__", lambda one, *arguments: launches.append((one.kernel, arguments)))
    # Descriptors of tensor maps are the driver's work.
    no_maps = dict(encode=lambda *given: None, keep=lambda words: 0, DESCRIPTORS={})
    with noted, patch.multiple(tensor_map, **no_maps):
        graph.step()
    return launches, graph


_, config_1b = find_config("llama-3.2-1b")
launches, paper_graph = paper_step(config_1b)
names = [kernel.__name__ for kernel, _ in launches]
print(f"{len(names)} launches, of {len(set(names))} kernels:")
for name in dict.fromkeys(names):
    print(f"{names.count(name):4} {name}")

# %% [markdown]
# Now hold the host against the GPU. Lesson 4 gave the lower bound of a decode step, and so of the time per output token
# (TPOT): all weights and the cache, once, at the speed of a copy. For the host, take every launch to cost what that of
# `rms_norm` does.

# %%
from minllm import costs
from minllm.course import load_record

tb_s, tflops = (load_record()["ceilings"][name] for name in ("copy_tb_s", "bf16_tflops"))
floor_us = 1e3 * costs.decode_step(config_1b, 1, 576).floor_ms(tb_s, tflops)
all_us = len(launches) * RMS_NORM
print(f"floor of the step: {floor_us:.0f} µs")
times = f"{all_us / floor_us:.1f} times the floor"
print(f"host, one by one : {len(launches)} x {RMS_NORM:.1f} µs = {all_us:.0f} µs, {times}")
print(f"less the checks  : {len(launches)} x {OURS[1]:.1f} µs = {len(launches) * OURS[1]:.0f} µs")
print(f"the driver alone : {len(launches)} x {DRIVER[1]:.1f} µs = {len(launches) * DRIVER[1]:.0f} µs")
assert len(launches) * OURS[1] > floor_us

# %%
guess.against(
    launches=len(launches), host_microseconds=all_us, floor_microseconds=floor_us, limit="launches"
)

# %% [markdown]
# The host needs more time to ask for the work than the GPU to do it. A program like this is host-bound: its GPU waits,
# and a faster one would change nothing. A queue of kernels makes that plain. A kernel can begin when the host has
# launched it and its predecessor has ended, so the row of the GPU is full of holes:


# %%
from minllm.course import Span, timeline

KERNELS = [
    ("norm", 2),
    ("product", 6),
    ("append", 2),
    ("attention", 4),
    ("product", 5),
    ("norm", 2),
]  # names and µs


def one_by_one(host_us):
    """The spans of a stream whose kernels are launched one after another, each `host_us` of the host's time."""
    spans, asked, ended = [], 0, 0
    for name, kernel_us in KERNELS:
        spans.append(Span("host", asked, asked + host_us, "launch", 1))
        asked += host_us
        begin = max(asked, ended)  # launched, and its turn
        ended = begin + kernel_us
        spans.append(Span("GPU", begin, ended, name, 0))
    return spans


timeline(
    one_by_one(OURS[1]),
    "µs",
    "Launched one by one: the GPU waits for the host",
    caption=f"Drawn, not measured: launches of {OURS[1]:.1f} µs, and kernels of the few µs that they take.",
)

# %% [markdown]
# In a prompt of a thousand tokens a kernel runs for much longer than a launch, the host runs ahead, and nobody sees
# launch overhead. It is the illness of small work: small models, small batches, and decoding.
#
# ## CUDA graphs: record once, replay
#
# A decode step is the same list of launches again and again. So let the driver keep the list. The stream is told to
# record; the step's launches are made as ever, but nothing runs; the recording becomes an executable graph. From then
# on one call replays all of it, and the host is done after a single launch.

# %% tags=["hide-input"]
from minllm.runtime import graph as graph_module

show_source(
    graph_module.CapturedGraph,
    notes={
        "with memory.capture(self)": "Temporaries that the step allocates now belong to the graph, for its whole life.",
        "begin_building": "From here on launches on this stream are written down, not run.",
        "self.result = function()": "The step. What it returns are arrays that every replay writes again.",
        "self.graph.upload": "The GPU gets the list before it is first needed.",
    },
)


# %% tags=["fold"]
def replayed_spans(gap_us):
    """The spans of the same kernels in a graph, with `gap_us` between them."""
    spans, begin = [Span("host", 0, OURS[1], "replay", 1)], OURS[1]
    for name, kernel_us in KERNELS:
        spans.append(Span("GPU", begin, begin + kernel_us, name, 0))
        begin += kernel_us + gap_us
    return spans


end_of_one_by_one, end_of_replay = (spans[-1].end for spans in (one_by_one(OURS[1]), replayed_spans(1.2)))
timeline(
    replayed_spans(1.2),
    "µs",
    "The same six kernels, replayed from a graph",
    caption=f"Drawn, not measured: one launch of {OURS[1]:.1f} µs for all, and 1.2 µs between two kernels.",
)

# %% tags=["hide"]
assert end_of_replay < 0.7 * end_of_one_by_one

# %% [markdown]
# The host asks once, whether the graph holds six kernels or six hundred, and between two kernels there is only the
# GPU's own pause. We come back to that pause.
#
# ## What must stay where it is
#
# A graph holds, for every launch, the kernel, its grid, and the bytes of its parameters: addresses and scalars. All of
# those are fixed. Whatever changes from step to step has to lie in memory, at an address that does not change. For a
# decode step these are seven small arrays. The list from above says which kernels have them as parameters:

# %%
from minllm.engine.decode_graph import BATCH_ARRAYS

for name in BATCH_ARRAYS:
    array = getattr(paper_graph.batch, name)
    takers = [
        kernel.__name__
        for kernel, arguments in launches
        if any(getattr(a, "pointer", None) == array.pointer for a in arguments)
    ]
    shown = ", ".join(f"{takers.count(taker)} x {taker}" for taker in dict.fromkeys(takers))
    print(f"{name:13} {array.shape!s:8} {shown or 'only a prompt needs it'}")
    assert (name in ("token_ids", "positions", "slot_mapping", "context_lens")) <= (
        "advance_kernel" in takers
    )

# %% [markdown]
# The engine reads them, and the last kernel of the step writes them: the token that was just chosen is the next
# step's input, its position is one more, and slot and length follow. So a replay needs nothing at all from the host.
# That kernel is small, and it is your exercise.

# %% tags=["hide-input"]
from minllm.course import show_docstring
from minllm.kernels.sampling import advance as advance_module

show_docstring(advance_module)

# %% [markdown]
# The grids are fixed, too. Attention is cut into blocks by the longest context that the block tables allow, not by the
# present one; each block looks in `context_lens` what there is to do. And a sequence that ends cannot leave the
# batch: its slot becomes -1 and its length 0, and its kernels have nothing to do.
#
# ## Run it
#
# `DecodeGraph` holds the arrays and the graph. Its first step is launched kernel by kernel, because that compiles and
# allocates what is missing, which a recording must not do. The second is captured. All others are replays.

# %% tags=["hide-input"]
show_source(DecodeGraph.step)

# %% tags=["hide-input"]
show_source(
    DecodeGraph.launch_kernels,
    notes={
        "forward(": "The same forward pass that reads prompts.",
        "advance(": "Writes the inputs of the step after this one.",
    },
)

# %% [markdown]
# What a graph needs of the machine is an object of its own, so that another can take its place. The one below has no
# GPU: a replay runs the recorded function again, and puts the results where the first replay put them. It works on
# NumPy and the bundled model; `advance` runs in the simulator.

# %%
from minllm import LLM
from minllm.engine.running.batch_arrays import Span as NewTokens
from minllm.engine.running.batch_arrays import build_batch, to_backend
from minllm.models.decoder import forward
from minllm.ops.numpy_ops import NumpyOps


class OwnArrays(NumpyOps):
    """NumPy, and what comes from the host is copied, as it is to a GPU."""

    stream = None

    def array(self, host_array):
        return np.array(host_array, order="C")


class HostMachine:
    """Captures and replays on the host, and writes both down."""

    def __init__(self):
        self.diary = []

    def capture(self, function):
        self.diary.append("capture")
        self.function, self.result = function, None
        return self

    def launch(self):
        self.diary.append("replay")
        new = self.function()
        if self.result is None:
            self.result = new
        for old, fresh in zip(self.result, new):
            old[:] = fresh  # a graph's results have addresses of their own

    def write(self, array, host):
        array[:] = host


llm = LLM(device="cpu", dtype="float32")
model, ops, machine = llm.engine.model, OwnArrays("float32"), HostMachine()
config = model.config
shape = CacheShape(config.num_hidden_layers, 16, config.num_key_value_heads, config.head_dim, ops.dtype)
cache = KVCache(ops, shape, num_blocks=8)
table = np.array([[5, 2, 7, 0]], np.int32)  # one sequence, room for 64 tokens
prompt = llm.tokenizer.encode("def read(path):\n    with")

prefill = build_batch([NewTokens(prompt, 0, table[0])], [len(prompt) - 1], 16)
first = (
    ops.to_host(forward(ops, model, to_backend(prefill, ops), cache.layers)).argmax(axis=1).astype(np.int32)
)
batch = decode_batch(first, np.int32([len(prompt)]), table, 16)
sampling = build_sampling_tensors([SamplingParams(temperature=0)], config.vocab_size, outputs=[first])
graph = DecodeGraph(ops, model, cache, batch, sampling, np.int32([64]), machine)
written = [int(first[0])]
for _ in range(15):
    tokens, logits = graph.step()
    written.append(int(tokens[0]))

expected = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))[0]
print(llm.tokenizer.decode(written))
print(machine.diary[:4], "...", machine.diary.count("replay"), "replays")
print("position", graph.batch.positions, "slot", graph.batch.slot_mapping, "length", graph.batch.context_lens)
assert written == expected.outputs[0].token_ids
assert machine.diary.count("capture") == 1 and machine.diary.count("replay") == 14

# %% [markdown]
# From the first step to the last, no token came from the host, and the text is the engine's.
#
# And if one forgets the rule? A recording holds arrays, not the names that a program has for them. Here three launches
# are recorded and replayed; then the program makes a new array under the old name, in place of writing into the old
# one. The simulator runs them.

# %%
import functools

from numba import cuda


@kernel
def add_one_kernel(x):
    """x += 1, 32 numbers."""
    x[cuda.threadIdx.x] += 1


numbers = recorded_numbers = np.zeros(32, np.float32)
recording = 3 * [
    functools.partial(add_one_kernel.simulate[1, 32], numbers)
]  # kernel, grid, block and address
for replay in recording:
    replay()
numbers = np.full(32, 100, np.float32)
for replay in recording:
    replay()
print(f"the program looks at {numbers[0]:.0f}, the replay wrote {recorded_numbers[0]:.0f}")
assert numbers[0] == 100 and recorded_numbers[0] == 6

# %% [markdown]
# No error, no warning: an old input is read, a new one is not. `DecodeGraph.load` therefore writes a new batch into the
# arrays of the old one.
#
# ## Which batches share a graph
#
# To record takes longer than to replay, so graphs are kept, and a batch that fits an old one is written into its
# arrays (`DecodeGraph.load`). It fits where every launch would be the same: same shapes, since grids come from shapes,
# and same kernels. The function that says so is the second exercise.

# %%
from minllm.engine.decode_graph import graph_key


def key(rows=4, position=100, blocks=16, temperature=0.0, reads_logits=False):
    """The key of a decode batch of `rows` sequences, all at `position`."""
    tables = np.zeros((rows, blocks), np.int32)
    batch = decode_batch(np.zeros(rows, np.int32), np.full(rows, position, np.int32), tables, 16)
    rows_params = [SamplingParams(temperature=temperature, seed=1)] * rows
    return graph_key(batch, build_sampling_tensors(rows_params, 300), reads_logits)


for change in (
    dict(position=200),
    dict(rows=5),
    dict(blocks=32),
    dict(temperature=0.7),
    dict(reads_logits=True),
):
    print(f"{change!s:24} {'the same graph' if key(**change) == key() else 'another graph'}")
assert key(position=200) == key() and key(rows=5) != key()

# %% [markdown]
# Block tables are padded to multiples of 256 tokens for this reason: else each block that a sequence gets would ask
# for a new graph. The runner keeps the eight that were used last.
#
# ## One step ahead of the host
#
# The host still has work for each token: is it the end, which text is it, does anybody wait for it? None of that is
# needed to launch the next step. So the runner launches step 2 before it reads the tokens of step 1. They come by an
# asynchronous copy into page-locked memory, and an event says when they are there.

# %% tags=["hide-input"]
from minllm.engine.cuda_graph_runner import CudaGraphRunner

show_source(
    CudaGraphRunner.decode_step,
    notes={
        "self._decode.step()": "One replay. Returns before it has begun.",
        "reader.pending.wait()": "There are three sets of host arrays; this one has had its turn long ago.",
        "read_later(tokens": "A copy in the stream's order. Nobody waits here.",
    },
)

# %% tags=["fold"]
STEP, TEXT, CALL = 880, 300, 60
waiting, ahead = [], [Span("host, ahead", 0, CALL, "", 1)]
for n in range(3):
    start = n * (CALL + STEP + TEXT)
    waiting += [
        Span("host, waiting", start, start + CALL, "", 1),
        Span("GPU", start + CALL, start + CALL + STEP, f"step {n + 1}"),
        Span("host, waiting", start + CALL + STEP, start + CALL + STEP + TEXT, f"read {n + 1}", 2),
    ]
    begin = CALL + n * STEP
    launched_at = (
        begin + TEXT if n else begin
    )  # the next step, as soon as the host has read the one before this
    ahead += [
        Span("GPU ", begin, begin + STEP, f"step {n + 1}"),
        Span("host, ahead", launched_at, launched_at + CALL, "", 1),
        Span("host, ahead", begin + STEP, begin + STEP + TEXT, f"read {n + 1}", 2),
    ]
timeline(
    waiting + ahead,
    "µs",
    "Three steps: waiting for each, and one step ahead",
    caption="Drawn, not measured: a step of 880 µs, 300 µs of the host for its tokens.",
)

# %% [markdown]
# The price: when a sequence turns out to have ended, its next token is already being computed. It is dropped.
#
# ## The gap between two kernels
#
# With the host out of the way, what is left? In a stream a kernel begins when its predecessor has ended, all of it: the
# last block's stores are visible, then the next grid's blocks are set up, fetch their instructions and parameters, and
# ask for their first bytes, which take a while to come. For a microsecond or two nothing is read. Tiny kernels that
# were replayed from a graph on an H200 took 1.2 µs each.
#
# Programmatic dependent launch, from compute capability 9.0 on, lets the two overlap. It takes two instructions:
#
# - `griddepcontrol.launch_dependents`: the next kernel may be set up. Once all blocks have said so or ended, its blocks
#   take whatever room is free on the SMs (streaming multiprocessors).
# - `griddepcontrol.wait`: wait until all that was launched before has ended, and its writes are visible.
#
# Launch early, wait late. Here the kernels say the first in their first line, and what comes before the wait is free.
# A small kernel has nothing to do before it, and wins its set-up alone:

# %% tags=["hide-input"]
from minllm.kernels.dependent_launch import wait_for_predecessors

show_source(wait_for_predecessors)

# %% [markdown]
# A product has more: its weights, which no kernel writes. It asks for the first of them, and only then waits for its
# activations. While the norm before it still computes, bytes of the product's weights are already on their way. And
# weights are nearly all that a decode step reads.

# %% tags=["hide-input"]
from minllm.kernels.matmul.gemv import sums as gemv_sums

show_source(
    gemv_sums.make_accumulate_step,
    part="accumulate_step",
    notes={
        "w = load_128_streaming": "Weights: asked for at once, without waiting for anybody.",
        "if waits": "True in a warp's first step alone. Everything that follows may look at x.",
        "x_words = load_128": "The activations, which the kernel before has written.",
    },
)

# %%
overlapping = sum(kernel.dependent_launch for kernel, _ in launches)
print(f"{overlapping} of {len(launches)} launches of the step may overlap their predecessor")
assert overlapping > 0.8 * len(launches)

# %% tags=["fold"]
without, together = [], []
for name, start, end in (("norm", 0, 2), ("product", 3.2, 9.2), ("append", 10.4, 12)):
    without.append(Span(f"{name}, in order", start, end, "", 0))
for name, setup, wait, end in (("norm", 0, 0, 2), ("product", 0.6, 2, 7.0), ("append", 5.9, 7.0, 8.3)):
    if wait > setup:
        together.append(Span(f"{name}, overlapped", setup, wait, "", 2))
    together.append(Span(f"{name}, overlapped", wait, end, "", 0))
timeline(
    without + together,
    "µs",
    "Three kernels of a graph, in order and overlapped",
    caption="Drawn, not measured. The parts in another colour lie before the wait: set-up, and for the product the "
    "first weights.",
)

# %% [markdown]
# Two rules go with it. Every thread of such a kernel has to wait, even if it needs nothing: a kernel's end is what its
# successor waits for, and it must mean that all before it have ended, too. And before the wait nothing may be read
# that a kernel writes, nor anything written that an earlier one may still read. On a GPU a mistake shows rarely. The
# simulator runs kernels one after another, so results are right in it; but inside `detecting()` it remembers which
# arrays earlier launches wrote. Here it watches a norm and the product that follows:

# %%
from minllm.kernels.matmul.gemv.gemv import matmul_gemv
from minllm.kernels.normalization.rms_norm import rms_norm
from minllm.sim import detecting

rng = np.random.default_rng(0)
hidden, features = 256, 24
x = rng.standard_normal((1, hidden)).astype(np.float32)  # [1, hidden]
weight = rng.standard_normal((features, hidden)).astype(np.float32)  # [features, hidden]
normed, out = np.empty_like(x), np.empty((1, features), np.float32)
with detecting():
    rms_norm(x, np.ones(hidden, np.float32), normed, 1e-5)
    matmul_gemv(normed, weight, out)  # reads what rms_norm wrote, after its wait
assert np.allclose(out, x / np.sqrt(np.mean(x**2) + 1e-5) @ weight.T, atol=1e-4)
print("No finding: the weights came before the wait, the activations after it.")

# %% [markdown]
# What it is worth, `minllm bench step` measures: a step of the 1B shape at batch 1, replayed both ways in one run.

# %%
rows = recorded("decode step", "llama-3.2-1b", record="lessons/h200")
steps = {row.variant: row.value for row in rows}  # µs
in_order, overlapped = steps["graph replay, kernels in order"], steps["graph replay"]
saved = in_order - overlapped
print(f"a step took {in_order:.0f} µs in order and {overlapped:.0f} µs overlapped")
print(f"{saved:.0f} µs saved, {saved / overlapping:.2f} µs for each kernel that overlaps")
assert 0.3 < saved / overlapping < 3

# %% [markdown]
# ## Fewer kernels have fewer gaps
#
# The other way is not to launch. [Lesson 6](06_norms_rope_swiglu_fusion.py) fused kernels to save bytes; in a decode
# step the bytes of activations are next to nothing, and what fusion saves is a gap. The feed-forward is an example.
# `gated_gemv` computes rows of the gate and of what it gates in one warp, and writes `silu(gate) * up`: what were a
# product and an activation is one kernel.

# %%
from minllm.kernels.activation.silu import silu_and_multiply
from minllm.kernels.matmul.gemv.gemv import gated_gemv
from minllm.sim import tracing

gate_up = rng.standard_normal((2 * features, hidden)).astype(np.float32)  # gate above, up below
both, apart, fused = np.empty((1, 2 * features), np.float32), np.empty_like(out), np.empty_like(out)
with tracing() as two:
    matmul_gemv(x, gate_up, both)
    silu_and_multiply(both, apart)
with tracing() as one:
    gated_gemv(x, gate_up, fused)
assert np.allclose(apart, fused, rtol=1e-4, atol=1e-4) and (len(two), len(one)) == (2, 1)
moved_apart, moved_together = (sum(trace.total.unique_bytes for trace in traces) for traces in (two, one))
print(f"apart {len(two)} launches, {moved_apart:,} bytes; fused {len(one)} launch, {moved_together:,} bytes")
print(f"in the step of {config_1b.num_hidden_layers} layers: {config_1b.num_hidden_layers} launches fewer")

# %% [markdown]
# Where a sequence decodes alone, the engine fuses all that is small into the product beside it. A residual is added where
# a product writes its sums. RoPE and the append to the cache follow where the sums of queries, keys and values are
# complete: a warp computes the two components that turn together. Even RMSNorm, which needs all of a row before it knows
# its first number, can go into the product behind it, because its divisor is the same for every element:
#
# $$\sum_k \frac{x_k}{\mathrm{rms}(x)} g_k w_{nk} = \frac{1}{\mathrm{rms}(x)} \sum_k x_k g_k w_{nk}$$
#
# A warp multiplies by $x_k g_k$, adds up the squares of $x$ on its way, and divides at the end. That every warp does so
# again costs arithmetic, of which there is plenty, and no bytes from memory.

# %%
from minllm.ops import cuda_ops

with patch.object(cuda_ops, "MOST_ROWS_FUSED", 0):
    apart_launches, _ = paper_step(config_1b)
names_apart = [kernel.__name__ for kernel, _ in apart_launches]
print(f"{len(apart_launches)} launches with norms, rotation and residuals apart, {len(launches)} fused")
for name in dict.fromkeys(names_apart):
    print(f"{names_apart.count(name):4} {name}")
assert len(apart_launches) - len(launches) == 3 * config_1b.num_hidden_layers + 1

# %% [markdown]
# ## Measured against predicted
#
# The engine's recorded decode rates, at batch 1, against the floor of each model's step. What a step takes beyond its
# floor, divided by its launches, is what a kernel costs more than its bytes do:

# %%
from minllm.course import recorded

rows = []
for name in ("bundled", "llama-3.2-1b", "llama-3.1-8b"):
    (row,) = recorded("decode", name, "bfloat16")
    count = len(paper_step(find_config(name)[1])[0])
    measured, floor = 1e6 / row.value, 1e6 / row.limit
    rows.append((name, row, count, measured, floor))
    print(
        f"{name:13} {count:3} launches: floor {floor:7.1f} µs, measured {measured:7.1f} µs, "
        f"{(measured - floor) / count:.1f} µs more for each launch"
    )
assert rows[0][1].of_limit < rows[1][1].of_limit < rows[2][1].of_limit
beyond = [(measured - floor) / count for _, _, count, measured, floor in rows]
assert max(beyond) < 2 * min(beyond)

# %% tags=["fold"]
bars(
    [
        bar
        for name, row, count, measured, floor in rows
        for bar in (
            Bar(f"{name}, floor", floor, "weights and cache at the speed of a copy", 2),
            Bar(f"{name}, measured", measured, f"{100 * row.of_limit:.0f} % of the limit"),
        )
    ],
    unit="µs",
    title="One decode step, batch 1",
    log=True,
    caption=f"Replayed from a graph; {rows[0][1].label}.",
)

# %% tags=["fold"]
from minllm.course import Dot, roofline

dots = [
    Dot.of_bandwidth(f"{name}: {row.of_limit * tb_s:.2f} TB/s", 1.0, row.of_limit * tb_s, colour=number)
    for number, (name, row, *_) in enumerate(rows)
]
roofline(
    [Dot("", 1.0, tb_s, measured=False), *dots],
    tb_s,
    tflops,
    "The same steps on the roofline",
    caption=f"About one FLOP a byte: every weight is read once and used once; {rows[0][1].label}.",
)

# %% [markdown]
# Three models, of which the largest reads hundreds of times as many bytes as the smallest, and each pays about the same
# for a launch beyond them. Kernels and graph are the same; what differs is how much a kernel has to read
# while it is there, and so the smaller model stands lower. Not all of it is a gap: attention over one short context,
# and products too small to fill the machine, are part of it.
#
# On a machine with a GPU this cell measures yours: as many launches of a tiny kernel as the step has, one by one and
# replayed.

# %%
from minllm.course import has_gpu, machine_line, timed
from minllm.runtime.kernel import launch

if has_gpu():
    from minllm.runtime.graph import CapturedGraph

    gpu_ops = CudaOps()
    numbers = gpu_ops.array(np.zeros(32, np.float32))

    def all_launches():
        for _ in launches:
            launch(add_one_kernel, 1, 32, (numbers,), gpu_ops.stream)

    launched = timed(all_launches)
    replayed = timed(CapturedGraph(all_launches, gpu_ops.core_stream, gpu_ops.memory).launch)
    for name, seconds in (("one by one", launched), ("replayed", replayed)):
        print(
            f"{name:11} {1e6 * seconds:6.0f} µs, {1e6 * seconds / len(launches):.1f} µs each, {machine_line()}"
        )
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# ## Exercises
#
# The kernel that makes a replay possible, and the rule for when one is allowed.

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises(13)

# %% [markdown]
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("too_early")

# %% [markdown]
# ## What next, and which measurement says so
#
# The list of launches is short now, the host is out of the loop, and gaps overlap. What the last bars show is the rest:
# a step is still longer than its floor, and the more so the smaller the model. A single kernel for a whole layer, or
# for the whole step, would have no gaps at all; it would also need a barrier over the whole GPU where the gaps were.
# The cheaper way out is to give each launch more to do. A batch of 8 sequences has about as many launches as one, and
# reads the weights once, too: the floor hardly moves, and eight tokens come out. How to keep a batch full while
# sequences come and go is lesson 14.
#
# ## Sources
#
# - NVIDIA, "CUDA C++ Programming Guide", sections "CUDA Graphs" and "Programmatic Dependent Launch and
#   Synchronization".
# - NVIDIA, "CUDA Driver API", `cuLaunchKernel`, `cuLaunchKernelEx`, `cuStreamBeginCapture`.
# - NVIDIA, "Parallel Thread Execution ISA", instruction `griddepcontrol`.
# - S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52 (2009).
