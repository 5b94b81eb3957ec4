"""Numba as a compiler: from a Python function and its argument types to a cubin, for any target, with or without a GPU.

Numba's own dispatcher compiles for the device that it finds and launches what it compiled. Here the target is an argument, the
result is a `CompiledKernel` that knows its registers and spills, and a cubin once compiled is kept on disk.

The disk cache's key is a hash of everything that decides the machine code (cache_key.py). Numba's own `cache=True` misses edits in other
files: a kernel whose device function changed would run stale code.
"""

import contextlib
import hashlib
import re
import subprocess
import tempfile
import types as python_types
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numba.cuda import dispatcher as numba_dispatcher
from numba.cuda import types
from numba.cuda.compiler import compile_cuda, kernel_fixup
from numba.cuda.cudadrv import driver as numba_driver
from numba.cuda.cudadrv import nvvm
from numba.cuda.np.numpy_support import from_dtype

from minllm.errors import KernelArgumentError, KernelCompilationError
from minllm.runtime import range_loops  # noqa: F401 (loops that every generation's compiler unrolls)
from minllm.runtime.cache_key import cache_key
from minllm.runtime.disk_cache import cached_text, making, read_cached, write_cached

# What is to be done where linked modules differ in the version of their line tables: 2 (warn) or 1 (fail). They do not differ, but since
# compute capability 10.0 the linker wants to hear the same from all, and NVRTC, which compiles Numba's bfloat16 functions, says 1.
NUMBA_DEBUG_FLAG, NVRTC_DEBUG_FLAG = 'i32 2, !"Debug Info Version"', 'i32 1, !"Debug Info Version"'
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
        """The machine instructions, one a line, without addresses. Needs nvdisasm (wheel nvidia-cuda-nvdisasm); its output is cached."""
        text = cached_text(hashlib.sha256(self.cubin).hexdigest(), "sass", self.disassembly)
        instructions = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", text)
        return [re.sub(r"\s+", " ", instruction).strip() for instruction in instructions]

    def disassembly(self, *options: str) -> str:
        """What nvdisasm prints of the code; `options` are its own, beside "code sections only" and "no dataflow analysis"."""
        from cuda.pathfinder import find_nvidia_binary_utility

        nvdisasm = find_nvidia_binary_utility("nvdisasm")
        if nvdisasm is None:
            raise KernelCompilationError("nvdisasm was not found, and SASS cannot be shown without it: pip install nvidia-cuda-nvdisasm")
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.cubin)
            file.flush()
            command = [nvdisasm, "-c", "-ndf", *options, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def argument_type(value):
    """The Numba type under which a kernel takes `value`: arrays by dtype, rank and contiguity, ints as int32, floats as float32.

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
    contiguous = value.flags.c_contiguous if isinstance(value, np.ndarray) else getattr(value, "is_contiguous", True)
    return types.Array(element, ndim, "C" if contiguous else "A")


def compile_kernel(function, argument_types, compute_capability, *, fastmath=False, launch_bounds=None, max_registers=None):
    """Compile `function` for `compute_capability` (major, minor): from the disk cache if it is there, else by Numba.

    Raises KernelCompilationError, naming the kernel, its argument types and what the compiler said.
    """
    options = dict(fastmath=fastmath, launch_bounds=launch_bounds, max_registers=max_registers)
    key = cache_key(function, argument_types, compute_capability, options)
    if key is None:
        return compile_fresh(function, argument_types, compute_capability, options)
    if found := read_cached(key, CompiledKernel):
        return found
    with making(key):
        if found := read_cached(key, CompiledKernel):  # another process has just made it
            return found
        compiled = compile_fresh(function, argument_types, compute_capability, options)
        write_cached(key, compiled)
    return compiled


def compile_listing(function, argument_types, compute_capability, *, fastmath=False, launch_bounds=None, max_registers=None):
    """(CompiledKernel, PTX text) with the source's file names and line numbers in both; never cached. Raises KernelCompilationError."""
    options = dict(fastmath=fastmath, launch_bounds=launch_bounds, max_registers=max_registers)
    with compilation_errors(function, argument_types):
        linker, name, target = prepare(function, argument_types, compute_capability, options, lineinfo=True)
        ptx = linker.link_to("ptx")
        cubin = linker.link_to("cubin")
    return CompiledKernel(name, cubin, target, **resource_usage(linker.report)), ptx.decode().rstrip("\0")


@contextlib.contextmanager
def compilation_errors(function, argument_types):
    """Whatever a compiler raises, as a KernelCompilationError that names the kernel and its argument types."""
    try:
        yield
    except Exception as error:
        signature = ", ".join(map(str, argument_types))
        message = f"{function.__module__}.{function.__qualname__}({signature}) does not compile: {error}"
        raise KernelCompilationError(message) from error


def compile_fresh(function, argument_types, compute_capability, options):
    """Compile without the disk cache. Raises KernelCompilationError."""
    with compilation_errors(function, argument_types):
        linker, name, target = prepare(function, argument_types, compute_capability, options)
        cubin = linker.link_to("cubin")
    return CompiledKernel(name, cubin, target, **resource_usage(linker.report))


def prepare(function, argument_types, compute_capability, options, lineinfo=False):
    """(linker that holds the kernel as intermediate code, the kernel's symbol, the target's name)."""
    # The "a" targets hold the instructions of one architecture alone (wgmma, setmaxnreg); they exist from 9.0 on.
    target = (*compute_capability, "a" if compute_capability >= (9, 0) else "")
    with target_device(compute_capability):
        result = compile_cuda(
            function, types.void, tuple(argument_types), debug=False, lineinfo=lineinfo, forceinline=False, cc=compute_capability,
            fastmath=options["fastmath"], nvvm_options={"fastmath": options["fastmath"], "opt": 3},
            max_registers=options["max_registers"], lto=True,
        )  # fmt: skip
        library = result.library
        entry = library.get_function(result.fndesc.llvm_func_name)
        kernel_fixup(entry, False)
        nvvm.set_launch_bounds(entry, options["launch_bounds"])
        if lineinfo:
            library._llvm_strs = [text.replace(NUMBA_DEBUG_FLAG, NVRTC_DEBUG_FLAG) for text in library.llvm_strs]
        if compute_capability < (9, 0):  # no kernel overlaps another there: the instructions would not assemble, and are not needed
            library._llvm_strs = [re.sub('"griddepcontrol[^"]*"', '""', text) for text in library.llvm_strs]
        linker = VerboseLinker(max_registers=options["max_registers"], cc=target, lineinfo=lineinfo, lto=True)
        library._link_all(linker, target, ignore_nonlto=False)
    return linker, entry.name, "sm_{}{}{}".format(*target)


class VerboseLinker(numba_driver._Linker):
    """Numba's linker, asking ptxas for registers and spills."""

    def link_to(self, kind):
        """Link to a "cubin" or to "ptx", as bytes, and keep ptxas' report in `report`."""
        from cuda.core import Linker, LinkerOptions

        # nvJitLink keeps intermediate results between processes, and then ptxas neither runs nor reports: our own cache is enough.
        options = LinkerOptions(
            max_register_count=self.max_registers, arch=self.arch, link_time_optimization=True, lineinfo=self.lineinfo,
            ptxas_options="-v", no_cache=True, ptx=kind == "ptx",
        )  # fmt: skip
        linker = Linker(*self._object_codes, options=options)
        result = linker.link(kind)
        self.report = linker.get_info_log()
        linker.close()
        return bytes(result.code)


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
