"""The page to chat on, in Chromium: keyboard, stop, retry, a refresh in the middle of an answer, phone width, no outside request."""

import pytest

from minllm.server.in_process import serving
from tests.javascript.modules import HAS_BROWSER, headless_browser
from tests.server.answering import answering

LONG_CODE = "Look:\n```python\n" + "x = 1; " * 60 + "\n```\nDone <b>now</b>."


@pytest.fixture(scope="module")
def chat_model(bundled_chat_model):
    """Answers that can be stopped while they are written."""
    return bundled_chat_model


@pytest.fixture(scope="module")
def browser():
    if not HAS_BROWSER:
        pytest.skip("pip install 'minllm[check-site]', and put chromium on the path or name it in CHROMIUM")
    with headless_browser() as made:
        yield made


@pytest.fixture
def page(browser, served):
    """The page on a phone's width; it asks nobody but its server, and its console stays empty."""
    asked, said = [], []
    made = browser.new_page(viewport={"width": 390, "height": 700})
    made.set_default_timeout(15_000)
    made.on("request", lambda request: asked.append(request.url))
    made.on("console", lambda message: said.append(message.text))
    made.on("pageerror", lambda error: said.append(str(error)))
    made.goto(served.address + "/")
    until(made, "document.title.startsWith('bundled')")
    yield made
    assert all(url.startswith((served.address, "data:")) for url in asked) and not said
    assert made.evaluate("document.documentElement.scrollWidth") <= 390
    made.close()


def until(page, expression):
    """Wait for an expression; Playwright's own way evaluates a text in the page, which the page's policy forbids."""
    for _ in range(1500):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(10)
    raise AssertionError(expression)


def ask(page, text="def add(a, b):"):
    page.fill("#text", text)
    page.press("#text", "Enter")


def answer(page):
    return page.locator("article.assistant").last


def is_done(page):
    page.wait_for_selector("#send", state="visible")


def test_a_conversation_by_keyboard(page, saying):
    saying(LONG_CODE)
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    is_done(page)
    assert page.locator("article.user").inner_text() == "one\ntwo"
    code = answer(page).locator("pre")
    assert code.inner_text().startswith("x = 1;") and "Done <b>now</b>." in answer(page).inner_text()
    assert code.evaluate("node => node.scrollWidth > node.clientWidth")
    saying("Again.")
    page.click("#retry")
    is_done(page)
    assert answer(page).inner_text() == "Again." and page.locator("article").count() == 2
    ask(page, "more")
    is_done(page)
    assert page.locator("article").count() == 4
    page.click("#clear")
    assert page.locator("article").count() == 0 and page.evaluate("document.activeElement.id") == "text"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_hinders_those_who_cannot_see_well(page, saying, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'minllm[check-site]'")
    page.emulate_media(color_scheme=scheme)
    saying(LONG_CODE)
    ask(page)
    is_done(page)
    assert [one["id"] for one in axe.Axe().run(page).response["violations"]] == []


def test_stop_refresh_and_continue(page, served):
    ask(page)
    until(page, "document.querySelector('article.assistant').innerText.length > 20")
    page.keyboard.press("Escape")
    is_done(page)
    stopped = answer(page).locator("p").first.inner_text()
    assert "Stopped." in answer(page).inner_text()
    page.click("#continue")
    until(page, f"document.querySelector('article.assistant').innerText.length > {len(stopped) + 20}")
    page.reload()
    until(page, "document.title.startsWith('bundled')")
    kept = answer(page).inner_text()
    assert kept.startswith(stopped[:20]) and "Stopped." in kept and page.is_visible("#continue")
    while served.server.admission.open:  # the refresh has ended the request
        page.wait_for_timeout(5)


def test_errors_are_shown_and_a_key_is_asked_for(browser, llm, monkeypatch):
    with serving(llm, api_keys=("secret",)) as served:
        monkeypatch.setattr(served.server.engine.client, "submit", answering("Fine."))
        page = browser.new_page()
        page.goto(served.address + "/")
        page.fill("#key", "secret")
        page.press("#key", "Enter")
        until(page, "document.title.startsWith('bundled')")
        assert not page.is_visible("#key")
        ask(page)
        is_done(page)
        assert answer(page).inner_text() == "Fine."
        page.evaluate("sessionStorage.setItem('minllm.key', 'wrong')")
        ask(page)
        page.wait_for_selector("#key", state="visible")
        is_done(page)
        assert "API key is missing or wrong" in answer(page).inner_text()
        page.close()
