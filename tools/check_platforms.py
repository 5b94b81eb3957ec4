"""Check that pip finds wheels of everything that minllm requires, for systems that are not at hand.

    python tools/check_platforms.py              all systems, Python 3.11 to 3.14
    python tools/check_platforms.py macos        those whose names contain one of the words

Nothing is installed: pip resolves the requirements for a platform and says what it would install. pip evaluates markers such as
"sys_platform != 'darwin'" for the machine that it runs on, so those of minllm are evaluated here. The exit code is 1 if a system lacks
wheels.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# {system: (what markers see of it, pip's platforms, newest first)}
SYSTEMS = {
    "macos-arm64": (
        dict(sys_platform="darwin", platform_system="Darwin", os_name="posix", platform_machine="arm64"),
        [f"macosx_{version}_0_arm64" for version in (15, 14, 13, 12, 11)],
    ),
    "windows-amd64": (dict(sys_platform="win32", platform_system="Windows", os_name="nt", platform_machine="AMD64"), ["win_amd64"]),
    "linux-aarch64": (
        dict(sys_platform="linux", platform_system="Linux", os_name="posix", platform_machine="aarch64"),
        [*(f"manylinux_2_{minor}_aarch64" for minor in range(34, 16, -1)), "manylinux2014_aarch64", "linux_aarch64"],
    ),
}
EXTRAS = ("lessons", "docs")  # what a reader without a GPU needs
CUDA_EXTRAS = ("cu12", "cu13")  # each alone, where there is CUDA


def requirements(project: dict, extras: tuple[str, ...], seen: dict[str, str]) -> list[str]:
    """What minllm and some of its extras require on a system whose markers are `seen`, without markers."""
    texts = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    found = []
    for requirement in map(Requirement, texts):
        if requirement.name == "minllm":  # an extra that contains another one
            found += requirements(project | {"dependencies": []}, tuple(requirement.extras), seen)
        elif requirement.marker is None or requirement.marker.evaluate(seen):
            requirement.marker = None
            found.append(str(requirement))
    return found


def missing(wanted: list[str], platforms: list[str], python: str) -> str:
    """Why pip cannot install these requirements for a platform, or ""."""
    with tempfile.TemporaryDirectory() as nowhere:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--disable-pip-version-check", "--ignore-installed"]
        command += ["--target", nowhere, "--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
        for platform in platforms:
            command += ["--platform", platform]
        done = subprocess.run([*command, *wanted], capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "" if done.returncode == 0 else "; ".join(errors) or done.stderr.strip()


def main(words: list[str]) -> int:
    """Check the systems whose names contain one of the words, or all."""
    project, failed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"], False
    for system, (seen, platforms) in SYSTEMS.items():
        if words and not any(word in system for word in words):
            continue
        for python in PYTHONS:
            for extras in [EXTRAS, *((extra,) for extra in CUDA_EXTRAS if seen["sys_platform"] != "darwin")]:
                seen_here = seen | dict(python_version=python, python_full_version=f"{python}.0", extra="")
                why = missing(requirements(project, extras, seen_here), platforms, python)
                print(f"{system:<15} Python {python} [{','.join(extras)}]  {why or 'ok'}", flush=True)
                failed |= bool(why)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
