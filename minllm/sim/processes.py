"""A launch spread over processes, which share the arrays in host memory.

It works for kernels whose blocks do not communicate. Global atomics are refused, because they would not be atomic between processes.
"""

import mmap
import multiprocessing
import pickle

import numpy as np

from minllm.errors import SimulationError


def check_spreading(monitors, cluster, names):
    """Raise SimulationError if a launch has to stay in one process."""
    reason = None
    if "fork" not in multiprocessing.get_all_start_methods():
        reason = "this system cannot fork"
    elif monitors:
        reason = "its monitors are to see all blocks"
    elif cluster is not None:
        reason = "it runs by clusters"
    elif names & {"atomic", "this_grid"}:
        reason = f"its blocks speak to each other ({', '.join(sorted(names & {'atomic', 'this_grid'}))})"
    if reason:
        raise SimulationError(f"a launch cannot be spread over processes: {reason}; leave `processes` at 1")


class SharedArguments:
    """A launch's arguments, with every array copied once to memory that forked processes share."""

    def __init__(self, arguments):
        self.copies = {}  # id of the caller's array -> (that array, its copy)
        self.arguments = [self.share(argument) for argument in arguments]

    def share(self, argument):
        """The copy of an array, or of the array that an argument holds; other arguments unchanged."""
        if hasattr(argument, "with_array"):
            return argument.with_array(self.share)
        if not isinstance(argument, np.ndarray) or not argument.size:
            return argument
        if id(argument) not in self.copies:
            memory = np.frombuffer(mmap.mmap(-1, argument.nbytes), np.uint8)
            copy = memory.view(argument.dtype).reshape(argument.shape).view(type(argument))
            copy[...] = argument
            self.copies[id(argument)] = argument, copy
        return self.copies[id(argument)][1]

    def run(self, steps, processes):
        """Run the steps in processes, and copy the arrays back. Raises the first error."""
        context = multiprocessing.get_context("fork")
        workers = []
        for number in range(min(processes, len(steps))):
            receiver, sender = context.Pipe(duplex=False)
            worker = context.Process(target=work, args=(steps[number::processes], sender))
            worker.start()
            sender.close()
            workers.append((worker, receiver))
        errors = [result(receiver) for _, receiver in workers]
        for worker, _ in workers:
            worker.join()
        for original, copy in self.copies.values():
            if original.flags.writeable:
                original[...] = copy
        for error in errors:
            if error is not None:
                raise error


def work(steps, sender):
    """Run the steps in a worker process, and send None or the exception."""
    error = None
    try:
        for step in steps:
            step()
    except Exception as raised:  # the parent process raises it
        error = raised
    try:
        pickle.dumps(error)
    except Exception:
        error = SimulationError(f"{type(error).__name__}: {error}")
    sender.send(error)
    sender.close()


def result(receiver):
    """What a worker has sent, or an error if it ended without sending."""
    try:
        return receiver.recv()
    except EOFError:
        return SimulationError("a process that simulated some of the blocks ended before it was done")
