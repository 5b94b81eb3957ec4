"""Python imports this module at its start. In a process of a simulated program it simulates launches once numba.cuda is imported.

A sitecustomize.py of the system or of the program, which this one hides, runs first.
"""

import importlib.machinery
import importlib.util
import linecache
import os
import sys

SIMULATED = ("numba.cuda", "numba_cuda_mlir.cuda", "minllm")  # minllm before the modules from whose midst it imports numba.cuda
entered = []  # the context of this process, which lasts as long as the process


class SimulatedImport:
    """An import hook that simulates the launches of this process as soon as a module of SIMULATED has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in SIMULATED:
            return None
        sys.meta_path.remove(self)
        import minllm.machine.numba_cuda  # noqa: F401  # turns Numba's own simulator off, and imports numba.cuda
        from minllm.sim.detectors import is_detecting
        from minllm.sim.numba_launches import simulated_launches

        entered.append(simulated_launches(detect=is_detecting()))
        entered[0].__enter__()
        if name not in sys.modules:
            return None
        return importlib.machinery.ModuleSpec(name, Imported(sys.modules.pop(name)))  # Python imports anew what it finds in sys.modules


class Imported:
    """The loader of a module that has been imported already."""

    def __init__(self, module):
        self.module, self.true_spec = module, module.__spec__

    def create_module(self, spec):
        return self.module

    def exec_module(self, module):
        module.__spec__, module.__loader__ = self.true_spec, self.true_spec.loader


def keep_source(text):
    """Keep the text of `python -c` as the source of its kernels, which the simulator reads."""
    linecache.cache["<string>"] = len(text), None, text.splitlines(keepends=True), "<string>"


def run_hidden():
    """Run the sitecustomize.py that this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    found = importlib.machinery.PathFinder.find_spec(__name__, [path for path in sys.path if os.path.abspath(path) != here])
    if found is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))


if __name__ == "sitecustomize":
    run_hidden()
    if os.environ.get("MINLLM_SIM", "0") not in ("", "0"):
        sys.meta_path.insert(0, SimulatedImport())
        if "-c" in sys.orig_argv[:-1]:
            keep_source(sys.orig_argv[sys.orig_argv.index("-c") + 1])
