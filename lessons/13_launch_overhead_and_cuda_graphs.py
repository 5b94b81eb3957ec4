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
# One token of a small model takes some ninety kernels, most of them finished within a few microseconds. A launch takes
# the host some microseconds, too, and between two kernels the GPU is idle. In this lesson you count the launches of a
# step and what they cost, take the host out of the loop, and then make the gaps between kernels smaller.
#
# **What you will be able to do**
#
# - say what happens in a launch, what it costs, and when a program is bound by its host;
# - say what a CUDA graph records, what must stay where it is, and which steps may share one;
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
# - How many microseconds does it take to read the weights? Which of the two is the bottleneck?

# %%
from minllm.course import Prediction

guess = Prediction(
    launches=16 * 10,
    host_microseconds=16 * 10 * 5,  # 5 µs per launch
    floor_microseconds=2.5e9 / 4.3e6,
    limit="memory",
)
guess

# %% [markdown]
# ## What happens in a launch
#
# `kernel[grid, block](x, out, 2.0)` is a line of Python. What reaches the driver is a function that was compiled for
# these types, two times three sizes, a stream, and a table of addresses, one per parameter. Each launch converts the
# first into the second:
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
# Numba's dispatcher handles every case. It looks up the configuration, takes a fingerprint of every argument's type,
# splits every array into those numbers, wraps each of them for C, and builds an object with the launch's settings.
# minllm uses Numba to compile, and launches by itself. An array is packed once and keeps the result. Every value has
# 8 bytes in one buffer, so the table of addresses is made once per program.

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.runtime.kernel import Launch

show_source(
    Launch.__call__,
    notes={
        "types, packed": "The types and the bytes, both kept from the array's first launch.",
        "self.kernel.loaded.get(types)": "Only the first launch with these types compiles.",
        "table = write_parameters": "One copy of some hundred bytes into the buffer.",
        "driver.cuLaunchKernel(": "From here on the driver works. The call returns before the kernel has begun.",
        "driver.cuLaunchKernelEx": "The form for launches with attributes: clusters, and dependent launch, see below.",
    },
)

# %% [markdown]
# ## Time it on your machine
#
# Without a GPU there is no driver to call. A function that does nothing replaces it, so what is timed is our own share
# of a launch. The second figure is the extra time if arrays did not keep their packed form.

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
    """What `Kernel.load` returns, without machine code."""
    return SimpleNamespace(function=None, shared_bytes_allowed=48 * 1024, dependent_launch=False)


def microseconds(function):
    """Median microseconds of one call of `function` on the host."""
    return 1e6 / COUNT * median(timeit.repeat(function, number=COUNT, repeat=5))


eight = [DeviceArray(4096 * n, (16, 2048), np.float16, None, None) for n in range(1, 9)]
configured = idle_kernel[16, 128]


def host_cost(name, arrays, scalars):
    """Print the host time of a launch with these arguments, without the driver's part."""
    whole = microseconds(lambda: configured(*arrays, *scalars))
    anew = microseconds(lambda: [array_parameter(array) for array in arrays])
    print(f"{name:20} a launch {whole:5.1f} µs, packing the arrays anew {anew:5.1f} µs more")


with patch.object(Kernel, "load", loaded_stub), patch.object(driver, "cuLaunchKernel", lambda *given: (0,)):
    host_cost("1 array", [x], [])
    host_cost("8 arrays, 4 scalars", eight, [1, 2, 3, 0.5])
print(f"measured on this machine's processor, {platform.machine()}")

# %% [markdown]
# `minllm bench launch` measured the same launches with the driver, on a machine with an H200. The first bars cannot be
# avoided as long as every kernel is launched by itself. The last one is a launch's share of a graph's replay, explained
# below.

# %% tags=["fold"]
from minllm.course import Bar, bars, comparable, recorded


def host_us(case, way):
    """Recorded host time of one launch, in microseconds."""
    (row,) = recorded("launch", case, way)
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
    caption=f"By minllm bench launch; {recorded('launch')[0].label}. Other hosts differ.",
)

# %% [markdown]
# Numba's dispatcher repeats its work for every array at every launch, so its cost grows with the number of arrays; the
# driver's cost barely grows.
#
# ## Count the launches of a step
#
# How many launches does a step have? The engine can tell without a GPU and without weights, by a dry run: arrays have
# addresses and no contents, and a launch is noted in a list instead of executed. Everything else is as on a GPU: the
# same decode step, the same choice of kernels.

# %%
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.engine.kernels_needed import DryRunMachine, DryRunReader
from minllm.engine.running.model_runner import ModelRunner
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.layout import layout_of
from minllm.models.model import Model, make_rope_table
from minllm.models.shapes import find_config
from minllm.ops.dry_run_ops import DryRunOps
from minllm.runtime.device import Device
from minllm.runtime.dry_run import dry_run

H200 = Device(0, "NVIDIA H200", (9, 0), sm_count=132, total_memory=140 << 30, l2_bytes=50 << 20)


def dry_step(config):
    """The launches of a decode step at batch 1, its batch, and the state of the slots."""
    with dry_run(H200) as launches:
        ops = DryRunOps("bfloat16")
        weights = DryRunReader(ops, layout_of(config)).read_model()
        model = Model(config, weights, make_rope_table(ops, config, 1024))
        kv_heads = config.num_key_value_heads
        shape = CacheShape(config.num_hidden_layers, 16, kv_heads, config.head_dim, ops.dtype)
        sizes = dict(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=1024)
        cache, machine = KVCache(ops, shape, 64), DryRunMachine()
        runner = ModelRunner(ops, model, cache, None, machine=machine, uses_graphs=True, **sizes)
        key = runner.graphs.key(1, 0, 1, context=576, kind=SamplingKind.GREEDY)
        slots, batch = runner.graphs.batch(key)
        launches.clear()  # those of the table of rotary positions
        runner.compute(slots, batch, key.kind)
    return launches, batch, runner.slots.state


_, config_1b = find_config("llama-3.2-1b")
launches, batch, state = dry_step(config_1b)
names = [launch.name for launch in launches]
print(f"{len(names)} launches, of {len(set(names))} kernels:")
for name in dict.fromkeys(names):
    print(f"{names.count(name):4} {name}")

# %% [markdown]
# Now compare the host with the GPU. Lesson 4 gave the lower bound of a decode step, and so of the time per output token
# (TPOT): all weights and the cache, read once, at the speed of a copy. For the host, assume that every launch costs as
# much as that of `rms_norm`.

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
# The host needs more time to launch the work than the GPU to do it. Such a program is host-bound: a faster GPU would
# change nothing. A kernel can begin when the host has launched it and its predecessor has ended, so the GPU's row is
# full of holes:


# %%
from minllm.course import Span, timeline

KERNELS = [
    ("norm", 2),
    ("GEMV", 6),
    ("append", 2),
    ("attention", 4),
    ("GEMV", 5),
    ("norm", 2),
]  # names and µs


def one_by_one(host_us):
    """The spans of a stream whose kernels are launched one after another, each `host_us` of the host's time."""
    spans, launched, ended = [], 0, 0
    for name, kernel_us in KERNELS:
        spans.append(Span("host", launched, launched + host_us, "launch", 1))
        launched += host_us
        begin = max(launched, ended)  # launched, and its predecessor has ended
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
# In a prompt of a thousand tokens a kernel runs much longer than a launch takes, so the host runs ahead and launch
# overhead is hidden. It shows where work is small: small models, small batches, short prompts, and decoding.
#
# ## CUDA graphs: record once, replay
#
# A decode step is the same list of launches again and again, so let the driver keep the list. The stream is told to
# record; the step's launches are made as always, but nothing runs; the recording becomes an executable graph. From then
# on one call replays all of it: a single launch for the host.

# %% tags=["hide-input"]
from minllm.runtime import graph as graph_module

show_source(
    graph_module.CapturedGraph,
    notes={
        "with memory.capture(self": "Temporaries of the step stay allocated as long as the graph exists.",
        "begin_building": "From here on launches on this stream are recorded, not run.",
        "result = function()": "The step. Every replay writes the arrays that it returns again.",
        "self.graph.upload": "Sends the list to the GPU before it is first needed.",
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
# The host launches once, whether the graph holds six kernels or six hundred, and between two kernels there is only the
# GPU's own pause. We come back to that pause.
#
# ## What must stay where it is
#
# A graph holds, for every launch, the kernel, its grid, and the bytes of its parameters: addresses and scalars. All of
# those are fixed. Whatever changes from step to step has to lie in memory, at an address that does not change.
#
# The engine splits it in two. What belongs to a *sequence*, its newest token, its length, its block table and how it is
# sampled, lies in a **slot** that the sequence owns as long as it runs. What belongs to the *step* are seven small
# arrays with one entry per row; the first kernel makes them from the slots, the last one writes the new tokens back:
#
# ```mermaid
# flowchart LR
#     numbers["slots[row]<br/>from the host, when rows change"] --> load
#     state[("state of the slots")] --> load["load_rows"]
#     load --> arrays["the batch's arrays"] --> forward["forward"] --> sample["sample"] --> advance["advance"]
#     advance --> state
# ```
#
# The list from above shows which kernels have these arrays as parameters:

# %%
OF_SLOTS = ("newest_tokens", "lengths")
OF_BATCH = ("token_ids", "positions", "slot_mapping", "query_start", "context_lens", "block_tables", "logits_rows")
takers = {}
for name in OF_SLOTS + OF_BATCH:
    array = getattr(state if name in OF_SLOTS else batch, name)
    takers[name] = [
        launch.name
        for launch in launches
        if any(getattr(one, "pointer", None) == array.pointer for one in launch.arguments)
    ]
    shown = ", ".join(f"{takers[name].count(taker)} x {taker}" for taker in dict.fromkeys(takers[name]))
    print(f"{name:13} {array.shape!s:8} {shown or 'only a prompt needs it'}")
assert takers["lengths"] == ["load_rows_kernel", "advance_kernel"]

# %% [markdown]
# A replay of the same rows needs nothing at all from the host. When rows change, it sends their slots' numbers; when a
# sequence takes another cache block, one word. The last kernel is small, and it is your first exercise:

# %% tags=["hide-input"]
from minllm.course import show_docstring
from minllm.kernels.slots import advance as advance_module

show_docstring(advance_module)

# %% [markdown]
# ## Which steps share a graph
#
# Grids are made from shapes, so a graph serves steps of one shape. Sequences come and go, and a graph for each of 1 to
# 256 rows takes long to record. So the engine records some sizes, and pads a step to the next one: a padding row has
# slot -1, which writes no key and value, and context length 0, which leaves attention nothing to do. Choosing the size
# is your second exercise.

# %% tags=["hide-input"]
from minllm.engine.running.step_graphs import StepGraphs, decode_sizes

show_source(StepGraphs.key)

# %%
from minllm.engine.running.machine import HostMachine
from minllm.ops.numpy_ops import NumpyOps

sizes = dict(max_num_seqs=256, max_tokens=2048, columns=1024, block_size=16, residual_window=0)
graphs = StepGraphs(NumpyOps("float32"), HostMachine(), compute=None, **sizes)
GREEDY, RANDOM = SamplingKind.GREEDY, SamplingKind.RANDOM
for words, step in {
    "5 sequences decode": (5, 0, 5, 100, GREEDY),
    "8 sequences": (8, 0, 8, 1000, GREEDY),
    "8, one with 1,025 tokens": (8, 0, 8, 1025, GREEDY),
    "8, one of which draws": (8, 0, 8, 1000, RANDOM),
    "8, and a prompt of 300 tokens": (8, 1, 308, 1000, RANDOM),
}.items():
    key = graphs.key(*step)
    rows = f"{key.decodes} + {key.prompts} rows"
    print(f"{words:30} {key.tokens:3} tokens, {rows}, {key.columns:4} columns, {key.kind.name}")
assert graphs.key(5, 0, 5, 100, GREEDY) == graphs.key(8, 0, 8, 1000, GREEDY)

# %% [markdown]
# Attention cuts contexts into parts by the longest one that the block tables could hold, so a key has their columns: few
# widths, each four times the one before. Greedy and drawn tokens take different kernels. A step with prompts has more
# tokens than rows, up to the budget of a step.
#
# **Predict:** what percentage does padding 5 sequences to 8 add to the lower bound of a step of the 1B shape? The
# padding rows read no keys and values.

# %%
padding = Prediction(added_percent=60)
bytes_of_5, bytes_of_8 = (costs.decode_step(config_1b, rows, 1).bytes for rows in (5, 8))
padding.against(added_percent=100 * (bytes_of_8 / bytes_of_5 - 1))

# %% [markdown]
# Nearly nothing: a step reads the weights once, for 5 rows or for 8. So a few dozen sizes are enough. Their temporaries
# need memory, too. But one graph runs at a time, so all graphs share the memory of the largest:

# %%
recorded_sizes = decode_sizes(256)
logits_bytes = [4 * rows * config_1b.vocab_size for rows in recorded_sizes]  # float32
print(f"{len(recorded_sizes)} sizes: {recorded_sizes[:6]} ... {recorded_sizes[-1]}")
print(f"logits, a memory per graph: {sum(logits_bytes) / 1e9:.2f} GB; shared: {max(logits_bytes) / 1e9:.2f} GB")

# %% [markdown]
# The price: the next replay overwrites the results of this one, so they are copied first, in stream order.
#
# ## Run it
#
# What a graph needs of the machine is an object of its own, so it can be exchanged. The one below has no GPU: a replay
# runs the recorded function again, and stores the results where the first run stored them. It serves the bundled model
# on NumPy.
#
# **Predict:** three requests want 16, 9 and 4 tokens. How many graphs are recorded, and how many steps are there?

# %%
from minllm import LLM, SamplingParams

guess_of_graphs = Prediction(graphs=16, steps=16)


class HostGraph:
    """Runs a function again at each launch, and writes its results over those of the first run."""

    def __init__(self, function, diary):
        self.function, self.diary, self.result = function, diary, None
        _, self.batch, _ = function.args

    def launch(self):
        self.diary.append(f"replay of {self.batch.num_tokens} tokens, {self.batch.num_sequences} rows")
        new = self.function()
        self.result = self.result or new
        for old, fresh in zip(self.result, new):
            old[:] = fresh


class HostGraphs(HostMachine):
    """A machine whose graphs are functions."""

    def __init__(self):
        self.diary = []

    def capture(self, function):
        graph = HostGraph(function, self.diary)
        self.diary.append(f"capture of {graph.batch.num_tokens} tokens, {graph.batch.num_sequences} rows")
        return graph


llm = LLM(device="cpu", dtype="float32", max_num_seqs=8, max_model_len=256)
prompts = [llm.tokenizer.encode(text) for text in ("def read(path):\n    with", "import ", "class Stack:\n")]
params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (16, 9, 4)]
expected = llm.generate(prompts, params)

plain, machine = llm.engine.runner, HostGraphs()
sizes = dict(max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=256)
runner = ModelRunner(
    plain.ops, plain.model, plain.cache, plain.policy, machine=machine, uses_graphs=True, **sizes
)
llm.engine.runner = llm.llm_engine.core.runner = runner
found = llm.generate(prompts, params)

for line in dict.fromkeys(machine.diary):
    print(f"{machine.diary.count(line):3} x {line}")
assert [one.outputs[0].token_ids for one in found] == [one.outputs[0].token_ids for one in expected]
captures = sum(line.startswith("capture") for line in machine.diary)
guess_of_graphs.against(graphs=captures, steps=len(machine.diary) - captures)

# %% [markdown]
# One graph for the prompts, which all fit in one step, and one each for 4, 2 and 1 rows. The text is that of the runner
# without graphs. A recording does not wait for a compiler: if a kernel is not loaded yet, the step is first launched
# kernel by kernel, on padding alone. `LLM()` records its graphs while it warms up.
#
# What happens if one forgets the rule? A recording holds arrays, not the names that a program has for them. Here three
# launches are recorded and replayed; then the program makes a new array under the old name, instead of writing into the
# old one. The simulator runs them.

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
print(f"the program reads {numbers[0]:.0f}, the replay wrote {recorded_numbers[0]:.0f}")
assert numbers[0] == 100 and recorded_numbers[0] == 6

# %% [markdown]
# No error, no warning: an old input is read, a new one is not. The engine therefore writes the slots of new rows into
# the array of the old ones.
#
# ## One step ahead of the host
#
# The host still has work for each token: it looks for the end of the text, decodes, and streams. None of that is needed
# to launch the next step, which finds its tokens in the slots. So the engine launches step 2 before it reads the tokens
# of step 1. They come by an asynchronous copy into page-locked memory, and an event says when they are there.

# %% tags=["hide-input"]
from minllm.engine.core import EngineCore

show_source(
    EngineCore.step,
    notes={
        "self._launch_ahead()": "Plans and launches a step; returns before it has begun.",
        "result.wait()": "Waits for the step before, while the GPU already has the next one.",
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
# The price: when a sequence turns out to have ended, its next token is already being computed, and is dropped.
#
# ## The gap between two kernels
#
# What is left without the host? In a stream a kernel begins when its predecessor has ended completely: the last block's
# stores are visible, then the next grid's blocks are set up, fetch their instructions and parameters, and issue their
# first loads, which take a while to arrive. For a microsecond or two nothing is read. Tiny kernels that were replayed
# from a graph on an H200 took 1.2 µs each.
#
# Programmatic dependent launch, from compute capability 9.0 on, lets the two overlap. It takes two instructions:
#
# - `griddepcontrol.launch_dependents`: the next kernel may be set up. Once all blocks have executed it or ended, the next
#   kernel's blocks take whatever room is free on the SMs (streaming multiprocessors).
# - `griddepcontrol.wait`: wait until everything launched before has ended, and its writes are visible.
#
# Launch early, wait late. Here kernels execute the first in their first line, and what comes before the wait is free. A
# small kernel has nothing to do before the wait, and gains only its set-up:

# %% tags=["hide-input"]
from minllm.kernels.dependent_launch import wait_for_predecessors

show_source(wait_for_predecessors)

# %% [markdown]
# A GEMV has more to do: it loads its first weights, which no kernel writes, and only then waits for its activations.
# While the norm before it still computes, bytes of the weights are already on their way. Weights are nearly all that a
# decode step reads.

# %% tags=["hide-input"]
from minllm.kernels.matmul.gemv import sums as gemv_sums

show_source(
    gemv_sums.make_accumulate_step,
    part="accumulate_step",
    notes={
        "w = load_128_streaming": "Weights: loaded at once, without waiting.",
        "if waits": "True only in a warp's first step. Everything that follows may read x.",
        "x_words = load_128": "The activations, which the previous kernel has written.",
    },
)

# %%
overlapping = sum(launch.launch.kernel.dependent_launch for launch in launches)
print(f"{overlapping} of {len(launches)} launches of the step may overlap their predecessor")
assert overlapping > 0.8 * len(launches)

# %% tags=["fold"]
without, together = [], []
for name, start, end in (("norm", 0, 2), ("GEMV", 3.2, 9.2), ("append", 10.4, 12)):
    without.append(Span(f"{name}, in order", start, end, "", 0))
for name, setup, wait, end in (("norm", 0, 0, 2), ("GEMV", 0.6, 2, 7.0), ("append", 5.9, 7.0, 8.3)):
    if wait > setup:
        together.append(Span(f"{name}, overlapped", setup, wait, "", 2))
    together.append(Span(f"{name}, overlapped", wait, end, "", 0))
timeline(
    without + together,
    "µs",
    "Three kernels of a graph, in order and overlapped",
    caption="Drawn, not measured. The parts in another colour lie before the wait: set-up, and for the GEMV the first "
    "weights.",
)

# %% [markdown]
# Two rules go with it. Every thread of such a kernel has to wait, even if it needs nothing: its successor waits for its
# end, which must mean that all kernels before it have ended, too. Before the wait, a kernel may not read what another
# one writes, nor write what an earlier one may still read. On a GPU a mistake shows rarely. The simulator runs kernels
# one after another, so its results are right; but inside `detecting()` it remembers which arrays earlier launches
# wrote. Here it watches a norm and the GEMV that follows:

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
# `minllm bench step` measures the gain: a step of the 1B shape at batch 1, replayed both ways in one run.

# %%
rows = comparable(*recorded("decode step", "llama-3.2-1b (random weights), batch 1, context 1024"))
steps = {row.variant: row.value for row in rows}  # µs
in_order, overlapped = steps["graph replay, kernels in order"], steps["graph replay"]
saved = in_order - overlapped
print(f"a step took {in_order:.0f} µs in order and {overlapped:.0f} µs overlapped ({rows[0].label})")
print(f"{saved:.0f} µs saved, {saved / overlapping:.2f} µs for each kernel that overlaps")
assert 0.3 < saved / overlapping < 3

# %% [markdown]
# ## Fewer kernels have fewer gaps
#
# The other way is not to launch. [Lesson 6](06_norms_rope_swiglu_fusion.py) fused kernels to save bytes; in a decode
# step the bytes of activations are negligible, and fusion saves a gap. The feed-forward is an example: `gated_gemv`
# computes a row of the gate and the row that it gates in one warp, and writes `silu(gate) * up`. A GEMV and an
# activation become one kernel.

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
# Where a sequence decodes alone, the engine fuses all element-wise kernels into the GEMV beside them. A residual is added
# where a GEMV writes its sums. RoPE and the append to the cache follow where the sums of queries, keys and values are
# complete: a warp computes the two components that are rotated together. Even RMSNorm, which needs a whole row before
# its first result, can go into the GEMV behind it, because its divisor is the same for every element:
#
# $$\sum_k \frac{x_k}{\mathrm{rms}(x)} g_k w_{nk} = \frac{1}{\mathrm{rms}(x)} \sum_k x_k g_k w_{nk}$$
#
# A warp multiplies by $x_k g_k$, adds up the squares of $x$ on its way, and divides at the end. Every warp repeats this,
# which costs arithmetic, of which there is plenty, and no bytes from memory.

# %%
from minllm.ops import cuda_ops

with patch.object(cuda_ops, "MOST_ROWS_FUSED", 0):
    apart_launches, *_ = dry_step(config_1b)
names_apart = [launch.name for launch in apart_launches]
print(f"{len(apart_launches)} launches with norms, rotation and residuals apart, {len(launches)} fused")
for name in dict.fromkeys(names_apart):
    print(f"{names_apart.count(name):4} {name}")
assert len(apart_launches) - len(launches) == 3 * config_1b.num_hidden_layers + 1

# %% [markdown]
# ## Measured against predicted
#
# The engine's recorded decode rates at batch 1, against the floor of each model's step. The time of a step beyond its
# floor, divided by its launches, is what a kernel costs beyond its bytes:

# %%
from minllm.course import recorded

rows = []
for name in ("bundled", "llama-3.2-1b", "llama-3.1-8b"):
    (row,) = recorded("decode", name, "bfloat16")
    count = len(dry_step(find_config(name)[1])[0])
    measured, floor = 1e6 / row.value, 1e6 / row.limit
    rows.append((name, row, count, measured, floor))
    print(
        f"{name:13} {count:3} launches: floor {floor:7.1f} µs, measured {measured:7.1f} µs, "
        f"{(measured - floor) / count:.1f} µs more per launch"
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
    caption=f"About one FLOP per byte: every weight is read once and used once; {rows[0][1].label}.",
)

# %% [markdown]
# The largest of the three models reads hundreds of times as many bytes as the smallest, and each pays about the same per
# launch beyond them. What differs is how much a kernel has to read, so the smaller model stands lower. Not all of it is
# a gap: attention over one short context, and GEMVs too small to fill the machine, are part of it.
#
# On a machine with a GPU this cell measures yours: as many launches of a tiny kernel as the step has, one by one and
# replayed.

# %%
from minllm.course import has_gpu, machine_line, timed
from minllm.runtime.kernel import launch

if has_gpu():
    from minllm.ops.cuda_ops import CudaOps
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
# The kernel that makes a replay possible, and the choice of the graph.

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
# The list of launches is short now, the host is out of the loop, and gaps overlap. The last bars show the rest: a step is
# still longer than its floor, most of all for the smallest model. A single kernel for a whole layer, or for the whole
# step, would have no gaps; it would also need a barrier over the whole GPU where the gaps were. The cheaper way out is to
# give each launch more to do. A batch of 8 sequences has about as many launches as one, and reads the weights once, too:
# the floor barely moves, and eight tokens come out. How to keep a batch full while sequences come and go is lesson 14.
#
# ## Sources
#
# - NVIDIA, "CUDA C++ Programming Guide", sections "CUDA Graphs" and "Programmatic Dependent Launch and
#   Synchronization".
# - NVIDIA, "CUDA Driver API", `cuLaunchKernel`, `cuLaunchKernelEx`, `cuStreamBeginCapture`.
# - NVIDIA, "Parallel Thread Execution ISA", instruction `griddepcontrol`.
# - S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52 (2009).
