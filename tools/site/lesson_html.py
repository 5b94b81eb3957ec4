"""Convert nbconvert's HTML of an executed lesson to one Markdown document, and insert the outputs into the resulting HTML.

A code cell becomes a fenced block; a Markdown cell stays unchanged; an output that is Markdown joins the document; any other
output leaves a placeholder, which `with_outputs` fills once the document is HTML.
"""

import base64
import re
from pathlib import Path

from bs4 import BeautifulSoup, Tag

from minllm.course.layout import closed

PARSER = "html.parser"
ANNOTATION = re.compile(r"#\s*\(\d+\)!")
# Cells between these two comments are collapsed on the page: a side path with a title.
ASIDE = re.compile(r"^<!-- aside: (?P<title>.+?) -->$(?P<inside>.*?)^<!-- end aside -->$", re.MULTILINE | re.DOTALL)
# The interactive part of a page of docs/ in a lesson. A notebook shows nothing of the comment, so a link to the page stands beside it.
INTERACTIVE = re.compile(r"^<!-- interactive: (?P<page>[\w-]+) -->$", re.MULTILINE)
DOCS = Path(__file__).parents[2] / "docs"
# Tags of a cell: "fold" collapses its code, and leaves a figure's out; "hide" omits the cell once it has run: nbconvert would omit it
# before, and its assertions would not be checked. ("hide-input" is mkdocs-jupyter's, through mkdocs.yml.)
FOLD, HIDE = "celltag_fold", "celltag_hide"
NO_GPU = "No GPU here"  # what a cell prints that would measure
PRINTED = ("text/plain", "application/vnd.jupyter.stdout")  # nbconvert's mark, by version


def placeholder(source: str) -> str:
    """Markdown, verbatim, in an element that survives nbconvert."""
    return f'<div data-markdown="{base64.b64encode(source.encode()).decode()}"></div>'


def held_markdown(element: Tag) -> str | None:
    """The Markdown inside a placeholder in `element`, or None."""
    found = element.find(attrs={"data-markdown": True})
    return base64.b64decode(found["data-markdown"]).decode() if found else None


def markdown_of(html: str) -> tuple[str, list[str]]:
    """(the lesson as one Markdown document, the HTML of the outputs that are not Markdown, in order)."""
    soup = BeautifulSoup(html, PARSER)
    parts, outputs = [], []
    annotated = None  # position for a list of annotations: after a code block that uses one, before its outputs
    for cell in soup.select(".jp-Cell"):
        nested = cell.find_parent(class_="jp-Cell") is not None  # nbconvert nests a code cell in itself
        if nested or HIDE in cell.get("class", []) or cell.find(class_=HIDE):
            continue
        if "jp-MarkdownCell" in cell.get("class", []):
            source = (held_markdown(cell) or "").strip()
            if annotated is not None:
                notes, source = split_leading_list(source)
                parts.insert(annotated, notes)
            parts.append(source)
            annotated = None
        else:
            code = None if is_figure(cell) else code_of(cell)
            if code is not None:
                parts.append(fenced(code, fold_title(cell) if is_folded(cell) or is_without_gpu(cell) else ""))
            annotated = len(parts) if code is not None and ANNOTATION.search(code) else None
            parts += [] if is_without_gpu(cell) else output_parts(cell, outputs)
    document = ASIDE.sub(aside, "\n\n".join(part for part in parts if part) + "\n")
    return INTERACTIVE.sub(interactive, document), outputs


def interactive(match: re.Match) -> str:
    """The HTML lines of a page of docs/, which lies one folder higher than a lesson."""
    lines = (DOCS / f"{match['page']}.md").read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if line.startswith(("<link ", '<div class="interactive"', '<script type="module"'))]
    return "\n" + "\n".join(found).replace('"../assets/', '"../../assets/') + "\n"


def aside(match: re.Match) -> str:
    """A side path as a block that opens when it is clicked; blocks of outputs may be inside."""
    return f"{closed(match['title'], match['inside'].strip(), 'info')}\n"


def split_leading_list(source: str) -> tuple[str, str]:
    """(the numbered list at the beginning of Markdown, "" if there is none; the rest)."""
    lines = source.splitlines()
    end = 0
    while end < len(lines) and (re.match(r"\d+\. ", lines[end]) or (end and (not lines[end] or lines[end].startswith("   ")))):
        end += 1
    return "\n".join(lines[:end]).strip(), "\n".join(lines[end:]).strip()


def code_of(cell: Tag) -> str | None:
    """The code of a cell with visible input."""
    text = cell.select_one(".clipboard-copy-txt")
    return text.get_text().strip("\n") if text else None


def is_folded(cell: Tag) -> bool:
    """Whether a cell has the tag "fold"."""
    return cell.find(class_=FOLD) is not None or FOLD in cell.get("class", [])


def is_figure(cell: Tag) -> bool:
    """Whether a cell only draws a figure. Its code is in the notebook, and not on the page."""
    return is_folded(cell) and any(area.find(["svg", "img"]) for area in cell.select(".jp-OutputArea-output"))


def is_without_gpu(cell: Tag) -> bool:
    """Whether a cell would measure, and had no GPU to do so."""
    return any(area.get_text().strip().startswith(NO_GPU) for area in cell.select(".jp-OutputArea-output"))


def fold_title(cell: Tag) -> str:
    """The title of a cell's collapsed code, by what the cell shows."""
    if is_without_gpu(cell):
        return "Code that measures this on your GPU"
    return "The code of this output" if cell.select_one(".jp-OutputArea-output") else "Code that the next cells use"


def fenced(code: str, title: str = "") -> str:
    """A code block, collapsed under the title if there is one."""
    block = f"~~~~python\n{code}\n~~~~"
    if not title:
        return block
    return f'??? folded-code "{title}"\n\n' + "\n".join(f"    {line}" if line else "" for line in block.splitlines())


def output_parts(cell: Tag, outputs: list[str]) -> list[str]:
    """The parts below a cell: Markdown unchanged, a placeholder for the rest, whose HTML is appended to `outputs`."""
    parts = []
    for area in joined(cell.select(".jp-OutputArea-output")):
        source = held_markdown(area)
        if source is not None:
            parts.append(source.strip())
        elif area.get_text(strip=True) or area.find(["svg", "img", "table"]):
            parts.append(f'<div data-output="{len(outputs)}"></div>')
            outputs.append(output_html(area))
    return parts


def is_printed(area: Tag) -> bool:
    """Whether an output was printed by a cell, rather than the value of its last line."""
    is_value = area.find_parent(class_="jp-OutputArea-executeResult") is not None or "jp-OutputArea-executeResult" in area.get("class", [])
    return area.get("data-mime-type") in PRINTED and area.find("pre") is not None and not is_value


def joined(areas: list[Tag]) -> list[Tag]:
    """The outputs of a cell, with printed text in several parts, as from slow or long cells, joined to one."""
    found = []
    for area in areas:
        if found and is_printed(area) and is_printed(found[-1]):
            found[-1].find("pre").extend(list(area.find("pre").contents))
        else:
            found.append(area)
    return found


def output_html(area: Tag) -> str:
    """One output without JupyterLab's frame: text as a text block, HTML and pictures unchanged."""
    for junk in area.find_all(["script", "style"]):
        if junk.find_parent("svg") is None:
            junk.decompose()
    is_html = "jp-RenderedHTML" in area.get("class", []) or area.find("svg") is not None
    kind = "html" if is_html else "text" if area.find("pre") else "picture"
    inner = area.decode_contents().strip()
    if kind == "text":
        inner = re.sub(r"^<pre>(.*)</pre>$", r"<pre><code>\1</code></pre>", inner, flags=re.DOTALL)
    return f'<div class="output output-{kind}" tabindex="0">{inner}</div>'


def with_outputs(html: str, outputs: list[str]) -> str:
    """The document's HTML with every placeholder filled."""
    return re.sub(r'<div data-output="(\d+)"></div>', lambda match: outputs[int(match[1])], html)
