"""Waivers: comments that suppress a detector's report at their line, with the reason.

    parent[root] = other  # allow-race: a union-find converges whichever of the two writes wins

The word after `allow-` is the kind of report: race, unwritten, barrier, negative, overflow or undefined. A race needs the comment at only
one of its two lines.
"""

import functools
import linecache
import re

WAIVER = re.compile(r"#\s*allow-(\w+)\b:?\s*(.*)")


@functools.lru_cache(4096)
def waiver(code, offset):
    """(kind, reason) of the waiver at an instruction's line; None if there is none."""
    line = next((line for start, stop, line in code.co_lines() if start <= offset < stop), None)
    found = line and WAIVER.search(linecache.getline(code.co_filename, line))
    return found and found.groups()


def waived(kind, *places):
    """Whether any of `places`, each (code, offset), has a waiver of this kind with a reason."""
    found = [waiver(*place) for place in places if place[0] is not None]
    return any(one is not None and one[0] == kind and one[1] for one in found)


def waived_frame(kind, frame):
    """Whether the line that a frame executes has a waiver of this kind."""
    return frame is not None and waived(kind, (frame.f_code, frame.f_lasti))
