"""The table of all kernels' registers, printed at the end of a run that compiled them."""

PROPERTY = "machine_code"


def terminal_summary(reporter):
    """Print a line a kernel; in a run of all tests only a line in all, unless something failed."""
    reports = [report for outcome in ("passed", "failed") for report in reporter.getreports(outcome)]
    rows = [dict(value) for report in reports for name, value in getattr(report, "user_properties", ()) if name == PROPERTY]
    if not rows:
        return
    kernels = {}
    for row in rows:
        kernels.setdefault(row["name"], {})[row["target"]] = row
    failed = any(row["faults"] for row in rows)
    if not (failed or any("compile" in argument for argument in reporter.config.args)):
        reporter.write_line(f"machine code: {len(kernels)} kernels, {len(rows)} targets; `pytest tests/compile` prints the table")
        return
    targets = sorted({row["target"] for row in rows}, key=lambda target: int(target[3:].rstrip("a")))
    reporter.write_sep("=", "registers a thread, of the budget; blocks a multiprocessor, of those that the design wants")
    for name, row_of in kernels.items():
        any_row = next(iter(row_of.values()))
        registers = "".join(f"{row_of[target]['registers'] if target in row_of else '':>8}" for target in targets)
        blocks = "/".join(str(row_of[target]["blocks"]) for target in targets if target in row_of)
        reporter.write_line(f"{name:<52}{registers} of{any_row['budget']:>4}   {blocks} of {any_row['wanted_blocks']}")
        for target, row in row_of.items():
            for fault in row["faults"]:
                reporter.write_line(f"    {target}: {fault}", red=True)
    reporter.write_line(f"{'':<52}{''.join(f'{target:>8}' for target in targets)}")
