"""Numba as a compiler: from a Python function and its argument types to a cubin, for any target, with or without a GPU.

Numba's own dispatcher compiles for the device that it finds and launches what it compiled. Here the target is an argument, the
result is a `CompiledKernel` that knows its registers and spills, and a cubin once compiled is kept on disk.

The disk cache's key is a hash of everything that decides the machine code: the sources of all kernels, the versions of the
compilers, the kernel's name and the constants that its factory closed over, argument types, options and target. (Numba's own
`cache=True` misses edits in other files: a kernel whose device function changed would run stale code.)
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import tempfile
import types as python_types
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from numba.cuda import dispatcher as numba_dispatcher
from numba.cuda import types
from numba.cuda.compiler import compile_cuda, kernel_fixup
from numba.cuda.cudadrv import driver as numba_driver
from numba.cuda.cudadrv import nvvm
from numba.cuda.np.numpy_support import from_dtype

from minllm.errors import KernelArgumentError, KernelCompilationError

PACKAGE = Path(__file__).resolve().parent.parent
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of one kernel for one target, with what ptxas said about it.

    registers: 32-bit registers a thread. spill_bytes: bytes a thread stores to local memory for want of registers (0 is the aim).
    stack_bytes: local memory a thread, bytes. shared_bytes: static shared memory a block, bytes. All four are None where the linker
    did not report them.
    """

    name: str
    cubin: bytes
    target: str
    registers: int | None
    spill_bytes: int | None
    stack_bytes: int | None
    shared_bytes: int | None

    def sass(self) -> list[str]:
        """The machine instructions, one a line, without addresses. Needs nvdisasm (wheel nvidia-cuda-nvdisasm)."""
        from cuda.pathfinder import find_nvidia_binary_utility

        nvdisasm = find_nvidia_binary_utility("nvdisasm")
        if nvdisasm is None:
            raise KernelCompilationError("nvdisasm was not found, and SASS cannot be shown without it: pip install nvidia-cuda-nvdisasm")
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.cubin)
            file.flush()
            text = subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True, check=True).stdout
        instructions = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", text)
        return [re.sub(r"\s+", " ", instruction).strip() for instruction in instructions]


def argument_type(value):
    """The Numba type under which a kernel takes `value`: arrays by dtype and rank (C-contiguous), ints as int32, floats as float32.

    None stays None: `if bias is not None:` in a kernel then decides at compile time, and the code for the other case is not there.
    """
    if isinstance(value, types.Type):
        return value
    if value is None:
        return types.none
    if hasattr(value, "numba_type"):  # an object that says itself how a kernel takes it, as a tensor map does
        return value.numba_type
    if isinstance(value, (bool, np.bool_)):
        raise KernelArgumentError(f"a kernel was given the boolean {value}; pass an int, or make it a constant of the kernel's factory")
    if isinstance(value, int):
        if not -(2**31) <= value < 2**31:
            raise KernelArgumentError(f"a kernel was given {value}, which does not fit int32; pass np.int64({value})")
        return types.int32
    if isinstance(value, float):
        return types.float32
    if isinstance(value, np.generic):
        return from_dtype(value.dtype)
    dtype, ndim = getattr(value, "dtype", None), getattr(value, "ndim", None)
    if dtype is None or ndim is None:
        raise KernelArgumentError(f"a kernel was given {value!r} of type {type(value).__name__}; it takes arrays, ints, floats and None")
    element = types.bfloat16 if dtype == BFLOAT16 else from_dtype(np.dtype(dtype))
    return types.Array(element, ndim, "C")


def compile_kernel(function, argument_types, compute_capability, *, fastmath=False, launch_bounds=None, max_registers=None):
    """Compile `function` for `compute_capability` (major, minor): from the disk cache where it is there, else by Numba.

    Raises KernelCompilationError, naming the kernel, its argument types and what the compiler said.
    """
    options = dict(fastmath=fastmath, launch_bounds=launch_bounds, max_registers=max_registers)
    key = cache_key(function, argument_types, compute_capability, options)
    if key and (found := read_cached(key)):
        return found
    try:
        compiled = compile_fresh(function, argument_types, compute_capability, options)
    except Exception as error:
        signature = ", ".join(map(str, argument_types))
        raise KernelCompilationError(
            f"{function.__module__}.{function.__qualname__}({signature}) does not compile: {error}"
        ) from error
    if key:
        write_cached(key, compiled)
    return compiled


def compile_fresh(function, argument_types, compute_capability, options):
    """Compile without looking at the disk cache."""
    # The "a" targets hold the instructions of one architecture alone (wgmma, setmaxnreg); they exist from 9.0 on.
    target = (*compute_capability, "a" if compute_capability >= (9, 0) else "")
    with target_device(compute_capability):
        result = compile_cuda(
            function, types.void, tuple(argument_types), debug=False, lineinfo=False, forceinline=False, cc=compute_capability,
            fastmath=options["fastmath"], nvvm_options={"fastmath": options["fastmath"], "opt": 3},
            max_registers=options["max_registers"], lto=True,
        )  # fmt: skip
        library = result.library
        entry = library.get_function(result.fndesc.llvm_func_name)
        kernel_fixup(entry, False)
        nvvm.set_launch_bounds(entry, options["launch_bounds"])
        linker = VerboseLinker(max_registers=options["max_registers"], cc=target, lto=True)
        library._link_all(linker, target, ignore_nonlto=False)
        cubin = bytes(linker.complete().code)
    return CompiledKernel(entry.name, cubin, "sm_{}{}{}".format(*target), **resource_usage(linker.info_log))


class VerboseLinker(numba_driver._Linker):
    """Numba's linker, asking ptxas for registers and spills."""

    def complete(self):
        """Link, and keep ptxas' report in info_log."""
        from cuda.core import Linker, LinkerOptions

        # nvJitLink keeps intermediate results between processes, and then ptxas neither runs nor reports: our own cache is enough.
        options = LinkerOptions(
            max_register_count=self.max_registers, arch=self.arch, link_time_optimization=True, ptxas_options="-v", no_cache=True
        )
        self.linker = Linker(*self._object_codes, options=options)
        result = self.linker.link("cubin")
        self._info_log, self._complete = self.linker.get_info_log(), True
        self.linker.close()
        return result


def resource_usage(log):
    """Registers, spill bytes, stack bytes and static shared memory from the report of ptxas -v."""

    def number(pattern):
        found = re.findall(pattern, log)
        return max(map(int, found)) if found else 0

    if "Used" not in log:  # the code is good, only the report is missing
        return dict.fromkeys(("registers", "spill_bytes", "stack_bytes", "shared_bytes"))
    return dict(
        registers=number(r"Used (\d+) registers"),
        spill_bytes=number(r"(\d+) bytes spill stores"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        shared_bytes=number(r"(\d+) bytes smem"),
    )


@contextlib.contextmanager
def target_device(compute_capability):
    """Numba asks the current device which target to compile device functions for; here it is told."""
    original = numba_dispatcher.get_current_device
    device = python_types.SimpleNamespace(compute_capability=tuple(compute_capability), id=0)
    numba_dispatcher.get_current_device = lambda: device
    try:
        yield
    finally:
        numba_dispatcher.get_current_device = original


# The disk cache


def cache_directory() -> Path:
    """Where cubins are kept: $MINLLM_CACHE_DIR, else the user's cache folder."""
    chosen = os.environ.get("MINLLM_CACHE_DIR")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "minllm" / "kernels"


def cache_key(function, argument_types, compute_capability, options):
    """A hash of all that decides the machine code, or None for a kernel whose sources are not all this package's own."""
    if not function.__module__.startswith("minllm."):
        return None
    constants = describe(function)
    if constants is None:
        return None
    parts = [sources_hash(), compiler_versions(), constants, list(map(str, argument_types)), compute_capability, sorted(options.items())]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


@functools.cache
def sources_hash():
    """One hash over every file that kernels are made of."""
    digest = hashlib.sha256()
    for folder in ("kernels", "ptx", "runtime", "engine"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def compiler_versions():
    """Versions of everything that turns Python into a cubin."""
    names = ("numba-cuda", "numba", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvrtc", "nvidia-nvvm-cu12")
    names += ("nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12", "nvidia-cuda-nvrtc-cu12", "cuda-core")
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def describe(value):
    """A text that is the same whenever a kernel's closure holds the same constants; None where that cannot be told."""
    value = getattr(value, "py_func", value)
    value = getattr(value, "function", value)
    if value is None or isinstance(value, (int, float, str, np.dtype, types.Type)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        parts = [describe(item) for item in value]
        return None if None in parts else f"({', '.join(parts)})"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or getattr(value, "_name", None)
    module = getattr(value, "__module__", "") or ""
    if name is None or not (module.startswith(("minllm.", "numba.", "math")) or isinstance(value, type)):
        return None
    parts = [describe(cell.cell_contents) for cell in getattr(value, "__closure__", None) or ()]
    return None if None in parts else f"{module}.{name}[{', '.join(parts)}]"


def read_cached(key):
    """The CompiledKernel kept under `key`, or None; a damaged entry counts as none."""
    path = cache_directory() / key[:2] / f"{key}.cubin"
    try:
        header, _, cubin = path.read_bytes().partition(b"\n")
        fields = json.loads(header)
        if fields.pop("bytes") != len(cubin):
            return None
        return CompiledKernel(cubin=cubin, **fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_cached(key, compiled):
    """Keep a CompiledKernel: one line of JSON, then the cubin. A full or read-only disk costs only the next start's time."""
    path = cache_directory() / key[:2] / f"{key}.cubin"
    fields = {name: value for name, value in vars(compiled).items() if name != "cubin"} | {"bytes": len(compiled.cubin)}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(json.dumps(fields).encode() + b"\n" + compiled.cubin)
        os.replace(file.name, path)
