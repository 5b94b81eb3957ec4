"""The disk cache's key: any change that reaches the machine code changes it, in whatever file; nothing else does."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32, float64

import minllm
from minllm.catalogue import machine_code
from minllm.runtime import cache_key
from minllm.runtime.argument_type import argument_type

PACKAGE = Path(minllm.__file__).parent

# A kernel, and all that it can reach: a constant, a device function of its own file that calls one of another file, one through a
# module's attribute, one handed in by a factory, one in a default, and an instruction.
DEVICE_FILE = """
from numba import cuda, float32
SLOPE = 2.0

@cuda.jit(device=True)
def deepest(x):
    return x * float32(SLOPE)

@cuda.jit(device=True)
def by_attribute(x):
    return x + float32(1.0)

@cuda.jit(device=True)
def unused(x):
    return x
"""
KERNEL_FILE = """
from numba import cuda, float32
from minllm.kernels import made_device
from minllm.kernels.made_device import deepest
from minllm.ptx import ex2
OFFSET = 3.0
UNUSED = 1
ODDS = (1, 2.5, "text")

@cuda.jit(device=True)
def middle(x):
    return deepest(x) + float32(OFFSET)

def make(factor, shape):
    @cuda.jit(device=True)
    def handed_in(x):
        return x * float32(factor)

    def kernel(x, out):
        "What it does."
        # How it does it.
        tile = cuda.shared.array(shape, float32)
        i = cuda.grid(1)
        tile[i] = middle(x[i]) + made_device.by_attribute(x[i])
        out[i] = ex2(handed_in(tile[i])) + float32(ODDS[1])

    return kernel

def launcher():
    return 1
"""


def key_of(edits=(), factor=2, shape=4, dtype=np.float32, capability=(9, 0), options=None):
    """The key of the kernel above after `edits`, pairs (old, new) of text in either file."""
    sources = {"made_device": DEVICE_FILE, "made_kernel": KERNEL_FILE}
    for old, new in edits:
        assert any(old in source for source in sources.values())
        sources = {name: source.replace(old, new) for name, source in sources.items()}
    import minllm.kernels

    modules = {}
    try:
        for name, source in sources.items():
            full_name = f"minllm.kernels.{name}"
            modules[name] = sys.modules[full_name] = type(sys)(full_name)
            setattr(minllm.kernels, name, modules[name])
            exec(compile(source, f"{name}.py", "exec"), modules[name].__dict__)
        array = argument_type(np.zeros(4, dtype))
        kernel = modules["made_kernel"].make(factor, shape)
        return cache_key.cache_key(kernel, [array, array], capability, options or dict(fastmath=False))
    finally:
        for name in sources:
            sys.modules.pop(f"minllm.kernels.{name}", None)
            delattr(minllm.kernels, name)


def test_the_same_sources_have_the_same_key():
    assert key_of() == key_of() is not None


@pytest.mark.parametrize(
    "old, new",
    [
        ("SLOPE = 2.0", "SLOPE = 2.5"),  # a constant of a device function in another file
        ("return x * float32(SLOPE)", "return x - float32(SLOPE)"),  # the device function's code
        ("return x + float32(1.0)", "return x + float32(2.0)"),  # one reached as a module's attribute
        ("OFFSET = 3.0", "OFFSET = 3"),  # equal, but of another type
        ("OFFSET = 3.0", "OFFSET = -3.0"),
        ("deepest(x) + float32(OFFSET)", "deepest(deepest(x)) + float32(OFFSET)"),
        ("return x * float32(factor)", "return x / float32(factor)"),  # a function of the factory
        ("2.5", "2.25"),  # within a tuple
        ("cuda.shared.array(shape", "cuda.local.array(shape"),  # an attribute's name
        ("@cuda.jit(device=True)\ndef middle", '@cuda.jit(device=True, inline="always")\ndef middle'),  # an option of a device function
        ("from minllm.ptx import ex2", "from minllm.ptx import rcp as ex2"),  # another instruction under the same name
        ("from minllm.kernels.made_device import deepest", "from minllm.kernels.made_device import unused as deepest"),
    ],
)
def test_a_change_of_anything_that_the_kernel_reaches_changes_the_key(old, new):
    assert key_of([(old, new)]) != key_of()


@pytest.mark.parametrize(
    "old, new",
    [
        ("# How it does it.", "# How it does it, in other words."),
        ("UNUSED = 1", "UNUSED = 2"),
        ("def launcher():\n    return 1", "def launcher():\n    return 2"),
        ("def unused(x):\n    return x", "def unused(x):\n    return -x"),
    ],
)
def test_a_change_of_anything_else_does_not(old, new):
    assert key_of([(old, new)]) == key_of()


def test_constants_types_options_target_and_compiler_are_in_the_key(monkeypatch):
    keys = [key_of(), key_of(factor=3), key_of(factor=2.0), key_of(shape=8), key_of(dtype=np.float16), key_of(capability=(8, 0))]
    keys.append(key_of(options=dict(fastmath=True)))
    keys.append(key_of(options=dict(fastmath=False, contract=False)))
    monkeypatch.setattr(cache_key, "compiler_sources", lambda: "an instruction was edited")
    keys.append(key_of())
    monkeypatch.setattr(cache_key, "compiler_versions", lambda: {"numba-cuda": "99"})
    keys.append(key_of())
    assert len(set(keys)) == len(keys) and None not in keys


INSTRUCTION_FILE = '''"""Instructions."""


def emit(builder):
    """What it emits."""
    return assembly("ex2.approx.ftz.f32 $0, $1;", 2)  # why
'''


def key_of_sources(monkeypatch, tmp_path, source):
    """`compiler_sources` if minllm/ptx were this one file."""
    for name in ("ptx/one.py", *(f"runtime/{name}" for name in cache_key.COMPILER_FILES)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source if name.startswith("ptx") else "")
    monkeypatch.setattr(cache_key, "PACKAGE", tmp_path)
    return cache_key.compiler_sources.__wrapped__()


@pytest.mark.parametrize(
    "old, new",
    [
        ("# why", "# another reason"),
        ("What it emits.", "In other words."),
        ('    """What it emits."""\n', ""),
        ('"""Instructions."""\n', ""),
        ("\n\n\ndef", "\n\n# Between\n\n\n\ndef"),
        ('emit(builder):\n    """What it emits."""\n    return', "emit(\n    builder\n):\n    return"),
    ],
)
def test_words_and_layout_of_instructions_are_not_in_the_key(monkeypatch, tmp_path, old, new):
    assert old in INSTRUCTION_FILE
    edited = key_of_sources(monkeypatch, tmp_path, INSTRUCTION_FILE.replace(old, new))
    assert edited == key_of_sources(monkeypatch, tmp_path, INSTRUCTION_FILE)


@pytest.mark.parametrize("old, new", [("ex2", "lg2"), (", 2)", ", 2.0)"), ("emit(builder)", "emit(builder, more)"), ("$1;", "$1; ")])
def test_what_instructions_emit_is_in_the_key(monkeypatch, tmp_path, old, new):
    assert old in INSTRUCTION_FILE
    edited = key_of_sources(monkeypatch, tmp_path, INSTRUCTION_FILE.replace(old, new))
    assert edited != key_of_sources(monkeypatch, tmp_path, INSTRUCTION_FILE)


def test_functions_that_call_each_other_are_described():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert cache_key.describe(even, {}) == cache_key.describe(even, {}) != cache_key.describe(odd, {})


@pytest.mark.parametrize("value", [object(), {1: 2}, [object()], sys.modules["json"], type("Own", (), {})])
def test_a_kernel_with_an_unknown_kind_of_value_is_not_kept_on_disk(value):
    assert key_of(factor=value) is None


def test_kernels_from_elsewhere_are_not_kept_on_disk():
    def stranger(x):
        x[0] = 1

    assert cache_key.cache_key(stranger, [], (9, 0), {}) is None
    stranger.__module__ = None  # as of a function that exec makes
    assert cache_key.cache_key(stranger, [], (9, 0), {}) is None


def test_the_key_is_the_same_in_another_process(request):
    """Hash seeds and addresses must not get into it."""
    compared = slice(None, None, 1 if request.config.option.exhaustive else 8)
    code = f"""
    from minllm.catalogue import machine_code
    from minllm.runtime.cache_key import cache_key
    for one in list(machine_code().values())[{compared}]:
        print(cache_key(one.kernel.function, one.arguments, (9, 0), one.kernel.options))
    """
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # another one than that of this process
    environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(PACKAGE.parent), "HOME": "/nonexistent"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent, env=environment).stdout.split()
    every = machine_code().values()
    ours = [cache_key.cache_key(one.kernel.function, one.arguments, (9, 0), one.kernel.options) for one in every]
    assert ours[compared] == theirs and None not in ours
    assert len(set(ours)) == len(ours)  # nothing is listed twice, and no two kernels share a key


def test_only_what_is_hashed_in_full_extends_numba():
    """A typing rule, a lowering or an overload elsewhere would decide machine code without being reached from a kernel."""
    names = r"intrinsic|overload\w*|lower\w*|register\w*|type_callable|infer\w*|iternext_impl|Registry"
    extends = re.compile(rf"^\s*(from|import) llvmlite|^\s*from (numba\S*|minllm.machine.numba_cuda) import .*\b({names})\b", re.M)
    passes_on = PACKAGE / "machine" / "numba_cuda.py"  # this file names Numba's functions and extends nothing
    hashed = (passes_on, *(PACKAGE / "runtime" / name for name in cache_key.COMPILER_FILES), *(PACKAGE / "ptx").rglob("*.py"))
    apart = PACKAGE / "sim" / "compiled_fma.py"  # machine code of the simulator's, which Numba never sees
    elsewhere = [path for path in PACKAGE.rglob("*.py") if path not in (*hashed, apart) and extends.search(path.read_text())]
    assert not elsewhere
    assert {"range_loops.py", "instruction.py"} <= {path.name for path in hashed if extends.search(path.read_text())}  # it does find them


def test_what_is_beyond_the_package_is_fixed_by_its_version():
    assert cache_key.describe(cuda, {}) == "module numba.cuda"
    assert cache_key.describe(cuda.libdevice.rsqrtf, {}).endswith("libdevice.rsqrtf")
    assert cache_key.describe(float32, {}) != cache_key.describe(float64, {})
