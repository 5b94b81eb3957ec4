"""Explain Python's errors in a kernel: the line that raised them, and what a GPU would do there."""

import linecache
import traceback

import numpy as np

from minllm.errors import SimulationError
from minllm.sim.place import file_of, is_own

OF_SIMULATOR = {"MonitoredArray": "array", "CheckedArray": "array", "CountedArray": "array", "SimulatedCuda": "numba.cuda"}
KNOWN = {
    ZeroDivisionError: "an integer is divided by 0, whose result no GPU defines",
    UnboundLocalError: "the variable {name!r} is read here and has not been assigned: no statement that assigns it has run before",
    NameError: "the name {name!r} is not defined: neither in the kernel nor outside of it",
    RecursionError: "device functions call each other too deeply: a GPU's stack ends much earlier",
}


def explained(error, thread):
    """A Python error in a kernel as a SimulationError with its position; the error itself if the kernel raises or asserts."""
    frame, line = place_of_error(error)
    if isinstance(error, AssertionError) or linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise"):
        return error
    where = f"{file_of(frame.f_code)}:{line} in {frame.f_code.co_name}, {thread.block}, thread {tuple(thread.index)}"
    return SimulationError(f"{reason(error)} ({where})")


def place_of_error(error):
    """(frame, line) of the innermost call of kernel code, without the simulator's and NumPy's calls from there."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        own = is_own(frame.f_code.co_filename)
        if own and found is not None:
            break
        found = found if own else (frame, line)
    return found or next(traceback.walk_tb(error.__traceback__))


def reason(error):
    """A clause that says what is wrong."""
    text = str(error)
    for kind, words in KNOWN.items():
        if isinstance(error, kind):
            return words.format(name=getattr(error, "name", None) or name_in(text))
    if isinstance(error, ValueError) and text == "negative shift count":
        return "a shift by a negative number of bits, which is undefined"
    if isinstance(error, np._core._exceptions.UFuncTypeError):
        given = " and ".join(kind_name(kind) for kind in error.dtypes if kind is not None)
        text = f"{error.ufunc.__name__} of {given} is not defined"
    for name, words in OF_SIMULATOR.items():
        text = text.replace(f"'{name}' object", words).replace(f"'{name}'", f"'{words}'")
    return f"the simulator cannot execute this line: {text}"


def name_in(text):
    """The name in quotes in a message of Python."""
    return text.split("'")[1] if text.count("'") > 1 else text


def kind_name(kind):
    """The name of a dtype, or of the class of one."""
    name = (kind if isinstance(kind, type) else type(kind)).__name__.removesuffix("DType").lower()
    return {"str": "a string", "object": "an object"}.get(name, name)
