"""Find the position of an event in a kernel: its frame, line and instruction, and the names of arrays."""

import dis
import functools
import os

PACKAGE = os.path.dirname(os.path.dirname(__file__))
OWN_DIRECTORIES = tuple(os.path.join(PACKAGE, folder, "") for folder in ("sim", "ptx"))


@functools.cache
def is_own(filename):
    """Whether a file belongs to the simulator or to minllm/ptx instead of a kernel."""
    return filename.startswith(OWN_DIRECTORIES)


def kernel_frame(frame):
    """The innermost frame of a kernel or device function at or above `frame`; None if there is none."""
    while frame is not None and is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def cached_by_code(function):
    """A cache for a function of a code object, by the object's identity, because hashing a code object reads all its instructions."""
    known = {}

    @functools.wraps(function)
    def cached(code, *rest):
        key = id(code), *rest
        if key not in known:
            known[key] = code, function(code, *rest)  # keeps the code object alive, so that no other gets its id
        return known[key][1]

    return cached


def file_of(code):
    """The file of a code object; "cell" for a notebook's cell, because its temporary file has no meaningful name."""
    folder = os.path.basename(os.path.dirname(code.co_filename))
    return "cell" if folder.startswith("ipykernel_") else code.co_filename


def file_and_function(code):
    """Where the lines of a code object are, as text, `file, function`."""
    return f"{os.path.basename(file_of(code))}, {code.co_name}"


def describe(frame):
    """The position of a frame as text, `file:line in function`."""
    return f"{file_of(frame.f_code)}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else "unknown place"


def describe_instruction(code, offset):
    """The position of the instruction at byte `offset` of a code object as text, `file:line in function`."""
    line = next((line for start, stop, line in code.co_lines() if start <= offset < stop), None)
    return f"{file_of(code)}:{line} in {code.co_name}"


@cached_by_code
def instruction_starts(code):
    """For each two bytes of a code object, the offset at which their instruction begins.

    Once the interpreter has specialised an instruction, a frame's `f_lasti` may point past it, into its inline caches; the offset at which
    the instruction begins is the same for all frames.
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


def item_names(items, name):
    """The names of the items of an argument that is a tuple: `name.field` or `name[0]`."""
    return [f"{name}.{field}" for field in getattr(items, "_fields", ())] or [f"{name}[{number}]" for number in range(len(items))]


_code_numbers = {}


@cached_by_code
def code_number(code):
    """A number for a code object, the same for equal code objects: type inference may make several equal ones of one device function."""
    return _code_numbers.setdefault(code, len(_code_numbers))


@cached_by_code
def assigned_name(code, offset):
    """The local variable to which the result of the call at byte `offset` is assigned, or "" if there is none."""
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset and instruction.opname not in ("CACHE", "NOP"):
            if instruction.opname.startswith("STORE_") and instruction.argval is not None:
                name = instruction.argval
                return name[0] if isinstance(name, tuple) else str(name)
            return ""
    return ""


@cached_by_code
def assigned_at(code, position):
    """assigned_name for the call that a frame executes; position: the frame's `f_lasti`."""
    return assigned_name(code, instruction_starts(code)[position >> 1])
