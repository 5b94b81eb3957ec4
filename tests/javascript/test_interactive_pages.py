"""The interactive pages in a headless browser, by keyboard: what they answer, and that nothing fails on the way.

The pages' own HTML is served without the site's theme around it, so that no site has to be built.
"""

import json
import re

import pytest

from minllm.machine.hardware import GPUS
from minllm.models.shapes import find_config
from minllm.planning.plan import Wishes, make_plan
from tests.javascript.modules import HAS_BROWSER, ROOT, Files, headless_browser, served

DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not HAS_BROWSER, reason="no playwright with chromium to open pages in")


class Pages(Files):
    """docs/, and /NAME/ as the HTML lines of docs/NAME.md."""

    def __init__(self, *arguments):
        super().__init__(*arguments, directory=str(DOCS))

    def do_GET(self):
        source = DOCS / f"{self.path.strip('/')}.md"
        if not source.is_file():
            return super().do_GET()
        lines = [line for line in source.read_text(encoding="utf-8").splitlines() if line.startswith("<")]
        body = "<!doctype html><meta charset=utf-8><link rel=icon href=data:,><body class=md-typeset>" + "\n".join(lines)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture(scope="module")
def server():
    with served(Pages) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with headless_browser() as opened:
        yield opened


@pytest.fixture
def open_page(browser, server):
    """open_page(name) -> the page, ready; at the end no console message and no failed request may have come."""
    faults, pages = [], []

    def opened(name):
        page = browser.new_page(viewport=dict(width=390, height=800))
        page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("response", lambda response: faults.append(response.url) if response.status >= 400 else None)
        page.on("request", lambda request: None if request.url.startswith((server, "data:")) else faults.append(request.url))
        page.goto(f"{server}/{name}/")
        page.wait_for_selector(".verdict")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert faults == []


def row(page, head):
    return page.locator("tr", has=page.locator("th", has_text=head)).locator("td").first.inner_text()


def test_the_calculator_answers_as_the_plan_does(open_page):
    page = open_page("calculator")
    page.select_option("#model", "llama-2-70b")
    page.select_option("#gpu", "NVIDIA H200")
    page.fill("#degree", "2")
    page.fill("#context", "1024")
    plan = make_plan(find_config("llama-2-70b")[1], GPUS["NVIDIA H200"], Wishes(context=1024, batch=16, tensor_parallel=2))
    assert plan.fits and page.inner_text(".verdict").startswith("It fits")
    assert row(page, "Largest batch") == f"{plan.largest_batch:,}"
    assert row(page, "Bytes of a token").startswith("328 kB (2.62 MB if each of the 8 query heads")
    assert row(page, "Decode step").startswith(f"{plan.decode.floor_ms:.1f} ms")
    page.fill("#degree", "1")
    assert "weights alone" in page.inner_text(".verdict")


def test_the_calculator_reads_a_pasted_config_and_explains_a_wrong_one(open_page):
    page = open_page("calculator")
    assert not page.is_visible("#pasted")
    page.select_option("#model", "pasted")
    assert "Paste" in page.inner_text(".verdict")
    wrong = {"{": "not JSON", "[1]": "one JSON object", '{"model_type": "bert"}': "bert", '{"model_type": "llama"}': "must be"}
    for text, answer in wrong.items():
        page.fill("#pasted", text)
        assert answer in page.inner_text(".verdict")
    page.fill("#pasted", json.dumps(dict(model_type="gpt2", vocab_size=50257)))
    page.fill("#context", "1024")
    assert page.inner_text(".verdict").startswith("It fits")
    page.fill("#batch", "")
    assert "whole number" in page.inner_text(".verdict")


def test_dots_move_with_the_sliders_and_measured_ones_stay(open_page):
    page = open_page("roofline")

    def across(selector):
        return [shape.bounding_box()["x"] for shape in page.locator(selector).all()]

    measured, before = across("rect.measured-dot"), across(".dot circle")
    assert measured and page.locator("caption", has_text="Measured on one NVIDIA H200").count() == 1
    page.focus("#batch")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    after = across(".dot circle")
    assert page.inner_text("output[for=batch]") == "64"
    projection, attention = 1, 3  # after the attention norm and rope; the embedding has no dot
    assert after[projection] > before[projection] + 50 and abs(after[attention] - before[attention]) < 2
    assert across("rect.measured-dot") == measured
    page.select_option("#phase", "prefill")
    assert page.locator(".dot.arithmetic").count() > 4
    page.select_option("#gpu", "Tesla T4")
    assert page.locator("rect.measured-dot").count() == 0


def test_flash_attention_steps_by_keyboard_to_the_plain_softmax(open_page):
    page = open_page("flash-attention-tiles")
    page.select_option("#example", "huge")
    page.select_option("#tile", "3")
    page.focus("#forward")
    for _ in range(2):
        page.keyboard.press("Enter")
    assert "rises from −∞ to 712" in page.inner_text(".verdict")
    assert page.locator(".score-cell.now").count() == 3
    page.keyboard.press("ArrowLeft")
    assert "Load keys 1 to 3" in page.inner_text(".verdict")
    page.focus("#last")
    page.keyboard.press("Enter")
    text = page.inner_text("#flash-attention-tiles")
    assert ": the same." in text and "infinite in float32" in text
    assert page.evaluate("document.activeElement.id") == "last"


@pytest.mark.parametrize("name", ["calculator", "roofline", "flash-attention-tiles", "batching"])
def test_every_field_has_a_label_and_a_phone_need_not_scroll_sideways(open_page, name):
    page = open_page(name)
    for field in page.locator("input, select, textarea").all():
        assert page.locator(f"label[for={field.get_attribute('id')}]").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not re.search("NaN|undefined|Infinity", page.inner_text("body"))


def test_the_paged_cache_tells_its_story_and_can_be_played(open_page):
    page = open_page("paged-cache")
    told = []
    page.focus("#next")
    while page.get_attribute("#next", "aria-disabled") == "false":
        page.keyboard.press("Enter")
        told.append(page.inner_text(".verdict"))
    story = " ".join(told)
    for what in ("the first 8 tokens were in the cache", "copy on write", "kept while nobody", "eviction"):
        assert what in story
    page.click("#again")
    assert page.locator(".block-cell.is-free").count() == page.locator(".block-cell").count() == 12
    page.select_option("#prompt", "exact")
    page.click("#request")
    page.click("#request")
    assert "the first 4 tokens were in the cache, and 4 had to be computed" in page.inner_text(".verdict")
    page.click("#fork")
    assert page.locator(".block-cell.is-shared").count() == 2
    for _ in range(10):
        page.click("#request")
    assert "more blocks" in page.inner_text(".verdict.bad")


def test_policies_share_the_arrivals_of_the_page_about_batching(open_page):
    page = open_page("batching")
    before = page.inner_text(".verdict")
    assert before.startswith("SplitFuse: ") and page.locator("rect.decode").count() > 100
    page.select_option("#policy", "static")
    assert page.inner_text(".verdict").startswith("static batching: ")
    page.select_option("#policy", "split_fuse")
    assert page.inner_text(".verdict") == before
    page.fill("#rate", "")
    assert "above 0" in page.inner_text(".verdict.bad")
    page.fill("#rate", "200")
    page.focus("#budget")
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    assert page.inner_text("output[for=budget]") == "128" and page.inner_text(".verdict") != before
