"""The certificate of the final project: a self-contained HTML file, made from a run that passed.

It contains the SHA-256 of the learner's lines, so that anyone with the files can verify that they are those that were checked.
"""

import html
from collections.abc import Mapping
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from minllm.course.project.own_engine import PROMPTS, Run
from minllm.course.project.parts import Part, source_hash

STYLE = """
body { font: 17px/1.5 Georgia, serif; color: #1d2733; background: #f3f1ea; margin: 0; padding: 2rem 1rem; }
main { max-width: 46rem; margin: auto; background: #fff; border: 6px double #1f5fa8; padding: 2.5rem; }
h1 { font-size: 1.9rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
pre { background: #f3f1ea; padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; margin: .5rem 0; }
pre b { color: #1f5fa8; } table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th, td { text-align: left; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid #ccc; vertical-align: top; }
td:last-child { font-family: monospace; overflow-wrap: anywhere; } footer { margin-top: 2rem; font-size: .8rem; color: #55606c; }
@media print { body { background: none; } main { border-color: #000; } }
"""


def certificate(files: Mapping[Part, Path], passed: Run, calls: Mapping[str, int], today: date | None = None) -> str:
    """The HTML page. files: the learner's. passed: the run that the learner's equals.

    calls: {exercise: number of calls}.
    """
    rows = "".join(
        f"<tr><th scope=row>{html.escape(part.task)}</th>"
        f"<td>{html.escape(part.exercise_name)}: passed, {sum(not rung.needs_gpu for rung in part.exercise.rungs)} cases</td>"
        f"<td>{calls[part.exercise_name]}</td><td>{source_hash(part, path)}</td></tr>"
        for part, path in files.items()
    )
    texts = "".join(
        f"<pre>{html.escape(prompt)}<b>{html.escape(text)}</b></pre>" for prompt, text in zip(PROMPTS, passed.texts, strict=True)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>minllm: an inference engine of one's own</title><style>{STYLE}</style></head>
<body><main>
<h1>An inference engine of one's own</h1>
<p>Five parts of this engine were written by its author and checked on {(today or date.today()).isoformat()}: each alone, and all
together in a run that gave the tokens and the keys of the reference.</p>
<h2>What it printed</h2>
{texts}
<h2>Its parts</h2>
<table>
<thead><tr><th scope=col>part</th><th scope=col>check</th><th scope=col>calls</th><th scope=col>SHA-256 of its lines</th></tr></thead>
<tbody>{rows}</tbody></table>
<footer>minllm {html.escape(_version())}, the bundled model, greedy, kernels in the simulator. To check it again:
<code>minllm check project FOLDER</code> with the author's files.</footer>
</main></body></html>
"""


def _version() -> str:
    try:
        return version("minllm")
    except PackageNotFoundError:
        return "from source"
