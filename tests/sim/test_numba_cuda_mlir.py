"""Kernels written for numba-cuda-mlir: for the installed package, and for a stand-in, which has the names in modules of the same names."""

import importlib.machinery
import importlib.util
import runpy
import sys
import types as python_types

import numpy as np
import pytest
from numba import cuda
from numba import types as numba_types

from minllm.errors import SimulationError
from minllm.sim import engines, simulate, simulated_launches
from minllm.sim.numba_cuda_mlir import of_numba_cuda

PACKAGE = "numba_cuda_mlir"
PROGRAM = """
import math
import numpy as np
from numba_cuda_mlir import cuda
from numba_cuda_mlir.cuda import libdevice, syncthreads, threadIdx
from numba_cuda_mlir.types import float32, int32

@cuda.jit(device=True)
def double(x):
    return x * float32(2)

@cuda.jit
def mixed(x, out):
    tile, counts = cuda.shared.array(32, float32), cuda.local.array(1, int32)
    i, t = cuda.grid(1), threadIdx.x
    tile[t] = double(x[i])
    counts[0] = cuda.popc(t)
    syncthreads()
    left = cuda.shfl_down_sync(0xFFFFFFFF, x[i], 1)
    cuda.atomic.add(out, i, tile[31 - t] + left + counts[0] + math.sqrt(float32(cuda.laneid)))
    out[i] += libdevice.sqrtf(x[i]) / 3 + cuda.warpsize + cuda.blockDim.x

@cuda.jit("void(float32[:], int32)")
def declared(x, n):
    i = cuda.grid(1)
    if i < n:
        x[i] = n / 2

x = cuda.to_device(np.arange(64, dtype=np.float32))
out = cuda.to_device(np.zeros(64, np.float32))
mixed[2, 32](x, out)
declared[1, 32, cuda.stream()](out, 7.0)
cuda.synchronize()
result = out.copy_to_host()
host = np.zeros(3, np.float32)
declared.forall(3)(cuda.Out(host), 3)
"""
BEYOND = """
from numba_cuda_mlir import cuda

@cuda.jit
def assembly(x):
    cuda.inline_ptx("mov.u32 %0, 1;", x[0])

@cuda.jit
def new_name(x):
    x[0] = cuda.experimental.consteval(3)

@cuda.jit
def beyond(x):
    x[cuda.threadIdx.x + 1] = 0
"""


def new_module(name, **contents):
    module = python_types.ModuleType(f"{PACKAGE}.{name}".rstrip("."))
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    vars(module).update(contents)
    return module


def belongs_to(module, thing):
    """A thing that says that it comes from a module of the package."""
    thing.__module__ = f"{PACKAGE}.{module}"
    return thing


def stub(name, **nested):
    """A class like those of numba.cuda.stubs."""
    made = belongs_to("numba_cuda.stubs", type(name, (), nested))
    for inner, one in nested.items():
        one.__qualname__ = f"{name}.{inner}"
    return made


def function(module, name):
    """An intrinsic, or a function without a body."""
    made = belongs_to(module, lambda *arguments: None)
    made.__name__ = made.__qualname__ = name
    return made


class Type:
    """A type of the package, with a name."""

    def __init__(self, name):
        self.name = name

    def __str__(self):
        return self.name

    def __getitem__(self, axes):
        return Array(self)


class Array(Type):
    """A type of arrays."""

    ndim, layout, mutable = 1, "A", True

    def __init__(self, dtype):
        self.dtype = dtype


class Dispatcher:
    """A dispatcher, which cannot compile or launch anything."""

    extensions = ()

    def __init__(self, py_func, **targetoptions):
        self.py_func, self.targetoptions = py_func, targetoptions

    def __getitem__(self, how):
        return self.configure(*how)

    def forall(self, tasks):
        made = ForAll()
        made.dispatcher, made.ntasks, made.thread_per_block, made.sharedmem = self, tasks, 0, 0
        return made

    def configure(self, *how):
        raise AssertionError("no driver")

    compile = compile_device = disable_compile = specialize = configure


class ForAll:
    """What forall returns."""


def jit(given=None, **options):
    """The decorator; it compiles for a signature, which here is always the same."""
    if given is not None and not isinstance(given, str):
        return Dispatcher(given)

    def decorate(function):
        made = Dispatcher(function, **options)
        if given is not None:
            made.compile((Type("float32")[:], Type("int32")))
        return made

    return decorate


def stand_in():
    """{name: module} of a package of the same shape as numba-cuda-mlir 0.6.0."""
    for one in (Type, Array):
        belongs_to("numba_cuda.types.scalars", one)
    indices = {name: stub(name) for name in ("threadIdx", "blockIdx", "blockDim", "gridDim", "laneid")}
    intrinsics = {name: function("numba_cuda.intrinsics", name) for name in ("grid", "syncthreads", "shfl_down_sync")}
    functions = {name: function("cuda", name) for name in ("popc", "inline_ptx")}
    parts = {name: new_module(f"cuda.{name}", array=function(f"cuda.{name}", "array")) for name in ("shared", "local")}
    parts["libdevice"] = new_module("cuda.libdevice", sqrtf=function("cuda.libdevice", "sqrtf"))
    parts["experimental"] = new_module("cuda.experimental", consteval=function("cuda.experimental", "consteval"))
    names = {
        **indices,
        **intrinsics,
        **functions,
        **parts,
        "jit": jit,
        "atomic": stub("atomic", add=stub("add")),
        "warpsize": 32,
        "laneid": None,
    }
    driver = new_module("cuda.cudadrv", devicearray=new_module("cuda.cudadrv.devicearray", DeviceNDArray=None))
    host = dict.fromkeys(("to_device", "stream", "synchronize", "Out")) | {"cudadrv": driver}
    modules = [
        new_module("", cuda=(whole := new_module("cuda", **names, **host))),
        *(whole, new_module("numba_cuda", **names, **host), *parts.values()),
        new_module("types", float32=Type("float32"), int32=Type("int32")),
        new_module("descriptor", MLIRDispatcher=Dispatcher, _ForAll=ForAll),
    ]
    return {module.__name__: module for module in modules}


@pytest.fixture(params=["a stand-in", "installed"])
def package(request, monkeypatch):
    """numba-cuda-mlir, or its stand-in."""
    if request.param == "installed":
        if importlib.util.find_spec(PACKAGE) is None:
            pytest.skip("the package numba-cuda-mlir is not installed")
    else:
        for name, module in stand_in().items():
            monkeypatch.setitem(sys.modules, name, module)


def run(tmp_path, text):
    """The names of a program that is run."""
    path = tmp_path / "program.py"
    path.write_text(text, encoding="utf-8")
    return runpy.run_path(str(path))


def test_a_program_computes_what_it_computes_for_numba_cuda(package, tmp_path):
    (tmp_path / "other").mkdir()
    with simulated_launches():
        expected = run(tmp_path / "other", PROGRAM.replace(PACKAGE, "numba"))
        found = run(tmp_path, PROGRAM)
        assert found["host"].tolist() == [1.5, 1.5, 1.5] == expected["host"].tolist()
        assert np.array_equal(found["result"], expected["result"]) and found["result"][:8].tolist()[:7] == [3.5] * 7


def test_a_kernel_is_simulated_without_launching_it(package, tmp_path):
    with simulated_launches():
        kernel = run(tmp_path, PROGRAM)["mixed"]
    x, out = np.ones(32, np.float32), np.zeros(32, np.float32)
    engines.launches.clear()
    for engine in engines.ENGINES:
        simulate(kernel, 1, 32, x, out, engine=engine)
    assert engines.launches == {("mixed", None): 1}
    with pytest.raises(SimulationError, match=r"index \[32\] is out of bounds for the global array x"):
        simulate(kernel, 2, 32, x, out)


@pytest.mark.parametrize(
    "name, match", [("assembly", "cuda.inline_ptx"), ("new_name", "experimental"), ("beyond", r"index \[32\] is out of bounds")]
)
def test_what_numba_cuda_lacks_is_refused_with_its_line(package, tmp_path, name, match):
    with simulated_launches():
        try:
            kernels = run(tmp_path, "from numba_cuda_mlir.cuda import experimental\n" + BEYOND)
        except ImportError as error:
            pytest.skip(str(error))
        with pytest.raises(SimulationError, match=rf"{match}.*program.py:\d+ in {name}"):
            kernels[name][1, 32](np.zeros(32))


def test_values_of_other_packages_are_left_alone():
    for value in (cuda, cuda.threadIdx, numba_types.float32, np.float32, np.zeros(3), "text", None, 3):
        assert of_numba_cuda(value) is value
