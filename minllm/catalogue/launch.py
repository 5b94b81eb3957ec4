"""A launch of the package's kernels, described once for everything that reads it.

    @describes
    def silu(dtype, tokens, intermediate):                          # arguments: the shape
        n = tokens * intermediate
        return Launch(
            arrays=lambda noise: dict(                              # on the host, by name
                gate_up=noise.array((tokens, 2 * intermediate), dtype), out=noise.unwritten((tokens, intermediate), dtype)),
            **beside(silu_and_multiply, "out"),                     # call and reference: the launcher, and the equation of `out`
            moved=Moved(dict(gate_up=2 * n * dtype.itemsize, out=n * dtype.itemsize), operations=6 * n),
            rows=("gate_up", "out"),
        )

A module of this package describes the launchers of one folder of minllm/kernels. It has such functions, and three that list their shapes:

    compiled()   MachineCode: launches as engines make them, and what the machine code of their kernels must show. The compile gate,
                 `minllm inspect`, the keys of recorded rows, and tests of machine code read it
    small()      Launches of odd sizes: results, races, counted bytes, and a GPU against the simulator
    odd()        more of them: results, in a selection in which every option and size occurs; large() has others, for GPUs
    measured()   Measured: the rows of `minllm bench kernels`

Kernels, their argument types, threads and shared memory are written nowhere: a dry run of the launcher finds them (`Launch.kernels`), on
arrays of the same shapes without memory. So a launcher chooses here as it does in an engine.
"""

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from minllm.catalogue.noise import WithoutContents
from minllm.machine.hardware import find_gpu
from minllm.machine.occupancy import WARP, registers_for
from minllm.runtime.device import Device
from minllm.runtime.dry_run import Addresses, Signature, dry_run, signatures
from minllm.runtime.memory import DeviceMemory
from minllm.runtime.recording import RecordedLaunch

# Compute capabilities for which every kernel is compiled, Ampere, Ada, Hopper and Blackwell, and a GPU that has each.
GPUS = {(8, 0): "NVIDIA A100-SXM4-80GB", (8, 9): "NVIDIA GeForce RTX 4090", (9, 0): "NVIDIA H200", (10, 0): "NVIDIA B200"}
TARGETS = tuple(GPUS)
FP8_TARGETS = tuple(target for target in TARGETS if target >= (8, 9))  # with instructions that convert from and to fp8
HOPPER = ((9, 0),)  # with wgmma and tensor maps for tensor cores
WIDE = ("LDG*128*", "STG*128*")  # loads and stores of 16 bytes


@dataclass(frozen=True)
class Moved:
    """What one kernel of a launch moves and computes, by the formulas in its docstring.

    asked: {array: bytes that its threads ask for}. different: {array: bytes that are touched at all, which caches cannot save}, for arrays
    where these are fewer. tensor_core_flops: on tensor cores. operations: all FLOPs; None where the docstring says "about".
    """

    asked: Mapping[str, int]
    different: Mapping[str, int] = field(default_factory=dict)
    tensor_core_flops: int = 0
    operations: int | None = None

    @property
    def bytes(self) -> int:
        """The unique bytes of all arrays."""
        return sum({**self.asked, **self.different}.values())


@dataclass(frozen=True, eq=False)
class Launch:
    """One call of a launcher.

    arrays(noise): {name: host array, NamedTuple or list of arrays, or None}; noise: noise.Noise. call(ops, **arrays): the launcher on
    arrays of a device; ops has `stream`, `empty(shape, dtype)`, `zeros` and `array`; what it returns are further results, as {name: array}.
    reference(**arrays): {name: contents of every array that the launch writes}, computed on the host; the first is the main result. It
    leaves its arguments as they are. moved: of the launch's kernel, or {name of a kernel: Moved}; where it depends on the contents of
    arrays, a function of them. indices: arrays, by the kernel's names, that formulas leave out. rows: names of arrays with a row for every
    token, so that a part of the tokens can be checked; alone(tokens, **arrays): other arrays, by name, with which the reference computes
    this part. scratch: arrays that it may leave with any contents. exact: results, all or these, are the reference's bits. slack: what
    results may differ by besides the rounding of their dtype, in terms of the largest one, or of each and of 1 if elementwise; None: 3e-6.
    lost: what the tensor cores of GPUs lose besides. counted: it takes part in `one_per_kernel` even where an earlier launch has its
    kernel. several_gpus: its kernels wait for each other, and each needs a GPU of its own. `describes` fills in stage, name, shape (all
    arguments) and given (those that are no defaults).
    """

    arrays: Callable[[Any], dict[str, Any]]
    call: Callable[..., Mapping[str, Any] | None]
    reference: Callable[..., dict[str, np.ndarray]]
    moved: Moved | Mapping[str, Moved] | Callable[..., Moved | Mapping[str, Moved]]
    indices: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    alone: Callable[..., dict[str, Any]] | None = None
    scratch: tuple[str, ...] = ()
    exact: bool | tuple[str, ...] = False
    slack: float | None = None
    elementwise: bool = False
    lost: float = 0.0
    counted: bool = False
    several_gpus: bool = False
    stage: str = ""
    name: str = ""
    shape: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.stage}/{self.name}({', '.join(f'{name}={value}' for name, value in self.given.items())})"

    @property
    def bytes(self) -> int:
        """The least number of bytes that the launch moves; of kernels of which it takes one, the first one's."""
        return (self.moved if isinstance(self.moved, Moved) else next(iter(self.moved.values()))).bytes

    def moved_by(self, kernel: str, arrays: Mapping[str, Any]) -> Moved | None:
        """The formulas of one of its kernels for these arrays; None if it has none."""
        moved = self.moved(**arrays) if callable(self.moved) else self.moved
        return moved if isinstance(moved, Moved) else moved.get(kernel)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of its numbers; float32 where it moves none."""
        return self.shape.get("dtype", np.dtype(np.float32))

    def is_exact(self, name: str) -> bool:
        """Whether a result is the reference's to the bit."""
        return self.exact if isinstance(self.exact, bool) else name in self.exact

    def part(self, arrays: Mapping[str, Any], tokens: np.ndarray) -> dict[str, Any]:
        """The arrays with the rows of these tokens alone."""
        found = {name: each_array(array, lambda one: one[tokens]) if name in self.rows else array for name, array in arrays.items()}
        return found | (self.alone(tokens, **arrays) if self.alone else {})

    def run(self, ops: Any, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Launch on arrays of a device -> these and the further results."""
        return {**arrays, **(self.call(ops, **arrays) or {})}

    def dry_run(self, target: tuple[int, int]) -> list[RecordedLaunch]:
        """The launches of its kernels on a GPU of this compute capability; nothing runs, and no memory is used."""
        arrays = self.arrays(WithoutContents())
        with dry_run(device_of(target)) as launches:
            ops = DryRunArrays()
            self.call(ops, **{name: on_device(ops, one) for name, one in arrays.items()})
        return launches

    def kernels(self, target: tuple[int, int]) -> list[Signature]:
        """The kernels that it launches on a GPU of this compute capability."""
        return signatures(self.dry_run(target))


def describes(function: Callable[..., Launch]) -> Callable[..., Launch]:
    """Decorator of a function of a stage's module that makes a Launch of its shape arguments: its Launches know what they are of.

    A parameter may be annotated with a function, which converts its argument.
    """
    parameters, stage = inspect.signature(function), function.__module__.split(".")[2]
    conversions = {name: one.annotation for name, one in parameters.parameters.items() if one.annotation is not one.empty}

    @functools.wraps(function)
    def launch_of(*args, **kwargs):
        bound = parameters.bind(*args, **kwargs)
        bound.arguments |= {name: convert(bound.arguments[name]) for name, convert in conversions.items() if name in bound.arguments}
        given, found = dict(bound.arguments), function(*bound.args, **bound.kwargs)
        bound.apply_defaults()
        return replace(found, stage=stage, name=function.__name__, shape=bound.arguments, given=given)

    return launch_of


def calls(launcher: Callable[..., Any], **constants: Any) -> Callable[..., Mapping[str, Any] | None]:
    """A Launch's call of a launcher whose parameters have the arrays' names; an `empty` is the device's; results may be a NamedTuple."""
    allocates = "empty" in inspect.signature(launcher).parameters

    def call(ops: Any, **arrays: Any) -> Mapping[str, Any] | None:
        found = launcher(**arrays, **constants, **(dict(empty=ops.empty) if allocates else {}), stream=ops.stream)
        return None if found is None else found._asdict()

    return call


def returns(names: tuple[str, ...], reference: Callable[..., Any], **constants: Any) -> Callable[..., dict[str, np.ndarray]]:
    """A Launch's reference made of one that returns the results of these names; its parameters have the names of arrays."""

    def call(**arrays: Any) -> dict[str, np.ndarray]:
        found = reference(**taken(reference, arrays), **constants)
        return dict(zip(names, found if isinstance(found, tuple) else (found,)))

    return call


def in_place(reference: Callable[..., Mapping[str, np.ndarray] | None], *names: str) -> Callable[..., dict[str, np.ndarray]]:
    """A Launch's reference made of one that changes the arrays of these names in place, and may return further results by name."""

    def on_copies(**arrays: Any) -> dict[str, np.ndarray]:
        copies = {name: arrays[name].copy() for name in names}
        return {**copies, **(reference(**taken(reference, {**arrays, **copies})) or {})}

    return on_copies


def beside(launcher: Callable[..., Any], *results: str, **constants: Any) -> dict[str, Callable[..., Any]]:
    """`call` and `reference` of a Launch: a launcher, and the equation beside it in its module, which returns the results of these names.

    The equation of `rope` is called rope_reference. constants: for both, or for the equation if the launcher has no such parameter.
    """
    reference = getattr(sys.modules[launcher.__module__], f"{launcher.__name__}_reference")
    return dict(
        call=calls(launcher, **taken(launcher, constants)),
        reference=returns(results, reference, **taken(reference, constants)),
    )


def both(run: Callable, launcher: Callable, reference: Callable, *changed: str, out: tuple[str, ...] = ()) -> dict[str, Callable]:
    """`call` and `reference` of a Launch by one function that calls either of them.

    run(function, arrays, *out, **stream); arrays: a namespace; changed: those that both change in place; out: those that the launcher is
    given, and the reference returns; stream: only the launcher's.
    """

    def on_host(**arrays: Any) -> dict[str, np.ndarray]:
        found = run(reference, SimpleNamespace(**arrays))
        return dict(zip(out, found if isinstance(found, tuple) else (found,)))

    def call(ops: Any, **arrays: Any) -> None:
        run(launcher, SimpleNamespace(**arrays), *(arrays[name] for name in out), stream=ops.stream)

    return dict(call=call, reference=in_place(on_host, *changed))


def taken(function: Callable[..., Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays that a function has parameters for."""
    parameters = inspect.signature(function).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return {name: array for name, array in arrays.items() if takes_all or name in parameters}


def each(describe: Callable[..., Launch], shapes: Iterable[Any], **options: Iterable[Any]) -> Iterator[Launch]:
    """The Launches of all shapes, tuples or dictionaries of arguments, with each combination of the options' values."""
    for chosen in itertools.product(*options.values()):
        named = dict(zip(options, chosen))
        yield from (describe(**shape, **named) if isinstance(shape, dict) else describe(*shape, **named) for shape in shapes)


@dataclass(frozen=True)
class MachineCode:
    """One kernel of a launch as it is compiled, and the assumptions of its design, which need no GPU to be checked.

    name: stage/variant/details. kernel_name: which of the launch's kernels; "" if it has one. blocks: designed number of blocks per SM
    (streaming multiprocessor), which determines the register budget. contains: patterns (as for file names) of instructions that must be in
    the machine code. float64: the reason for float64 arithmetic, empty if there must be none. spills: {target: bytes per thread} accepted
    if ptxas narrowly misses the budget; none for other targets. targets: compute capabilities, on all of which the launch is the same.
    """

    name: str
    launch: Launch
    blocks: int
    contains: tuple[str, ...] = ()
    float64: str = ""
    spills: Mapping[tuple[int, int], int] = field(default_factory=dict)
    targets: tuple[tuple[int, int], ...] = TARGETS
    kernel_name: str = ""

    @functools.cached_property
    def recorded(self) -> RecordedLaunch:
        """The kernel's launch on the newest of its targets."""
        return self.recorded_on(self.targets[-1])

    def recorded_on(self, target: tuple[int, int]) -> RecordedLaunch:
        """The kernel's launch on one of its targets. Raises LookupError if the launch has no such kernel, or several."""
        launches = self.launch.dry_run(target)
        found = [one for one in launches if one.name == (self.kernel_name or launches[0].name)]
        if len(found) != 1 or not (self.kernel_name or len(launches) == 1):
            names = ", ".join(one.name for one in launches)
            raise LookupError(f"{self.name}: {self.launch} launches {names}; say which one with kernel_name")
        return found[0]

    @property
    def signature(self) -> Signature:
        """The kernel with the types of its arguments."""
        return signatures([self.recorded])[0]

    @property
    def kernel(self) -> Any:
        """The kernel."""
        return self.recorded.launch.kernel

    @property
    def arguments(self) -> tuple:
        """The Numba types of its arguments."""
        return self.signature.types

    @property
    def threads(self) -> int:
        """Threads per block."""
        return int(np.prod(self.recorded.launch.block))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory per block."""
        return self.recorded.launch.shared_bytes

    @property
    def registers(self) -> int:
        """The register budget: the most registers per thread with which `blocks` of these blocks fit on an SM."""
        return registers_for(self.blocks * -(-self.threads // WARP))

    def compile(self, compute_capability: tuple[int, int]) -> Any:
        """The CompiledKernel for one target, from the disk cache if it is there."""
        return self.kernel.compile(*self.arguments, compute_capability=compute_capability)


# Units of measured rows.
TB_S, TFLOP_S, MICROSECONDS, TOKENS_US = "TB/s", "TFLOP/s", "µs", "tokens/µs"
ONE_SET = 2**40  # set_bytes that fill any cache, for kernels that read almost nothing: one set of inputs is enough


@dataclass(frozen=True)
class Measured:
    """A row of `minllm bench kernels`: a launch, the row's variant and case, and its unit.

    benchmark: the stage if "". stage: the launch's if ""; or "quantised". work, set_bytes, tokens: as in bench/kernel_case.py; None: the
    launch's bytes. peers: names from bench/torch_peers.py, which get the arrays. tolerance: the largest relative error; None: that of the
    dtype, 0 for exact results. sample: the number of tokens that the reference computes, of a launch with `rows`. rival: another launch for
    the same work, on arrays of its own, which is measured in turn with this one. for_tuning: only whoever changes the kernel needs the row.
    """

    launch: Launch
    variant: str
    case: str
    benchmark: str = ""
    stage: str = ""
    unit: str = TB_S
    work: int | None = None
    set_bytes: int | None = None
    peers: tuple[str, ...] = ()
    tolerance: float | None = None
    tokens: int = 0
    sample: int = 64
    rival: Launch | None = None
    for_tuning: bool = False


def for_tuning(rows: Iterable[Measured]) -> Iterator[Measured]:
    """The rows as ones that the record does without."""
    return (replace(row, for_tuning=True) for row in rows)


def each_array(arrays: Any, change: Callable[[np.ndarray], Any]) -> Any:
    """The host arrays in a NamedTuple or a list, or one of them, changed; anything else stays."""
    if isinstance(arrays, tuple) and hasattr(arrays, "_fields"):
        return type(arrays)(*(each_array(one, change) for one in arrays))
    if isinstance(arrays, (list, tuple)):
        return type(arrays)(each_array(one, change) for one in arrays)
    return change(arrays) if isinstance(arrays, np.ndarray) else arrays


def on_device(ops: Any, arrays: Any) -> Any:
    """The host arrays in a NamedTuple or a list, or one of them, as ops.array places them; anything else stays."""
    return each_array(arrays, ops.array)


class DryRunArrays:
    """The `ops` of a dry run: arrays with addresses and without memory."""

    stream = None

    def __init__(self):
        self.memory = DeviceMemory(Addresses(), caching=False)
        self.empty = self.zeros = self.memory.empty

    def array(self, host: np.ndarray) -> Any:
        """An array of this shape and dtype."""
        return self.empty(host.shape, host.dtype)


@functools.cache
def device_of(target: tuple[int, int]) -> Device:
    """The GPU that stands for a compute capability, as the driver would describe it."""
    sheet = find_gpu(GPUS[target])
    memory, cache = int(sheet.memory_gb * 1e9), int(sheet.l2_mb * 2**20)
    return Device(0, GPUS[target], target, sm_count=sheet.multiprocessors, total_memory=memory, l2_bytes=cache)
