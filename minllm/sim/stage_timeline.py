"""The timeline of a pipeline's stages, as text and as a picture."""

from minllm.sim.trace_pictures import CELL, LEFT, TOP, box, label, picture

COPIED, FULL, USED, FREE = "c", "f", "u", "."
NAMES = {COPIED: "copies under way", FULL: "full, not used yet", USED: "in use", FREE: "free"}
COLOURS = {COPIED: "hsl(210, 62%, 66%)", FULL: "hsl(48, 70%, 62%)", USED: "hsl(140, 45%, 60%)"}


def rounds_of(trace):
    """The StageRounds of a trace. Raises ValueError if there are none."""
    if not trace.stages:
        raise ValueError(f"{trace.kernel} has no bulk copies that complete on mbarriers; timeline() shows cp.async")
    return trace.stages


def spans(entry, moments):
    """[(state, first moment, one past the last)] of a StageRound."""
    arrived = moments if entry.arrived is None else entry.arrived
    used = moments if entry.used is None else entry.used
    done = moments if entry.done is None else max(entry.done, used + 1)
    return [span for span in ((COPIED, entry.issued, arrived), (FULL, arrived, used), (USED, used, done)) if span[1] < span[2]]


def stages_text(trace):
    """Text with a legend and one line per stage, one letter per moment."""
    lines = {}
    for entry in rounds_of(trace):
        line = lines.setdefault(entry.stage, [FREE] * trace.moments)
        for state, start, stop in spans(entry, trace.moments):
            line[start:stop] = state * (stop - start)
    legend = ", ".join(f"{state} {name}" for state, name in NAMES.items())
    return "\n".join([f"{trace.kernel}: {legend}", *(f"stage {stage:<3} {''.join(line)}" for stage, line in sorted(lines.items()))])


def stages_picture(trace):
    """A Picture with one row per stage and one bar per state of each round."""
    width = CELL // 2
    parts = [label(LEFT + moment * width, TOP - 6, moment) for moment in range(0, trace.moments, 8)]
    parts.append(label(LEFT - 8, TOP - 6, "moment", "end"))
    for entry in rounds_of(trace):
        y = TOP + entry.stage * CELL
        if entry.round == 0:
            parts.append(label(LEFT - 8, y + 14, f"stage {entry.stage}", "end"))
        for state, start, stop in spans(entry, trace.moments):
            hint = f"round {entry.round}, {entry.bytes:,} bytes copied at line {entry.line}: {NAMES[state]}"
            parts.append(box(LEFT + start * width, y, (stop - start) * width - 1, CELL - 2, COLOURS[state], hint=hint))
    bottom = TOP + (1 + max(entry.stage for entry in trace.stages)) * CELL
    for place, (state, colour) in enumerate(COLOURS.items()):
        parts += [box(LEFT + place * 170, bottom + 6, 12, 12, colour), label(LEFT + place * 170 + 18, bottom + 16, NAMES[state])]
    return picture(f"{trace.kernel}: the stages of its pipeline", parts, max(LEFT + trace.moments * width, 720) + 8, bottom + 26)
