"""Keys of the kernels that a row of the record measured; they tell whether a kernel has changed since.

The key of the disk cache (runtime/cache_key.py) identifies machine code exactly, but includes the versions of Python and the toolkit, so
that it differs between machines. The key here is made in the same way, by a walk from each kernel through everything that the compiler sees
of it, with two differences. Functions are represented by their source without comments, docstrings, module paths and names of variables
instead of by bytecode, and versions are left out: the record lists them with each run. So it needs no GPU. Instructions (minllm/ptx) are
represented in the same way, each by the functions that emit it: a new instruction changes no key. Even so, Python 3.11 with Numba 0.68.1
and Python 3.12 with 0.68.0 have computed different keys, so tools/record.py recomputes those of a record from another machine.

A row's key covers the machine code (catalogue) of the room of kernels that it measured, `attention/split_tensor_core/...`. The key of a row
of whole steps covers those of all rooms, except kernels that its engine cannot launch: those of the ladders' first rungs, of
speculation, of structured outputs, of quantised weights, of another dtype, and of another cache format. An edit of any covered kernel makes
the row "older", even if its own shape runs the same instructions: the key never treats a changed kernel as unchanged.
"""

import ast
import atexit
import dataclasses
import functools
import hashlib
import inspect
import json
import os
import re
import sys
import tempfile
import textwrap
import types as python_types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minllm.catalogue import machine_code
from minllm.machine.numba_cuda import HAS_NUMBA_CUDA, types
from minllm.runtime.cache_key import attributes, is_empty, is_instruction, is_instruction_module, is_versioned

SHARED_KEYS = "MINLLM_KERNEL_KEYS"  # the environment variable with the file of `share_keys`
SOURCES = {}  # {(file, line, name): result of `numbered` for the function there}
# variants that no recorded step launches: rungs of the lessons, and those of float32
FIRST_RUNGS = ("matmul/naive", "matmul/tiled", "matmul/vectorized", "matmul/warpgroup", "matmul/warp_specialized",
               "matmul/warp_per_row", "matmul/int4_naive",
               "attention/materialized", "attention/flash_attention_1", "attention/split_kv", "attention/split_merge",
               "attention/split_unified_maximum")  # fmt: skip
# {benchmark of a single variant: its stage}, then {benchmark of a whole stage: its room}
OF_A_VARIANT = {
    "matmul": "matmul", "prefill attention": "attention", "decode attention": "attention", "decode attention, quantised": "attention",
    "verification attention": "attention", "splits": "attention", "all-reduce": "all_reduce", "experts": "experts",
}  # fmt: skip
OF_A_STAGE = {"embedding": "embedding", "normalization": "normalization", "rope": "rope", "activation": "activation", "kv": "kv",
              "sampling": "sampling", "cache": "matmul/gemv", "shared contexts": "attention/shared_context"}  # fmt: skip
# Kernels for a quantised cache or quantised weights, besides those with "quantized" in their names or modules.
OF_CODES = ("kv/quantize_groups", "kv/move_window", "attention/residual_window")
# Benchmark "matmul, quantised", whose case ends with a format: {variant: {format: its room in matmul/}}.
QUANTIZED = {
    "gemv": {"int4": "int4_gemv", "nf4": "nf4_gemv", "int8": "int8_gemv", "fp8": "fp8_gemv", "fp8_block": "fp8_block_gemv",
             "Q8_0": "int8_group_gemv"},
    "tensor_core_gemv": {**{name: f"tensor_core_gemv/{name}" for name in ("int4", "nf4", "int8", "fp8")}, "Q4_1": "tensor_core_gemv/int4"},
    "flat": {"int8": "flat/wgmma/int8", "fp8": "flat/wgmma/float8_e4m3fn"},
    "wgmma": {"int4": "mixed_input_int4", "Q4_1": "mixed_input_int4", "nf4": "mixed_input_nf4", "Q8_0": "mixed_input_int8",
              "int8": "wgmma/int8", "fp8": "wgmma/float8_e4m3fn", "fp8_block": "fp8_block_wgmma"},
    "widened": {"int4": "dequantize_int4", "Q4_1": "dequantize_int4", "nf4": "dequantize_nf4", "fp8_block": "dequantize_fp8_block",
                "Q8_0": "dequantize_int8_groups", "int8": "widen_int8", "fp8": "widen_fp8"},
    "int4_naive": {"int4": "int4_naive"},
}  # fmt: skip
OF_PLAIN_WEIGHTS = ("matmul/gemv", "matmul/flat", "matmul/wgmma")  # variant "chosen" of that benchmark
QUANTIZED_KERNELS = "minllm.kernels.matmul.quantized"  # launched by engines with quantised weights alone
# modules that no step of a recorded row launches
NOT_RECORDED = (
    "minllm.kernels.speculation", "minllm.kernels.all_reduce", "minllm.kernels.attention.fixed_split", "minllm.kernels.elementwise",
    "minllm.kernels.encoding",
    "minllm.kernels.slots.local_blocks",
)  # fmt: skip
EXPERTS, MODELS_OF_EXPERTS = "minllm.kernels.experts", ("qwen3-30b-a3b",)  # the kernels, and the shapes whose steps launch them
# for structured outputs, rows that are not aligned, tensor ranks, Gemma 2, and ranks that share contexts
OF_NO_ROW = ("sampling/mask_logits", "matmul/vectorized_elements", "matmul/gemv/rank", "attention/soft_capped", "attention/shared_context")
CACHE_FORMATS = ("int8", "int4", "kivi_int4", "fp8_e4m3", "fp8_e5m2")
DTYPES, DEFAULT_DTYPE = ("float32", "float16", "bfloat16"), "bfloat16"
OF_NO_KERNEL = ("copy", "launch", "host copy", "allocation", "virtual memory", "preemption overlap", "preemption crossing",
                "cache with tokens", "cache waste")  # fmt: skip


class Engine(NamedTuple):
    """The options that determine the kernels of a row of whole steps.

    cache_format: "" if the cache is not quantised. weight_format: likewise, without its group size. experts: whether it has a mixture.
    """

    dtype: str = DEFAULT_DTYPE
    cache_format: str = ""
    weight_format: str = ""
    experts: bool = False


def rooms_of(benchmark: str, variant: str, case: str = "") -> tuple[str, ...]:
    """Prefixes of the names of the MachineCode that a row measured: one room, a stage, or () for a row of whole steps."""
    if benchmark == "matmul, quantised":
        weight_format = case.rpartition(", ")[2].partition(" in groups")[0]
        return OF_PLAIN_WEIGHTS if variant == "chosen" else (f"matmul/{QUANTIZED[variant][weight_format]}",)
    if stage := OF_A_VARIANT.get(benchmark):
        return (f"{stage}/{variant}",)
    return (OF_A_STAGE[benchmark],) if benchmark in OF_A_STAGE else ()


def engine_of(variant: str, case: str = "") -> Engine:
    """The engine of a row of whole steps.

    Its variant begins with a dtype, a format of the cache, or neither; its case begins with the model, and says "weights in ..." and
    "KV cache in ..." if they are quantised.
    """
    word, weights, cache = variant.partition(",")[0], re.search(r"weights in ([a-z0-9]+)", case), re.search(r"KV cache in (\w+)", case)
    weight_format = weights[1] if weights and weights[1] not in DTYPES else ""
    engine = Engine(cache_format=cache[1] if cache else "", weight_format=weight_format, experts=case.startswith(MODELS_OF_EXPERTS))
    if word in CACHE_FORMATS:
        return engine._replace(cache_format=word)
    return engine._replace(dtype=word) if word in DTYPES else engine


def key_of(benchmark: str, variant: str, case: str = "") -> str:
    """The key of a row for the current kernels of the package; "" if it measures none."""
    return "" if benchmark in OF_NO_KERNEL else key_of_rooms(rooms_of(benchmark, variant, case), engine_of(variant, case))


@functools.cache
def key_of_rooms(rooms: tuple[str, ...], engine: Engine) -> str:
    """One hash over all MachineCode of these rooms, or for no rooms over those of `engine`.

    Raises LookupError if there are none.
    """
    recorded = [name for name in machine_code() if not within(name, {*OF_NO_ROW} - {*rooms})]
    covered = [name for name in recorded if (within(name, rooms) if rooms else launched_by(engine, name))]
    if not covered:
        raise LookupError(f"no kernels of {', '.join(rooms)}")
    return hashlib.sha256(json.dumps(sorted(map(hash_of, covered))).encode()).hexdigest()[:12]


def within(name: str, rooms: Iterable[str]) -> bool:
    """Whether a MachineCode belongs to one of the rooms."""
    return any(f"{name}/".startswith(f"{room}/") for room in rooms)


def launched_by(engine: Engine, name: str) -> bool:
    """Whether an engine may launch a MachineCode's kernel: unless its name or module says that it cannot."""
    others = {*DTYPES, *CACHE_FORMATS} - {engine.dtype, engine.cache_format, engine.weight_format}
    if within(name, FIRST_RUNGS) or {*name.split("/")} & others:
        return False
    module = machine_code()[name].kernel.function.__module__  # known after a dry run of its launch
    if module.startswith(NOT_RECORDED):
        return False
    if module.startswith(EXPERTS):
        coded = re.search(r"_(int4|fp8)/", name)
        return engine.experts and (not coded or coded[1] == engine.weight_format)
    if module.startswith(QUANTIZED_KERNELS):
        return bool(engine.weight_format) and engine.weight_format in name
    return bool(engine.cache_format) or not ("quantized" in name or within(name, OF_CODES))


@functools.cache
def hash_of(name: str) -> str:
    """The hash of one MachineCode."""
    kernel, arguments = machine_code()[name].kernel, machine_code()[name].arguments
    options = sorted(f"{option}={value!r}" for option, value in kernel.options.items())
    parts = [meaning(kernel.function, {}), list(map(str, arguments)), options]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def meaning(value, seen):
    """A nested list of strings that differs whenever the compiler would see a different value."""
    if value is None or value is ... or isinstance(value, (bool, int, float, complex, str, bytes, np.dtype, types.Type)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype!r} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *(meaning(item, seen) for item in value)]
    if isinstance(value, frozenset):
        return ["frozenset", *sorted(str(meaning(item, seen)) for item in value)]
    if is_instruction(value) and hasattr(value, "_defn"):  # covers what its typing function refers to, but not its emulation
        return meaning(value._defn, seen)
    if hasattr(value, "py_func"):  # a device function: Numba's dispatcher
        options = sorted(f"{name}={option!r}" for name, option in getattr(value, "targetoptions", {}).items())
        return [options, meaning(value.py_func, seen)]
    if isinstance(value, python_types.FunctionType) and not is_versioned(value.__module__):
        return function_meaning(value, seen)
    if isinstance(value, python_types.ModuleType):
        return "module" if is_module_of_ours(value) else f"module {value.__name__.rpartition('.')[2]}"
    if type(value).__module__ == "llvmlite.ir.types":
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # the parameters of an instruction
        return [meaning(getattr(value, field.name), seen) for field in dataclasses.fields(value)]
    return getattr(value, "__qualname__", None) or (str(value) if hasattr(value, "return_type") else type(value).__name__)


def function_meaning(function, seen):
    """A function's source with its names numbered, and the meanings of the outside values that it refers to."""
    if id(function) in seen:
        return f"function {seen[id(function)]}"
    seen[id(function)] = len(seen)
    code, namespace = function.__code__, function.__globals__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    outside = namespace | {name: cell.cell_contents for name, cell in cells.items() if not is_empty(cell)}
    source, names = numbered_source(code)
    own = {*code.co_varnames, *code.co_cellvars}  # they hide outside values of the same names
    values = {number: outside[name] for number, name in enumerate(names) if name in outside and name not in own}
    through = [[name, meaning(getattr(module, name), seen)] for module in values.values() if is_module_of_ours(module)
               for name in attributes(code) if hasattr(module, name)]  # fmt: skip
    defaults = [meaning(function.__defaults__, seen), meaning(list((function.__kwdefaults__ or {}).values()), seen)]
    return [source, [[number, meaning(value, seen)] for number, value in values.items()], through, defaults]


def numbered_source(code) -> tuple[str, Sequence[str]]:
    """`numbered` of a function's source, cached by its location in a file, from which many kernels may come."""
    place = code.co_filename, code.co_firstlineno, code.co_name
    if place not in SOURCES:
        if code.co_filename == "<string>":  # the generated typing function of an instruction, which returns two of its names
            return "generated", code.co_names
        SOURCES[place] = numbered(textwrap.dedent(inspect.getsource(code)))
    return SOURCES[place]


def is_module_of_ours(value) -> bool:
    """Whether a value is a module of this package other than one of instructions."""
    return isinstance(value, python_types.ModuleType) and value.__name__.startswith("minllm.") and not is_instruction_module(value.__name__)


@functools.cache
def numbered(source: str) -> tuple[str, list[str]]:
    """(a function's source with each name replaced by the number of its first appearance, the names in that order).

    Renaming a variable, a function or a module therefore changes nothing. Names of attributes and keywords are kept.
    """
    tree, names = ast.parse(normalised(source)), []

    def number(name: str) -> str:
        if name not in names:
            names.append(name)
        return f"n{names.index(name)}"

    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.name = number(node.name)
        elif isinstance(node, ast.arg):
            node.arg = number(node.arg)
        elif isinstance(node, ast.Name):
            node.id = number(node.id)
    return ast.unparse(tree), names


@functools.cache
def normalised(source: str) -> str:
    """Python source without comments, docstrings, annotations, layout and decorators, whose options are part of a key by value."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            node.body = body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.decorator_list, node.returns = [], None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(tree)


def is_older(benchmark: str, variant: str, key: str | None, case: str = "") -> bool:
    """Whether a row with this key was measured before the last change of its kernels.

    A row with key "" measures no kernel of this package and is never older. A row with key None counts as older: the key of its commit
    could not be computed. Without numba-cuda other keys cannot be compared, because types have other names; such rows are not older.
    """
    return key is None or (key != "" and HAS_NUMBA_CUDA and key != current_key(benchmark, variant, case))


def share_keys(rows: Iterable[dict]) -> None:
    """Compute the keys of rows once for all processes that this one starts: the notebooks of the lessons need seconds for them each."""
    keys = [[*place, current_key(*place)] for place in {(row["benchmark"], row["variant"], row["case"]) for row in rows}]
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False, encoding="utf-8") as file:
        json.dump(keys, file)
    atexit.register(os.unlink, file.name)
    os.environ[SHARED_KEYS] = file.name


@functools.cache
def shared_keys() -> dict[tuple[str, str, str], str | None]:
    """The keys that a parent process has computed by `share_keys`; empty if there is none."""
    try:
        text = Path(os.environ[SHARED_KEYS]).read_text(encoding="utf-8")
    except (KeyError, OSError):
        return {}
    return {tuple(place): key for *place, key in json.loads(text)}


@functools.cache
def current_key(benchmark: str, variant: str, case: str = "") -> str | None:
    """`key_of`; None for a kernel that no longer exists."""
    if (benchmark, variant, case) in shared_keys():
        return shared_keys()[benchmark, variant, case]
    try:
        return key_of(benchmark, variant, case)
    except LookupError:
        return None


def is_first_rung(benchmark: str, variant: str) -> bool:
    """Whether a row measured a kernel that only lessons launch."""
    return f"{OF_A_VARIANT.get(benchmark)}/{variant}" in FIRST_RUNGS


def main() -> None:
    """Read [[benchmark, variant, case], ...] as JSON and print their keys; tools/record.py runs this in other commits."""
    json.dump([current_key(*row) for row in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
