"""A wheel holds the whole package: every module, the bundled models and their notice."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", reason="building a wheel needs setuptools")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The file names in a wheel that is built from a copy of the tree, so that the build leaves nothing behind."""
    copy, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "minllm", copy / "minllm", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(built), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist()), archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode()


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    names, _ = wheel
    files = (path for path in (ROOT / "minllm").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    ours = {path.relative_to(ROOT).as_posix() for path in files}
    assert ours - names == set()


def test_the_wheel_brings_the_command_and_the_licence(wheel):
    names, entry_points = wheel
    assert "minllm = minllm.cli.app:main" in entry_points
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "tools/"))]
