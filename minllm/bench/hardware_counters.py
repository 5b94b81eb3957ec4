"""Compares Nsight Compute's counters of kernels on the GPU with the simulator's counts.

tools/check_counts.py runs both. COUNTS lists the compared counts, and the hardware counters that each is made of.
"""

import csv
import math
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = 0.02  # relative to the hardware's count
SECONDS = 120  # time limit of one run of ncu
PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/local/bin")
SECTORS, CONFLICTS = "l1tex__t_sectors_pipe_lsu_mem_global_op_", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_"


def by_instructions(name):
    """The names of a counter that ncu measures by instrumenting instructions: (in newer versions, in older ones)."""
    return tuple(f"{unit}__sass_{name.replace('__', '_', 1)}" for unit in ("smsp", "sm"))


# A count is the sum of its terms; a term is the first of its counters that was measured.
COUNTS = {
    "sectors loaded": [(f"{SECTORS}ld.sum",)],  # includes those of cp.async (LDGSTS)
    "sectors stored": [(f"{SECTORS}st.sum",)],
    "conflicts of loads": [
        (f"{CONFLICTS}ld.sum", *by_instructions(f"{CONFLICTS}ld.sum")),
        by_instructions(f"{CONFLICTS}ldsm.sum"),
    ],
    "conflicts of stores": [
        (f"{CONFLICTS}st.sum", *by_instructions(f"{CONFLICTS}st.sum")),
        by_instructions(f"{CONFLICTS}ldgsts.sum"),
    ],
}
RECORDED = (*by_instructions(f"{SECTORS}ld.sum"), *by_instructions(f"{SECTORS}st.sum"))  # recorded in addition to those of COUNTS
COUNTERS = tuple(dict.fromkeys([name for terms in COUNTS.values() for term in terms for name in term] + list(RECORDED)))
SCALES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Row:
    """One count of one kernel; hardware and ratio (simulator / hardware) are None if nothing was measured."""

    case: str
    kernel: str
    count: str
    simulator: int
    hardware: float | None = None
    ratio: float | None = None
    agrees: bool | None = None


def number(text, unit=""):
    """The value of a counter: 1024 for "1,024", 1500 for "1.5" with the unit "Ksector"; None if it is not a number."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    scale = re.match(r"([KMG]?)(?:sector|$)", unit)
    return value * SCALES[scale.group(1)] if scale and math.isfinite(value) else None


def parse(output):
    """(kernel name, {counter: number or None}) of every launch in ncu's `--csv --page raw`, in order; a missing column is None.

    The table begins at its header, after other lines of ncu, and its second line holds the units.
    """
    lines = output.splitlines()
    start = next((at for at, line in enumerate(lines) if line.lstrip("\ufeff").startswith('"ID"')), len(lines))
    units, launches = {}, []
    for entry in csv.DictReader(line.lstrip("\ufeff") for line in lines[start:] if line.lstrip("\ufeff").startswith('"')):
        if not entry["ID"]:
            units = entry
            continue
        launches.append((entry["Kernel Name"], {name: number(entry.get(name) or "", units.get(name) or "") for name in COUNTERS}))
    return launches


def least_of_rounds(launches, rounds):
    """One round of launches that ran `rounds` times, with the minimum of each counter over the rounds.

    Shared-memory cycles lost to other warps add to an instruction's count, and vary from round to round.
    """
    count = len(launches) // rounds
    names = [name for name, _ in launches]
    if not count or names != names[:count] * rounds:
        return launches
    found = []
    for at, name in enumerate(names[:count]):
        same = [counters for _, counters in launches[at::count]]
        values = {counter: [counters[counter] for counters in same if counters[counter] is not None] for counter in same[0]}
        found.append((name, {counter: min(numbers, default=None) for counter, numbers in values.items()}))
    return found


def measured(count, counters):
    """(one of COUNTS from a launch's counters, whether all its terms were measured); the count is None if its first term is missing."""
    terms = [next((counters[name] for name in term if counters.get(name) is not None), None) for term in COUNTS[count]]
    return None if terms[0] is None else sum(term or 0 for term in terms), None not in terms


def compared(launches, hardware):
    """(rows, the counters of each launch with case and kernel); hardware launches are matched by name, in order, others skipped."""
    rows, by_launch, at = [], [], 0
    for case, name, counts in launches:
        there = next((index for index in range(at, len(hardware)) if name in hardware[index][0]), None)
        counters = {} if there is None else hardware[there][1]
        at = at if there is None else there + 1
        by_launch.append(dict(case=case, kernel=name, counters=counters))
        for count, simulator in counts.items():
            value, whole = measured(count, counters)
            # a value with a missing term may be too low, so a higher count in the simulator is no disagreement
            if value is None or not whole and simulator > value * (1 + ALLOWED):
                rows.append(Row(case, name, count, simulator))
                continue
            ratio = 1.0 if value == simulator else simulator / value if value else float("inf")
            agrees = abs(simulator - value) <= ALLOWED * value
            rows.append(
                Row(case, name, count, simulator=simulator, hardware=value, ratio=ratio if math.isfinite(ratio) else None, agrees=agrees)
            )
    return rows, by_launch


def find_ncu():
    """The path of ncu: from PATH, from the toolkit of CUDA_HOME, or from the usual directories; None if not found."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    in_home = [str(Path(home) / "bin")] if home else []
    return shutil.which("ncu") or shutil.which("ncu", path=os.pathsep.join([*in_home, *PLACES]))


def run(command):
    """(exit code, output and errors) of a command; exit code -1 if it exceeds the time limit."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    try:
        streams = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        done = subprocess.run(command, cwd=ROOT, env=environment, timeout=SECONDS, text=True, errors="replace", **streams)
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return -1, f"{output}\nnot finished after {SECONDS} s"
    return done.returncode, done.stdout


def ncu_version(ncu):
    """The line in which ncu states its version."""
    return next((line.strip() for line in run([ncu, "--version"])[1].splitlines() if "Version" in line), "unknown")


def profile(ncu, program):
    """(exit code, output) of ncu for a program's kernels, without the counters that this version of ncu reports as unknown."""
    counters, code, output = list(COUNTERS), -1, ""
    while counters:
        options = ["--clock-control", "none", "--target-processes", "all", "--csv", "--page", "raw", "--print-units", "base"]
        code, output = run([ncu, *options, "--metrics", ",".join(counters), *program])
        complaint = re.compile("failed to find metric|invalid metric", re.IGNORECASE)
        complaints = " ".join(line for line in output.splitlines() if complaint.search(line))
        unknown = [name for name in counters if name in complaints or name.removesuffix(".sum") in complaints.replace(",", " ").split()]
        if parse(output):
            break
        unknown = unknown or [name for name in counters if "sass" in name]  # the likeliest, if ncu names none
        if not unknown:
            break
        print(f"once more without {', '.join(unknown)}, which this ncu does not seem to know", flush=True)
        counters = [name for name in counters if name not in unknown]
    return code, output
