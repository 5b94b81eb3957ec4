"""A lesson's predictions in Chromium: bad input is answered in place, the answer opens once guesses are locked, and they stay.

Chromium prints the page after a script has typed and clicked, so no driver is needed.
"""

import functools
import http.server
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from minllm.course.prediction import Prediction
from tests.javascript.modules import CHROMIUM, JAVASCRIPTS, served

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def page(actions: str) -> str:
    """A page of a prediction and its answer, and a script that acts on it."""
    guess = Prediction(bytes="How many bytes?", limit=("Which limit?", "memory", "arithmetic"))
    answer = guess.against(bytes=16e9, limit="memory", measured=dict(bytes=15e9))
    return f"""<!doctype html><meta charset="utf-8">{guess._repr_html_()}{answer._repr_html_()}
        <script type="module">import "/predictions.js";
        const field = (name) => document.querySelector(`[name=${{name}}]`), click = (what) => document.querySelector(what).click();
        {actions}</script>"""


def after(*visits: str) -> str:
    """The page's HTML after visits with these actions, each a fresh load of the same address in one browser profile."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("predictions.js", "prediction-values.js"):
            Path(folder, name).write_text((JAVASCRIPTS / name).read_text(encoding="utf-8"), encoding="utf-8")
        steps = "".join(f"if (visit === {number}) {{ {actions} }}\n" for number, actions in enumerate(visits))
        again = f"sessionStorage.visit = visit + 1; if (visit < {len(visits) - 1}) location.reload();"
        Path(folder, "index.html").write_text(page(f"const visit = Number(sessionStorage.visit ?? 0);\n{steps}{again}"), encoding="utf-8")
        with served(functools.partial(Quiet, directory=folder)) as address:
            command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
            done = subprocess.run(
                [*command, "--virtual-time-budget=4000", "--dump-dom", f"{address}/index.html"], capture_output=True, text=True, timeout=60
            )
    assert done.returncode == 0, done.stderr
    return done.stdout


LOCK = "field('bytes').value = '15.5 GB'; field('limit').value = 'memory'; click('[type=submit]');"


def is_hidden(html: str, tag: str) -> bool:
    return " hidden" in re.search(rf"<{tag}\b[^>]*>", html)[0]


def test_the_answer_is_closed_before_a_guess():
    html = after("")
    assert is_hidden(html, "table") and "opens once your guesses are locked" in html


def test_a_number_that_is_none_is_answered_in_place():
    html = after("field('bytes').value = 'lots'; click('[type=submit]');")
    assert "This is not a number." in html and is_hidden(html, "table") and "NaN" not in html


def test_locked_guesses_stand_beside_computed_and_measured_values():
    html = after(LOCK)
    assert not is_hidden(html, "table")
    assert "<td>15.5G</td><td>16G</td><td>15G</td><td>within 10 %</td>" in html
    assert "<td>memory</td><td>memory</td><td></td><td>right</td>" in html
    assert html.count("disabled") == 2


def test_guesses_are_kept_until_they_are_made_again():
    assert "<td>15.5G</td>" in after(LOCK, "")
    html = after(LOCK, "click('[type=reset]');", "")
    assert is_hidden(html, "table") and "15.5G" not in html


def test_an_answer_opens_without_a_guess_on_request():
    html = after("document.querySelectorAll('.prediction-closed button')[1].click();")
    assert not is_hidden(html, "table") and "not predicted" in html
