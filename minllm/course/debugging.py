"""The debugger on a page: its commands are typed by the lesson, and shown as if a reader had typed them.

    debugger = typed_debugger("p i", "next", "continue")
    ...
    debugger.set_trace()          # inside a kernel that the simulator runs

A reader writes `breakpoint()` in that place.
"""

import io
import pdb
import re
import sys


class Typed(io.StringIO):
    """Lines for a debugger, which print themselves as they are read."""

    def readline(self, *size):
        """The next line."""
        line = super().readline(*size)
        sys.stdout.write(line)
        return line


def typed_debugger(*commands: str) -> pdb.Pdb:
    """A debugger that takes these commands. Notebooks put a coloured one in pdb's place; this is always Python's own."""
    plain = next(kind for kind in pdb.Pdb.__mro__ if kind.__module__ == "pdb")

    class Debugger(plain):
        def format_stack_entry(self, frame_lineno, lprefix=": "):
            """A notebook's cell is called so: its temporary file's name is another one each time."""
            return re.sub(r"^\S*/ipykernel_\d+/\d+\.py", "cell", super().format_stack_entry(frame_lineno, lprefix))

    return Debugger(stdin=Typed("".join(f"{command}\n" for command in commands)), stdout=sys.stdout, nosigint=True, readrc=False)
