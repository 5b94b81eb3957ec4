"""A lesson as an .ipynb file for Jupyter, VS Code or Colab, offered beside each lesson's page.

Notebooks support neither admonitions nor code annotations, so these become quotations and plain comments.
"""

import re
from pathlib import Path

import jupytext

ADMONITION = re.compile(r'^(?:!!!|\?\?\?\+?) (\w+)(?: "([^"]*)")?\n((?:\n|    .*(?:\n|\Z))+)', re.MULTILINE)


def write(lesson: Path, target: Path, site_url: str | None) -> None:
    """Write `lesson` (jupytext percent format) to `target` as a notebook without outputs."""
    notebook = jupytext.read(lesson)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = portable(cell.source, site_url)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    jupytext.write(notebook, target, fmt="ipynb")


def portable(source: str, site_url: str | None) -> str:
    """Markdown for every notebook program: admonitions become quotations, the titles of side paths bold lines.

    Links into docs/ lead to the site if it has an address.
    """
    source = re.sub(r"^<!-- aside: (.+?) -->$", r"**\1**", ADMONITION.sub(quotation, source), flags=re.MULTILINE)
    source = source.replace("<!-- end aside -->", "").strip("\n")
    if site_url:
        source = re.sub(r"\]\(\.\./docs/([^)#]+)\.md(#[^)]*)?\)", lambda m: f"]({site_url.rstrip('/')}/{m[1]}/{m[2] or ''})", source)
    return source


def quotation(match: re.Match) -> str:
    """One admonition as a quotation with its title in bold."""
    kind, title, body = match[1], match[2], match[3]
    lines = [f"**{title or kind.capitalize()}**", "", *(line.removeprefix("    ") for line in body.strip("\n").splitlines())]
    return "".join(f"> {line}".rstrip() + "\n" for line in lines) + "\n"
