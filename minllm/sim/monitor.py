"""The interface of monitors, which observe a simulation.

Detectors and tracers subclass Monitor and are passed as `simulate(..., monitors=[...])`. Without monitors nothing here is called: arrays
then have a class that does not report, and the machine checks for None.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Launch:
    """A launch. shared_bytes: dynamic shared memory per block; arrays: {argument name: array}."""

    kernel: Any
    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    arrays: dict[str, Any] = field(default_factory=dict)


MEMORY_ORDERING = "syncwarp"  # the only warp-wide instruction that orders its lanes' memory accesses (PTX ISA, "bar.warp.sync")
NO_MORE = object()  # returned by a monitor's `access` that needs no further reports of this array


class Monitor:
    """The events of a simulation, one method each; a subclass overrides those that it needs, and all others do nothing.

    `thread` is a thread.Thread (.number, .index, .lane, .warp, .block), `block` a machine.Block, `warp` a machine.Warp, `frame` the
    kernel's Python frame: file and line, and `f_lasti`, which together with `f_code` identifies one instruction. Read a frame at once,
    because it continues to run.
    """

    scalar_type = None  # optional: Numba type -> the cast that kernels use instead of the usual one
    scalar_argument = None  # optional: a function of each number that the kernel is launched with; its result is passed instead
    spaces = ("global", "shared", "local", "constant")  # memory spaces of which accesses are reported
    all_must_meet = False  # whether threads that have returned keep a barrier of the whole grid from completing
    array_class = None  # optional: a subclass of monitored_arrays.MonitoredArray for the kernel's arrays

    def start(self, launch):
        """The launch is about to begin."""

    def start_block(self, block):
        """The threads of `block` are about to run."""

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        """A thread reads, writes or atomically changes memory: kind is "read", "write" or "atomic".

        thread.ordering: "relaxed", "acquire" or "release" if the access is an atomic of system scope, else None (system_scope.py).
        array: .space is "global", "shared", "local" or "constant", .name the argument or variable, .root the whole array of a slice or
        view. The dict `array.root.notes` is for data that must live as long as the memory. A monitor that needs no further reports of
        `array` may return NO_MORE.
        start_byte: offset from the start of the root array; for shared memory, the shared address.
        """

    def accesses(self, thread, array, start_bytes, byte_count, kind, frame):
        """Accesses of `byte_count` bytes each, in the order of a list of start bytes."""
        for start_byte in start_bytes:
            self.access(thread, array, start_byte, byte_count, kind, frame)

    def wrapped_store(self, array, element, exact):
        """The integer `exact` did not fit and was stored as `element`. Returns a Carrier that reads return instead of it, or None."""

    def undefined(self, value, why, place):
        """The instruction at `place` gives a lane an undefined value. Returns what the lane gets instead of `value`, or None."""

    def undefined_result(self, why):
        """The running thread computes something for which no GPU promises a result: a division by 0, a shift beyond the width."""

    def index(self, thread, array, index):
        """A thread is about to use an index that is negative, or no int or tuple of ints; bounds have not been checked yet."""

    def barrier(self, block, threads):
        """All living threads of a block have met at a barrier, and now continue."""

    def grid_barrier(self):
        """All threads of a cooperative grid have met, and now continue; `barrier` of each block follows."""

    def fence(self, thread, system=False):
        """A thread's earlier accesses to global memory are visible to other blocks before its later ones; system: to other GPUs too."""

    def collective(self, warp, kind, lanes, mask, frame):
        """The lanes of `mask` have met at a warp-wide instruction, such as "shfl"."""

    def sleep(self, thread):
        """A thread sleeps (cuda.nanosleep) before it reads the same memory again."""

    def release(self, thread, thing):
        """A release: an acquire of `thing` makes the thread's earlier accesses visible."""

    def acquire(self, thread, thing):
        """An acquire: `thread` sees all that was released to `thing` so far."""

    def arrives(self, thread, thing):
        """A relaxed arrival: an acquire of `thing` shows that the thread has come this far, but makes no access visible."""

    def visits(self, thread, block):
        """A thread is about to access shared memory of another block of its cluster, or an mbarrier there."""

    def exits(self, block):
        """The last thread of a block has ended; other blocks of its cluster may still run."""

    def uses_mbarrier(self, thread, offset, initialises):
        """A thread initialises the mbarrier at a shared address of its block, or is about to use it."""

    def waits(self, thread, barrier, phase):
        """A thread is about to wait for a phase, by its number, of an mbarrier.MBarrier, and the phase has not completed yet."""

    def flops(self, thread, count, kind):
        """FLOPs of a warp-wide instruction named `kind`, reported by one thread."""

    def asynchronous(self, thread, event, array, start_byte, byte_count, frame):
        """An event of asynchronous copies into shared memory.

        "cp_async": a copy starts; it is in flight until the thread's `access` of kind "write" to the same bytes. "bulk": a bulk copy
        starts; it is in flight until its transfer ends. "st_async": a store to another block of the cluster starts; it is in flight until
        the `access` to the same bytes of that block. "cp_async_commit_group", and "cp_async_wait_group_N", about to wait until at most
        N groups are in flight, have 0 bytes.
        """

    def registers_taken(self, array):
        """The running thread has started a wgmma that reads or writes registers of this local array (transfer.RegisterUse)."""

    def transfer_starts(self, transfer):
        """An asynchronous transfer.Transfer of shared memory begins: a bulk copy or store, cp.async, wgmma."""

    def transfer_ends(self, transfer, threads, thing):
        """A transfer is complete for `threads`, and for threads that acquire `thing`."""

    def store_starts(self, store):
        """A bulk store (asynchrony.BulkStore) begins; `access` has reported its writes to global memory."""

    def store_ends(self, store):
        """A bulk store has written global memory."""

    def end_block(self, block):
        """All threads of `block` have ended."""

    def end(self):
        """All blocks have ended."""

    def traced(self, trace):
        """The launch has ended in lanes, with this Trace. Only a monitor that overrides this method can do without the other events."""

    def stopped(self, error):
        """The launch has stopped with an error; a monitor may raise another that explains it."""


HOOKS = [name for name, value in vars(Monitor).items() if not name.startswith("_") and callable(value)]


class Monitors(Monitor):
    """Several monitors as one: each event is passed to the monitors that override its method, in the order given."""

    def __init__(self, monitors):
        self.monitors = list(monitors)
        self.scalar_type = next((monitor.scalar_type for monitor in self.monitors if monitor.scalar_type is not None), None)
        self.scalar_argument = next((one.scalar_argument for one in self.monitors if one.scalar_argument is not None), None)
        self.array_class = next((monitor.array_class for monitor in self.monitors if monitor.array_class is not None), None)
        self.all_must_meet = any(monitor.all_must_meet for monitor in self.monitors)
        for name in HOOKS:
            setattr(self, name, in_turn([getattr(monitor, name) for monitor in self.monitors if hears(monitor, name)]))
        self.report_to = {space: self.reports_of(space) for space in Monitor.spaces}  # space -> functions that its arrays call
        self.access, self.accesses = self.route, self.route_all

    def route(self, thread, array, *rest):
        """Report an access to the monitors of the array's space."""
        for report in self.report_to[array.space]:
            report(thread, array, *rest)

    def route_all(self, thread, array, *rest):
        """Report accesses to the monitors of the array's space."""
        for monitor in self.monitors:
            if hears(monitor, "access") and array.space in monitor.spaces:
                monitor.accesses(thread, array, *rest)

    def reports_of(self, space):
        """The functions to which accesses to memory of this space are reported."""
        return tuple(monitor.access for monitor in self.monitors if hears(monitor, "access") and space in monitor.spaces)


def hears(monitor, name):
    """Whether a monitor overrides the method of this name."""
    return getattr(type(monitor), name) is not getattr(Monitor, name)


def in_turn(methods):
    """A function that calls all `methods` in order; a single method is returned as it is."""
    if len(methods) == 1:
        return methods[0]

    def call(*arguments):
        for method in methods:
            method(*arguments)

    return call


def combined(monitors):
    """All monitors as one, or None if there are none."""
    monitors = list(monitors)
    return Monitors(monitors) if monitors else None
