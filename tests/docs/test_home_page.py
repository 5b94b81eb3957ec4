"""The first page's live parts, the README's copies of them, and the pictures drawn from the record."""

import json
from pathlib import Path

import pytest

from minllm.bench.speed_chart import speed_chart
from minllm.figures.picture_file import DARK, LIGHT, picture_file
from minllm.sim import detecting

ROOT = Path(__file__).parents[2]
RUN = json.loads((ROOT / "docs/assets/speed.json").read_text(encoding="utf-8"))


@pytest.fixture
def home(monkeypatch):
    pytest.importorskip("mkdocs", reason="the site's packages are not installed: pip install 'minllm[docs]'")
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    import home_page

    with detecting(False):
        yield home_page


@pytest.fixture
def pages(home, monkeypatch):
    """tools/write_pages.py."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import write_pages

    return write_pages


def test_the_kernel_is_right_and_has_a_race_without_its_barrier(home, tmp_path):
    error, found = home.run(home.kernel_source(), str(tmp_path))
    assert error < 1e-5 and not found
    lines = home.kernel().splitlines()
    assert len(lines) - 2 == 12  # without the fences
    assert max(map(len, lines)) <= 66  # half of the page
    race = " ".join(home.race().split())
    (line,) = [number for number, text in enumerate(home.kernel_source().splitlines(), 1) if "+= squares" in text]
    assert "race on shared memory" in race and f"rms_norm.py:{line} in rms_norm" in race


def test_the_bundled_model_completes_a_class(home):
    assert home.text().startswith(f"```python\n{home.PROMPT}\n        self.x = x\n        self.y = y\n")


def test_the_readmes_animation_is_of_this_kernel_and_this_race(home):
    import race_picture

    message = "docs/assets/race.svg is not current: python tools/site/race_picture.py draws it"
    assert race_picture.PICTURE.read_text(encoding="utf-8") == race_picture.picture(), message


GENERATED = "README.md docs/index.md docs/lessons.md docs/hosted-notebooks.md docs/serve.md docs/server-api.md lessons/README.md".split()
GENERATED += "docs/frameworks.md docs/results.md docs/quantised-weights.md".split()


@pytest.mark.parametrize("page", GENERATED)
def test_the_generated_parts_of_a_page_are_current(home, pages, page):
    assert page in pages.PAGES and len(pages.PAGES) == len(GENERATED)
    message = f"{page} is not current: python tools/write_pages.py writes it"
    assert (ROOT / page).read_text(encoding="utf-8") == pages.written(page), message


def test_the_evidence_is_that_of_the_tables(pages):
    text, results = (ROOT / "docs/coming-from-cudasim.md").read_text(encoding="utf-8"), pages.foreign_results()
    assert set(results) == {"right", "found", "reported"} and results.total() >= 30
    assert f"**{results.total()} programs**" in text
    assert f"**{results['right']} right**, **{results['found']} with a bug**" in text and f"{results['reported']} reported" in text
    kernels, equal = pages.counted_kernels()
    assert 0 < equal <= kernels and f"**{equal} of {kernels} kernels**" in pages.evidence("README.md")


def test_addresses_stand_in_one_place(home, pages, monkeypatch, tmp_path):
    import addresses

    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\n[project.urls]\nRepository = "https://github.com/a/b/"\nDocumentation = "https://c.example"\n')
    known = addresses.addresses(project)
    assert known == addresses.Addresses("https://github.com/a/b", "https://c.example")
    monkeypatch.setattr(pages, "addresses", lambda: known)
    lines = pages.lesson_list("docs/lessons.md").splitlines()
    assert "(https://colab.research.google.com/github/a/b/blob/main/lessons/20_several_gpus.ipynb)" in lines[21]
    assert "(https://kaggle.com/kernels/welcome?src=https://github.com/a/b/blob/main/lessons/20_several_gpus.ipynb)" in lines[21]
    assert pages.first_link("README.md").startswith("**[Read the course](https://c.example/lessons/)**")
    assert "https://github.com/a/b)" in pages.hosted_cell("docs/hosted-notebooks.md")
    monkeypatch.setattr(pages, "addresses", addresses.Addresses)
    assert pages.first_link("README.md").startswith("**[Read the course](docs/lessons.md)**")
    assert "http" not in pages.lesson_list("lessons/README.md")


def test_the_chart_follows_the_run():
    drawn = picture_file(speed_chart(RUN))
    message = "docs/assets/speed.svg does not follow speed.json: python tools/record.py --tables writes it"
    assert (ROOT / "docs/assets/speed.svg").read_text(encoding="utf-8") == drawn, message


def test_the_files_of_charts_and_cards_are_current(pages):
    for path, drawn in {**pages.page_charts.files(), **pages.home_cards.files()}.items():
        assert path.read_text(encoding="utf-8") == drawn, f"{path.name} is not current: python tools/write_pages.py draws it"


def test_a_file_of_a_figure_has_the_sites_colours():
    style = (ROOT / "docs/assets/stylesheets/course.css").read_text(encoding="utf-8")
    light, _, dark = style.partition('[data-md-color-scheme="slate"]')
    for colours, part in ((LIGHT, light), (DARK, dark.partition("}")[0])):
        assert all(f"--course-{name}: {value};" in part for name, value in colours.items())


def test_the_sharing_picture_is_current(home):
    import sharing_picture

    png = sharing_picture.PICTURE.read_bytes()
    assert png[16:24] == sharing_picture.WIDTH.to_bytes(4, "big") + sharing_picture.HEIGHT.to_bytes(4, "big")
    message = "docs/assets/sharing.png is not current: python tools/site/sharing_picture.py draws it"
    assert sharing_picture.drawn_from(png) == sharing_picture.digest(), message
