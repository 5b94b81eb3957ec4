"""Print the size of every floor of minllm/ and of tests/, and its growth since a commit. Growth is named, not forbidden.

    python tools/size_table.py            the working tree against main
    python tools/size_table.py v0.1.0     against another commit

Size is the number of tokens of code, as Python's tokenize finds them, without comments, docstrings and line breaks, after `ruff format`:
packing lines gains nothing. Files that git does not know are not counted.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)


def num_tokens(source: bytes) -> int:
    """The number of tokens of a module's code, without comments, layout and strings that are statements, such as docstrings."""
    tokens = [one for one in tokenize.tokenize(io.BytesIO(source).readline) if one.type not in (tokenize.COMMENT, tokenize.NL)]
    breaks = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    count = 0
    for before, one, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        is_statement = one.type == tokenize.STRING and before.type in breaks and after.type == tokenize.NEWLINE
        count += one.type not in LAYOUT and not is_statement
    return count


def sizes(commit: str) -> Counter[str]:
    """{floor: tokens} of a commit; the floors are the folders of minllm/, its own files together, and tests/."""
    archive = subprocess.run(["git", "archive", commit, "minllm", "tests", "pyproject.toml"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        raise SystemExit(f"git has no commit {commit!r} with minllm/ and tests/: {archive.stderr.decode().strip()}")
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
        subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", folder], check=True)
        for path in Path(folder).rglob("*.py"):
            kind, *inside = path.relative_to(folder).parts
            floor = inside[0] if kind == "minllm" and len(inside) > 1 else kind
            found[floor] += num_tokens(path.read_bytes())
    return found


def main(base: str = "main") -> None:
    """Print one line per floor: its tokens, and the difference from `base`."""
    stashed = subprocess.run(["git", "stash", "create"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    now, before = sizes(stashed or "HEAD"), sizes(base)
    for floor in sorted(now.keys() | before.keys(), key=lambda name: -now[name]):
        change = now[floor] - before[floor]
        share = f" {change / before[floor]:+.1%}" if before[floor] else " new"
        print(f"{floor:15} {now[floor]:9,}{f'  {change:+,}{share}' if change else ''}")
    ours = [sum(one.values()) - one["tests"] for one in (now, before)]
    print(f"{'without tests':15} {ours[0]:9,}  {ours[0] - ours[1]:+,} {ours[0] / ours[1] - 1:+.1%}, against {base}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default="main", help="the commit to compare with")
    main(parser.parse_args().base)
