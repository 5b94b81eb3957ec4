"""What is installed: a wheel of the whole package, or a clone in its own folder."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", reason="building a wheel needs setuptools")

ROOT = Path(__file__).parents[2]


def run_backend(build, into, source):
    """Let a function of the build backend make a wheel of a source tree, as pip does."""
    program = f"from setuptools import build_meta; build_meta.{build}({str(into)!r})"
    done = subprocess.run([sys.executable, "-c", program], cwd=source, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The file names in a wheel that is built from a copy of the tree, so that the build leaves nothing behind."""
    copy, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "minllm", copy / "minllm", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    run_backend("build_wheel", built, copy)
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


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder that holds a clone named minllm, and a folder site with what an editable install of it puts on the path."""
    folder = tmp_path_factory.mktemp("workspace")
    clone, site = folder / "minllm", folder / "site"
    clone.mkdir()
    site.mkdir()
    for name in ("minllm", "pyproject.toml", "README.md", "LICENSE"):
        (clone / name).symlink_to(ROOT / name)
    run_backend("build_editable", site, clone)
    with zipfile.ZipFile(next(site.glob("*.whl"))) as archive:
        archive.extractall(site)
    return folder


def test_a_clone_is_imported_from_the_folder_that_holds_it(workspace):
    """Python could take the clone itself for the package there."""
    # The install that runs these tests stands aside; the working directory stays first.
    others = "sys.path[1:] = [p for p in sys.path[1:] if not os.path.exists(os.path.join(p, 'minllm', '__init__.py'))]"
    added = f"site.addsitedir({str(workspace / 'site')!r})"
    code = f"import os, site, sys; {others}; {added}; import minllm; from minllm import LLM; print(minllm.__file__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], cwd=workspace, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(workspace / "minllm" / "minllm" / "__init__.py")
