"""The built site in a browser, which `make check-site` runs after `make docs`; `make test` does not collect it.

Every page: no error in the console, no failed request, none that leaves the site; mathematics and diagrams drawn; links that resolve;
both colour schemes without a finding of axe; at most 1.5 MB before compression; the search index comes when the search is opened; on a
phone no sideways scrolling but inside frames, and letters of at least 9 pixels in figures; on paper no closed block and no button. Old
addresses of lessons open the new ones.
Needs Chromium.
"""

import functools
import http.server
import threading
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import pytest

from tests.javascript.modules import CHROMIUM, headless_browser

pytest.importorskip("playwright.sync_api", reason="pip install 'minllm[check-site]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'minllm[check-site]'")
bs4 = pytest.importorskip("bs4", reason="pip install 'minllm[docs]'")

SITE = Path(__file__).parents[2] / "site"
LARGEST_PAGE = 1_500_000  # bytes, not compressed: the document, scripts (mathematics too), styles, fonts, pictures
TALLEST_PAGE = 26_000  # CSS pixels on a phone 390 wide, of pages that are not lessons, sources or the API
SMALLEST_LETTERS = 9  # CSS pixels, in figures on a phone
LARGEST_DOCUMENT = 700_000  # bytes of the document alone, not compressed
# Pages that are generated alike: a few stand for all.
SOURCE_PAGES = ("source/minllm/kernels/matmul/gemv/gemv.py/", "source/minllm/course/__init__.py/")

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path: install it, or name it in CHROMIUM"),
    pytest.mark.skipif(not SITE.exists(), reason="there is no site/: make docs"),
    pytest.mark.timeout(600),
]


REFRESH = 'http-equiv="refresh"'  # a page at an old address, which opens another at once


def addresses(moved: bool = False) -> list[str]:
    """Every page but the package's sources, of which two stand for all; those at old addresses apart from the others."""
    found = (path for path in sorted(SITE.rglob("index.html")) if (REFRESH in path.read_text(encoding="utf-8")) == moved)
    pages = [path.parent.relative_to(SITE).as_posix() + "/" for path in found]
    written = ["" if page == "./" else page for page in pages if not page.startswith("source/")]
    return written + [page for page in SOURCE_PAGES if (SITE / page).exists() and not moved]


PAGES = addresses() if SITE.exists() else []


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def base():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser():
    with headless_browser() as chromium:
        yield chromium


class Visit:
    """A page that was opened, and what happened meanwhile."""

    def __init__(self, browser, base, address, scheme="light", width=1280):
        self.problems, self.loaded, self.weight, self.document = [], [], 0, 0
        self.page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        self.page.on("console", lambda message: self.note(message.type in ("error", "warning"), f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.note(True, f"error: {error}"))
        self.page.on("requestfailed", lambda request: self.note(True, f"failed: {request.url}"))
        self.page.on(
            "request", lambda request: self.note(not request.url.startswith((base, "data:", "blob:")), f"left the site: {request.url}")
        )
        self.page.on("response", self.weigh)
        self.page.goto(base + address)
        self.page.wait_for_load_state("networkidle")

    def note(self, wrong, text):
        if wrong:
            self.problems.append(text)

    def weigh(self, response):
        self.note(response.status >= 400, f"{response.status}: {response.url}")
        if response.ok:
            body = response.body()
            self.loaded.append(response.url)
            self.weight += len(body)
            if response.request.resource_type == "document":
                self.document = len(body)

    def close(self):
        self.page.context.close()


@pytest.mark.parametrize("address", PAGES)
def test_a_page_loads_whole_and_alone(browser, base, address):
    visit = Visit(browser, base, address)
    page = visit.page
    page.wait_for_timeout(200)
    assert visit.problems == []
    assert not any(url.endswith("search_index.json") for url in visit.loaded)
    assert visit.weight < LARGEST_PAGE and visit.document < LARGEST_DOCUMENT
    assert page.locator(".arithmatex:not(:has(.katex))").count() == 0
    assert page.locator(".katex-error").count() == 0
    assert page.locator(".mermaid").count() == 0  # drawn when the site was built
    for diagram in page.locator(".diagram").all():
        assert diagram.bounding_box()["height"] > 20
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", PAGES)
def test_a_page_is_accessible(browser, base, address, scheme):
    visit = Visit(browser, base, address, scheme)
    results = axe.Axe().run(visit.page, options={"resultTypes": ["violations"]})
    found = [(violation, node) for violation in results.response["violations"] for node in violation["nodes"][:3]]
    visit.close()
    assert not found, "\n".join(f"{one['id']}: {node['html'][:150]} {node['failureSummary'][:300]}" for one, node in found)


@pytest.mark.parametrize("address", PAGES)
def test_a_page_fits_a_phone(browser, base, address):
    visit = Visit(browser, base, address, width=390)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = """[...document.querySelectorAll(".md-content svg, .md-content img")].filter(one => one.getBoundingClientRect().right > 391
        && !one.closest(".output, .wide-picture")).map(one => one.outerHTML.slice(0, 120))"""
    assert visit.page.evaluate(wide) == []
    small = f"""[...document.querySelectorAll(".md-content svg text")].map(one => [one.textContent,
        one.checkVisibility() ? parseFloat(getComputedStyle(one).fontSize) * one.getScreenCTM().d : 0])
        .filter(([, size]) => size > 0 && size < {SMALLEST_LETTERS})"""
    assert visit.page.evaluate(small) == []
    if not address.startswith(("lessons/", "source/", "api", "glossary", "command-line")):
        assert visit.page.evaluate("document.documentElement.scrollHeight") < TALLEST_PAGE
    visit.close()


@pytest.mark.parametrize("address", [address for address in PAGES if address.startswith("lessons/")])
def test_no_block_of_a_lesson_scrolls_on_a_screen(browser, base, address):
    """Code, what it prints, and equations, if they are not folded away."""
    visit = Visit(browser, base, address)
    wide = """[...document.querySelectorAll(".md-content pre code")]
        .filter(one => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1).map(one => one.textContent.slice(0, 80))"""
    assert visit.page.evaluate(wide) == []
    cut = """[...document.querySelectorAll(".katex-display")].filter(one => [...one.querySelectorAll(".katex-base")]
        .some(part => part.getBoundingClientRect().right > one.getBoundingClientRect().right + 1))
        .map(one => one.textContent.slice(0, 80))"""
    assert visit.page.evaluate(cut) == []
    visit.close()


@pytest.mark.parametrize("address", ["lessons/04_arithmetic_intensity_and_the_roofline/", "calculator/", "results/"])
def test_a_page_prints_without_what_only_a_screen_has(browser, base, address):
    visit = Visit(browser, base, address)
    visit.page.emulate_media(media="print")
    for hidden in (".md-header", ".md-sidebar", ".interactive .fields", ".md-code__nav"):
        assert all(not one.is_visible() for one in visit.page.locator(hidden).all()), hidden
    closed = """[...document.querySelectorAll(".md-content details:not([open])")]
        .filter(one => one.lastElementChild.getBoundingClientRect().height === 0).length"""
    assert visit.page.evaluate(closed) == 0
    visit.close()


def test_links_of_all_pages_lead_somewhere():
    broken, ids = [], {}

    def anchors(path):
        if path not in ids:
            ids[path] = {element["id"] for element in bs4.BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").find_all(id=True)}
        return ids[path]

    for address in PAGES + addresses(moved=True):
        html = bs4.BeautifulSoup((SITE / address / "index.html").read_text(encoding="utf-8"), "html.parser")
        for element, attribute in [(one, "href") for one in html.select("a[href], link[href]")] + [
            (one, "src") for one in html.select("[src]")
        ]:
            target, fragment = urldefrag(urljoin(f"http://site/{address}", element[attribute]))
            if not target.startswith("http://site/"):
                continue
            path = SITE / target.removeprefix("http://site/")
            path = path / "index.html" if path.is_dir() else path
            if not path.exists() or (fragment and path.suffix == ".html" and fragment not in anchors(path)):
                broken.append(f"{address}: {element[attribute]}")
    assert broken == []


def test_old_addresses_of_lessons_open_the_new_ones(browser, base):
    opened, page = {}, browser.new_page()
    for address in addresses(moved=True):
        page.goto(base + address)
        page.wait_for_url("**/lessons/*a_*/")
        opened[address] = page.locator("h1").inner_text().partition(".")[0]
    page.close()
    assert opened == {"lessons/05_the_ladder_of_matrix_products/": "5a", "lessons/16_batching_many_requests/": "16a"}


def test_search_finds_a_lesson_and_a_term(browser, base):
    visit = Visit(browser, base, "")
    for query, title in (("language model computes", "What a language model computes"), ("arithmetic intensity", "Glossary")):
        visit.page.locator(".md-search__input").first.click()
        visit.page.locator(".md-search__input").first.fill("")
        visit.page.keyboard.type(query)
        visit.page.wait_for_function("document.querySelector('.md-search-result__meta').innerText.includes('matching')")
        visit.page.locator(".md-search-result__list").get_by_text(title).first.wait_for(state="attached", timeout=5000)
    visit.close()


def test_the_switch_of_colours_is_kept(browser, base):
    visit = Visit(browser, base, "")
    visit.page.locator("label[title='Switch to dark colours']").click()
    visit.page.reload()
    assert visit.page.locator("body").get_attribute("data-md-color-scheme") == "slate"
    visit.close()


def test_line_numbers_stand_beside_their_lines(browser, base):
    """At the last line of a source page, whose drift is the largest: both columns end at the same height."""
    visit = Visit(browser, base, SOURCE_PAGES[0])
    ends = visit.page.evaluate("""[".linenodiv pre", ".code pre > code"].map(name => {
        const text = document.createRange(), element = document.querySelector(name);
        text.selectNodeContents(element);
        const boxes = [...text.getClientRects()].filter(box => box.width > 0);
        return [Math.min(...boxes.map(box => box.top)), Math.max(...boxes.map(box => box.bottom))];
    })""")
    (first_number, last_number), (first_line, last_line) = ends
    assert abs(first_number - first_line) < 3 and abs(last_number - last_line) < 3, ends
    visit.close()


def test_a_link_to_a_line_shows_this_line_beside_its_number(browser, base):
    """Captions of lessons link to lines: the line stands below the header, at its own number, and is marked."""
    visit = Visit(browser, base, f"{SOURCE_PAGES[0]}#__codelineno-0-60")
    offsets = visit.page.evaluate("""[...document.querySelectorAll(".linenodiv a")].map(number => {
        const line = document.getElementById(number.hash.slice(1)).parentElement.getBoundingClientRect();
        const beside = number.getBoundingClientRect();
        return Math.abs((line.top + line.bottom) / 2 - (beside.top + beside.bottom) / 2);
    })""")
    assert len(offsets) > 60 and max(offsets) < 3
    line = visit.page.locator("#__span-0-60")
    header = visit.page.locator(".md-header").bounding_box()
    assert line.bounding_box()["y"] >= header["y"] + header["height"] and line.bounding_box()["y"] < 450
    assert line.evaluate("one => getComputedStyle(one).backgroundColor") != "rgba(0, 0, 0, 0)"
    visit.close()


def test_code_can_be_copied_and_annotations_open(browser, base):
    visit = Visit(browser, base, "lessons/01_what_a_language_model_computes/")
    assert visit.page.locator(".md-code__button, .md-clipboard").count() > 5
    visit.page.locator(".md-annotation__index").first.click()
    visit.page.locator(".md-annotation .md-tooltip, .md-tooltip2, .md-tooltip--active").first.wait_for(state="attached", timeout=5000)
    visit.close()
