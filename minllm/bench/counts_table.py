"""The record of tools/check_counts.py as Markdown: counts of the simulator and of the GPU's counters for the same launches."""

HEADER = "| | sectors loaded | sectors stored | conflicts of loads | conflicts of stores |\n| --- | ---: | ---: | ---: | ---: |"


def counts_table(record: dict) -> str:
    """One line per kernel: one number where both agree, else the simulator's and then the GPU's."""
    lines = {}
    for row in record["rows"]:
        both = [f"{row[side]:,.0f}" if row[side] is not None else "not measured" for side in ("simulator", "hardware")]
        lines.setdefault(f"{row['case']}, `{row['kernel']}`", []).append(both[0] if both[0] == both[1] else " / ".join(both))
    source = f"One {record['device']}, {record['date']}, Nsight Compute {record['ncu'].split()[1]}, by `{record['command']}`."
    return "\n".join([HEADER, *(f"| {name} | {' | '.join(numbers)} |" for name, numbers in lines.items()), "", source])
