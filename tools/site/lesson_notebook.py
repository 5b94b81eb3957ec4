"""A lesson as a notebook that any notebook program or forge shows: Jupyter, VS Code, Colab, a repository's page.

Notebook programs support neither admonitions nor code annotations, so these become quotations, blocks that open, and plain comments. Forges
show no HTML with pictures in it, so figures become pictures. `minllm.course` shows its own outputs as Markdown that both understand.
"""

import hashlib
import re
from pathlib import Path

import jupytext
from addresses import Addresses
from nbformat import NotebookNode, v4

from minllm.figures.picture_file import on_white

ADMONITION = re.compile(
    r'^(?P<kind>!!!|\?\?\?\+?) (?P<name>[\w-]+)(?: "(?P<title>[^"]*)")?\n(?P<body>(?:\n|    .*(?:\n|\Z))+)', re.MULTILINE
)
LINK = re.compile(r"\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
FIGURE = re.compile(r"<figure .*?>(?P<svg><svg.*?</svg>)(?:<figcaption>(?P<caption>.*?)</figcaption>)?</figure>", re.DOTALL)
HIDDEN_CODE = ("hide-input", "fold", "hide")  # tags of a lesson's cells (docs/contributing/writing-lessons.md)

INSTALL = """# Installs minllm into this notebook's Python if it is missing, with the CUDA wheels that fit
# the driver, if there is one. Without a GPU, kernels run in the simulator.
try:
    import minllm.course
except ImportError:
    import subprocess, sys
    from pathlib import Path

    here = Path.cwd()
    clones = [path for path in (here, *here.parents, here / "minllm") if (path / "minllm/machine/driver.py").exists()]
    {fetch}
    driver = [sys.executable, "-I", str(clones[0] / "minllm/machine/driver.py")]
    cuda = subprocess.run(driver, capture_output=True, text=True).stdout.split()
    extras, clone = ",".join(["lessons", *cuda]), clones[0]
    %pip install --quiet --editable "{{clone}}[{{extras}}]"
    sys.path.insert(0, str(clone))
    # The import above may have taken the clone's folder for the package.
    for name in [name for name in sys.modules if name.partition(".")[0] == "minllm"]:
        del sys.modules[name]"""
FETCH = """if not clones:
        import tempfile

        clones = [Path(tempfile.mkdtemp()) / "minllm"]
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", "{repository}", str(clones[0])], check=True)"""
NO_ADDRESS = """if not clones:
        raise ImportError(
            "minllm is not installed in this notebook's Python, and there is no clone of its repository in this "
            "folder or above. Start Jupyter from the clone's environment (source .venv/bin/activate, "
            "pip install -e '.[lessons]', jupyter notebook lessons), or put a clone beside this notebook "
            "(a folder minllm) and run this cell again."
        ) from None"""


def notebook_of(lesson: Path, known: Addresses) -> NotebookNode:
    """A lesson (jupytext percent format) as a notebook without outputs: its title, a cell that installs minllm, and the rest."""
    title, *rest = jupytext.read(lesson).cells
    cells = [title, install_cell(known), *rest]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
        if cell.cell_type == "markdown":
            cell.source = portable(cell.source, known)
        else:
            cell.source = re.sub(r"(# \(\d+\))!", r"\1", cell.source)
            if any(tag in HIDDEN_CODE for tag in cell.metadata.get("tags", ())):
                cell.metadata["jupyter"] = {"source_hidden": True}
    title.source = with_badges(title.source, lesson, known)
    cells.append(v4.new_markdown_cell(origin(lesson, known), id=f"cell-{len(cells)}"))
    made = v4.new_notebook(cells=cells)
    made.metadata = NotebookNode(
        kernelspec={"name": "python3", "display_name": "Python 3", "language": "python"},
        language_info={"name": "python"},
        minllm={"generated_from": f"lessons/{lesson.name}", "by": "make notebooks", "cells": digest(made)},
    )
    return made


def install_cell(known: Addresses) -> NotebookNode:
    """The cell that installs minllm if it is missing: from a clone nearby or from the repository's address, or it says what is needed."""
    fetch = FETCH.format(repository=known.repository) if known.repository else NO_ADDRESS
    return v4.new_code_cell(INSTALL.format(fetch=fetch), metadata={"tags": ["hide-input"]})


def digest(notebook: NotebookNode) -> str:
    """A hash of the sources of all cells."""
    return hashlib.sha256("\0".join(f"{cell.cell_type} {cell.source}" for cell in notebook.cells).encode()).hexdigest()


def with_badges(source: str, lesson: Path, known: Addresses) -> str:
    """The first cell with links below its heading that open the notebook in hosted services, if there are any."""
    badges = [f"[Open in {name}]({address})" for name, address in known.hosted(f"lessons/{lesson.stem}.ipynb").items()]
    heading, _, text = source.partition("\n")
    return f"{heading}\n\n{' · '.join(badges)}\n{text}" if badges else source


def origin(lesson: Path, known: Addresses) -> str:
    """The last cell: the file that the notebook is generated from."""
    return f"*To change this lesson, edit [{lesson.name}]({known.file(f'lessons/{lesson.name}') or lesson.name}) and run `make notebooks`.*"


def portable(source: str, known: Addresses) -> str:
    """Markdown for every notebook program: admonitions become quotations or blocks that open, titles of side paths bold lines."""
    source = re.sub(r"^<!-- aside: (.+?) -->$", r"**\1**", ADMONITION.sub(admonition, source), flags=re.MULTILINE)
    return with_links(source.replace("<!-- end aside -->", "").strip("\n"), known)


def admonition(match: re.Match) -> str:
    """One admonition: a quotation with its title in bold, or a block that opens."""
    title = match["title"] or match["name"].capitalize()
    body = "\n".join(line.removeprefix("    ") for line in match["body"].strip("\n").splitlines())
    if match["kind"] == "!!!":
        return "".join(f"> {line}".rstrip() + "\n" for line in [f"**{title}**", "", *body.splitlines()]) + "\n"
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>\n\n"


def with_links(source: str, known: Addresses) -> str:
    """Markdown whose links to files of the repository are absolute, as far as there are addresses; lessons lead to notebooks."""

    def moved(match: re.Match) -> str:
        path, anchor = match["path"], match["anchor"] or ""
        anchor = re.sub(r"#__codelineno-0-(\d+)", r"#L\1", anchor)  # the site's anchors of lines
        in_repository = path.removeprefix("../") if path.startswith("../") else f"lessons/{path}"
        if re.fullmatch(r"lessons/\d\d[ab]?_\w+\.py", in_repository):
            in_repository, path = f"{in_repository[:-3]}.ipynb", f"{path[:-3]}.ipynb"
        page = re.fullmatch(r"docs/([\w-]+)\.md", in_repository)
        if page and known.site:
            return f"]({known.site}/{page[1]}/{anchor})"
        return f"]({known.file(in_repository) or path}{anchor})"

    return LINK.sub(moved, source)


def portable_outputs(notebook: NotebookNode, known: Addresses) -> NotebookNode:
    """An executed notebook whose outputs every program and forge shows."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            shown = [] if "hide" in cell.metadata.get("tags", ()) else cell.outputs
            cell.outputs = [part for output in shown for part in parts_of(output, known)]
            cell.metadata.pop("execution", None)
    return notebook


def parts_of(output: NotebookNode, known: Addresses) -> list[NotebookNode]:
    """One output as one that every program shows, or as a picture and its caption."""
    data = output.get("data", {})
    page = data.get("text/html", "")
    if figure := FIGURE.fullmatch(page):
        picture = v4.new_output("display_data", {"image/svg+xml": on_white(figure["svg"]), "text/plain": data.get("text/plain", "")})
        return [picture, *([v4.new_output("display_data", {"text/markdown": f"*{figure['caption']}*"})] if figure["caption"] else [])]
    if page.startswith('<form class="prediction"'):
        questions = "\n".join(f"- {line.removesuffix(' ?')}" for line in data["text/plain"].splitlines())
        return [v4.new_output("display_data", {"text/markdown": f"Your guess? Run the cell to answer.\n\n{questions}"})]
    if "text/markdown" in data:
        source = re.sub(r"(# \(\d+\))!", r"\1", data["text/markdown"])
        return [v4.new_output("display_data", {"text/markdown": with_links(source, known)})]
    return [output]
