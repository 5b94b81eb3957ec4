"""Random expressions have the same value in the simulator as compiled by Numba for the CPU, whose rules of types are the same."""

import importlib.util
import random

import numba
import numpy as np
import pytest

from minllm.sim import simulate

TYPES = dict(
    a=np.int8, b=np.int16, c=np.int32, d=np.int64, e=np.uint8, f=np.uint16, g=np.uint32, h=np.uint64, x=np.float32, y=np.float64, p=np.bool_
)
INTEGERS, FLOATS = "abcdefgh", "xy"
EXPRESSIONS, VALUES = 8, 4  # per function
FUNCTIONS, ALL_FUNCTIONS = 2, 4  # per seed; the second with --exhaustive


def integer(choose, depth):
    """An expression of integers and booleans."""
    if depth == 0:
        return choose.choice([*INTEGERS, *INTEGERS, "p", str(choose.randint(0, 300)), str(choose.randint(0, 2**31))])
    left, right = integer(choose, depth - 1), integer(choose, depth - 1)
    forms = [f"({left} {operator} {right})" for operator in "+-*&|^"]
    forms += [f"({left} // {choose.randint(1, 99)})", f"({left} % {choose.randint(1, 99)})", f"({left} >> {choose.randint(0, 15)})"]
    forms += [f"({left} << {choose.randint(0, 15)})", f"(-{left})", f"(~{left})", f"({left} < {right})"]
    divisor, count = f"(({right} & 1023) + 1)", f"({right} & 31)"  # known at run time only
    forms += [f"({left} // {divisor})", f"({left} % {divisor})", f"({left} >> {count})", f"({left} << {count})", f"((d ^ {left}) ** 3)"]
    forms += [f"(int64({left}) if p else int64({right}))"]
    return choose.choice(forms)


def number(choose, depth):
    """An expression of floats, with integers among them."""
    if depth == 0:
        return choose.choice([*FLOATS, "x", "x", str(choose.choice([0.1, 0.5, 3.0, 1e-3])), "K"])
    left, other = number(choose, depth - 1), number(choose, depth - 1)
    extrema = [f"max({left}, {other})", f"min({left}, {other})"]
    right = choose.choice([number, integer])(choose, depth - 1)
    left, right = choose.sample([left, right], 2)
    forms = [f"({left} {operator} {right})" for operator in "+-*"] + [f"({left} / (abs({right}) + 1))", f"({left} if p else {right})"]
    forms += [*extrema, f"(x if {left} < {right} else y)", f"(-{left})", f"float32({left})"]
    return choose.choice(forms)


def module_of(source, folder):
    """The module with this source, from a file, where the simulator finds it."""
    path = folder / "expressions.py"
    path.write_text(source)
    found = importlib.util.spec_from_file_location(f"expressions_{abs(hash(source))}", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def arguments(seed):
    """One value of each type, small or anywhere in its range."""
    generator = np.random.default_rng(seed)
    values = []
    for dtype in TYPES.values():
        if np.issubdtype(dtype, np.integer):
            limits = np.iinfo(dtype)
            shift = int(generator.choice([0, limits.bits // 2]))
            values.append(dtype(int(generator.integers(limits.min, limits.max, dtype=dtype)) >> shift))
        else:
            values.append(dtype(generator.standard_normal() * 10 > 0) if dtype is np.bool_ else dtype(generator.standard_normal() * 10))
    return values


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions_agree_with_numba(seed, tmp_path, request):
    functions = ALL_FUNCTIONS if request.config.option.exhaustive else FUNCTIONS
    choose, parameters = random.Random(seed), ", ".join(TYPES)
    source = "from numba import float32, int64\nK = 0.3\n"
    for function in range(functions):
        source += f"\n\ndef function{function}({parameters}, integers, floats):\n"
        for row in range(EXPRESSIONS):
            depth = choose.randint(1, 3)
            source += f"    integers[{row}] = {integer(choose, depth)}\n    floats[{row}] = {number(choose, depth)}\n"
            source += f"    floats[{EXPRESSIONS + row}] = {integer(choose, depth)} * 1.0\n"
    module = module_of(source, tmp_path)
    for name in (f"function{number}" for number in range(functions)):
        function = getattr(module, name)
        compiled = numba.njit(function, error_model="numpy")
        for given in map(arguments, range(VALUES)):
            found, expected = [(np.zeros(EXPRESSIONS, np.int64), np.zeros(2 * EXPRESSIONS)) for _ in range(2)]
            simulate(function, 1, 1, *given, *found)
            compiled(*given, *expected)
            for one, other in zip(found, expected):
                different = np.flatnonzero(one != other)
                assert not different.size, f"rows {different} of {name} for {given}: {one} and {other}\n{source}"
