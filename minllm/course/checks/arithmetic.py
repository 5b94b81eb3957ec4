"""Ladders for cost formulas, checked against hand-computed numbers and the simulator's counts."""

from dataclasses import dataclass, field

import numpy as np

from minllm.course.checks.evidence import note
from minllm.course.checks.mismatch import Mismatch
from minllm.course.exercise import Exercise, Rung


@dataclass(frozen=True)
class Shape:
    """The fields of a model's configuration that minllm/costs reads."""

    hidden_size: int = 8
    intermediate_size: int = 16
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 4
    vocab_size: int = 10
    activation: str = "silu"
    gated_mlp: bool = True
    num_experts: int = 0
    norm: str = "rms_norm"
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 64
    rope: object = "default"
    sliding_windows: tuple = field(default=(0, 0))


def expect_number(name, got, expected, suspects=(), unit=""):
    """Raise Mismatch unless `got` equals `expected` to nine digits. suspects: (mistake, its number)."""
    if got is None:
        raise Mismatch(f"{name}: expected {expected:,.6g}{unit}, got None\nLikely cause: nothing is returned; write `return`.")
    note(name, float(got), float(expected), 1e-9)
    if abs(got - expected) <= 1e-9 * abs(expected):
        return
    cause = next((mistake for mistake, number in suspects if abs(got - number) <= 1e-9 * abs(number)), "")
    raise Mismatch(f"{name}: expected {expected:,.6g}{unit}, got {got:,.6g}{unit}" + (f"\nLikely cause: {cause}" if cause else ""))


def floor(cost_class, moved, flops, bandwidth, tflops=None):
    """Check Cost.floor_ms against bytes / bandwidth and FLOPs / rate."""
    memory, compute = 1e3 * moved / (bandwidth * 1e12), 1e3 * flops / (tflops * 1e12) if tflops else 0.0
    suspects = [
        ("these are seconds; a millisecond is a thousandth of one.", max(memory, compute) / 1e3),
        ("memory and arithmetic overlap, so the longer of the two counts, not their sum.", memory + compute),
        ("this is the shorter of the two times; the longer one holds the step up.", min(memory, compute)),
        ("the arithmetic was left out.", memory),
        ("tera is 10**12.", max(memory, compute) * 1e3),
        ("bandwidth is in TB/s and the result in milliseconds; self.memory_ms reckons with both.", moved / bandwidth),
    ]
    got = cost_class(bytes=moved, flops=flops).floor_ms(bandwidth, tflops)
    expect_number("floor_ms", got, max(memory, compute), suspects, " ms")


def projected(decode_stages, batch=1, itemsize=4, matrix_itemsize=None, bias=False, what=("weight_bytes", "activation_bytes", "flops")):
    """Check the stage "MLP down projection" of a decode step: one matrix [hidden, intermediate] per layer."""
    shape = Shape(mlp_bias=bias)
    stages = decode_stages(shape, batch, 5, itemsize, 2, matrix_itemsize)
    stage = next(stage for stage in stages if stage.name == "MLP down projection")
    layers, outputs, inputs = shape.num_hidden_layers, shape.hidden_size, shape.intermediate_size
    item = matrix_itemsize or itemsize
    weights = layers * (inputs * outputs * item + outputs * itemsize * bias)
    moved, flops = layers * batch * (inputs + outputs) * itemsize, 2 * layers * batch * inputs * outputs
    one_layer = "that is one layer; every layer has such a matrix."
    expected = {
        "weight_bytes": (weights, [
            ("weights are read once for the whole batch.", batch * weights),
            (one_layer, weights / layers),
            ("the bias was left out: it has as many numbers as the result.", layers * inputs * outputs * item),
            ("the bias is not quantised: s.item bytes a number.", layers * (inputs * outputs + outputs * bias) * item),
            ("the matrices have a size of their own where they are quantised: s.matrix_item.",
             layers * (inputs * outputs + outputs * bias) * itemsize),
            ("these are numbers; each takes some bytes.", layers * inputs * outputs),
            ("a matrix has inputs * outputs numbers, a row for each output.", layers * (inputs + outputs) * item),
        ]),
        "activation_bytes": (moved, [
            ("the result is written, too.", layers * batch * inputs * itemsize),
            ("every token of the batch has a row.", moved / batch),
            (one_layer, moved / layers),
            ("these are numbers; each takes s.item bytes.", moved / itemsize),
        ]),
        "flops": (flops, [
            ("a multiply and an add are two operations.", flops / 2),
            ("every token of the batch multiplies by all of the matrix.", flops / batch),
            (one_layer, flops / layers),
        ]),
    }  # fmt: skip
    for name in what:
        expect_number(name, getattr(stage, name), *expected[name])


def against_the_trace(decode_stages):
    """Check a stage's bytes, over all layers, against the bytes that a GEMM accesses in the simulator."""
    from minllm.kernels.matmul.ladder.naive import matmul_naive
    from minllm.sim import detecting, tracing

    shape = Shape()
    stage = next(stage for stage in decode_stages(shape, 3, 5, 4) if stage.name == "MLP down projection")
    x, weight = np.ones((3, shape.intermediate_size), np.float32), np.ones((shape.hidden_size, shape.intermediate_size), np.float32)
    with detecting(False), tracing() as traces:
        matmul_naive(x, weight, np.empty((3, shape.hidden_size), np.float32))
    touched = {name: array.total.unique_bytes for name, array in traces[0].arrays.items()}
    layers = shape.num_hidden_layers
    expect_number("weight_bytes, against the simulator's count", stage.weight_bytes, layers * touched["weight"], (), " bytes")
    expect_number("activation_bytes, against the simulator's count", stage.activation_bytes, layers * (touched["x"] + touched["out"]))


def cached(kv_bytes_per_token, layers, kv_heads, heads, head_dim, itemsize):
    """Check kv_bytes_per_token for a model of this shape."""
    shape = Shape(num_hidden_layers=layers, num_key_value_heads=kv_heads, num_attention_heads=heads, head_dim=head_dim)
    right = 2 * layers * kv_heads * head_dim * itemsize
    suspects = [
        ("query heads are not cached: grouped-query attention stores the KV heads only.", right * heads // kv_heads),
        ("keys and values: two of them.", right // 2),
        (
            "hidden_size stands for all query heads; the cache holds the KV heads, each of head_dim numbers.",
            2 * shape.hidden_size * layers * itemsize,
        ),
        ("every layer has a cache of its own.", right // layers),
        ("these are numbers; each takes itemsize bytes.", right // itemsize),
    ]
    expect_number("bytes per token", kv_bytes_per_token(shape, itemsize), right, suspects, " bytes")


EXERCISES = (
    Exercise(
        name="costs.floor_ms",
        lesson=4,
        title="the roofline in one line: the least time a step can take",
        module="minllm.costs.steps",
        entry="Cost",
        task="Return the milliseconds that the bytes take (self.memory_ms) or, if that is longer, the operations (self.compute_ms); tflops "
        "may be None, and then only memory counts.",
        hints=("1 TB/s is 10**12 bytes a second, 1 TFLOP/s 10**12 operations a second.", "The two overlap: the longer time wins."),
        rungs=(
            Rung("bound by memory", "4.8 GB at 4.8 TB/s take a millisecond.", lambda cost: floor(cost, 4_800_000_000, 1, 4.8, 989)),
            Rung("bound by arithmetic", "the longer of the two times holds the step up.",
                 lambda cost: floor(cost, 10**9, 989 * 10**9, 4.8, 989)),
            Rung("memory still", "with both limits given, memory may be the one.", lambda cost: floor(cost, 10**10, 10**9, 4.8, 989)),
            Rung("no rate given", "tflops may be None; then memory alone counts.", lambda cost: floor(cost, 10**10, 10**15, 4.8)),
        ),
    ),
    Exercise(
        name="costs.projection",
        lesson=4,
        title="bytes and operations of a linear layer, for a batch of tokens",
        module="minllm.costs.stages",
        entry="decode_stages",
        task="Return the Stage called `name` of all layers together: weight_bytes of an [outputs, inputs] matrix (s.matrix_item "
        "bytes a number) and, "
        "where there is a bias, of its outputs numbers (s.item each); activation_bytes of a row of inputs read and a row of outputs "
        "written for each of s.tokens; flops of the product.",
        hints=("Weights are read once, however many tokens pass through.", "A multiply and an add for each number of the matrix "
                                                                           "and token."),
        rungs=(
            Rung("weights", "each number of the matrix is read once per layer.", lambda f: projected(f, what=["weight_bytes"])),
            Rung("operations", "two for each number of the matrix.", lambda f: projected(f, what=["flops"])),
            Rung("activations", "a row in, a row out.", lambda f: projected(f, what=["activation_bytes"])),
            Rung("a batch", "one read of the weights serves all tokens; that is why batching pays.", lambda f: projected(f, batch=5)),
            Rung("bias", "one number an output.", lambda f: projected(f, bias=True)),
            Rung("quantised matrices", "4-bit weights take half a byte, the bias does not.",
                 lambda f: projected(f, matrix_itemsize=0.5, bias=True)),
            Rung("against the simulator", "the formula is what a kernel's threads touch.", against_the_trace),
        ),
    ),
    Exercise(
        name="costs.kv_bytes_per_token",
        lesson=8,
        title="bytes that a token takes in the KV cache",
        module="minllm.costs.parameters",
        entry="kv_bytes_per_token",
        task="Return the bytes of one token's keys and values in all layers: of the KV heads only, which query heads share.",
        hints=(
            "Keys and values, layers, KV heads, elements of a head, bytes of an element: a product of five.",
            "config.num_hidden_layers, config.num_key_value_heads and config.head_dim; key_value_width, in "
            "models/parts/grouped_attention.py, has three of the factors.",
        ),
        rungs=(
            Rung("one layer, one head", "a key and a value.", lambda f: cached(f, 1, 1, 1, 3, 4)),
            Rung("several layers", "each layer has its own keys and values.", lambda f: cached(f, 3, 1, 1, 4, 2)),
            Rung("grouped heads", "Llama-2-70B: 80 layers, 8 KV heads of 128 for 64 query heads: 0.33 MB, not 2.6.",
                 lambda f: cached(f, 80, 8, 64, 128, 2)),
            Rung("another dtype", "an 8-bit cache takes half.", lambda f: cached(f, 32, 8, 32, 128, 1)),
        ),
    ),
)  # fmt: skip
