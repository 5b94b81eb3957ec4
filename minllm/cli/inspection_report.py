"""The output of `minllm inspect`: the list of all kernels, a table of several, or the details of one."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from minllm.bench.record import console
from minllm.cli.inspection import (
    Inspection,
    find_kernels,
    has_nvdisasm,
    inspect_kernel,
    parse_compute_capability,
    require_toolkit,
    source_of,
)
from minllm.errors import KernelCompilationError

NVDISASM = "pip install 'minllm[inspect]'"


def run(kernel: str | None, cc: str, *, ptx: bool, sass: bool, json_file: Path | None) -> None:
    """List the kernels, or compile those that `kernel` selects and print the results."""
    capability = parse_compute_capability(cc)
    codes = find_kernels(kernel)
    out = console(json_file)
    if not kernel:
        facts = print_list(out, codes)
    elif len(codes) > 1:
        if ptx or sass:
            raise KernelCompilationError(f"{kernel} means {len(codes)} kernels: PTX and SASS are shown of one; give a whole name")
        inspections = [inspect_kernel(code, capability) for code in with_status(codes)]
        print_table(out, inspections)
        facts = [inspection.as_dict() for inspection in inspections]
    else:
        [code] = with_status(codes)
        inspection = inspect_kernel(code, capability)
        print_inspection(out, inspection, code)
        facts = inspection.as_dict() | print_listings(out, code, capability, ptx, sass)
    if json_file is not None:
        text = json.dumps(facts, indent=2) + "\n"
        sys.stdout.write(text) if str(json_file) == "-" else json_file.write_text(text, encoding="utf-8")


def list_entry(code) -> dict:
    """The facts about a kernel that are known without compiling it."""
    return {"name": code.name, "source": source_of(code.kernel.function), "threads": code.threads,
            "register_budget": code.registers, "dynamic_shared_bytes": code.shared_bytes}  # fmt: skip


def print_list(out: Console, codes: list) -> list[dict]:
    """Print the name and source of all kernels, each as soon as it is known: making them all takes seconds. Returns their facts."""
    width = max(len(code.name) for code in codes)
    out.print(f"{'kernel':<{width}}  source")
    entries = []
    for code in codes:
        entries.append(list_entry(code))
        out.print(f"{code.name:<{width}}  {entries[-1]['source']}", markup=False)
    out.print(f"\n{len(entries)} kernels. minllm inspect NAME compiles one and shows it; a part of a name, such as matmul/gemv, several.")
    return entries


def print_table(out: Console, inspections: list[Inspection]) -> None:
    """Print a table with one line per kernel, and violations of the design assumptions."""
    rows = [["kernel", "threads", "registers", "budget", "spills", "shared", "blocks", "wanted", "occupancy", "limited by"]]
    for it in inspections:
        numbers = (it.threads, it.registers, it.register_budget, it.spill_bytes, it.static_shared_bytes + it.dynamic_shared_bytes,
                   it.occupancy.blocks, it.wanted_blocks, f"{it.occupancy.share:.0%}")  # fmt: skip
        rows.append([it.name, *map(str, numbers), ", ".join(it.occupancy.limited_by)])
    print_columns(out, rows)
    for it in inspections:
        for fault in it.faults():
            out.print(f"not as designed: {it.name} {fault}", style="bold red", markup=False)


def print_columns(out: Console, rows: list[list[str]]) -> None:
    """Print rows in columns of minimal width, numbers right-aligned; lines are not wrapped, so that they can be searched and piped."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numeric = [all(text[:1].isdigit() for text in column[1:]) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.rjust(width) if right else text.ljust(width) for text, width, right in zip(row, widths, numeric, strict=True)]
        out.print("  ".join(cells).rstrip(), markup=False)


def print_inspection(out: Console, it: Inspection, code) -> None:
    """Print all facts about one kernel except its code."""
    signature = ", ".join(str(argument) for argument in code.arguments)
    limits = ", ".join(f"{name} {blocks}" for name, blocks in it.occupancy.limits.items())
    shared = f"{it.static_shared_bytes} bytes of static and {it.dynamic_shared_bytes} of dynamic shared memory"
    rows = {
        "kernel": f"{it.kernel} ({it.source})",
        "arguments": signature,
        "target": it.target,
        "block": f"{it.threads} threads, {shared}",
        "registers": f"{it.registers} per thread; {it.register_budget} would still allow {it.wanted_blocks} blocks per SM",
        "spills": f"{it.spill_bytes} bytes per thread; stack frame {it.stack_bytes} bytes",
        "occupancy": f"{it.occupancy.blocks} blocks, {it.occupancy.warps} warps a multiprocessor: {it.occupancy.share:.0%}",
        "limited by": f"{', '.join(it.occupancy.limited_by)} (blocks that each allows: {limits})",
        "float64": ", ".join(it.float64) + (f" ({it.why_float64})" if it.why_float64 else "") if it.float64 else "none",
    }
    out.print(it.name, style="bold")
    for title, text in rows.items():
        out.print(f"  {title:<11}{text}", markup=False)
    for fault in it.faults():
        out.print(f"  not as designed: it {fault}", style="bold red", markup=False)
    if it.instructions is None:
        out.print(f"\n  Instructions are counted by nvdisasm, which is not installed: {NVDISASM}", markup=False)
        return
    out.print(f"\n  {sum(it.instructions.values())} instructions", markup=False)
    for opcode, count in it.instructions.items():
        out.print(f"  {count:>6}  {opcode}", markup=False)


def print_listings(out: Console, code, capability: tuple[int, int], ptx: bool, sass: bool) -> dict:
    """Print PTX and SASS, each piece under its line of Python; returns the same for JSON."""
    from minllm.runtime.compiler import compile_listing
    from minllm.runtime.listing import ptx_pieces, sass_pieces

    if not (ptx or sass):
        return {}
    require_toolkit()
    if sass and not has_nvdisasm():
        raise KernelCompilationError(f"SASS is shown by nvdisasm, which is not installed: {NVDISASM}")
    compiled, text = compile_listing(code.kernel.function, code.arguments, capability, **code.kernel.options)
    pieces = {"ptx": ptx_pieces(text)} if ptx else {}
    if sass:
        pieces["sass"] = sass_pieces(compiled.disassembly("-g"))
    for language, found in pieces.items():
        out.print(f"\n{language.upper()}", style="bold")
        for piece in found:
            if piece.place:
                out.print(f"\n# {piece.place}  {piece.source}", style="cyan", markup=False)
            out.print("\n".join(piece.instructions), markup=False)
    return {
        language: [{"place": piece.place, "source": piece.source, "instructions": piece.instructions} for piece in found]
        for language, found in pieces.items()
    }


def with_status(codes: list) -> Iterator:
    """Iterates over the kernels; on a terminal, standard error shows the name of the current one."""
    if not sys.stderr.isatty():
        yield from codes
        return
    with Console(stderr=True).status("") as status:
        for code in codes:
            status.update(f"compiling {code.name}")
            yield code
