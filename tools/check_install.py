"""Check that minllm installs from its archives: build an sdist and from it a wheel, install that into an empty environment, and run it.

    python tools/check_install.py

The environment has the dependencies alone, and `minllm generate` runs in another folder, so that a file that the wheel lacks, or a package
that only the tests bring, is missed here. Everything is made in a temporary folder. The exit code is 1 if a step fails.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROMPT = "class Point:"


def run(*command: str | Path, folder: Path) -> str:
    """The output of a command in a folder, without this process's PYTHONPATH. Raises CalledProcessError if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def environment_with(folder: Path, *packages: str) -> Path:
    """The folder of the programs of a new virtual environment that has these packages."""
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    run(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages, folder=folder)
    return programs


def main() -> None:
    """Build, install, run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, archives, elsewhere = folder / "source", folder / "archives", folder / "elsewhere"
        elsewhere.mkdir()
        files = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", folder=ROOT).split("\0")
        for path in (Path(file) for file in files if file and (ROOT / file).is_file()):
            (source / path.parent).mkdir(parents=True, exist_ok=True)
            (source / path).write_bytes((ROOT / path).read_bytes())
        builder = environment_with(folder / "builder", "build")
        run(builder / "python", "-m", "build", "--outdir", archives, source, folder=folder)  # the sdist, and from it the wheel
        (sdist,), (wheel,) = archives.glob("*.tar.gz"), archives.glob("*.whl")
        programs = environment_with(folder / "empty", str(wheel))
        text = run(programs / "minllm", "generate", PROMPT, "--max-tokens", "8", folder=elsewhere)
        if not text.strip():
            sys.exit(f"minllm generate of {wheel.name} printed nothing")
        print(f"{sdist.name} and {wheel.name} are built, and installed into an empty environment: {PROMPT}{text.rstrip()!r}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
