"""The key of the machine code that a row of the record measured, so that it is known, not guessed, whether the kernel has changed since.

The disk cache's key (runtime/cache_key.py) names machine code exactly, but it holds the versions of Python and the toolkit, so that two
machines never agree. This key is made in the same way, by a walk from each kernel through all that the compiler sees of it, with two
differences. Functions are described by their source without comments, docstrings, module paths and names of variables, not by bytecode,
and versions are left out: the record has them beside each run. So it needs no GPU. Instructions (minllm/ptx) are described in the same
way, by the functions that emit them, one by one: a new instruction changes no key. Python 3.11 with Numba 0.68.1 and Python 3.12 with
0.68.0 were seen to compute different keys all the same, so tools/record.py computes those of a record from another machine anew.

A row's key covers the specimens (kernels/specimens.py) of the room of kernels that it measured, `attention/split_tensor_core/...`. A row
of whole steps covers those of all rooms, except kernels that its engine cannot launch: those of the ladders' first rungs, of speculation,
of quantised weights, of another dtype, and of another format of the cache. An edit of any covered kernel makes the row "older", even if
its own shape runs the same instructions: the key never calls a changed kernel unchanged.
"""

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import sys
import textwrap
import types as python_types
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from minllm.kernels.specimens import all_specimens
from minllm.runtime.cache_key import attributes, is_empty, is_instruction, is_instruction_module, is_versioned

try:
    from minllm.machine.numba_cuda import HAS_NUMBA_CUDA, types
except ImportError:  # the package of a commit that has no such module
    from numba.cuda import types

    HAS_NUMBA_CUDA = True

SOURCES = {}  # {(file, line, name): what `numbered` made of the function there}
# Rungs of the ladders that only lessons launch.
FIRST_RUNGS = ("matmul/naive", "matmul/tiled", "matmul/vectorized", "matmul/warpgroup", "matmul/warp_specialized",
               "matmul/warp_per_row", "matmul/int4_naive",
               "attention/materialized", "attention/flash_attention_1", "attention/split_kv", "attention/split_merge",
               "attention/split_unified_maximum")  # fmt: skip
# Benchmarks of one variant of a stage, and those of no kernel of a stage: what copies, launches or allocates.
OF_A_VARIANT = {
    "matmul": "matmul", "prefill attention": "attention", "decode attention": "attention", "decode attention, quantised": "attention",
    "verification attention": "attention", "shared prefix": "attention", "splits": "attention", "all-reduce": "all_reduce",
}  # fmt: skip
OF_A_STAGE = {"embedding": "embedding", "normalization": "normalization", "rope": "rope", "activation": "activation", "kv": "kv",
              "sampling": "sampling", "projection": "matmul", "cache": "matmul/gemv"}  # fmt: skip
# Kernels that only an engine with codes in its cache or its weights launches, beside those with "quantized" in their names or modules.
OF_CODES = ("kv/quantize_groups", "kv/move_window", "attention/residual_window")
# No recorded row is one of an engine that launches these.
NOT_RECORDED = ("minllm.kernels.matmul.quantized", "minllm.kernels.speculation", "minllm.kernels.all_reduce",
                "minllm.kernels.attention.fixed_split")  # fmt: skip
CACHE_FORMATS = ("int8", "int4", "kivi_int4", "fp8_e4m3", "fp8_e5m2")
DTYPES, DEFAULT_DTYPE = ("float32", "float16", "bfloat16"), "bfloat16"
OF_NO_KERNEL = ("copy", "launch", "host copy", "allocation", "virtual memory", "preemption overlap", "preemption crossing",
                "cache with tokens", "cache waste")  # fmt: skip


class Engine(NamedTuple):
    """What decides which kernels the engine of a row of whole steps can launch. cache_format: "" if the cache is not quantised."""

    dtype: str = DEFAULT_DTYPE
    cache_format: str = ""


def rooms_of(benchmark: str, variant: str) -> tuple[str, ...]:
    """The beginnings of the names of the specimens that a row measured: one room, a stage, or () for a row of whole steps."""
    if stage := OF_A_VARIANT.get(benchmark):
        return (f"{stage}/{variant}",)
    return (OF_A_STAGE[benchmark],) if benchmark in OF_A_STAGE else ()


def engine_of(variant: str) -> Engine:
    """The engine of a row of whole steps, whose variant begins with a dtype, a format of the cache, or neither."""
    word = variant.partition(",")[0]
    return Engine(dtype=word) if word in DTYPES else Engine(cache_format=word) if word in CACHE_FORMATS else Engine()


def key_of(benchmark: str, variant: str) -> str:
    """The key of a row of this benchmark and variant for the package's kernels as they are now; "" for a row that measures none."""
    return "" if benchmark in OF_NO_KERNEL else key_of_specimens(rooms_of(benchmark, variant), engine_of(variant))


@functools.cache
def key_of_specimens(rooms: tuple[str, ...], engine: Engine) -> str:
    """One hash of all specimens of these rooms, or of an engine's where none is named. Raises LookupError if there are none."""
    covered = [name for name in all_specimens() if (within(name, rooms) if rooms else launched_by(engine, name))]
    if not covered:
        raise LookupError(f"no specimens of {', '.join(rooms)}")
    return hashlib.sha256(json.dumps(sorted(map(hash_of, covered))).encode()).hexdigest()[:12]


def within(name: str, rooms: Iterable[str]) -> bool:
    """Whether a specimen belongs to one of the rooms."""
    return any(f"{name}/".startswith(f"{room}/") for room in rooms)


def launched_by(engine: Engine, name: str) -> bool:
    """Whether an engine may launch a specimen's kernel: unless its name says that it cannot."""
    words, others = {*name.split("/")}, {*DTYPES, *CACHE_FORMATS} - {engine.dtype, engine.cache_format}
    if within(name, FIRST_RUNGS) or words & others or all_specimens()[name].kernel.function.__module__.startswith(NOT_RECORDED):
        return False
    return bool(engine.cache_format) or not ("quantized" in name or within(name, OF_CODES))


@functools.cache
def hash_of(name: str) -> str:
    """The hash of one specimen."""
    kernel, arguments = all_specimens()[name].kernel, all_specimens()[name].arguments
    options = sorted(f"{option}={value!r}" for option, value in kernel.options.items())
    parts = [meaning(kernel.function, {}), list(map(str, arguments)), options]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def meaning(value, seen):
    """A nested list of texts that differs whenever the source shows the compiler something else."""
    if value is None or value is ... or isinstance(value, (bool, int, float, complex, str, bytes, np.dtype, types.Type)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype!r} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *(meaning(item, seen) for item in value)]
    if isinstance(value, frozenset):
        return ["frozenset", *sorted(str(meaning(item, seen)) for item in value)]
    if is_instruction(value) and hasattr(value, "_defn"):  # what its typing function reaches; its emulation is not among it
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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # what an instruction is made for
        return [meaning(getattr(value, field.name), seen) for field in dataclasses.fields(value)]
    return getattr(value, "__qualname__", None) or (str(value) if hasattr(value, "return_type") else type(value).__name__)


def function_meaning(function, seen):
    """A function's source with its names numbered, and the meaning of the values behind those that are not its own."""
    if id(function) in seen:
        return f"function {seen[id(function)]}"
    seen[id(function)] = len(seen)
    code, namespace = function.__code__, function.__globals__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    outside = {name: cell.cell_contents for name, cell in cells.items() if not is_empty(cell)}
    source, names = numbered_source(code)
    values = {number: outside.get(name, namespace.get(name)) for number, name in enumerate(names) if name in outside or name in namespace}
    through = [[name, meaning(getattr(module, name), seen)] for module in values.values() if is_module_of_ours(module)
               for name in attributes(code) if hasattr(module, name)]  # fmt: skip
    defaults = [meaning(function.__defaults__, seen), meaning(list((function.__kwdefaults__ or {}).values()), seen)]
    return [source, [[number, meaning(value, seen)] for number, value in values.items()], through, defaults]


def numbered_source(code) -> tuple[str, Sequence[str]]:
    """What `numbered` returns for a function's source, made once per place in a file: functions of many kernels come from each."""
    place = code.co_filename, code.co_firstlineno, code.co_name
    if place not in SOURCES:
        if code.co_filename == "<string>":  # the typing function of an instruction is generated: it returns two of its names
            return "generated", code.co_names
        SOURCES[place] = numbered(textwrap.dedent(inspect.getsource(code)))
    return SOURCES[place]


def is_module_of_ours(value) -> bool:
    """Whether a value is a module of this package, but not one of instructions."""
    return isinstance(value, python_types.ModuleType) and value.__name__.startswith("minllm.") and not is_instruction_module(value.__name__)


@functools.cache
def numbered(source: str) -> tuple[str, list[str]]:
    """(a function's source with each name replaced by the number of its first appearance, the names in that order).

    So a new name for a variable, a function or a module is no change. Names of attributes and keywords stay.
    """
    tree, names = ast.parse(normalised(source)), []

    def number(name: str) -> str:
        if name not in names:
            names.append(name)
        return f"n{names.index(name)}"

    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.name, node.decorator_list, node.returns = number(node.name), [], None
        elif isinstance(node, ast.arg):
            node.arg, node.annotation = number(node.arg), None
        elif isinstance(node, ast.Name):
            node.id = number(node.id)
    return ast.unparse(tree), names


@functools.cache
def normalised(source: str) -> str:
    """Python source without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            node.body = body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def is_older(benchmark: str, variant: str, key: str | None) -> bool:
    """Whether a row with this key was measured before the last change of its kernel.

    "": it measures no kernel of this package, so it never is. None: the key of its commit could not be computed, so it counts as older.
    Without numba-cuda the other keys cannot be compared, because types have other names, and no row counts as older for its key.
    """
    return key is None or (key != "" and HAS_NUMBA_CUDA and key != current_key(benchmark, variant))


@functools.cache
def current_key(benchmark: str, variant: str) -> str | None:
    """`key_of`, None for a kernel that is not there any more."""
    try:
        return key_of(benchmark, variant)
    except LookupError:
        return None


def is_first_rung(benchmark: str, variant: str) -> bool:
    """Whether a row measured a kernel that only lessons launch."""
    return f"{OF_A_VARIANT.get(benchmark)}/{variant}" in FIRST_RUNGS


def main() -> None:
    """Read [[benchmark, variant], ...] as JSON, and print their keys: by tools/record.py, for the package of another commit."""
    json.dump([current_key(*pair) for pair in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
