"""Spread the blocks of a launch over processes, which share its arrays as files that each process maps into its memory.

It works for kernels without communication between blocks. Global atomics are refused, because they would not be atomic between processes.

Processes are forked if the system supports it. Windows does not: there a new Python starts, and receives the kernel pickled by value, with
its closure and its device functions. A script that spreads a launch then needs `if __name__ == "__main__":`, as for any use of
multiprocessing.
"""

import importlib.util
import io
import multiprocessing
import pickle
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import cloudpickle
from numba.cuda.dispatcher import CUDADispatcher as Dispatcher

from minllm.errors import SimulationError
from minllm.machine.numba_cuda import _Intrinsic

START_METHOD = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


def check_spreading(monitors, cluster, names):
    """Raise SimulationError if a launch has to stay in one process."""
    reason = None
    if monitors:
        reason = "its monitors are to see all blocks"
    elif cluster is not None:
        reason = "it runs by clusters"
    elif names & {"atomic", "this_grid"}:
        reason = f"its blocks speak to each other ({', '.join(sorted(names & {'atomic', 'this_grid'}))})"
    if reason:
        raise SimulationError(f"a launch cannot be spread over processes: {reason}; leave `processes` at 1")


def spread(run_share, arguments, processes):
    """Call run_share(arguments, number) in each process, number = 0, 1, ..., and copy the arrays back. Raises the first error."""
    context = multiprocessing.get_context(START_METHOD)
    with tempfile.TemporaryDirectory(prefix="minllm-launch-") as folder:
        files = ArrayFiles(Path(folder))
        task = run_share, [replaced(argument, files.write) for argument in arguments]
        sent = task if START_METHOD == "fork" else pickled(task)
        workers = []
        for number in range(processes):
            receiver, sender = context.Pipe(duplex=False)
            worker = context.Process(target=work, args=(sent, number, sender))
            worker.start()
            sender.close()
            workers.append((worker, receiver))
        errors = [result(receiver) for _, receiver in workers]
        for worker, _ in workers:
            worker.join()
        files.read_back()
    for error in errors:
        if error is not None:
            raise error


@dataclass(frozen=True)
class ArrayFile:
    """A file with the elements of an array of a launch, in C order."""

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    kind: type  # the subclass of np.ndarray
    is_writeable: bool

    def mapped(self):
        """The array in memory that all processes of the launch share."""
        memory = np.memmap(self.path, np.uint8, "r+" if self.is_writeable else "r")
        return memory.view(np.ndarray).view(self.dtype).reshape(self.shape).view(self.kind)


class ArrayFiles:
    """The files of a launch's arrays, one per array."""

    def __init__(self, folder):
        self.folder, self.files = folder, {}  # id of an array -> (the array, its ArrayFile)

    def write(self, array):
        """The ArrayFile of an array; an empty array is returned unchanged."""
        if not array.size:
            return array
        if id(array) not in self.files:
            file = ArrayFile(self.folder / str(len(self.files)), array.dtype, array.shape, type(array), array.flags.writeable)
            file.path.write_bytes(np.ascontiguousarray(array).view(np.ndarray).reshape(-1).view(np.uint8).data)
            self.files[id(array)] = array, file
        return self.files[id(array)][1]

    def read_back(self):
        """Copy the results of the processes from the files to the caller's arrays."""
        for array, file in self.files.values():
            if file.is_writeable:
                array[...] = np.fromfile(file.path, np.uint8).view(file.dtype).reshape(file.shape)


def replaced(argument, change):
    """An argument with `change` applied to each NumPy array or ArrayFile in it: itself, in a tuple, or in a tensor map."""
    if isinstance(argument, tuple):
        made = [replaced(one, change) for one in argument]
        return type(argument)._make(made) if hasattr(argument, "_make") else tuple(made)
    if hasattr(argument, "with_array"):
        return argument.with_array(change)
    return change(argument) if isinstance(argument, (np.ndarray, ArrayFile)) else argument


def mapped(value):
    """The array of an ArrayFile; an array is returned unchanged."""
    return value.mapped() if isinstance(value, ArrayFile) else value


def work(sent, number, sender):
    """Run one share of the blocks in a worker process, and send None or the exception."""
    error = None
    try:
        run_share, arguments = pickle.loads(sent) if isinstance(sent, bytes) else sent
        run_share([replaced(argument, mapped) for argument in arguments], number)
    except Exception as raised:  # the parent process raises it
        error = raised
    try:
        pickle.dumps(error)
    except Exception:
        error = SimulationError(f"{type(error).__name__}: {error}")
    sender.send(error)
    sender.close()


def result(receiver):
    """The None or exception that a worker has sent, or a SimulationError if it ended without sending."""
    try:
        return receiver.recv()
    except EOFError:
        guard = "; a script must launch under `if __name__ == '__main__':` here" if START_METHOD == "spawn" else ""
        return SimulationError(f"a process that simulated some of the blocks ended before it was done{guard}")


def pickled(task):
    """A task for a process that inherits nothing. Raises SimulationError if something in it cannot be sent."""
    stream = io.BytesIO()
    try:
        LaunchPickler(stream).dump(task)
    except Exception as error:
        raise SimulationError(
            f"a launch cannot be spread over processes: its kernel or an argument cannot be sent to another process ({error}); "
            "leave `processes` at 1"
        ) from None
    return stream.getvalue()


class LaunchPickler(cloudpickle.Pickler):
    """Pickles functions by value, but kernels, device functions and intrinsics of an importable module by name.

    Numba's own pickling of device functions and intrinsics would lose the emulations of the intrinsics.
    """

    def reducer_override(self, value):
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
        is_object = callable(value) and not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
        if is_object and isinstance(name, str) and getattr(sys.modules.get(module), name, None) is value and is_importable(module):
            return named, (module, name)
        if isinstance(value, Dispatcher):
            return Dispatcher, (value.py_func, value.targetoptions)
        if isinstance(value, _Intrinsic) and hasattr(value, "emulation"):
            return *value.__reduce__(), {"emulation": value.emulation}
        return super().reducer_override(value)


def is_importable(module):
    """Whether another process can import a module of this one."""
    try:
        return module != "__main__" and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def named(module, name):
    """The object with this name in a module."""
    return getattr(importlib.import_module(module), name)
