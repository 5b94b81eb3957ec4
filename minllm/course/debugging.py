"""A debugger for lesson pages: the lesson supplies its commands, which appear as if typed by a reader.

    debugger = typed_debugger("p i", "next", "continue")
    ...
    debugger.set_trace()          # inside a kernel that the simulator runs

A reader would write `breakpoint()` there.
"""

import io
import pdb
import re
import sys


class Typed(io.StringIO):
    """Input lines for a debugger, printed as they are read."""

    def readline(self, *size):
        """Print and return the next line."""
        line = super().readline(*size)
        sys.stdout.write(line)
        return line


def typed_debugger(*commands: str) -> pdb.Pdb:
    """A debugger that executes these commands; always Python's own pdb, although notebooks replace it by a coloured one."""
    plain = next(kind for kind in pdb.Pdb.__mro__ if kind.__module__ == "pdb")

    class Debugger(plain):
        def format_stack_entry(self, frame_lineno, lprefix=": "):
            """Show a notebook's cell under a fixed name, because the name of its temporary file changes each time."""
            return re.sub(r"^\S*/ipykernel_\d+/\d+\.py", "cell", super().format_stack_entry(frame_lineno, lprefix))

    return Debugger(stdin=Typed("".join(f"{command}\n" for command in commands)), stdout=sys.stdout, nosigint=True, readrc=False)
