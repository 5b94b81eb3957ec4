"""Compile the kernels of the selected tests on all cores, and run none: `pytest tests/gpu --compile-only -n auto --dist=worksteal`.

Each test runs up to its first result. A launch compiles its kernel into the disk cache instead of executing it, an engine compiles its
kernels instead of loading its weights, and the first array that is read from the GPU ends the test. Kernels that a test launches later are
compiled when it runs. Processes skip the kernels that others are compiling, and groups of tests are divided among them: nothing runs, and
the memory of ranks is not allocated.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from _pytest.runner import runtestprotocol

from minllm import LLM
from minllm.cache.kv_cache import CacheShape
from minllm.engine.build import precompile
from minllm.engine.build.engine import load_engine
from minllm.engine.kernels_needed import EngineShape
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.share import RankShare
from minllm.ops.dry_run_ops import DryRunOps
from minllm.parallel.dry_run_ranks import DryRunRankOps
from minllm.runtime.argument_type import argument_type
from minllm.runtime.array import DeviceArray
from minllm.runtime.compile_worker import compile_one
from minllm.runtime.device import describe_device
from minllm.runtime.disk_cache import is_cached
from minllm.runtime.dry_run import Addresses, Signature, types_key
from minllm.runtime.kernel import Launch
from minllm.runtime.memory import DeviceMemory
from minllm.runtime.peer_devices import PeerDevices

GENERATION = ("generate", "logits", "perplexity", "beam_search", "contrastive_search")  # of an engine on the CPU, an oracle here
seen = set()  # kernels with the keys of their arguments' types
compiled: list[str] = []  # keys of the kernels that the current test has compiled


class Compiled(BaseException):
    """Ends a test whose kernels have been compiled."""


class CompileOnly:
    """The pytest plugin. kernels: how many have been compiled, by all processes."""

    def __init__(self):
        self.kernels = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The last files first: engines, with tens of kernels each, are among them, and single kernels then fill the end."""
        items.reverse()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Compile a test's kernels, and report it as compiled, whatever comes of it; tests of gigabytes are left out."""
        compiled.clear()
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        group = item.get_closest_marker("xdist_group")
        if group is None or group.args != ("gigabytes",):
            with compiling():
                runtestprotocol(item, log=False, nextitem=nextitem)
        kernels = [("kernels", len(compiled))]
        report = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "call", user_properties=kernels)
        item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        """A letter of its own tells compiling from testing."""
        return "compiled", "c", "COMPILED"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the kernels of all tests."""
        self.kernels += dict(report.user_properties)["kernels"]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how many kernels were missing."""
        terminalreporter.write_line(f"{self.kernels:,} kernels were compiled.")


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Within this context launches compile, and results end a test."""
    addresses = DeviceMemory(Addresses())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launch, "__call__", lambda launch, *arguments: compile_launch(launch, arguments))
        patch.setattr(Launch, "clusters_at_a_time", clusters_at_a_time)
        patch.setattr(DeviceArray, "copy_to_host", end)
        patch.setattr(PeerDevices, "zeros", lambda devices, rank, shape, dtype: addresses.empty(shape, dtype))
        patch.setattr(PeerDevices, "load", lambda *_: None)
        patch.setattr(precompile, "compile_ahead", compile_engine)
        patch.setattr("minllm.engine.llm.load_ranks", compile_ranks)
        for name in GENERATION:
            patch.setattr(LLM, name, MagicMock())
        yield


def end(*_: Any) -> None:
    """Raise Compiled."""
    raise Compiled


def compile_launch(launch: Launch, arguments: Iterable[Any]) -> None:
    """Compile what a launch would execute."""
    known = launch.kernel, *types_key(arguments)
    if known not in seen:
        seen.add(known)
        compile_signatures([Signature(launch.kernel, tuple(map(argument_type, arguments)))])


def clusters_at_a_time(launch: Launch, *arguments: Any) -> int:
    """A number of clusters; the kernel is compiled, because the driver would have to load it."""
    compile_launch(launch, arguments)
    return 1


def compile_engine(find: Callable[[EngineShape], list[Signature]], shapes: tuple[EngineShape], *_: Any) -> None:
    """Compile an engine's kernels in this process, those of steps with graphs and of eager ones. Raises Compiled."""
    for uses_graphs in (True, False):
        compile_signatures(find(replace(shapes[0], uses_graphs=uses_graphs)))
    raise Compiled


class LoneShare(RankShare):
    """A rank's share of loading up to its weights, without the other ranks."""

    def __init__(self, rank: int, options: EngineOptions):
        super().__init__(SimpleNamespace(rank=rank), options)

    def make_ops(self, device: str, dtype: str, options: EngineOptions, config: Any) -> Any:
        """Operations that connect to nobody."""
        split, variants = self.split(config), options.kernel_variants
        return DryRunOps(dtype, variants) if split is None else DryRunRankOps(dtype, variants, split)

    def shared(self, shape: CacheShape, ops: Any) -> CacheShape:
        """The shape of the cache; the operations have no contexts to share."""
        return replace(shape, context_ranks=self.context_ranks)

    def agreed(self, budget: Any, *_: Any) -> Any:
        """The rank's own budget."""
        return budget


def compile_ranks(options: EngineOptions, *_: Any) -> None:
    """Compile the kernels of all ranks in this process. Raises Compiled."""
    for rank in range(options.num_ranks):
        with contextlib.suppress(Compiled):
            load_engine(options, share=LoneShare(rank, options))
    raise Compiled


def compile_signatures(signatures: Iterable[Signature]) -> None:
    """Compile the kernels that the disk cache lacks and no other process is compiling."""
    capability = describe_device().compute_capability
    for signature in signatures:
        key = signature.kernel.cache_key(signature.types, capability)
        if key and not is_cached(key) and compile_one(signature, key, capability, wait=False):
            compiled.append(key)
