"""Where in a kernel something happened: its frame, line, and names of arrays."""

import dis
import functools
import os

PACKAGE = os.path.dirname(os.path.dirname(__file__))
OWN_DIRECTORIES = tuple(os.path.join(PACKAGE, folder, "") for folder in ("sim", "ptx"))


class OwnFiles(dict):
    """{file name: whether it belongs to the simulator or to an emulated instruction}; a string's hash is quicker than a code object's."""

    def __missing__(self, name):
        self[name] = name.startswith(OWN_DIRECTORIES)
        return self[name]


own_files = OwnFiles()


def is_own(code):
    """Whether a code object belongs to the simulator or to an emulated instruction, not to a kernel."""
    return own_files[code.co_filename]


def kernel_frame(frame):
    """The innermost frame of a kernel or device function at or above `frame`; None if there is none."""
    while frame is not None and own_files[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def file_of(code):
    """The file of a code object; "cell" for a notebook's cell, whose temporary file has no meaningful name."""
    folder = os.path.basename(os.path.dirname(code.co_filename))
    return "cell" if folder.startswith("ipykernel_") else code.co_filename


def describe(frame):
    """`file:line in function` of a frame."""
    return f"{file_of(frame.f_code)}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else "unknown place"


def describe_instruction(code, offset):
    """`file:line in function` of the instruction at byte `offset` of a code object."""
    line = next((line for start, stop, line in code.co_lines() if start <= offset < stop), None)
    return f"{file_of(code)}:{line} in {code.co_name}"


@functools.cache
def instruction_starts(code):
    """For each two bytes of a code object, the offset at which their instruction begins.

    Once the interpreter has specialised an instruction, a frame's `f_lasti` may point behind it, at the interpreter's inline caches;
    the offset at which it begins is the same for all frames.
    """
    starts, begun = [], 0
    offsets = {instruction.offset for instruction in dis.get_instructions(code)}
    for offset in range(0, len(code.co_code), 2):
        begun = offset if offset in offsets else begun
        starts.append(begun)
    return starts


def instruction(frame):
    """(code, offset) of the instruction that a frame executes."""
    return frame.f_code, instruction_starts(frame.f_code)[frame.f_lasti >> 1]


@functools.cache
def assigned_name(code, offset):
    """The local variable to which the result of the call at byte `offset` is assigned, or "" if there is none."""
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset and instruction.opname not in ("CACHE", "NOP"):
            if instruction.opname.startswith("STORE_") and instruction.argval is not None:
                name = instruction.argval
                return name[0] if isinstance(name, tuple) else str(name)
            return ""
    return ""
