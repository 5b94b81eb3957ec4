"""What can be said of lessons, the glossary and the navigation without building anything."""

import re
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason="pip install 'minllm[docs]'")

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
TAGS = {"hide-input", "fold", "hide"}
SECTIONS = ("predict", "exercises", "detective", "what next", "sources")
ENTRY = re.compile(r"^### (.+?) · (.+?) \{ #([\w-]+) \}$", re.MULTILINE)

each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)


def headings(notebook) -> list[str]:
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)


@each_lesson
def test_a_lesson_has_its_parts(lesson):
    notebook = jupytext.read(lesson)
    found = [heading.lower() for heading in headings(notebook)]
    assert found[0].startswith(f"{int(lesson.name[:2])}. ")
    assert not [section for section in SECTIONS if not any(section in heading for heading in found[1:])]
    text = lesson.read_text(encoding="utf-8")
    assert "What you will be able to do" in text
    assert "Prediction(" in text and ".against(" in text
    assert "show_source(" in text
    assert f"show_exercises({int(lesson.name[:2])})" in text


@each_lesson
def test_a_lesson_suits_the_page(lesson):
    notebook = jupytext.read(lesson)
    assert set(notebook.metadata) <= {"jupytext", "kernelspec"}
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        assert len(tags) <= 1 and set(tags) <= TAGS
        if cell.cell_type == "code" and "hide-input" not in tags:
            assert max(map(len, cell.source.splitlines())) <= 120, cell.source


@each_lesson
def test_a_lesson_writes_nothing_and_needs_no_yardstick(lesson):
    text = lesson.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from) (torch|transformers|matplotlib|requests)\b", text, re.MULTILINE)
    assert not re.search(r"\bopen\([^)]*[\"'][wa]b?[\"']|write_text|write_bytes", text)


def test_every_number_has_one_place():
    assert [int(path.name[:2]) for path in LESSONS] == list(range(1, 16))


def test_the_course_page_is_right_about_number_and_installation():
    """Nothing of this name is on a registry: the course is installed from a clone."""
    page = (ROOT / "docs" / "lessons.md").read_text(encoding="utf-8")
    assert "Fifteen lessons" in page and len(LESSONS) == 15
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "lessons").iterdir()]:
        assert not path.is_file() or not re.search(r"pip install\s+[\"']?minllm", path.read_text(encoding="utf-8")), path


def test_the_glossary_has_each_term_once_and_in_both_languages():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    entries = ENTRY.findall(text)
    assert len(entries) == text.count("\n### ") > 70
    anchors = [anchor for _, _, anchor in entries]
    assert len(set(anchors)) == len(anchors)
    assert not [chinese for _, chinese, _ in entries if not re.search(r"[\u4e00-\u9fff]", chinese)]
    also = [form.strip().lower() for forms in re.findall(r"^\*Also: (.+)\.\*$", text, re.MULTILINE) for form in forms.split(",")]
    forms = [term.lower() for term, _, _ in entries] + also
    assert sorted(forms) == sorted(set(forms))


def test_every_glossary_entry_is_read_by_the_hook(monkeypatch):
    pytest.importorskip("mkdocs", reason="pip install 'minllm[docs]'")
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    import glossary_links

    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = glossary_links.read_terms(text)
    assert [(term.name, term.chinese, term.anchor) for term in terms] == ENTRY.findall(text)
    linked = glossary_links.linked("<h2>Warp</h2><p>A warp, <code>warp</code> &amp; KV caches; the KV cache.</p>", terms, "../glossary/")
    assert linked.count("<a ") == 2 and '<h2>Warp</h2><p>A <a class="term"' in linked and "&amp; <a" in linked


def test_vendored_code_keeps_its_licence_and_reaches_for_nothing():
    vendor = ROOT / "docs" / "assets" / "vendor"
    for library in ("katex", "mermaid"):
        assert "MIT" in (vendor / library / "LICENSE").read_text(encoding="utf-8")
    style = (vendor / "katex" / "katex.min.css").read_text(encoding="utf-8")
    assert not [font for font in re.findall(r"url\(([^)]+)\)", style) if not (vendor / "katex" / font).exists()]


def test_diagrams_are_of_kinds_that_are_vendored():
    chunks = {path.name.split("-")[0] for path in (ROOT / "docs/assets/vendor/mermaid/chunks").rglob("*.mjs")}
    files = {
        "flowchart": "flowDiagram",
        "sequenceDiagram": "sequenceDiagram",
        "stateDiagram": "stateDiagram",
        "classDiagram": "classDiagram",
    }
    assert set(files.values()) <= chunks
    for path in [*LESSONS, *(ROOT / "docs").glob("**/*.md")]:
        for kind in re.findall(r"```mermaid\n(?:# )?(\w+)", path.read_text(encoding="utf-8")):
            assert kind in files, f"{path.name}: a diagram of kind {kind}"
