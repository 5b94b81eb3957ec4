"""Write what `minllm bench ... --json` measured into docs/results, one file a device.

    minllm bench generate --model llama-3.2-1b --json /tmp/1b.json
    python tools/record_results.py /tmp/1b.json

or measure everything that is recorded today, and write it, in one go:

    python tools/record_results.py

Rows that were measured again replace the old ones; all others stay. Run it from a clean checkout: the commit is part of the record.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from minllm.bench.record import Record, Row, file_name, merged

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
BENCHMARKS = (
    ("generate", "--model", "bundled", "--prompt-tokens", "512", "--tokens", "128"),
    ("generate", "--model", "llama-3.2-1b", "--prompt-tokens", "512", "--tokens", "128"),
)


def measure() -> list[dict]:
    """Run every benchmark, each in a process of its own, and return their records."""
    records = []
    for arguments in BENCHMARKS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record.json"
            subprocess.run([sys.executable, "-m", "minllm", "bench", *arguments, "--json", str(path)], check=True)
            records.append(json.loads(path.read_text(encoding="utf-8")))
    return records


def record(measured: dict, results: Path = RESULTS) -> Path:
    """Merge one measured record into its device's file, a row a line, and return the file."""
    new = Record(**{**measured, "rows": [Row(**row) for row in measured["rows"]]})
    path = results / file_name(new.device)
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    whole = merged(old, new)
    rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in whole.pop("rows"))
    head = json.dumps(whole, ensure_ascii=False, indent=1).removesuffix("\n}")
    results.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    return path


def main() -> None:
    """Record the files named on the command line, or measure first."""
    paths = [Path(argument) for argument in sys.argv[1:]]
    measured = [json.loads(path.read_text(encoding="utf-8")) for path in paths] if paths else measure()
    for one in measured:
        print(record(one))


if __name__ == "__main__":
    main()
