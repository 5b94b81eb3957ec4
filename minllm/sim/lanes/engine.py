"""Run a launch in lanes, or say why the threads must run it."""

import functools

import numpy as np

from minllm.errors import SimulationError
from minllm.machine.numba_cuda import types
from minllm.sim.arrays import CheckedArray
from minllm.sim.lanes.arrays import of_host, overlap
from minllm.sim.lanes.carried import channels_of
from minllm.sim.lanes.faults import BlocksMeet, Fault, NotInLanes
from minllm.sim.lanes.fibre_watch import FibreWatch
from minllm.sim.lanes.fibres import run_in_fibres
from minllm.sim.lanes.generate import lane_form
from minllm.sim.lanes.operations import wrapped
from minllm.sim.lanes.state import Lanes
from minllm.sim.lanes.trace import LaneTracer
from minllm.sim.lanes.watch import Watch
from minllm.sim.place import item_names
from minllm.sim.progress import shown
from minllm.sim.rewrite import kernel_inference, plain_function
from minllm.sim.scalars import simulated_type

UNFORESEEN = "an error of the lanes"
SUSPICION = "a possible fault"
WIDEST = 16  # bytes of an access
FEW_THREADS = 8  # launches of fewer threads take longer in lanes
MOST_LANES = 4096  # in one vector, if several blocks fit


class LaneLaunch:
    """One launch. changed: the roots that it has written, in order; stored: names of arrays that the kernel is known to write."""

    def __init__(self, how, names, arguments, indices, detect, resident, traced):
        self.grid, self.block, self.shared_bytes = how.grid, how.block, how.shared_bytes
        self.changed, self.roots, self.watch = [], [], None
        self.named, self.tracer = {}, None  # named: {argument: (NumPy array, bytes from its first to its last)}
        self.owners = {}  # id of a CheckedArray that instructions take -> (it, its Root, its lane if the Root is local)
        if len(indices) * self.block.x * self.block.y * self.block.z < FEW_THREADS:
            raise NotInLanes(f"fewer than {FEW_THREADS} threads")
        function = plain_function(how.kernel)
        inference = kernel_inference(how.kernel, how.types)
        if inference is None:
            raise NotInLanes("the kernel's source is not available")
        self.inference = inference
        if detect in inference.__dict__.get("in_vain", ()):
            raise NotInLanes("the checks of an earlier launch have sent it to the threads in vain")
        self.form = lane_form(inference, (False, channels_of(inference)) if detect else None, traced)
        self.stored = inference.__dict__.setdefault("stored", set())
        self.arguments = [self.prepare(*one) for one in zip(arguments, how.types, names)]
        self.alone = overlap(self.roots)
        self.resident = resident
        if detect and any(root.shift % WIDEST for _, _, root in self.roots):
            raise NotInLanes("arrays that overlap and begin between words of each other, under detectors")
        in_fibres = self.form.by_threads or how.cluster is not None
        self.run = self.run_in_fibres if in_fibres else self.run_blocks
        self.make_watch = functools.partial(FibreWatch if in_fibres else Watch, self, how, function) if detect else lambda: None
        self.make_tracer = functools.partial(LaneTracer, self, plain_function(how.kernel).__name__) if traced else lambda: None

    def prepare(self, argument, kind, name):
        """An argument as the lane form takes it."""
        if isinstance(argument, np.ndarray):
            made = of_host(argument, name, "global", self.roots)
            self.named[name] = argument, made.root.flat.nbytes
            return made
        if isinstance(argument, tuple):
            kinds = tuple(kind) if isinstance(kind, types.BaseTuple) else (None,) * len(argument)
            items = [self.prepare(*one) for one in zip(argument, kinds, item_names(argument, name))]
            return type(argument)._make(items) if hasattr(argument, "_make") else tuple(items)
        if argument is None:
            return None
        if isinstance(kind, (types.Number, types.Boolean)) and isinstance(argument, (int, float, np.number, np.bool_)):
            number = simulated_type(kind)(argument)
            return wrapped(number) if type(number) is int else number
        if hasattr(argument, "with_array"):  # an object that holds an array: a tensor map
            return argument.with_array(lambda array: self.checked(self.prepare(array, None, name), array, name))
        raise NotInLanes(f"an argument of type {type(argument).__name__}")

    def checked(self, of, array, name):
        """The CheckedArray of a host's array. of: its LaneArray, whose memory the detectors know."""
        made = CheckedArray(array, "global", of.offset * of.itemsize, name)
        self.owners[id(made)] = made, of.root, None
        return made

    def save_all(self):
        """Keep the contents of all memory that the launch may write."""
        for _, _, root in self.roots:
            if root.writable:
                root.saved = root.flat.copy()
                self.changed.append(root)

    def run_in_fibres(self, how, indices):
        """Run all blocks or clusters, one after the other."""
        run_in_fibres(self, how, indices, self.resident)

    def run_blocks(self, how, indices):
        """Run all blocks, several in one vector if they do not touch the same memory."""
        threads = self.block.x * self.block.y * self.block.z
        most = 1 if self.alone else max(1, MOST_LANES // threads)
        first, self.watch, self.tracer = 0, self.make_watch(), self.make_tracer()
        while first < len(indices):
            # The first block runs alone, which tells what the kernel writes.
            count = 1 if first == 0 and not self.stored else min(most, len(indices) - first)
            for _, _, root in self.roots:
                root.writer = root.reader = None
            lanes = Lanes(self, indices[first : first + count], first)
            try:
                self.form(lanes, *self.arguments)
                if self.watch is not None:
                    self.watch.end_vector(lanes)
                if self.tracer is not None:
                    self.tracer.end_log(lanes.traced)
            except (BlocksMeet, NotInLanes) as reason:  # what differs between blocks may be the same within each
                if count == 1 and isinstance(reason, NotInLanes):
                    raise
                self.undo()
                self.alone = self.alone or count > 1
                most, first, self.watch, self.tracer = 1 if self.alone else most, 0, self.make_watch(), self.make_tracer()
                continue
            first += count
            self.progress.done = first
        if self.watch is not None:
            self.watch.end()

    def trace(self, timeline):
        """The Trace of the launch, which has ended; None if it was not traced. timeline: see run_in_lanes."""
        if self.tracer is None:
            return None
        trace = self.tracer.finish()
        if self.tracer.steps:
            self.as_before(lambda: timeline(self.tracer.steps).add_to(trace))
        return trace

    def as_before(self, function):
        """Call a function while all memory has its contents from before the launch."""
        results = [(root, root.flat.copy()) for root in self.changed]
        for root in reversed(self.changed):
            root.flat[:] = root.saved
        function()
        for root, contents in results:
            root.flat[:] = contents

    def undo(self):
        """Give all memory its contents from before the launch."""
        for root in reversed(self.changed):
            root.flat[:] = root.saved
            root.saved = None
        for _, _, root in self.roots:
            root.loaded, root.notes = False, {}
        self.changed = []


def was_in_vain(how, detect):
    """Note that the threads have found nothing wrong with a launch that the checks under these detectors had sent to them."""
    inference = kernel_inference(how.kernel, how.types)
    if inference is not None:
        inference.__dict__.setdefault("in_vain", set()).add(detect)


def disagree(how, why):
    """Raise SimulationError for a launch in which the lanes have failed and the threads have found nothing wrong."""
    raise SimulationError(
        f"{UNFORESEEN} in {plain_function(how.kernel).__name__}, which the threads have run without a complaint "
        f"({why.removeprefix(UNFORESEEN + ': ')}). The fault is minllm's, please report it; the arrays hold the threads' results. "
        'To go on, run the kernel with engine="threads", or set MINLLM_SIM_ENGINE=threads.'
    )


def run_in_lanes(how, names, arguments, indices, detect=False, resident=1, timeline=None):
    """Run a launch in lanes; returns (None, or why the threads must run it, with all memory as before; its Trace or None).

    timeline: if the launch is to be traced, a function that runs its first n blocks or clusters in threads; returns their Timeline.
    """
    launch = None
    try:
        launch = LaneLaunch(how, names, arguments, indices, detect, resident, timeline is not None)
        with np.errstate(all="ignore"), shown(plain_function(how.kernel).__name__, len(indices)) as launch.progress:
            launch.run(how, indices)
        return None, launch.trace(timeline)
    except NotInLanes as reason:
        why = str(reason)
    except (Fault, SimulationError) as reason:
        why = f"{SUSPICION}: {reason}"
    except Exception as error:  # what the generated code does not foresee: a mistake of the kernel, or ours
        why = f"{UNFORESEEN}: {type(error).__name__}: {error}"
    if launch is not None:
        launch.undo()
    return why, None
