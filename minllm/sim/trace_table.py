"""Tables of a trace, as text."""


def text(trace):
    """All tables and totals."""
    parts = [f"{trace.kernel}   grid {trace.grid}   block {trace.block}", arrays_table(trace)]
    if trace.shared:
        parts.append(shared_table(trace))
    if trace.partial:
        parts.append(partial_table(trace))
    return "\n".join([*parts, *totals(trace), ""])


def table(title, columns, rows, last=None):
    """A table as text. columns: "name" (aligned left) or ">name" (aligned right); last: a row below a line.

    A name's last word stands below the others, so that the table fits a page.
    """
    names = [column.lstrip(">").rpartition(" ")[::2] for column in columns]
    heads, below = [head for head in zip(*names, strict=True) if any(head)], [] if last is None else [last]
    widths = [max(map(len, cells)) for cells in zip(*heads, *rows, *below, strict=True)]
    aligned = [f"{'>' if column.startswith('>') else '<'}{width}" for column, width in zip(columns, widths)]

    def line(cells, edge="│"):
        return edge.join(f" {cell:{how}} " for cell, how in zip(cells, aligned))

    def rule(stroke, crossing):
        return crossing.join(stroke * (width + 2) for width in widths)

    lines = [title, *(line(head, "┃") for head in heads), rule("━", "╇"), *map(line, rows)]
    return "\n".join(lines + ([] if last is None else [rule("─", "┼"), line(last)]))


def arrays_table(trace):
    """The table of global memory: one row per array and kind of access, and the total."""
    columns = ("array", "access", ">requests", ">bytes requested", ">bytes in sectors", ">sectors/request", ">unique bytes")
    kinds = ((array, kind, getattr(array, kind)) for array in trace.arrays.values() for kind in ("read", "write", "atomic"))
    rows = [(array.name, kind, *traffic_cells(traffic)) for array, kind, traffic in kinds if traffic.requests]
    return table("global memory", columns, rows, ("in all", "", *traffic_cells(trace.total)))


def traffic_cells(traffic):
    """The cells of a Traffic in the table of arrays."""
    counts = (traffic.requests, traffic.bytes, traffic.sector_bytes)
    return [*(f"{count:,}" for count in counts), f"{traffic.sectors_per_request:.2f}", f"{traffic.unique_bytes:,}"]


def shared_table(trace):
    """The table of shared memory: one row per source line, array and kind of access."""
    columns = ("place", ">line", "array", "access", ">requests", ">bytes requested", ">turns", ">conflicts", ">worst")
    rows = []
    for line in trace.shared:
        worst = "none" if line.worst == 1 else f"{line.worst}-way"
        counts = (line.requests, line.bytes, line.turns, line.conflicts)
        rows.append((line.place, str(line.line), line.array, line.kind, *(f"{count:,}" for count in counts), worst))
    return table("shared memory", columns, rows)


def partial_table(trace):
    """The table of source lines that only part of a warp executed."""
    title = "memory accesses by part of a warp (a divergent branch, or a guard at an edge;\nbranches around arithmetic alone are not seen)"
    rows = [(line.place, str(line.line), f"{line.requests:,}", f"{line.partial:,}") for line in trace.partial]
    return table(title, ("place", ">line", ">of", ">partial"), rows)


def totals(trace):
    """The lines of totals below the tables."""
    lines = [f"barriers {trace.barriers:,} (once a block), bank conflicts {trace.bank_conflicts:,} turns"]
    if trace.collectives:
        lines.append("warp-wide instructions: " + ", ".join(f"{name} {count:,}" for name, count in sorted(trace.collectives.items())))
    if trace.flops:
        counted = ", ".join(f"{name} {count:,}" for name, count in sorted(trace.flops.items()))
        lines.append(f"counted operations {trace.total_flops:,}: {counted}")
        moved, least = trace.arithmetic_intensity, trace.best_arithmetic_intensity
        lines.append(f"arithmetic intensity: {moved:.2f} FLOP per byte in sectors, {least:.2f} FLOP per different byte")
    return lines
