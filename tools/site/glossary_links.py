"""An MkDocs hook: link the first use of a glossary term on each page, outside headings and code, to the term.

docs/glossary.md is the single source. An entry is a heading and, if the term has other forms, a line below it:

    ### KV cache · KV 缓存 { #kv-cache }
    *Also: KV caches, key-value cache.*

    What it is, in a sentence or two.
"""

import functools
import html
import re
from dataclasses import dataclass
from pathlib import Path

from bs4 import BeautifulSoup, NavigableString
from mkdocs.plugins import event_priority
from mkdocs.utils import get_relative_url

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
ENTRY = re.compile(
    r"^### (?P<term>.+?) · (?P<chinese>\S.*?) \{ #(?P<anchor>[\w-]+) \}\n(?:\*Also: (?P<also>.+?)\.\*\n)?\n(?P<text>.+)$", re.MULTILINE
)
CLOSED = {
    "a",
    "code",
    "pre",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "svg",
    "summary",
    "button",
    "label",
    "script",
    "style",
    "figcaption",
    "th",
}
CLOSED_CLASSES = {"arithmatex", "output", "diagram", "admonition-title", "no-glossary"}
UNLINKED = ("glossary.md", "source/", "api.md")


@dataclass(frozen=True)
class Term:
    """A glossary entry: its name, its Chinese name, its anchor, every form that links to it, and the first sentence of its text."""

    name: str
    chinese: str
    anchor: str
    forms: tuple[str, ...]
    summary: str


def read_terms(source: str) -> list[Term]:
    """The entries of the glossary's Markdown, in its order."""
    terms = []
    for entry in ENTRY.finditer(source):
        also = [form.strip() for form in (entry["also"] or "").split(",") if form.strip()]
        summary = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*$]", r"\1", entry["text"])
        terms.append(Term(entry["term"], entry["chinese"], entry["anchor"], (entry["term"], *also), re.split(r"(?<=\.)\s", summary)[0]))
    return terms


@functools.cache
def terms() -> list[Term]:
    return read_terms(GLOSSARY.read_text(encoding="utf-8")) if GLOSSARY.exists() else []


def pattern_of(known: list[Term]) -> tuple[re.Pattern, dict[str, Term]]:
    """One expression for all forms, the longest first, and the term of each form (in lower case)."""
    by_form = {form.lower(): term for term in known for form in term.forms}
    forms = sorted(by_form, key=len, reverse=True)
    return re.compile(r"(?<![\w-])(" + "|".join(map(re.escape, forms)) + r")(?![\w-])", re.IGNORECASE), by_form


def linked(page_html: str, known: list[Term], glossary_url: str) -> str:
    """`page_html` with the first use of each of the `known` terms linked to `glossary_url`."""
    if not known:
        return page_html
    pattern, by_form = pattern_of(known)
    soup = BeautifulSoup(page_html, "html.parser")
    seen = set()
    for text in list(soup.find_all(string=True)):
        if type(text) is not NavigableString or not pattern.search(text) or is_closed(text):
            continue

        def link(match):
            term = by_form[match[0].lower()]
            if term.anchor in seen:
                return html.escape(match[0], quote=False)
            seen.add(term.anchor)
            title = html.escape(f"{term.chinese}. {term.summary}")
            return f'<a class="term" href="{glossary_url}#{term.anchor}" title="{title}">{html.escape(match[0], quote=False)}</a>'

        text.replace_with(BeautifulSoup(escape_around(pattern, str(text), link), "html.parser"))
    return str(soup) if seen else page_html


def escape_around(pattern: re.Pattern, text: str, link) -> str:
    """`text` as HTML, with `link` in place of the matches of `pattern`."""
    parts, end = [], 0
    for match in pattern.finditer(text):
        parts += [html.escape(text[end : match.start()], quote=False), link(match)]
        end = match.end()
    return "".join([*parts, html.escape(text[end:], quote=False)])


def is_closed(text: NavigableString) -> bool:
    """Whether the text lies in a heading, in code, in another link or in a picture."""
    return any(parent.name in CLOSED or CLOSED_CLASSES & set(parent.get("class") or []) for parent in text.parents)


@event_priority(-100)
def on_page_content(content, page, config, files):
    """Applies to every page except the glossary itself, sources and the API reference."""
    if page.file.src_uri.startswith(UNLINKED) or not terms():
        return content
    return linked(content, terms(), get_relative_url("glossary/", page.url))
