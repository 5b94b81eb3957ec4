"""The lessons as committed notebooks: of today's lessons, small, portable, and with a cell that installs minllm or says how."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Not importorskip: jupytext takes more than a second, in every process that collects tests.
MISSING = importlib.util.find_spec("jupytext") is None
pytestmark = pytest.mark.skipif(MISSING, reason="the lessons' packages are not installed: pip install 'minllm[lessons]'")

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]*_*.py"))
MOST_BYTES = 250_000
PROBE = """# %% [markdown]
# # 1. A probe
#
# To [a page](../docs/glossary.md#widget), [code](../minllm/costs/__init__.py), [lesson 2](02_next.py) and [outside](https://a.example).
#
# !!! note "An admonition"
#     With *text*.
#
# ??? question "1. Why?"
#     Because.
#
# <!-- aside: A side path -->

# %% tags=["fold"]
x = 1  # (1)!
"""


@pytest.fixture(scope="module")
def tools():
    """(tools/site/lesson_notebook.py, tools/site/addresses.py)."""
    sys.path.insert(0, str(ROOT / "tools" / "site"))
    import addresses
    import lesson_notebook

    yield lesson_notebook, addresses
    sys.path.remove(str(ROOT / "tools" / "site"))


def test_every_lesson_has_a_notebook_of_today(tools):
    """Its cells, not its outputs: those are of the machine and the day of the last `make notebooks`."""
    notebooks, addresses = tools
    known = addresses.addresses()
    changed = []
    for lesson in LESSONS:
        held = json.loads(lesson.with_suffix(".ipynb").read_text(encoding="utf-8"))
        made = notebooks.notebook_of(lesson, known)
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in held["cells"]]
        assert held["metadata"]["minllm"]["generated_from"] == f"lessons/{lesson.name}"
        if sources != [(cell.cell_type, cell.source) for cell in made.cells] or held["metadata"]["minllm"] != made.metadata["minllm"]:
            changed.append(lesson.name.partition("_")[0])
    assert not changed, f"notebooks are older than their lessons: make notebooks LESSONS='{' '.join(changed)}'"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_portable(lesson):
    path = lesson.with_suffix(".ipynb")
    assert path.stat().st_size <= MOST_BYTES
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    texts += ["".join(output["data"]["text/markdown"]) for output in outputs if "text/markdown" in output.get("data", {})]
    site_only = [line for text in texts for line in text.splitlines() if line.startswith(("!!! ", "???", "<!-- aside"))]
    assert outputs and not site_only
    pages = ["".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {})]
    assert not [page for page in pages if "<form" in page] and not [one for one in outputs if one["output_type"] == "error"]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)


def test_markdown_is_that_of_every_program_and_links_are_absolute(tools, tmp_path):
    notebooks, addresses = tools
    (tmp_path / "01_probe.py").write_text(PROBE)
    known = addresses.Addresses("https://github.com/a/b", "https://c.example")
    title, install, code, origin = notebooks.notebook_of(tmp_path / "01_probe.py", known).cells
    place = "https://github.com/a/b/blob/main"
    assert title.source.startswith(
        "# 1. A probe\n\n[Open in Colab](https://colab.research.google.com/github/a/b/blob/main/lessons/01_probe.ipynb)"
    )
    for link in ("(https://c.example/glossary/#widget)", f"({place}/minllm/costs/__init__.py)", f"({place}/lessons/02_next.ipynb)",
                 "(https://a.example)"):  # fmt: skip
        assert link in title.source
    assert origin.source == f"*To change this lesson, edit [01_probe.py]({place}/lessons/01_probe.py) and run `make notebooks`.*"
    assert "> **An admonition**\n>\n> With *text*." in title.source and "**A side path**" in title.source
    assert "<details><summary>1. Why?</summary>\n\nBecause.\n\n</details>" in title.source
    assert code.source == "x = 1  # (1)" and code.metadata["jupyter"] == {"source_hidden": True}
    assert '"git", "clone", "--quiet", "--depth", "1", "https://github.com/a/b"' in install.source
    title, *_, origin = notebooks.notebook_of(tmp_path / "01_probe.py", addresses.Addresses()).cells
    assert title.source.startswith("# 1. A probe\n\nTo ") and "[01_probe.py](01_probe.py)" in origin.source
    assert "(../docs/glossary.md#widget)" in title.source and "(02_next.ipynb)" in title.source and title.source.count("http") == 1


def run_install_cell(tools, monkeypatch, folder, known=None):
    """Run the cell in a folder, as if minllm were not installed; returns what it gave to %pip."""
    from IPython.core.inputtransformer2 import TransformerManager

    notebooks, addresses = tools
    install = notebooks.install_cell(known or addresses.Addresses())
    given = []

    class Shell:
        def run_line_magic(self, name, line):
            given.append((name, line))

    monkeypatch.chdir(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "minllm"]:
        monkeypatch.setitem(sys.modules, name, sys.modules[name])  # the cell deletes them; the test's end puts them back
    monkeypatch.setitem(sys.modules, "minllm.course", None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(TransformerManager().transform_cell(install.source), scope := {"get_ipython": Shell})
    assert sys.path[0] == str(scope["clone"])
    return given, scope


def test_an_empty_folder_is_told_what_to_do(tools, monkeypatch, tmp_path):
    with pytest.raises(ImportError, match="Start Jupyter from .* or put a clone beside this notebook"):
        run_install_cell(tools, monkeypatch, tmp_path)


@pytest.mark.parametrize("start", [".", "minllm", "minllm/lessons"])
def test_a_clone_is_installed_from_its_folder_the_one_above_and_below(tools, monkeypatch, tmp_path, start):
    driver = tmp_path / "minllm/minllm/machine/driver.py"
    (tmp_path / "minllm/lessons").mkdir(parents=True)
    driver.parent.mkdir(parents=True)
    driver.write_text("print('cu13')")
    given, scope = run_install_cell(tools, monkeypatch, tmp_path / start)
    assert given == [("pip", 'install --quiet --editable "{clone}[{extras}]"')]
    assert scope["clone"] == tmp_path / "minllm" and scope["extras"] == "lessons,cu13"


def test_the_course_imports_in_the_kernel_that_began_beside_the_clone(tools, tmp_path):
    """There `import minllm` finds the clone's folder, a namespace package; -S leaves out an installed minllm, as in a fresh environment."""
    from IPython.core.inputtransformer2 import TransformerManager

    notebooks, addresses = tools
    for made in ("machine/driver.py", "course.py", "__init__.py"):
        path = tmp_path / "minllm/minllm" / made
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    cell = TransformerManager().transform_cell(notebooks.install_cell(addresses.Addresses()).source)
    shell = "class Shell:\n    run_line_magic = print\n\nget_ipython = Shell\n"
    program = f"{shell}{cell}\nimport minllm.course\nprint(minllm.course.__file__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--editable" in done.stdout and done.stdout.splitlines()[-1] == str(tmp_path / "minllm/minllm/course.py")


def test_a_published_repository_is_cloned(tools, monkeypatch, tmp_path):
    def clone(command, **options):
        if command[0] == "git":
            (Path(command[-1]) / "minllm/machine").mkdir(parents=True)
        return subprocess.CompletedProcess(command, 0, stdout="", stderr="")

    monkeypatch.setattr(subprocess, "run", clone)
    _, scope = run_install_cell(tools, monkeypatch, tmp_path, tools[1].Addresses("https://github.com/a/b"))
    assert scope["clone"].name == "minllm" and scope["extras"] == "lessons"
