"""Tables of a trace, by rich."""

import io

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text


def tables(trace):
    """A rich renderable of all tables and totals."""
    parts = [Text(f"{trace.kernel}   grid {trace.grid}   block {trace.block}", style="bold"), arrays_table(trace)]
    if trace.shared:
        parts.append(shared_table(trace))
    if trace.partial:
        parts.append(partial_table(trace))
    parts.append(Text("\n".join(totals(trace))))
    return Group(*parts)


def text(trace, width=140):
    """The tables as plain text, `width` columns wide."""
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(tables(trace))
    return console.file.getvalue()


def new_table(title, *columns):
    """An empty table; columns: "name" (aligned left) or ">name" (aligned right)."""
    table = Table(title=title, title_justify="left", title_style="", show_edge=False)
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    return table


def arrays_table(trace):
    """The table of global memory: one row per array and kind of access, and the total."""
    columns = ("array", "access", ">requests", ">bytes asked", ">bytes in sectors", ">sectors/request", ">different bytes")
    table = new_table("global memory", *columns)
    for array in trace.arrays.values():
        for kind in ("read", "write", "atomic"):
            traffic = getattr(array, kind)
            if traffic.requests:
                table.add_row(array.name, kind, *traffic_cells(traffic))
    table.add_section()
    table.add_row("in all", "", *traffic_cells(trace.total))
    return table


def traffic_cells(traffic):
    """The cells of a Traffic in the table of arrays."""
    counts = (traffic.requests, traffic.bytes, traffic.sector_bytes)
    return [*(f"{count:,}" for count in counts), f"{traffic.sectors_per_request:.2f}", f"{traffic.unique_bytes:,}"]


def shared_table(trace):
    """The table of shared memory: one row per source line, array and kind of access."""
    columns = ("place", ">line", "array", "access", ">requests", ">bytes asked", ">turns", ">conflicts", ">worst")
    table = new_table("shared memory", *columns)
    for line in trace.shared:
        worst = "none" if line.worst == 1 else f"{line.worst}-way"
        counts = (line.requests, line.bytes, line.turns, line.conflicts)
        table.add_row(line.place, str(line.line), line.array, line.kind, *(f"{count:,}" for count in counts), worst)
    return table


def partial_table(trace):
    """The table of source lines that only part of a warp executed."""
    title = "memory accesses by part of a warp (a divergent branch, or a guard at an edge; branches around arithmetic alone are not seen)"
    table = new_table(title, "place", ">line", ">of", ">partial")
    for line in trace.partial:
        table.add_row(line.place, str(line.line), f"{line.requests:,}", f"{line.partial:,}")
    return table


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
