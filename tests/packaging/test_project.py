"""The project's own promises: what is installed, what the two commands are, and that nothing in the tree is unfinished."""

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yml", ".svg", ".json", ""}


def tracked_files():
    """Files that git knows, or that it would add: what a clone would hold."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def requirements(texts):
    return {requirement.name: requirement for requirement in map(Requirement, texts)}


def test_every_extra_of_the_readme_and_the_makefile_exists():
    assert {"cu12", "cu13", "test", "inspect", "docs", "bench", "lessons"} <= set(EXTRAS)


def test_numpy_stays_below_the_version_that_numba_refuses():
    numpy = requirements(PROJECT["dependencies"])["numpy"]
    assert numpy.specifier.contains("2.5.1") and not numpy.specifier.contains("2.6.0") and not numpy.specifier.contains("1.26.4")


def test_one_compiler_version_everywhere():
    groups = (PROJECT["dependencies"], EXTRAS["cu12"], EXTRAS["cu13"])
    named = [requirements(texts)["numba-cuda"] for texts in groups]
    assert len({str(r.specifier) for r in named}) == 1
    assert importlib.metadata.version("numba-cuda") in named[0].specifier


def test_nothing_of_cuda_is_required_on_macos():
    """Wheels of numba-cuda and of NVIDIA's bindings do not exist there."""
    mac = dict(sys_platform="darwin", platform_system="Darwin", extra="")
    texts = [*PROJECT["dependencies"], *(text for extra in ("cu12", "cu13", "lessons", "docs", "test") for text in EXTRAS[extra])]
    wanted = [found.name for found in map(Requirement, texts) if found.marker is None or found.marker.evaluate(mac)]
    assert "numba" in wanted and not [name for name in wanted if "cuda" in name or name.startswith("nvidia")]


def test_without_an_extra_nothing_of_the_cuda_toolkit_is_installed():
    """Follows the requirements of the installed packages from ours: the closure must hold no NVIDIA library wheel and no PyTorch."""
    seen, waiting = set(), [Requirement(text) for text in PROJECT["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        key = (requirement.name.lower(), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        for text in importlib.metadata.requires(requirement.name) or []:
            further = Requirement(text)
            environments = [{"extra": extra} for extra in requirement.extras or {""}]
            if further.marker is None or any(map(further.marker.evaluate, environments)):
                waiting.append(further)
    names = {name for name, _ in seen}
    assert "cuda-core" in names and "numba" in names
    assert not [name for name in names if name.startswith("nvidia-") or name in ("torch", "cuda-toolkit", "transformers")]


def test_the_package_imports_neither_torch_nor_transformers():
    importing = re.compile(r"^\s*(import|from) (torch|transformers)\b", re.MULTILINE)
    peers_only = ROOT / "minllm" / "bench"
    guilty = [path for path in (ROOT / "minllm").rglob("*.py") if peers_only not in path.parents and importing.search(path.read_text())]
    assert not guilty


def test_commands_of_the_readme_are_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make(?: [A-Z]+=\S+)* ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named and named <= targets
    in_ci = set(re.findall(r"^make ([a-z]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    assert in_ci == {"test", "lint", "demo", "lessons", "docs"} <= targets


def test_links_of_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", text)
    local = [link for pair in links for link in pair if link and "://" not in link]
    assert local
    assert not [link for link in local if not (ROOT / link).exists()]


def test_nothing_is_unfinished_and_no_file_names_a_users_folder():
    unfinished = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME"]) + r")\b")
    folders = re.compile("|".join(["/ho" + "me/[a-z]", "/ro" + "ot/", "/Us" + "ers/[A-Za-z]"]))
    guilty = []
    for path in tracked_files():
        if path.suffix not in TEXT_SUFFIXES or (ROOT / "minllm" / "data") in path.parents:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if unfinished.search(line) or folders.search(line):
                guilty.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not guilty
