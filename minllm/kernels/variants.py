"""Variants of a stage: one line in the stage's table registers a kernel; everything else looks it up there.

The tables are attention/variants.py and matmul/variants.py. From them come the parameters of tests, the kernels of the compile gate and
of `minllm inspect`, the cases of `minllm bench kernels`, and the names for LLM(kernel_variants=...). choice.py beside each table decides
which variant serves which call. A table imports each kernel on first use, so that reading the table costs nothing.
"""

import functools
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import_module = functools.cache(importlib.import_module)  # cached: every launch looks up the table, and takes only microseconds
ALL_DTYPES, HALF_DTYPES = ("float32", "float16", "bfloat16"), ("float16", "bfloat16")


@dataclass(frozen=True)
class Variant:
    """One kernel of a stage, and what it supports.

    Its launcher may have why_not(*arrays), which returns the reason why it cannot serve these arrays, or None.
    """

    name: str
    module: str  # relative to the stage's package if it begins with a dot
    launcher: str = ""  # the function or object in the module that launches the kernel; empty if callers take the whole module
    most_rows: int | None = None  # the most new tokens per sequence (attention) or rows of x (matmul) per call; None for any number
    dtypes: tuple[str, ...] = ALL_DTYPES
    capability: tuple[int, int] | None = None  # the compute capability of the only GPUs that run it; None for all
    fallback: str = ""  # the variant that serves the calls that this one cannot serve
    reads: str = "arrays"  # the kind of arguments of its launcher: variants with the same value can replace each other by name

    def takes_rows(self, rows: int) -> bool:
        """Whether a call may have this many new tokens per sequence, or rows of x."""
        return self.most_rows is None or rows <= self.most_rows


class Variants(Mapping[str, Any]):
    """The table of a stage: name -> launcher, a function or a module. entries: the Variant of each name."""

    def __init__(self, package: str, *variants: Variant):
        self.package, self.stage = package, package.rpartition(".")[2]
        self.entries: dict[str, Variant] = {}
        for variant in variants:
            self.register(variant)

    def register(self, variant: Variant) -> None:
        """Add a variant to the table; it replaces one of the same name."""
        self.entries[variant.name] = variant

    def __getitem__(self, name: str) -> Any:
        launcher, module = self.entry(name).launcher, self.module(name)
        return getattr(module, launcher) if launcher else module

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def entry(self, name: str) -> Variant:
        """The Variant of this name. Raises a KeyError that lists the known names."""
        if name not in self.entries:
            raise KeyError(f"no {self.stage} kernel is called {name!r}; there are {', '.join(self.entries)}")
        return self.entries[name]

    def module(self, name: str) -> Any:
        """The module of a variant, imported on first use."""
        return import_module(self.entry(name).module, self.package)

    def names(self, reads: str = "arrays", dtype: str | None = None) -> list[str]:
        """The names of the variants with launchers that take these arguments and support this dtype."""
        return [name for name, found in self.entries.items() if found.reads == reads and (dtype is None or dtype in found.dtypes)]

    def why_not(
        self, name: str, rows: int, dtype: str, capability: tuple[int, int] | None = None, arrays: tuple = (), reads: str = "arrays"
    ) -> str | None:
        """Why a variant cannot serve a call, as a sentence; None if it can.

        capability: the GPU's, None in the simulator. arrays: passed to the module's own why_not, if given.
        """
        found = self.entry(name)
        if reads != found.reads:
            return f"{name} takes {found.reads}, not {reads}"
        if not found.takes_rows(rows):
            return f"{name} takes up to {found.most_rows} rows, not {rows}"
        if dtype not in found.dtypes:
            return f"{name} takes {', '.join(found.dtypes)}, not {dtype}"
        if found.capability not in (None, capability):
            return f"{name} needs a GPU of compute capability {'.'.join(map(str, found.capability))}"
        own = getattr(self[name], "why_not", None) if arrays else None
        return own(*arrays) if own else None

    def serving(self, name: str, rows: int, dtype: str, capability: tuple[int, int] | None = None, reads: str = "arrays") -> str:
        """The name itself, or the first in its chain of fallbacks for which `why_not` returns None; the last one serves all other calls."""
        while self.entry(name).fallback and self.why_not(name, rows, dtype, capability, reads=reads):
            name = self.entry(name).fallback
        return name

    def fallback(self, name: str) -> Any:
        """The launcher of a variant's fallback, for arrays that its own kernel cannot serve."""
        return self[self.entry(name).fallback]
