"""Numba as a compiler: from a Python function to a cubin, for any target.

It needs no GPU. Numba's own dispatcher compiles for the current device and launches the result. Here the target is an argument, the result
is a `CompiledKernel` with its registers and spills, and cubins are cached on disk.

The disk cache's key is a hash of everything that determines the machine code (cache_key.py). Numba's own `cache=True` misses edits in other
files: a kernel would run stale code after a change of its device function.
"""

import contextlib
import gc
import hashlib
import re
import types as python_types
from dataclasses import dataclass

from numba.cuda import dispatcher as numba_dispatcher
from numba.cuda.compiler import compile_cuda, kernel_fixup
from numba.cuda.cudadrv import driver as numba_driver
from numba.cuda.cudadrv import nvvm

from minllm.errors import KernelCompilationError
from minllm.machine.numba_cuda import types
from minllm.runtime import numba_habits, range_loops  # noqa: F401 (both replace code of Numba)
from minllm.runtime.cache_key import cache_key
from minllm.runtime.disk_cache import cached_text, making, read_cached, write_cached
from minllm.runtime.machine_code import disassembled, instructions_in
from minllm.runtime.older_gpus import replace_missing

# The linker's reaction if modules differ in the version of their line tables: 2 (warn) or 1 (fail). They do not differ, but since compute
# capability 10.0 the linker requires the same flag in all modules, and NVRTC, which compiles Numba's bfloat16 functions, sets 1.
NUMBA_DEBUG_FLAG, NVRTC_DEBUG_FLAG = 'i32 2, !"Debug Info Version"', 'i32 1, !"Debug Info Version"'


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of one kernel for one target, with ptxas' report.

    registers: 32-bit registers per thread. spill_bytes: bytes of registers per thread spilled to local memory (should be 0).
    stack_bytes: bytes of local memory per thread. shared_bytes: bytes of static shared memory per block. All four are None if the linker
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
        """The machine instructions without addresses, by nvdisasm; cached on disk."""
        return instructions_in(cached_text(hashlib.sha256(self.cubin).hexdigest(), "sass", self.disassembly))

    def disassembly(self, *options: str) -> str:
        """The output of nvdisasm -c -ndf (code sections only, no dataflow analysis) and further `options`."""
        return disassembled(self.cubin, "-c", *options)


OPTIONS = dict(fastmath=False, launch_bounds=None, max_registers=None)  # of `kernel`, with their defaults; and contract, if it is False


def compile_kernel(function, argument_types, compute_capability, *, wait=True, **options):
    """The CompiledKernel of a function for a target, from the disk cache if possible. options: see OPTIONS.

    wait: whether to wait for another process that is compiling it, instead of returning None. Raises KernelCompilationError with the
    kernel, its argument types and the compiler's message.
    """
    options = OPTIONS | options
    key = cache_key(function, argument_types, compute_capability, options)
    if key is None:
        return compile_fresh(function, argument_types, compute_capability, options)
    if found := read_cached(key, CompiledKernel):
        return found
    with making(key, wait) as is_mine, without_collection():
        if not is_mine:
            return None
        if found := read_cached(key, CompiledKernel):  # another process has just made it
            return found
        compiled = compile_fresh(function, argument_types, compute_capability, options)
        write_cached(key, compiled)
    return compiled


@contextlib.contextmanager
def without_collection():
    """A context in which Python's garbage collector does not run.

    A finalizer may free memory of a GPU, and wait for its kernels: with a lock of the disk cache held, also for a kernel that waits for
    another rank, which waits for the lock.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def compile_listing(function, argument_types, compute_capability, **options):
    """(CompiledKernel, PTX text), both with line numbers; never cached. options: see OPTIONS."""
    with compilation_errors(function, argument_types):
        linker, name, target = prepare(function, argument_types, compute_capability, OPTIONS | options, lineinfo=True)
        ptx = linker.link_to("ptx")
        cubin = linker.link_to("cubin")
    return CompiledKernel(name, cubin, target, **resource_usage(linker.report)), ptx.decode().rstrip("\0")


@contextlib.contextmanager
def compilation_errors(function, argument_types):
    """Turn any error of the compiler into a KernelCompilationError."""
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
    """(linker with the kernel's LLVM IR, symbol of the kernel, name of the target such as "sm_90a")."""
    # The "a" targets have architecture-specific instructions (wgmma, setmaxnreg); they exist from 9.0 on.
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
        library._llvm_strs = [replace_missing(text, compute_capability) for text in library.llvm_strs]
        linker = VerboseLinker(max_registers=options["max_registers"], cc=target, lineinfo=lineinfo, lto=True)
        linker.contract = options.get("contract", True)
        library._link_all(linker, target, ignore_nonlto=False)
    return linker, entry.name, "sm_{}{}{}".format(*target)


class VerboseLinker(numba_driver._Linker):
    """Numba's linker, which also keeps ptxas' report of registers and spills. contract: whether products and sums become one fma."""

    contract = True

    def link_to(self, kind):
        """Link to a "cubin" or to "ptx", as bytes, and keep ptxas' report in `report`."""
        from cuda.core import Linker, LinkerOptions

        # nvJitLink's own cache is off, because ptxas reports nothing for a cached result; disk_cache.py is enough.
        options = LinkerOptions(
            max_register_count=self.max_registers, arch=self.arch, link_time_optimization=True, lineinfo=self.lineinfo,
            ptxas_options=["-v"] if self.contract else ["-v", "-fmad=false"], no_cache=True, ptx=kind == "ptx",
        )  # fmt: skip
        if not self.contract:
            return self.link_without_contraction(kind, [option.decode() for option in options.as_bytes()])
        linker = Linker(*self._object_codes, options=options)
        result = linker.link(kind)
        self.report = linker.get_info_log()
        linker.close()
        return bytes(result.code)

    def link_without_contraction(self, kind, options):
        """link_to with the option that stops NVVM from fusing, as -fmad=false stops ptxas: cuda.core spells it so that it is refused."""
        from cuda.bindings import nvjitlink

        options = [*options, "-fma=0"]
        handle = nvjitlink.create(len(options), options)
        try:
            for made in self._object_codes:
                nvjitlink.add_data(handle, getattr(nvjitlink.InputType, made.code_type.upper()), made.code, len(made.code), made.name)
            nvjitlink.complete(handle)
            made = bytearray(getattr(nvjitlink, f"get_linked_{kind}_size")(handle))
            getattr(nvjitlink, f"get_linked_{kind}")(handle, made)
            log = bytearray(nvjitlink.get_info_log_size(handle))
            nvjitlink.get_info_log(handle, log)
        finally:
            nvjitlink.destroy(handle)
        self.report = log.decode()
        return bytes(made)


def resource_usage(log):
    """The fields registers, spill_bytes, stack_bytes and shared_bytes of a CompiledKernel, from the report of ptxas -v."""

    def number(pattern):
        found = re.findall(pattern, log)
        return max(map(int, found)) if found else 0

    if "Used" not in log:  # the code is valid, only the report is missing
        return dict.fromkeys(("registers", "spill_bytes", "stack_bytes", "shared_bytes"))
    return dict(
        registers=number(r"Used (\d+) registers"),
        spill_bytes=number(r"(\d+) bytes spill stores"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        shared_bytes=number(r"(\d+) bytes smem"),
    )


@contextlib.contextmanager
def target_device(compute_capability):
    """Make Numba compile device functions for this target instead of the current device."""
    original = numba_dispatcher.get_current_device
    device = python_types.SimpleNamespace(compute_capability=tuple(compute_capability), id=0)
    numba_dispatcher.get_current_device = lambda: device
    try:
        yield
    finally:
        numba_dispatcher.get_current_device = original
