"""Random programs of nested branches and loops with break, continue and return: every thread computes what it computes by itself, and a
trace counts its loads and stores in the same requests."""

import linecache
import random

import numpy as np
import pytest
from numba import cuda

from tests.sim.lanes.engines import compare

NAMES = ("a", "b", "c")
INDENT = "    "


class Program:
    """The source of a random kernel, which ends for every input: its loops have few iterations."""

    def __init__(self, seed):
        self.random, self.lines, self.counters = random.Random(seed), [], 0
        self.line(0, "def kernel(x, out):")
        self.line(1, "i = cuda.grid(1)")
        self.line(1, "a, b, c = x[i], i % 7, 3")
        self.block(1, 4, False)
        for number, name in enumerate(NAMES):
            self.line(1, f"out[{number}, i] = {name}")

    def line(self, depth, text):
        self.lines.append(INDENT * depth + text)

    def expression(self):
        left, right = self.random.choices([*NAMES, str(self.random.randrange(-3, 9)), f"x[{self.random.choice(NAMES)} % 64]"], k=2)
        return f"{left} {self.random.choice(['+', '-', '*', '&', '^'])} {right}"

    def condition(self):
        one = f"{self.random.choice(NAMES)} % {self.random.randrange(2, 5)} {self.random.choice(['<', '==', '>', '!='])} 1"
        return one if self.random.random() < 0.7 else f"{one} {self.random.choice(['and', 'or'])} {self.random.choice(NAMES)} > 2"

    def block(self, depth, length, in_loop):
        """Write up to `length` random statements."""
        for _ in range(self.random.randrange(1, length + 1)):
            kind = self.random.random()
            if kind < 0.4 or depth > 5:
                name, value = self.random.choice(NAMES), self.expression()
                self.line(depth, f"{name} = ({value}) % 1000" if kind < 0.3 else f"{name} = ({value}) % 1000 if {self.condition()} else i")
            elif kind < 0.65:
                self.line(depth, f"if {self.condition()}:")
                self.block(depth + 1, 3, in_loop)
                if self.random.random() < 0.6:
                    self.line(depth, "else:")
                    self.block(depth + 1, 3, in_loop)
            elif kind < 0.77:
                self.counters += 1
                self.line(depth, f"for k{self.counters} in range({self.random.choice(['3', 'a % 4', 'b % 3', 'c % 2 + 1'])}):")
                self.line(depth + 1, f"a = a + k{self.counters}")
                self.block(depth + 1, 3, True)
            elif kind < 0.87:
                self.counters += 1
                self.line(depth, f"w{self.counters} = {self.random.choice(['i', 'a', 'b'])} % 4")
                self.line(depth, f"while w{self.counters} > 0:")
                self.line(depth + 1, f"w{self.counters} -= 1")
                self.block(depth + 1, 3, True)
            elif kind < 0.95 and in_loop:
                self.line(depth, f"if {self.condition()}:")
                self.line(depth + 1, self.random.choice(["break", "continue"]))
            else:
                self.line(depth, f"if {self.condition()}:")
                self.line(depth + 1, f"out[3, i] = {self.random.choice(NAMES)}")
                self.line(depth + 1, self.random.choice(["return", "b = b + 1"]))

    def kernel(self, name):
        """The kernel, whose source the simulator finds."""
        source = "\n".join([*self.lines, ""])
        linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
        namespace = {"cuda": cuda}
        exec(compile(source, name, "exec"), namespace)
        return namespace["kernel"]


@pytest.mark.parametrize("group", range(5))
def test_a_random_program(group):
    for seed in range(8 * group, 8 * group + 8):
        kernel = Program(seed).kernel(f"<random program {seed}>")
        x = np.random.default_rng(seed).integers(0, 50, 64)
        assert compare(kernel, 2, 32, x, np.zeros((4, 64), np.int64), detect=False, traced=True) is None, seed
