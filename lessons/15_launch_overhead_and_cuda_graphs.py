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
# # 15. Launch overhead, CUDA graphs, programmatic dependent launch
#
# One token of a small model takes some ninety kernels, most of them a few microseconds long. Each launch takes the host
# a few microseconds too, and between two kernels the GPU is idle. In this lesson you count the launches of a step and
# their cost, take the host out of the loop, and then shrink the gaps between kernels.

# %% tags=["fold"]
from minllm.course import Bar, Span, bars, comparable, recorded, timeline


def host_us(case, way):
    """Recorded host time of one launch, in microseconds."""
    (row,) = recorded("launch", case, way)
    return row.value


FEW, MANY = "1 array", "8 arrays, 4 scalars"
DRIVER, OURS, NUMBA = (
    [host_us(case, way) for case in (FEW, MANY)]
    for way in ("driver", "minllm", "numba-cuda")
)
RMS_NORM = host_us("rms_norm", "minllm, with checks")
KERNELS = [
    ("norm", 2),
    ("GEMV", 6),
    ("append", 2),
    ("attention", 4),
    ("GEMV", 5),
    ("norm", 2),
]  # µs


def one_by_one(host_us):
    """The spans of a stream whose kernels are launched one after another, `host_us` of
    host time each."""
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
    caption=f"Drawn, not measured: launches of {OURS[1]:.1f} µs, and kernels of a few "
    "µs.",
)

# %% [markdown]
# $$t_\text{step} \approx \max(\text{launches} \times t_\text{host},\ \text{launches} \times t_\text{gap} + \text{bytes} / \text{bandwidth})$$
#
# There are three remedies: replay a recorded list of launches (a CUDA graph), let a kernel start before its predecessor
# has ended (programmatic dependent launch), and launch fewer kernels (fusion). The second needs two instructions inside
# a kernel:

# %%
from numba import cuda, float32

from minllm import ptx
from minllm.runtime.kernel import kernel


@kernel(dependent_launch=True)
def scaled_sum_kernel(
    x, weight, out
):  # all [n]; an earlier kernel writes x, none writes weight
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    ptx.griddepcontrol_launch_dependents()  # the next kernel may be set up
    w = float32(0)
    if i < weight.size:
        w = weight[i]  # loaded while the predecessor still runs
    ptx.griddepcontrol_wait()  # every thread: all earlier kernels have ended
    if i < out.size:
        out[i] = w * x[i]


# %% [markdown]
# **What you will be able to do**
#
# - say what happens in a launch, what it costs, and when a program is bound by its host;
# - say what a CUDA graph records, which data must keep their addresses, and which steps can share one;
# - let a kernel begin before its predecessor has ended, and say what it may read before then.
#
# You need [lesson 4](04_arithmetic_intensity_and_the_roofline.py) for floors and [lesson 8](08_the_kv_cache.py) for
# slots and block tables. You need no GPU.
#
# ## Predict
#
# A model with the shape of Llama-3.2-1B has 16 layers and 2.5 GB of weights in bfloat16. An H200 copies at 4.3 TB/s.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    launches="How many kernels does one decode step launch?",
    host_microseconds="How many microseconds does the host need to launch them one by one?",
    floor_microseconds="How many microseconds does it take to read the weights?",
    limit=("Which of the two is the bottleneck?", "launches", "memory"),
    added_percent="5 sequences are padded to 8 rows. What percentage does that add to the floor of a step?",
    graphs="Three requests generate 16, 9 and 4 tokens. How many graphs are recorded?",
    steps="How many steps do they take together?",
)
guess.ask()

# %% [markdown]
# ## What happens in a launch
#
# `kernel[grid, block](x, out, 2.0)` is one line of Python. The driver needs a function compiled for these types, six
# sizes, a stream, and a table of addresses, one per parameter. Each launch converts the Python call into these
# arguments. An array is more than a pointer, because `x[i, j]` needs strides and `x.shape` needs sizes: Numba's layout
# has 5 numbers plus 2 per axis.
#
# Numba's dispatcher repeats this for every array at every launch. minllm compiles with Numba and launches kernels
# itself: it packs an array once, and makes the table of addresses once per program.

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.runtime.kernel import Launch

show_source(
    Launch.__call__,
    folded="A launch",
    notes={
        "types, packed": "The types and the bytes, both kept from the array's first launch.",
        "loaded = self.loaded(types": "Only the first launch with these types compiles.",
        "table = write_parameters": "One copy of some hundred bytes into the buffer.",
        "driver.cuLaunchKernel(": "The driver does the rest. The call returns before the kernel has begun.",
        "driver.cuLaunchKernelEx": "The form for launches with attributes: clusters, and dependent launch, see below.",
    },
)

# %% [markdown]
# `minllm bench launch` measured these times on a machine with an H200. The last bar is one launch's share of a graph's
# replay, explained below.

# %% tags=["fold"]
bars(
    [
        Bar("driver, 1 array", DRIVER[0], "cuLaunchKernel alone", 1),
        Bar("driver, 8 arrays", DRIVER[1], "and 4 scalars", 1),
        Bar("minllm, 1 array", OURS[0], "the whole launch"),
        Bar("minllm, 8 arrays", OURS[1], "and 4 scalars"),
        Bar("rms_norm", RMS_NORM, "with its checks of shapes and dtypes"),
        Bar("numba-cuda, 1 array", NUMBA[0], "its own dispatcher", 2),
        Bar("numba-cuda, 8 arrays", NUMBA[1], "and 4 scalars", 2),
        Bar(
            "in a graph",
            host_us(MANY, "in a graph"),
            "one of a hundred, replayed together",
            1,
        ),
    ],
    unit="µs",
    title="Host time of a launch",
    caption=f"Host time; {recorded('launch')[0].label}. Other hosts differ.",
)

# %% [markdown]
# !!! tip "Takeaway"
#     A launch costs the host microseconds, however small the kernel is.
#
# ## Count the launches of a step
#
# The engine can count them without a GPU, in a dry run: arrays have addresses but no contents, and a launch is added to
# a list instead of being executed. Everything else is as on a GPU.

# %% tags=["fold"]
import numpy as np

from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.engine.kernels_needed import DryRunMachine, DryRunReader
from minllm.engine.running.model_runner import ModelRunner
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.layout import layout_of
from minllm.models.model import Model, make_rope_tables
from minllm.models.shapes import find_config
from minllm.ops.dry_run_ops import DryRunOps
from minllm.runtime.device import Device
from minllm.runtime.dry_run import dry_run

H200 = Device(
    0, "NVIDIA H200", (9, 0), sm_count=132, total_memory=140 << 30, l2_bytes=50 << 20
)


def dry_step(config):
    """The launches of a decode step at batch 1, its batch, and the state of the
    slots."""
    with dry_run(H200) as launches:
        ops = DryRunOps("bfloat16")
        weights = DryRunReader(ops, layout_of(config)).read_model()
        model = Model(config, weights, make_rope_tables(ops, config, 1024))
        kv_heads = config.num_key_value_heads
        shape = CacheShape(
            config.num_hidden_layers, 16, kv_heads, config.head_dim, ops.dtype
        )
        sizes = dict(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=1024)
        cache, machine = KVCache(ops, shape, 64), DryRunMachine()
        runner = ModelRunner(
            ops, model, cache, None, machine=machine, uses_graphs=True, **sizes
        )
        key = runner.graphs.key(1, 0, 1, context=576, kind=SamplingKind.GREEDY)
        slots, batch = runner.graphs.batch(key)
        launches.clear()  # drop the launches that make the RoPE table
        runner.compute(slots, batch, key.kind)
    return launches, batch, runner.slots.state


# %%
_, config_1b = find_config("llama-3.2-1b")
launches, batch, state = dry_step(config_1b)
names = [launch.name for launch in launches]
print(f"{len(names)} launches, of {len(set(names))} kernels:")
for name in dict.fromkeys(names):
    print(f"{names.count(name):4} {name}")

# %% [markdown]
# Now compare the host with the GPU. The floor of a decode step is the time to read all weights and the cache once, at
# the speed of a copy. For the host, assume that every launch costs as much as a launch of `rms_norm`.

# %%
from minllm import costs
from minllm.course import load_record

tb_s, tflops = (
    load_record()["ceilings"][name] for name in ("copy_tb_s", "bf16_tflops")
)
floor_us = 1e3 * costs.decode_step(config_1b, 1, 576).floor_ms(tb_s, tflops)
all_us = len(launches) * RMS_NORM
print(f"floor of the step: {floor_us:.0f} µs")
times = f"{all_us / floor_us:.1f} times the floor"
print(
    f"host, one by one : {len(launches)} x {RMS_NORM:.1f} µs = {all_us:.0f} µs, {times}"
)
print(
    f"less the checks  : {len(launches)} x {OURS[1]:.1f} µs = "
    f"{len(launches) * OURS[1]:.0f} µs"
)
print(
    f"the driver alone : {len(launches)} x {DRIVER[1]:.1f} µs = "
    f"{len(launches) * DRIVER[1]:.0f} µs"
)

# %% tags=["hide"]
assert len(launches) * OURS[1] > floor_us

# %% [markdown]
# The host needs more time to launch the work than the GPU needs to do it. Such a program is host-bound: a faster GPU
# would change nothing. For a prompt of a thousand tokens a kernel runs much longer than a launch takes, so the host
# runs ahead and launch overhead is hidden. The overhead matters when kernels are short: small models, small batches,
# and decoding.
#
# !!! tip "Takeaway"
#     If launching takes longer than the work, a faster GPU changes nothing.
#
# ## Write your own
#
# Steps are padded to a recorded size. Write the choice:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("engine.next_size")

# %% [markdown]
# ## CUDA graphs: record once, replay
#
# Every decode step makes the same list of launches, so let the driver keep the list. Switch the stream to recording and
# make the step's launches as usual: nothing runs, and the recording becomes an executable graph. From then on one call
# replays all of it.

# %% tags=["hide-input"]
from minllm.runtime import graph as graph_module

show_source(
    graph_module.CapturedGraph,
    folded="Recording a graph",
    notes={
        "with memory.capture(self": "Temporaries of the step stay allocated as long as the graph exists.",
        "begin_building": "From here on launches on this stream are recorded, not run.",
        "result = function()": "The step. Every replay writes the arrays that it returns again.",
        "self.graph.upload": "Sends the list to the GPU before its first use.",
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


end_of_one_by_one, end_of_replay = (
    spans[-1].end for spans in (one_by_one(OURS[1]), replayed_spans(1.2))
)
timeline(
    replayed_spans(1.2),
    "µs",
    "The same six kernels, replayed from a graph",
    caption=f"Drawn, not measured: one launch of {OURS[1]:.1f} µs for all, and 1.2 µs "
    "between two kernels.",
)

# %% tags=["hide"]
assert end_of_replay < 0.7 * end_of_one_by_one

# %% [markdown]
# **What must stay where it is.** A graph holds, for every launch, the kernel, its grid, and the bytes of its
# parameters: addresses and scalars, all fixed. Anything that changes from step to step must lie in memory, at an
# address that does not change.
#
# The engine splits this data in two. The state of a *sequence* (newest token, length, block table and sampling
# parameters) lies in a **slot** that the sequence owns as long as it runs. The arrays of a *step* have one entry per
# row; the first kernel makes them from the slots, and the last one writes the new tokens back:
#
# ```mermaid
# flowchart LR
#     numbers["slots[row]<br/>from the host, when rows change"] --> load
#     state[("state of the slots")] --> load["load_rows"]
#     load --> arrays["the batch's arrays"] --> forward["forward"] --> sample["sample"] --> advance["advance"]
#     advance --> state
# ```
#
# A replay of the same rows needs nothing from the host. When rows change, the host sends their slot numbers; when a
# sequence takes another cache block, it sends one word. The last kernel, `advance`, is an exercise below.
#
# <!-- aside: What happens if the rule is broken -->
#
# A recording holds arrays, not a program's names for them. Here three launches are recorded and replayed. Then the
# program assigns a new array to the old name, instead of writing into the old array.

# %%
import functools


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

# %% tags=["hide"]
assert numbers[0] == 100 and recorded_numbers[0] == 6

# %% [markdown]
# There is no error and no warning: the replay reads the old array and ignores the new one. The engine therefore writes
# the slots of new rows into the existing array.
#
# <!-- end aside -->
#
# **Which steps share a graph.** Grids depend on shapes, so a graph serves steps of one shape only, and recording a
# graph for each of 1 to 256 rows takes long. The engine therefore records some sizes, and pads a step to the next one.
# A padding row has slot -1, so no key and value is written, and context length 0, so attention has nothing to do.
# You wrote the choice of the size above.

# %% tags=["hide-input"]
from minllm.engine.running.step_graphs import StepGraphs, decode_sizes

show_source(StepGraphs.key, folded="The key of a step's graph")

# %%
bytes_of_5, bytes_of_8 = (
    costs.decode_step(config_1b, rows, 1).bytes for rows in (5, 8)
)
recorded_sizes = decode_sizes(256)
logits_bytes = [4 * rows * config_1b.vocab_size for rows in recorded_sizes]  # float32
print(
    f"padding 5 rows to 8 adds {100 * (bytes_of_8 / bytes_of_5 - 1):.1f} % to the floor"
)
print(f"{len(recorded_sizes)} sizes: {recorded_sizes[:6]} ... {recorded_sizes[-1]}")
print(
    f"logits, a memory per graph: {sum(logits_bytes) / 1e9:.2f} GB; "
    f"shared: {max(logits_bytes) / 1e9:.2f} GB"
)

# %% [markdown]
# Only one graph runs at a time, so all graphs share the memory of the largest. The price is a copy: the next replay
# overwrites the results of this one, so they are copied first, in stream order.
#
# !!! tip "Takeaway"
#     A graph fixes addresses: what changes from step to step lies in memory.
#
# ## Run it
#
# The machine class below needs no GPU: a replay runs the recorded function again, and stores the results where the
# first run stored them. It serves the bundled model on NumPy. The three requests generate 16, 9 and 4 tokens.

# %% tags=["fold"]
from minllm import LLM, SamplingParams
from minllm.engine.running.machine import HostMachine


class HostGraph:
    """Runs a function again at each launch, and writes its results over those of the
    first run."""

    def __init__(self, function, diary):
        self.function, self.diary, self.result = function, diary, None
        _, self.batch, _ = function.args

    def launch(self):
        self.diary.append(
            f"replay of {self.batch.num_tokens} tokens, {self.batch.num_sequences} rows"
        )
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
        self.diary.append(
            f"capture of {graph.batch.num_tokens} tokens, {graph.batch.num_sequences} "
            "rows"
        )
        return graph


# %%
llm = LLM(device="cpu", dtype="float32", max_num_seqs=8, max_model_len=256)
prompts = [
    llm.tokenizer.encode(text)
    for text in ("def read(path):\n    with", "import ", "class Stack:\n")
]
params = [
    SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    for count in (16, 9, 4)
]
expected = llm.generate(prompts, params)

plain, machine = llm.engine.runner, HostGraphs()
sizes = dict(max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=256)
runner = ModelRunner(
    plain.ops,
    plain.model,
    plain.cache,
    plain.policy,
    machine=machine,
    uses_graphs=True,
    **sizes,
)
llm.engine.runner = llm.llm_engine.core.runner = runner
found = llm.generate(prompts, params)

for line in dict.fromkeys(machine.diary):
    print(f"{machine.diary.count(line):3} x {line}")
captures = sum(line.startswith("capture") for line in machine.diary)

# %% tags=["hide"]
assert [one.outputs[0].token_ids for one in found] == [
    one.outputs[0].token_ids for one in expected
]

# %% tags=["hide-input"]
guess.against(
    launches=len(launches),
    host_microseconds=all_us,
    floor_microseconds=floor_us,
    limit="launches",
    added_percent=100 * (bytes_of_8 / bytes_of_5 - 1),
    graphs=captures,
    steps=len(machine.diary) - captures,
)

# %% [markdown]
# The runner recorded one graph for the prompts, which all fit in one step, and one each for 4, 2 and 1 rows. The text
# is the same as without graphs. Nothing is compiled during a recording: if a kernel is not loaded yet, the step is
# first launched kernel by kernel, on padding rows only.
#
# <!-- aside: One step ahead of the host -->
#
# The host still has work for each token: it checks for the end of the text, converts
# the token to text, and streams it. The next step needs none of that, because it finds its tokens in the slots. So the
# engine launches step 2 before it reads the tokens of step 1, which arrive by an asynchronous copy into page-locked
# memory:

# %% tags=["hide-input"]
from minllm.engine.core import EngineCore

show_source(
    EngineCore.step,
    folded="A step of the engine",
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
        Span(
            "host, waiting",
            start + CALL + STEP,
            start + CALL + STEP + TEXT,
            f"read {n + 1}",
            2,
        ),
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
# The price is a wasted row: when the host finds that a sequence has ended, the GPU is already computing its next token,
# which is dropped.
#
# <!-- end aside -->
#
# ## The gap between two kernels
#
# In a stream a kernel begins only when its predecessor has ended completely: the last block's stores become visible,
# then the next grid's blocks are set up, load their instructions and parameters, and issue their first loads. Tiny
# kernels replayed from a graph on an H200 took 1.2 µs each.
#
# Programmatic dependent launch, from compute capability 9.0 on, lets the two overlap. It needs the two instructions of
# the kernel at the top: launch early, wait late. A small kernel has nothing to do before the wait, so only its set-up
# overlaps. A GEMV first loads weights, which no kernel writes, and only then waits for its activations:

# %% tags=["hide-input"]
from minllm.kernels.matmul.gemv import sums as gemv_sums

show_source(
    gemv_sums.make_accumulate_step,
    part="accumulate_step",
    folded="A step of GEMV: weights before the wait, activations after it",
    notes={
        "w = load_128_streaming": "Weights: loaded at once, without waiting.",
        "if waits": "True only in a warp's first step. Everything that follows may read x.",
        "x_words = load_128": "The activations, which the previous kernel has written.",
    },
)

# %% tags=["fold"]
without, together = [], []
for name, start, end in (("norm", 0, 2), ("GEMV", 3.2, 9.2), ("append", 10.4, 12)):
    without.append(Span(f"{name}, in order", start, end, "", 0))
for name, setup, wait, end in (
    ("norm", 0, 0, 2),
    ("GEMV", 0.6, 2, 7.0),
    ("append", 5.9, 7.0, 8.3),
):
    if wait > setup:
        together.append(Span(f"{name}, overlapped", setup, wait, "", 2))
    together.append(Span(f"{name}, overlapped", wait, end, "", 0))
timeline(
    without + together,
    "µs",
    "Three kernels of a graph, in order and overlapped",
    caption="Drawn, not measured. The parts in another colour lie before the wait: "
    "set-up, and for the GEMV the first "
    "weights.",
)

# %% [markdown]
# There are two rules. First, every thread has to wait, even if it needs nothing: the next kernel waits for this one to
# end, and this must imply that all earlier kernels have ended too. Second, before the wait a kernel may not read what
# an earlier one writes, nor write what it may still read. The simulator checks this: inside `detecting()` it records
# which arrays earlier launches wrote.

# %%
from minllm.kernels.matmul.gemv.gemv import matmul_gemv
from minllm.kernels.normalization.rms_norm import rms_norm
from minllm.sim import detecting

rng = np.random.default_rng(0)
hidden, features = 256, 24
x = rng.standard_normal((1, hidden)).astype(np.float32)  # [1, hidden]
weight = rng.standard_normal((features, hidden)).astype(
    np.float32
)  # [features, hidden]
normed, out = np.empty_like(x), np.empty((1, features), np.float32)
with detecting():
    rms_norm(x, np.ones(hidden, np.float32), normed, 1e-5)
    matmul_gemv(normed, weight, out)  # reads what rms_norm wrote, after its wait
y = np.empty(hidden, np.float32)
with detecting():
    scaled_sum_kernel.simulate[4, 64](
        normed[0], weight[0], y
    )  # the kernel from the top
print("No finding: the weights came before the wait, the activations after it.")

# %% tags=["hide"]
assert np.allclose(out, x / np.sqrt(np.mean(x**2) + 1e-5) @ weight.T, atol=1e-4)
assert np.allclose(y, normed[0] * weight[0])

# %% [markdown]
# `minllm bench step` measures the gain: a step of the 1B shape at batch 1, replayed both ways in one run.

# %%
rows = comparable(
    *recorded("decode step", "llama-3.2-1b (random weights), batch 1, context 1024")
)
steps = {row.variant: row.value for row in rows}  # µs
overlapping = sum(launch.launch.kernel.dependent_launch for launch in launches)
in_order, overlapped = steps["graph replay, kernels in order"], steps["graph replay"]
saved = in_order - overlapped
print(f"a step took {in_order:.0f} µs in order and {overlapped:.0f} µs overlapped")
print(rows[0].lines)
print(
    f"{saved:.0f} µs saved, {saved / overlapping:.2f} µs for each kernel that overlaps"
)

# %% tags=["hide"]
assert 0.3 < saved / overlapping < 3

# %% [markdown]
# A recorded step, kernel by kernel ([on a page of its own](../docs/step-timeline.md)):
#
# <!-- interactive: step-timeline -->
#
# !!! tip "Takeaway"
#     A kernel may start early, but reads nothing of its predecessors before it waits.
#
# ## Fewer kernels have fewer gaps
#
# In a decode step the bytes of activations are negligible, so fusion saves gaps rather than bytes. When a sequence
# decodes alone, the engine fuses all element-wise kernels into the neighbouring GEMV: `gated_gemv` computes
# `silu(gate) * up`, and the epilogue of a GEMV adds the residual, or applies RoPE and appends to the cache. Even
# RMSNorm, which needs a whole row before its first result, can be fused into the next GEMV, because its divisor is the
# same for every element:
#
# $$\sum_k \frac{x_k}{\mathrm{rms}(x)} g_k w_{nk} = \frac{1}{\mathrm{rms}(x)} \sum_k x_k g_k w_{nk}$$

# %%
from unittest.mock import patch

from minllm.ops import cuda_linear

with patch.object(cuda_linear, "MOST_ROWS_FUSED", 0):
    apart_launches, *_ = dry_step(config_1b)
names_apart = [launch.name for launch in apart_launches]
print(
    f"{len(apart_launches)} launches with norms, rotation and residuals apart, "
    f"{len(launches)} fused"
)
for name in dict.fromkeys(names_apart):
    print(f"{names_apart.count(name):4} {name}")

# %% tags=["hide"]
assert len(apart_launches) - len(launches) == 3 * config_1b.num_hidden_layers + 1

# %% [markdown]
# !!! tip "Takeaway"
#     In decoding, fusion pays because it removes gaps.
#
# ## Measured against predicted
#
# This cell compares the engine's recorded decode rates at batch 1 with the floor of each model's step. The time beyond
# the floor, divided by the launches, is the cost of a kernel beyond its bytes:

# %%
rows = []
for name in ("bundled", "llama-3.2-1b", "llama-3.1-8b"):
    (row,) = recorded("decode", name, "bfloat16")
    count = len(dry_step(find_config(name)[1])[0])
    measured, floor = 1e6 / row.value, 1e6 / row.limit
    rows.append((name, row, count, measured, floor))
    print(
        f"{name:13} {count:3} launches: floor {floor:7.1f} µs, measured "
        f"{measured:7.1f} µs, "
        f"{(measured - floor) / count:.1f} µs more per launch"
    )
beyond = [(measured - floor) / count for _, _, count, measured, floor in rows]

# %% tags=["hide"]
assert rows[0][1].of_limit < rows[1][1].of_limit < rows[2][1].of_limit
assert max(beyond) < 2 * min(beyond)

# %% tags=["fold"]
bars(
    [
        bar
        for name, row, count, measured, floor in rows
        for bar in (
            Bar(f"{name}, floor", floor, "weights and cache at the speed of a copy", 2),
            Bar(
                f"{name}, measured",
                measured,
                f"{100 * row.of_limit:.0f} % of the limit",
            ),
        )
    ],
    unit="µs",
    title="One decode step, batch 1",
    log=True,
    caption=f"Replayed from a graph; {rows[0][1].label}.",
)

# %% [markdown]
# The largest of the three models reads hundreds of times as many bytes as the smallest, yet the time per launch beyond
# the floor is about the same. Not all of it is gaps: attention over one short context and GEMVs too small to fill the
# GPU are part of it.
#
# On a machine with a GPU this cell measures your own launches: as many of a tiny kernel as the step has, one by one and
# replayed.

# %% tags=["fold"]
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
    replayed = timed(
        CapturedGraph(all_launches, gpu_ops.core_stream, gpu_ops.memory).launch
    )
    for name, seconds in (("one by one", launched), ("replayed", replayed)):
        print(
            f"{name:11} {1e6 * seconds:6.0f} µs, {1e6 * seconds / len(launches):.1f} "
            f"µs each, {machine_line()}"
        )
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# ## Exercises

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("sampling.advance")

# %% [markdown]
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("too_early")

# %% [markdown]
# ## Problems
#
# ??? question "1. A step has 90 launches of 6 µs host time each; its kernels and the gaps between them take 400 µs. How long is the step without graphs, and with one?"
#     540 µs: host-bound. Replayed from a graph it takes the GPU's 400 µs, and the host is free meanwhile.
#
# ??? question "2. The kernels and gaps of problem 1 take ten times as long. What does the graph gain?"
#     Nothing: the host runs ahead, and the step takes 4,000 µs either way. Graphs matter for short kernels.
#
# ??? question "3. A graph was captured with a block table of 64 columns. A sequence grows beyond 1,024 tokens (blocks of 16). What happens?"
#     Its 65th block has no column. The engine takes a graph with more columns; a replay of the old one would not see
#     the new keys.
#
# ??? question "4. GPU A costs 4 dollars per hour, GPU B 2 dollars with half the bandwidth. A host-bound 1B model at batch 1 takes 0.8 ms on both. Which is cheaper, and what would a graph change?"
#     B, at half the price, because the host sets the time. With graphs A takes about 0.7 ms and B 1.3: nearly the same
#     price per token, but A is twice as fast.
#
# ??? question "5. Dependent launch saves 0.5 µs per kernel. How much is that per day for a 1B model with 90 kernels per step that always runs?"
#     45 µs of 0.8 ms, 6 %: 1.35 hours of GPU time per day, about 5 dollars.
#
# ## What next
#
# The step has few launches now, the host is out of the loop, and kernels overlap. The last bars show what remains: a
# step still takes longer than its floor, most of all for the smallest model. The cheap remedy is to give each launch
# more work. A batch of 8 sequences has about as many launches as one, and also reads the weights once: the
# floor barely moves, and the step yields eight tokens. [Lesson 16a](16a_batching_many_requests.py) keeps a batch full
# while sequences come and go.
#
# ## Sources
#
# - NVIDIA, "CUDA C++ Programming Guide", sections "CUDA Graphs" and "Programmatic Dependent Launch and
#   Synchronization".
# - NVIDIA, "CUDA Driver API", `cuLaunchKernel`, `cuLaunchKernelEx`, `cuStreamBeginCapture`.
# - NVIDIA, "Parallel Thread Execution ISA", instruction `griddepcontrol`.
