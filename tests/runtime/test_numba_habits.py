"""The machine code is the same with Numba's own code and with what replaces it."""

import functools
import inspect
import itertools
import re
import runpy
from types import SimpleNamespace

import ml_dtypes
import numba_cuda
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda, float32, int32
from numba.cuda.compiler import run_frontend
from numba.cuda.core import bytecode, errors
from numba.cuda.core.targetconfig import TargetConfig
from numba.cuda.flags import Flags

from minllm.runtime import compiler, numba_habits
from minllm.runtime.argument_type import argument_type

OWN = {name: own for _, name, own, _ in numba_habits.REPLACED}

SWITCHES = sorted(name for name, option in Flags.options.items() if option.type is bool)


@pytest.fixture
def numba_as_it_is():
    """Numba runs its own code until the test ends."""
    numba_habits.use(replacements=False)
    yield
    numba_habits.use(replacements=numba_cuda.__version__ == numba_habits.VERSION)


def make_kernel():
    """A kernel with operators on numbers of all kinds, and a device function that it reaches on two paths."""

    @cuda.jit(device=True)
    def shared(x, n):
        return x * float32(n) - 0.5 if n % 3 else -x

    @cuda.jit(device=True)
    def left(x, n):
        return shared(x, n << 1) + shared(x, True)

    @cuda.jit(device=True, fastmath=True)
    def right(x, n):
        return shared(x, n // 2) / float32(3)

    def mixed(x, out, n):
        i = cuda.grid(1)
        held = cuda.local.array(4, float32)
        for k in range(4):
            held[k] = left(float32(x[i]), k) + right(float32(x[i + k]), int32(n) & k)
        while n > 2 and not held[n & 3] == 0.0:
            n -= 1
            held[n & 3] **= 2
        if i < x.shape[0]:
            out[i] = x.dtype.type(held[n & 3] + 2**n)

    return mixed


def machine_code(dtype, monkeypatch):
    """The machine code of a new kernel. Numba numbers functions, as part of their names; the numbers start again."""
    monkeypatch.setattr(bytecode.FunctionIdentity, "_unique_ids", itertools.count(1000))
    types = [argument_type(argument) for argument in (np.zeros(4, dtype), np.zeros(4, dtype), 3)]
    return compiler.compile_fresh(make_kernel(), types, (9, 0), compiler.OPTIONS).cubin


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_machine_code_is_the_same(dtype, monkeypatch, request):
    numba_habits.CALL_TYPES.clear()
    code = machine_code(dtype, monkeypatch)
    assert bool(numba_habits.CALL_TYPES) == (numba_cuda.__version__ == numba_habits.VERSION)  # the replacements are in use
    request.getfixturevalue("numba_as_it_is")
    numba_habits.CALL_TYPES.clear()
    assert machine_code(dtype, monkeypatch) == code and not numba_habits.CALL_TYPES


@given(*[st.dictionaries(st.sampled_from(SWITCHES), st.booleans())] * 2)
def test_flags_have_the_same_options(some, others):
    flags, more = Flags(), Flags()
    for one, chosen in ((flags, some), (more, others)):
        for name, value in chosen.items():
            setattr(one, name, value)
    for one in (flags, more):
        assert list(numba_habits.all_options(one).items()) == list(OWN["values"](one).items())
    assert (flags == more) == (OWN["values"](flags) == OWN["values"](more))
    assert hash(flags) == hash(flags.copy()) and (flags != more or hash(flags) == hash(more))


def functions():
    """Functions of one code and of several kinds, and what is no function."""

    def plain(a, *b, c):
        return a

    def optional(a, b=1, *, c: int = 2):
        return a

    @functools.wraps(optional)
    def wrapped(*given):
        return optional(*given)

    return plain, optional, wrapped, functions.__call__, "text".join, dict, [].append


def test_signatures_are_the_same():
    for first, again in zip(functions(), functions(), strict=True):
        for function in (first, again, first):
            try:
                expected = inspect.signature(function)
            except ValueError as error:
                with pytest.raises(ValueError, match=re.escape(str(error))):
                    numba_habits.signature(function)
            else:
                assert numba_habits.signature(function) == expected


def test_instructions_have_the_same_variables(numba_as_it_is):
    blocks = run_frontend(make_kernel()).blocks.values()
    instructions = [one for block in blocks for one in block.body]
    own = [one.list_vars() for one in instructions]
    numba_habits.use(replacements=True)
    assert [one.list_vars() for one in instructions] == own and any(own)


class Registry(SimpleNamespace):
    """One that is a key, as Numba's are."""

    __hash__ = object.__hash__


def test_registries_that_grow_are_loaded():
    loader, loaded = SimpleNamespace(registry_items=("functions",)), []
    registry = Registry(functions=["a"])
    context = SimpleNamespace(_registries={registry: loader})
    load = numba_habits.load_what_is_new(lambda context: loaded.append(len(registry.functions)))
    load(context), load(context)
    registry.functions.append("b")
    load(context), load(context)
    assert loaded == [1, 2]


def test_errors_have_the_same_text(numba_as_it_is):
    own = errors.termcolor().errmsg("text")
    numba_habits.use(replacements=True)
    assert errors.termcolor().errmsg("text") == own


def test_another_version_of_numba_runs_its_own_code(numba_as_it_is, monkeypatch):
    monkeypatch.setattr(numba_cuda, "__version__", "0.0.0")
    runpy.run_path(numba_habits.__file__)
    assert TargetConfig.values is OWN["values"]
    monkeypatch.setattr(numba_cuda, "__version__", numba_habits.VERSION)
    runpy.run_path(numba_habits.__file__)
    assert TargetConfig.values is not OWN["values"]
