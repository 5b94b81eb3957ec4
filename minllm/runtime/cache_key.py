"""The disk cache's key: a hash of everything that the compiler sees of a kernel.

Numba compiles not a file but a function object: its bytecode, and the current values of its global names, closure and defaults. Constants
become part of the machine code; functions among the values are compiled too. The key covers the same: `describe` walks from the kernel
through all functions that it can reach, in any file, and lists their bytecode and constants. An edit of any of them changes the key; an
edit of a comment, a launcher, or another kernel does not.

The walk does not reach two things, whose files are hashed without comments, docstrings and layout: minllm/ptx, with functions that emit
instructions instead of being compiled, and the files that control Numba (COMPILER_FILES). A test checks that nothing else in the package
extends Numba. The replacements by older_gpus.py for a target are part of the key for that target. For everything outside the package, the
key has the versions of Python, Numba, NumPy and the toolkit.

A value of an unknown kind makes the kernel uncacheable: it is compiled each time, which is slow but never wrong.
"""

import ast
import contextlib
import dis
import functools
import hashlib
import importlib.metadata
import json
import platform
import types as python_types
from pathlib import Path

import numpy as np

from minllm.machine.numba_cuda import types
from minllm.runtime.older_gpus import replacements_for

PACKAGE = Path(__file__).resolve().parent.parent
CODE_FIELDS = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_kwonlyargcount", "co_flags",
               "co_exceptiontable")  # fmt: skip
COMPILER_FILES = ("compiler.py", "numba_habits.py", "range_loops.py")
# Modules with contents that are determined by `compiler_versions`.
VERSIONED = ("builtins", "math", "numba", "numpy", "ml_dtypes", "operator")
DISTRIBUTIONS = ("numba-cuda", "numba", "llvmlite", "numpy", "ml_dtypes", "cuda-core")
TOOLKIT_WHEELS = ("nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvrtc", "nvidia-cuda-nvcc", "nvidia-cuda-runtime")


class Undescribable(Exception):
    """A value of a kind that `describe` does not support."""


def cache_key(function, argument_types, compute_capability, options):
    """A hash of everything that determines the machine code; None if the kernel is not cached."""
    return key_and_size(function, argument_types, compute_capability, options)[0]


def key_and_size(function, argument_types, compute_capability, options):
    """(cache_key, a measure of how much code the compiler sees, device functions included); (None, 0) if the kernel is not cached."""
    if not (function.__module__ or "").startswith("minllm."):  # a function made by exec may have no module
        return None, 0
    try:
        meaning = describe(function, {})
    except Undescribable:
        return None, 0
    parts = [
        compiler_sources(), compiler_versions(), meaning, list(map(str, argument_types)), compute_capability,
        replacements_for(tuple(compute_capability)), sorted(options.items()),
    ]  # fmt: skip
    text = json.dumps(parts, default=str).encode()
    return hashlib.sha256(text).hexdigest(), len(text)


def describe(value, seen, names=()):
    """A nested list of texts that differs whenever the compiler could see a difference in `value`.

    seen: {id of a function: its number}, for functions that call each other. names: the names in the code that uses `value`; only these
    attributes of a module are described. Raises Undescribable.
    """
    if value is None or value is ... or isinstance(value, (bool, int, float, complex, str, bytes, np.dtype, types.Type)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype!r} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, (tuple, list)):
        return [qualified_name(type(value)), getattr(value, "_fields", None), *(describe(item, seen, names) for item in value)]
    if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):  # a NamedTuple that the code makes
        return [qualified_name(value), value._fields]
    if isinstance(value, frozenset):
        return ["frozenset", *sorted(str(describe(item, seen)) for item in value)]
    if isinstance(value, python_types.ModuleType):
        return describe_module(value, seen, names)
    if hasattr(value, "targetoptions"):  # a device function: Numba's dispatcher
        return ["dispatcher", sorted(f"{name}={option!r}" for name, option in value.targetoptions.items()), describe(value.py_func, seen)]
    if isinstance(value, python_types.FunctionType) and not is_versioned(value.__module__):
        return describe_function(value, seen)
    if is_versioned(getattr(value, "__module__", None)) or is_instruction(value):
        return qualified_name(value)
    raise Undescribable(repr(value))


def describe_function(function, seen):
    """A function's bytecode and the values of its names."""
    if id(function) in seen:
        return f"function {seen[id(function)]}"
    seen[id(function)] = len(seen)
    code = function.__code__
    names = attributes(code)
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    closure = [[name, describe(cell.cell_contents, seen, names)] for name, cell in cells if not is_empty(cell)]
    defaults = [describe(function.__defaults__, seen, names), describe(list((function.__kwdefaults__ or {}).items()), seen, names)]
    return [qualified_name(function), describe_code(code, function.__globals__, seen), closure, defaults]


def describe_code(code, namespace, seen):
    """Bytecode, constants (functions within functions are constants too) and the global names that the bytecode loads."""
    constants = [
        describe_code(constant, namespace, seen) if isinstance(constant, python_types.CodeType) else describe(constant, seen)
        for constant in code.co_consts
    ]
    used = [[name, describe(namespace[name], seen, attributes(code))] for name in global_names(code) if name in namespace]
    return [bytecode(code), constants, used]


@functools.cache
def bytecode(code):
    """The texts of CODE_FIELDS."""
    return [repr(getattr(code, field)) for field in CODE_FIELDS]


def describe_module(module, seen, names):
    """The attributes of a module that a kernel uses: those in `names`; the name alone if the module is hashed or versioned elsewhere."""
    if is_versioned(module.__name__) or is_instruction_module(module.__name__):
        return f"module {module.__name__}"
    if module.__name__.partition(".")[0] != "minllm":
        raise Undescribable(repr(module))
    return [f"module {module.__name__}", *([name, describe(getattr(module, name), seen, names)] for name in names if hasattr(module, name))]


@functools.cache
def global_names(code):
    """The global names that a code object loads, sorted."""
    return sorted({step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")})


@functools.cache
def attributes(code):
    """The names that the code and functions nested in it use, which may be attributes of a module, sorted."""
    nested = [attributes(constant) for constant in code.co_consts if isinstance(constant, python_types.CodeType)]
    return tuple(sorted(set(code.co_names).union(*nested)))


def is_empty(cell):
    """Whether a closure's variable has no value yet."""
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


def is_versioned(module_name):
    """Whether a module's contents change only with the versions in every key."""
    return (module_name or "").partition(".")[0] in VERSIONED


def is_instruction(value):
    """Whether `value` is an instruction of minllm/ptx: its file is part of every key."""
    return is_instruction_module(getattr(value, "__module__", None)) and hasattr(value, "emulation")


def is_instruction_module(module_name):
    """Whether a module belongs to minllm/ptx."""
    return f"{module_name}.".startswith("minllm.ptx.")  # the added dot includes minllm.ptx itself and excludes minllm.ptxas


def qualified_name(value):
    """Module and name of a function, an instruction or a class."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or getattr(value, "_name", None)
    if name is None:
        raise Undescribable(repr(value))
    return f"{getattr(value, '__module__', '')}.{name}"


@functools.cache
def compiler_sources():
    """One hash of the files that emit instructions or control the compiler."""
    digest = hashlib.sha256()
    for path in (*(PACKAGE / "runtime" / name for name in COMPILER_FILES), *sorted((PACKAGE / "ptx").rglob("*.py"))):
        digest.update(f"{path.relative_to(PACKAGE)}\0{without_words(path.read_text(encoding='utf-8'))}\0".encode())
    return digest.hexdigest()


def without_words(source):
    """The syntax tree of Python source, as text: a change of comments, docstrings or layout does not change it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


@functools.cache
def compiler_versions():
    """The versions of all packages that take part in compiling Python to a cubin."""
    found = {"python": platform.python_version()}
    for name in (*DISTRIBUTIONS, *TOOLKIT_WHEELS, *(f"{wheel}-cu12" for wheel in TOOLKIT_WHEELS)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
