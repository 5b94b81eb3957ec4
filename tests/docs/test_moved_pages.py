"""The old addresses of lessons lead to the lessons of today."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def moved_pages(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    import moved_pages

    return moved_pages


def test_old_addresses_are_free_and_new_ones_are_lessons(moved_pages):
    names = {path.stem for path in (ROOT / "lessons").glob("*.py")}
    assert not names & set(moved_pages.MOVED)
    assert {name for new in moved_pages.MOVED.values() for name in new} <= names


def test_a_page_at_an_old_address_opens_the_new_one_and_names_all(moved_pages, tmp_path):
    for name in moved_pages.MOVED["05_the_ladder_of_matrix_products"]:
        (tmp_path / "lessons" / name).mkdir(parents=True)
        (tmp_path / "lessons" / name / "index.html").write_text("<h1>A lesson</h1>")
    moved_pages.on_post_build({"site_dir": str(tmp_path)})
    page = tmp_path / "lessons" / "05_the_ladder_of_matrix_products" / "index.html"
    html = page.read_text(encoding="utf-8")
    (opened,) = re.findall(r'http-equiv="refresh" content="0; url=(.+?)"', html)
    assert (page.parent / opened).resolve() == (tmp_path / "lessons" / "05a_matrix_products_in_tiles").resolve()
    links = re.findall(r'<a href="(.+?)">(\S+) .+?</a>', html)
    assert [number for _, number in links] == ["5a.", "5b."]
    assert all((page.parent / address / "index.html").exists() for address, _ in links)


def test_nothing_leads_to_a_lesson_that_the_site_lacks(moved_pages, tmp_path):
    (tmp_path / "lessons").mkdir()
    moved_pages.on_post_build({"site_dir": str(tmp_path)})
    assert list((tmp_path / "lessons").iterdir()) == []
