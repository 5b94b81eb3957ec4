"""What can be said of lessons, the glossary and the navigation without building anything."""

import ast
import functools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from minllm.course import show_source
from minllm.course.exercises import EXERCISES, select

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]*_*.py"))
TAGS = {"hide-input", "fold", "hide"}
SECTIONS = ("predict", "measured", "exercises", "detective", "problems", "what next", "sources")
MOST_WORDS, MOST_LINES, CODE_WIDTH = 1500, 400, 88
PROSE_WIDTH = 100  # characters of prose beside both columns of navigation
COST = re.compile(r"dollar|cent|price|cost|GPU|SM|H200|H100|V100|GB|MB|KB|TB/s|µs|ms|FLOP|bandwidth|chip|L2|cache", re.IGNORECASE)
ENTRY = re.compile(r"^### (.+?) · (.+?) \{ #([\w-]+) \}$", re.MULTILINE)


@pytest.fixture(scope="module")
def read():
    """read(lesson) -> its notebook. Imported here, because the import takes seconds, which every test process would spend to collect."""
    return functools.cache(pytest.importorskip("jupytext", reason="pip install 'minllm[docs]'").read)


each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)


def number_of(lesson: Path) -> str:
    """The number of a lesson, such as "4" or "5a"."""
    return lesson.name.partition("_")[0].lstrip("0")


def headings(notebook) -> list[str]:
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)


@each_lesson
def test_a_lesson_has_its_parts(lesson, read):
    notebook = read(lesson)
    found = [heading.lower() for heading in headings(notebook)]
    assert found[0].startswith(f"{number_of(lesson)}. ")
    assert not [section for section in SECTIONS if not any(section in heading for heading in found[1:])]
    text = lesson.read_text(encoding="utf-8")
    assert "What you will be able to do" in text
    assert "Prediction(" in text and "guess.ask()" in text and ".against(" in text
    assert "show_source(" in text


def shown_exercises(text: str) -> list[str]:
    """The names of the exercises that a lesson shows."""
    calls = re.findall(r"show_exercises\((.+?)\)", text, re.DOTALL)
    return [one.name for call in calls for wanted in call.split(",") if wanted.strip() for one in select(wanted.strip().strip('"'))]


def test_every_exercise_is_on_a_page_of_its_lesson_once():
    shown = [(int(lesson.name[:2]), name) for lesson in LESSONS for name in shown_exercises(lesson.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted((exercise.lesson, exercise.name) for exercise in EXERCISES)


def lines_of(cells) -> int:
    """The lines that a reader sees of some cells before anything is opened."""
    text = open_text(SimpleNamespace(cells=cells))
    return sum(-(-len(line) // PROSE_WIDTH) for line in text.splitlines()) + len(open_code(cells))


@each_lesson
def test_the_first_exercise_comes_in_the_first_third(lesson, read):
    cells = read(lesson).cells
    first = next(i for i, cell in enumerate(cells) if cell.cell_type == "code" and "show_exercises(" in cell.source)
    share = lines_of(cells[:first]) / lines_of(cells)
    print(f"{lesson.name[:3]} {share:.2f}")
    assert share <= 1 / 3, f"at {share:.0%}"


@each_lesson
def test_sections_of_a_lesson_end_with_a_takeaway(lesson, read):
    text = "\n\n".join(cell.source for cell in read(lesson).cells if cell.cell_type == "markdown")
    boxes = [section.count('!!! tip "Takeaway"') for section in re.split(r"^## ", text, flags=re.MULTILINE)]
    assert max(boxes) <= 1
    assert sum(boxes) >= 2


WITH_OPEN_CHECKS = {"1", "2", "4", "5a", "6", "7", "10", "11", "13", "14"}


@each_lesson
def test_checks_of_a_lesson_are_hidden(lesson, read):
    """Assertions say for us that the text is true; a reader has nothing to learn from most of them."""
    cells = [cell for cell in read(lesson).cells if cell.cell_type == "code" and not cell.metadata.get("tags")]
    shown = [ast.unparse(node) for cell in cells for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Assert)]
    assert not shown or number_of(lesson) in WITH_OPEN_CHECKS


@each_lesson
def test_a_lesson_suits_the_page(lesson, read):
    notebook = read(lesson)
    assert set(notebook.metadata) <= {"jupytext", "kernelspec"}
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        assert len(tags) <= 1 and set(tags) <= TAGS
        if cell.cell_type == "code" and "hide-input" not in tags:
            assert not [line for line in cell.source.splitlines() if len(line) > CODE_WIDTH]


def open_text(notebook) -> str:
    """The Markdown that a reader sees before anything is opened."""
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    text = re.sub(r"^<!-- aside.*?<!-- end aside -->$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^\?\?\?.*\n(?:\n|    .*(?:\n|\Z))*", "", text, flags=re.MULTILINE)


def prose(text: str) -> str:
    """Markdown without pictures, code, mathematics, addresses of links and the list of sources."""
    text = re.sub(r"^```.*?^```", "", text.partition("## Sources")[0], flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL))


def open_code(cells) -> list[str]:
    """The lines of code that a reader sees before anything is opened: cells outside of side paths, and source that is not folded."""
    lines, names, aside = [], {"show_source": show_source}, False
    for cell in cells:
        if cell.cell_type == "markdown":
            aside = "<!-- aside" in cell.source.rpartition("<!-- end aside")[2] or (aside and "<!-- end aside" not in cell.source)
            continue
        tree = ast.parse(cell.source)
        exec(compile(ast.Module([node for node in tree.body if isinstance(node, ast.ImportFrom)], []), "imports", "exec"), names)
        if not aside:
            lines += [] if cell.metadata.get("tags") else cell.source.splitlines()
            if "show_source(" in cell.source:
                shown = eval(compile(ast.Expression(tree.body[-1].value), "shown", "eval"), names)
                lines += [] if shown.folded else shown.annotated.splitlines()
    return lines


def words_of(notebook) -> int:
    """The words of the prose that a reader sees before anything is opened."""
    return len(re.findall(r"[A-Za-z][\w'’-]*", prose(open_text(notebook))))


@each_lesson
def test_a_lesson_is_short_enough_to_be_finished(lesson, read):
    notebook = read(lesson)
    words, lines = words_of(notebook), lines_of(notebook.cells)
    assert words <= MOST_WORDS, f"{words} words"
    assert lines <= MOST_LINES, f"{lines} lines"


@each_lesson
def test_a_lesson_begins_with_picture_equation_and_kernel(lesson, read):
    notebook = read(lesson)
    goals = next(i for i, cell in enumerate(notebook.cells) if "What you will be able to do" in cell.source)
    before = notebook.cells[: goals + 1]
    text = "\n".join(cell.source.partition("**What you will")[0] for cell in before if cell.cell_type == "markdown")
    code = [cell for cell in before if cell.cell_type == "code"]
    assert "```mermaid" in text or any("fold" in cell.metadata.get("tags", []) for cell in code)
    assert "$$" in text and code
    assert len(open_code(before)) <= 45


@each_lesson
def test_a_lesson_has_five_problems_with_folded_answers(lesson, read):
    text = "\n".join(cell.source for cell in read(lesson).cells if cell.cell_type == "markdown")
    problems = text.partition("## Problems")[2].partition("\n## ")[0]
    asked = re.findall(r'^\?\?\? question "(\d)\. (.+)"\n((?:\n|    .*(?:\n|\Z))+)', problems, re.MULTILINE)
    assert [number for number, _, _ in asked] == list("12345") and all(answer.strip() for *_, answer in asked)
    assert sum(bool(COST.search(question + answer)) for _, question, answer in asked) >= 2


@each_lesson
def test_the_questions_of_a_lesson_are_all_answered(lesson):
    text = lesson.read_text(encoding="utf-8")
    asked = re.findall(r"^    (\w+)=", text.partition("guess = Prediction(")[2].partition("\n)\n")[0], re.MULTILINE)
    answered = {name for call in text.split("guess.against(")[1:] for name in re.findall(r"(\w+)=", call.partition("\n# %%")[0])}
    assert asked and set(asked) <= answered and len(set(asked)) == len(asked)


@each_lesson
def test_a_lesson_writes_nothing_and_needs_no_yardstick(lesson):
    text = lesson.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from) (torch|transformers|matplotlib|requests)\b", text, re.MULTILINE)
    assert not re.search(r"\bopen\([^)]*[\"'][wa]b?[\"']|write_text|write_bytes", text)


def test_every_number_has_one_place():
    numbers = list(map(number_of, LESSONS))
    whole = [int(number.rstrip("ab")) for number in numbers if not number.endswith("b")]
    assert whole[:20] == list(range(1, 21)) and len(set(numbers)) == len(numbers)
    assert [one[:-1] for one in numbers if one.endswith("a")] == [one[:-1] for one in numbers if one.endswith("b")] == ["5", "16"]


def test_no_page_installs_the_course_from_a_registry():
    """Nothing of this name is on a registry: the course is installed from a clone."""
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
    assert "MIT" in (vendor / "katex" / "LICENSE").read_text(encoding="utf-8")
    style = (vendor / "katex" / "katex.min.css").read_text(encoding="utf-8")
    assert not [font for font in re.findall(r"url\(([^)]+)\)", style) if not (vendor / "katex" / font).exists()]


def test_the_course_page_has_each_lesson_once_in_five_parts_with_its_exercises(monkeypatch, read):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    import course_list

    text = course_list.course_list(lambda path: path)
    row = r"^\| \[(\w+)\. .+? \| ([\d,]+) \| (\d+) \| (\d) \| <input type=\"checkbox\" data-lesson=\"(\w+)\""
    rows = re.findall(row, text, re.MULTILINE)
    assert [number for number, *_ in rows] == [number_of(lesson) for lesson in LESSONS] == [ticked for *_, ticked in rows]
    assert text.count("\n## ") + 1 == 5 and sum(int(count) for *_, count, _ in rows) == len(EXERCISES)
    assert all(15 <= int(minutes) <= 90 for _, _, minutes, *_ in rows)
    counted = [words_of(read(lesson)) for lesson in LESSONS]
    assert all(abs(int(words.replace(",", "")) - exact) <= 25 for (_, words, *_), exact in zip(rows, counted, strict=True))
