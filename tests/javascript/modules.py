"""Runs the site's modules on cases: in node where there is one, else in a headless browser, else not at all."""

import contextlib
import functools
import http.server
import importlib.util
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
JAVASCRIPTS = ROOT / "docs" / "assets" / "javascripts"
NODE = shutil.which("node")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HAS_BROWSER = CHROMIUM is not None and importlib.util.find_spec("playwright") is not None

needs_javascript = pytest.mark.skipif(not (NODE or HAS_BROWSER), reason="neither node nor playwright with chromium to run JavaScript in")


def run(answerer: str, module: str, cases: list) -> list:
    """What `answer(module, tables, cases)` of the script `answerer` in this folder returns, with hardware.json as tables."""
    return run_in_node(answerer, module, cases) if NODE else run_in_browser(answerer, module, cases)


def run_in_node(answerer: str, module: str, cases: list) -> list:
    """The same in node."""
    paths = [HERE / "run.mjs", HERE / answerer, JAVASCRIPTS / module, JAVASCRIPTS / "hardware.json"]
    done = subprocess.run([NODE, *map(str, paths)], input=json.dumps(cases), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Files(http.server.SimpleHTTPRequestHandler):
    """The repository's files, without a line a request; .mjs is JavaScript."""

    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript", ".js": "text/javascript"}

    def log_message(self, *arguments):
        pass


REPOSITORY = functools.partial(Files, directory=str(ROOT))


@contextlib.contextmanager
def served(handler=REPOSITORY):
    """The address of a server of this machine, for as long as the block runs."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def headless_browser():
    """Chromium, driven by playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        try:
            yield opened
        finally:
            opened.close()


def run_in_browser(answerer: str, module: str, cases: list) -> list:
    """The same in chromium."""
    script = """async ([answerer, module, tables, cases]) => {
        const [{ answer }, loaded, answered] = await Promise.all([import(answerer), import(module), fetch(tables)]);
        return JSON.stringify(answer(loaded, await answered.json(), cases));
    }"""
    scripts = f"/{JAVASCRIPTS.relative_to(ROOT)}"
    with served() as address, headless_browser() as browser:
        page = browser.new_page()
        page.goto(f"{address}{scripts}/hardware.json")
        addresses = [f"/tests/javascript/{answerer}", f"{scripts}/{module}", f"{scripts}/hardware.json"]
        return json.loads(page.evaluate(script, [*addresses, cases]))
