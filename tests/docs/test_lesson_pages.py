"""The site's hooks, on a site of few pages that holds everything that mkdocs-jupyter is known to spoil. The lesson is executed."""

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs_jupyter", reason="the site's packages are not installed: pip install 'minllm[docs]'")
from bs4 import BeautifulSoup
from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "site"))
import lesson_html  # noqa: E402

LESSON = """# %% [markdown]
# # 1. A title with `code` and $x^2$
#
# A link to [the start](../docs/index.md), to [a kernel](../minllm/kernel.py) and to [itself](01_probe.py). The widget is a widget.
#
# !!! note "An admonition"
#     With *text*, and a footnote[^1].
#
# [^1]: The footnote.
#
# ## A heading with `code`
#
# $$y = x_1 + x_2$$
#
# | | head |
# | --- | --- |
# | a | b |
#
# ```mermaid
# flowchart LR
#     a --> b
# ```

# %%
import time

answer = 41 + 1  # (1)!
print("the answer is", answer, "<&>", flush=True)
time.sleep(0.3)
print("which comes later")

# %% [markdown]
# 1. An annotation with **bold** text
#    on two lines.
#
# A paragraph after it.

# %% tags=["hide-input"]
hidden_code = "output of hidden code"
print(hidden_code)

# %% tags=["hide"]
made_by_a_hidden_cell = "and what a hidden cell has made"
print("never seen")

# %% tags=["fold"]
print(made_by_a_hidden_cell)


class Rich:
    def _repr_html_(self):
        return "<figure class='course-figure'><svg role='img' aria-label='x'></svg></figure>"

Rich()

# %% tags=["fold"]
def helper():
    return 1

# %%
seconds = None
print("No GPU here: nothing was timed.")

# %%
class Written:
    def _repr_markdown_(self):
        return "~~~~python\\nshown = 1  # (1)!\\n~~~~\\n\\n1.  A note.\\n\\n[the kernel](../minllm/kernel.py)"

Written()

# %% [markdown]
# <!-- aside: A side path -->
#
# Its text.

# %%
print("its output")

# %%
from minllm.course.layout import closed


class Folded:
    def _repr_markdown_(self):
        return closed("A fold in a side path", "~~~~python\\nfolded = 1\\n~~~~")

Folded()

# %% [markdown]
# <!-- end aside -->
#
# The main road.
#
# <!-- interactive: warp-accesses -->

# %% tags=["hide-input"]
print("stamp", time.perf_counter_ns())
"""
GLOSSARY = "# Glossary\n\n### Widget · 部件 { #widget }\n*Also: widgets.*\n\nA thing.\n"


def build_site(folder: Path, name: str = "again"):
    """Build the site `name` below `folder`, which stands for the repository. Only the fixture builds the one that most tests read."""
    config = load_config(
        str(ROOT / "mkdocs.yml"), docs_dir=str(folder / "docs"), site_dir=str(folder / name),
        nav=[{"Start": "index.md"}, {"Lessons": ["lessons.md"]}, {"Glossary": "glossary.md"}],
    )  # fmt: skip
    hooks = {name: config.plugins[name] for name in config.plugins if str(name).startswith("tools/site")}
    for hook in hooks.values():
        hook.ROOT = folder
    glossary = hooks["tools/site/glossary_links.py"]
    glossary.GLOSSARY = folder / "docs" / "glossary.md"
    glossary.terms.cache_clear()
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    for name, text in {
        "docs/index.md": "# Start\n\nA widget, and [the lesson](../lessons/01_probe.py), and [a kernel](../minllm/kernel.py).\n",
        "docs/glossary.md": GLOSSARY,
        "docs/lessons.md": "# Lessons\n\n1. [A probe](../lessons/01_probe.ipynb)\n",
        "docs/assets/stylesheets/site.css": "",
        "minllm/kernel.py": '"""A kernel."""\n',
        "lessons/01_probe.py": LESSON,
        "lessons/01_probe.ipynb": "{}",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)  # mkdocs-jupyter keeps its cache in the working directory
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINLLM_SIM_PROGRESS", "0")  # as the build sets it, but only for the tests of this file
        yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def site(folder):
    return build_site(folder, "site")


@pytest.fixture(scope="module")
def lesson(site):
    return BeautifulSoup((site / "lessons/01_probe/index.html").read_text(encoding="utf-8"), "html.parser")


def test_links_of_a_lesson_lead_to_the_sites_pages(site, lesson):
    page = site / "lessons/01_probe"
    article = lesson.select_one("article")
    targets = {link.get_text(): link["href"] for link in article.select("a[href]") if not link["href"].startswith("#")}
    assert (page / targets["the start"] / "index.html").exists()
    assert (page / targets["a kernel"] / "index.html").exists()
    assert (page / targets["the kernel"] / "index.html").exists()  # in an output


def test_the_table_of_contents_leads_to_the_headings(lesson):
    contents = lesson.select(".md-nav--secondary a[href^='#']")
    assert "A heading with code" in {" ".join(link.get_text().split()) for link in contents}
    assert all(lesson.find(id=link["href"][1:]) for link in contents)
    assert "$" not in lesson.select_one(".md-nav--secondary").get_text()


def test_markdown_of_a_lesson_is_the_sites_markdown(lesson):
    article = lesson.select_one("article")
    assert "An admonition" in article.select_one(".admonition.note .admonition-title").get_text()
    assert article.select_one(".footnote") and len(article.select(".arithmatex")) == 2
    assert article.select_one(".diagram svg")["aria-label"] == "Diagram: a to b"


def test_an_annotation_stands_directly_behind_its_code(lesson):
    block = next(block for block in lesson.select("div.highlight") if "41 + 1" in block.get_text())
    following = block.find_next_sibling()
    assert following.name == "ol" and "on two lines" in following.get_text()
    shown = next(block for block in lesson.select("div.highlight") if block.get_text().lstrip().startswith("shown = 1"))
    assert shown.find_next_sibling().name == "ol"


def test_outputs_keep_their_text_and_their_order(lesson):
    text = lesson.select_one("article").get_text()
    assert (
        text.index("41 + 1") < text.index("the answer is 42 <&>") < text.index("A paragraph after it") < text.index("output of hidden code")
    )


def test_what_is_printed_in_pieces_is_one_output(lesson):
    (printed,) = [output.get_text() for output in lesson.select(".output-text") if "the answer" in output.get_text()]
    assert printed.strip() == "the answer is 42 <&>\nwhich comes later"


def test_tags_hide_and_fold_code(lesson):
    article = lesson.select_one("article")
    assert "hidden_code" not in article.get_text()
    assert "never seen" not in article.get_text() and "and what a hidden cell has made" in article.get_text()  # it ran, out of sight
    assert "_repr_html_" not in article.get_text() and article.select_one(".output-html figure.course-figure svg")
    next_cells, no_gpu = article.select("details.folded-code")
    assert "def helper" in next_cells.get_text() and next_cells.summary.get_text() == "Code that the next cells use"
    assert "seconds = None" in no_gpu.get_text() and no_gpu.summary.get_text() == "Code that measures this on your GPU"
    assert not [output for output in article.select(".output") if "No GPU here" in output.get_text()]


@pytest.mark.parametrize(("output", "title"), [
    ('<div class="jp-OutputArea-output"><pre>No GPU here: nothing was timed</pre></div>', "Code that measures this on your GPU"),
    ('<div class="jp-OutputArea-output"><pre>1</pre></div>', "The code of this output"),
    ("", "Code that the next cells use"),
])  # fmt: skip
def test_collapsed_code_is_named_by_what_it_shows(output, title):
    assert lesson_html.fold_title(BeautifulSoup(f"<div>{output}</div>", "html.parser").div) == title


def test_a_side_path_is_closed_with_its_cells_and_outputs(lesson):
    article = lesson.select_one("article")
    closed = next(block for block in article.select("details.info") if "A side path" in block.summary.get_text())
    assert "Its text." in closed.get_text() and 'print("its output")' in closed.get_text()
    assert closed.select_one(".output-text").get_text().strip() == "its output"
    assert closed.select_one(":scope details .highlight").get_text().strip() == "folded = 1"
    road = next(paragraph for paragraph in article.select("p") if "The main road." in paragraph.get_text())
    assert road.find_parent("details") is None and "aside" not in article.get_text()


def test_a_lesson_holds_the_interactive_part_of_a_page(lesson):
    """The page's own HTML lines, with addresses from one folder lower; and it stands where the comment does."""
    place = lesson.select_one("article div.interactive#warp-accesses")
    assert place.find_previous(string="The main road.")
    scripts = [script["src"] for script in lesson.select("article script[type=module]")]
    assert scripts == ["../../assets/javascripts/warp-accesses.js"]
    assert lesson.select_one("article link[href='../../assets/stylesheets/interactive.css']")


def test_nothing_of_jupyterlab_is_left(lesson):
    assert not lesson.select("style:not(head style), .jp-Cell, .clipboard-copy-txt")
    html = str(lesson)
    assert "mathjax" not in html.lower() and "cdnjs" not in html and "require.js" not in html
    assert len(html) < 40_000


def test_the_search_index_holds_each_cell_once(site):
    index = json.loads((site / "search/search_index.json").read_text())
    text = " ".join(entry["text"] for entry in index["docs"] if entry["location"].startswith("lessons/01_probe"))
    assert text.count("41 + 1") == 1 and "Copied!" not in text and "In [" not in text


def test_a_lesson_takes_its_place_in_the_navigation_by_itself(site, lesson):
    assert lesson.title.get_text().startswith("1. A title with code")
    page = BeautifulSoup((site / "lessons/index.html").read_text(encoding="utf-8"), "html.parser")
    # a link to its notebook leads to its page
    assert [link["href"] for link in page.select("article li a")] == ["01_probe/"]


def test_the_page_offers_its_notebook(site, lesson):
    link = lesson.select_one("a[download]")
    assert (site / "lessons/01_probe" / link["href"]).exists()


def test_a_term_is_linked_once_a_page_and_not_in_headings(site, lesson):
    links = lesson.select("a.term")
    assert len(links) == 1 and links[0]["href"].endswith("glossary/#widget") and "部件" in links[0]["title"]
    start = BeautifulSoup((site / "index.html").read_text(encoding="utf-8"), "html.parser")
    assert [link["href"] for link in start.select("a.term")] == ["glossary/#widget"]


def test_no_header_cell_is_empty(lesson):
    table = lesson.select_one("article table")
    assert table.select_one("thead tr").find(["td", "th"]).name == "td" and not [
        cell for cell in table.select("th") if not cell.get_text(strip=True)
    ]


def test_every_source_file_is_a_page(site):
    assert "A kernel." in (site / "source/minllm/kernel.py/index.html").read_text()


def test_outputs_are_kept_until_the_package_changes(folder, site):
    def stamp(site):
        page = BeautifulSoup((site / "lessons/01_probe/index.html").read_text(encoding="utf-8"), "html.parser")
        return next(line for line in page.get_text().splitlines() if line.startswith("stamp"))

    assert stamp(build_site(folder)) == stamp(site)
    kernel = folder / "minllm/kernel.py"
    text = kernel.read_text()
    kernel.write_text('"""Another kernel."""\n')
    try:
        assert stamp(build_site(folder)) != stamp(site)
    finally:
        kernel.write_text(text)


def test_a_lesson_that_fails_fails_the_build(folder, site):
    failing = folder / "lessons/02_failing.py"
    failing.write_text("# %% [markdown]\n# # 2. Failing\n\n# %%\nraise ValueError('on purpose')\n")
    try:
        with pytest.raises(Exception, match="on purpose"):
            build_site(folder)
    finally:
        failing.unlink()


def test_a_link_that_leads_nowhere_fails_the_build(folder, site):
    astray, notebook = folder / "lessons/02_astray.py", folder / "lessons/02_astray.ipynb"
    astray.write_text("# %% [markdown]\n# # 2. Astray\n#\n# A link to [nowhere](../docs/nowhere.md).\n")
    notebook.write_text("{}")
    try:
        with pytest.raises(BaseException, match="strict"):
            build_site(folder)
    finally:
        astray.unlink()
        notebook.unlink()
