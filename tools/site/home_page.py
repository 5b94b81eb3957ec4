"""An MkDocs hook: the live parts of pages, those of the first page above all, computed when the site is built.

docs/index.md holds each part between comments, as tools/write_pages.py wrote it: three cards, the chart of the README's rows, the kernel of
home/rms_norm.py, the race that the simulator finds in it once a line is deleted, and text of the bundled model. The site computes them
anew, and shows the chart, and those of page_charts.py, in its own colours.
"""

import functools
import html
import importlib.util
import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import home_cards
import page_charts

ROOT = Path(__file__).parents[2]
KERNEL_FILE = Path(__file__).parent / "home" / "rms_norm.py"
PART = re.compile(r"^<!-- generated: (?P<name>[\w-]+) -->\n(?P<text>.*?)^<!-- end generated -->$", re.MULTILINE | re.DOTALL)
ALTERNATIVE = "Bars: speed of minllm over PyTorch's kernels, vLLM and TensorRT-LLM; the numbers are in the README's table"
ROWS, HIDDEN = 2, 128
BARRIER = "        cuda.syncthreads()\n"  # the barrier inside the loop
PROMPT, TOKENS = "class Point:\n    def __init__(self, x, y):", 64
WIDTH = 88


def kernel_source() -> str:
    """The kernel's file."""
    return KERNEL_FILE.read_text(encoding="utf-8")


def kernel() -> str:
    """The kernel without its imports, as a code block."""
    source = kernel_source()
    return f"```python\n{source[source.index('@kernel') :].rstrip()}\n```"


def loaded(source: str, folder: str):
    """The kernel of a source text, imported from a file so that findings name its lines."""
    path = Path(folder, "rms_norm.py")
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("rms_norm", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.rms_norm


def run(source: str, folder: str) -> tuple[float, str]:
    """(largest error against NumPy, "") of the kernel in the simulator, or (nan, what the simulator found)."""
    from minllm.errors import MinLLMError
    from minllm.sim import detecting

    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((ROWS, HIDDEN)).astype(np.float32), rng.standard_normal(HIDDEN).astype(np.float32)
    out = np.empty_like(x)
    try:
        with detecting():
            loaded(source, folder).simulate[ROWS, HIDDEN](x, weight, out)
    except MinLLMError as error:
        return float("nan"), f"{type(error).__name__}: {error}".replace(f"{folder}/", "")
    expected = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + 1e-5) * weight
    return float(np.abs(out - expected).max()), ""


@functools.cache
def race() -> str:
    """The simulator's finding in the kernel without the barrier of its loop, as a text block."""
    source = kernel_source()
    assert source.count(BARRIER) == 1
    with tempfile.TemporaryDirectory() as folder:
        error, found = run(source, folder)
        if found or error > 1e-5:
            raise ValueError(f"the first page's kernel is wrong: {found or error}")
    with tempfile.TemporaryDirectory() as folder:
        _, found = run(source.replace(BARRIER, ""), folder)
    if "race" not in found:
        raise ValueError(f"the simulator finds no race without the barrier, but {found!r}")
    return f"```text\n{textwrap.fill(found, WIDTH, subsequent_indent='    ', break_long_words=False)}\n```"


@functools.cache
def text() -> str:
    """What the bundled model continues, as a code block: the likeliest token each time."""
    from minllm import LLM, SamplingParams

    with LLM(max_num_seqs=1) as llm:
        output = llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=TOKENS))[0].outputs[0]
    whole_methods = (PROMPT + output.text).rpartition("\n\n")[0]
    return f"```python\n{whole_methods}\n```"


def chart():
    """The figure of recorded speeds."""
    from minllm.bench.speed_chart import speed_chart

    return speed_chart(json.loads((ROOT / "docs" / "assets" / "speed.json").read_text(encoding="utf-8")))


def framed_chart() -> str:
    """The chart in the frame of a lesson's output, which scrolls on a phone; machine and dates are in a fold."""
    figure = chart()
    caption, figure.caption = figure.caption, ""
    fold = f"<details><summary>Machine and dates</summary><p>{html.escape(caption, quote=False)}</p></details>"
    return f'<div class="output" tabindex="0">{figure._repr_html_()}</div>\n{fold}'


PARTS = {
    "cards": home_cards.inline, "chart": framed_chart, "kernel": kernel, "race": race, "text": text,
    **{name: functools.partial(page_charts.framed, name) for name in page_charts.CHARTS},
}  # fmt: skip


def filled(markdown: str, part: Callable[[str], str]) -> str:
    """Markdown whose generated parts are those of `part(name)`."""
    return PART.sub(lambda match: f"<!-- generated: {match['name']} -->\n{part(match['name'])}\n<!-- end generated -->", markdown)


def on_page_markdown(markdown, page, config, files):
    """Compute the live parts of a page anew; others stay as they are written."""
    written = {match["name"]: match["text"].rstrip("\n") for match in PART.finditer(markdown)}
    return filled(markdown, lambda name: PARTS[name]() if name in PARTS else written[name])
