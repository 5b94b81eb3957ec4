"""Explain Python's errors in a kernel: the line that raised them, and what a GPU would do there."""

import dis

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
    """A Python error in a kernel as a SimulationError with its position; the error itself, with a note, if the kernel raises or asserts."""
    frame, line, instruction = place_of_error(error)
    where = f"{file_of(frame.f_code)}:{line} in {frame.f_code.co_name}, {thread.block}, thread {tuple(thread.index)}"
    if dis.opname[frame.f_code.co_code[instruction]] == "RAISE_VARARGS":
        error.add_note(f"The kernel raises it ({where}); a GPU reports it only if the kernel is compiled with debug=True.")
        return error
    return SimulationError(f"{reason(error)} ({where})")


def place_of_error(error):
    """(frame, line, instruction) of the innermost call of kernel code, without the simulator's and NumPy's calls from there."""
    found = None
    first = step = error.__traceback__
    while step is not None:
        own = is_own(step.tb_frame.f_code.co_filename)
        if own and found is not None:
            break
        found, step = found if own else step, step.tb_next
    found = found or first
    return found.tb_frame, found.tb_lineno, found.tb_lasti


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
