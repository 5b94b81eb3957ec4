"""An MkDocs hook: turn lessons (jupytext percent files, executed by mkdocs-jupyter) into ordinary Material pages, and notebooks.

mkdocs-jupyter executes a lesson and converts it to HTML with nbconvert. That HTML has its own Markdown dialect, its own code blocks, half a
megabyte of JupyterLab's styles and no links into the site. So this hook keeps only the outputs, which need the execution, and
rewrites the rest: Markdown cells, code cells and Markdown outputs are joined to one document that goes through MkDocs' own Markdown.
Then everything that works on a page works in a lesson: links, admonitions, mathematics, code annotations, the table of contents.

The hooks into mkdocs-jupyter are not public: pyproject.toml pins its version, and tests/docs checks everything relied on here.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
from pathlib import Path

import lesson_html
import markdown
import mkdocs_jupyter.nbconvert2
import mkdocs_jupyter.plugin
from jinja2 import pass_context
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File
from mkdocs.structure.pages import _RelativePathTreeprocessor
from mkdocs.structure.toc import get_toc
from nbconvert.exporters.html import HTMLExporter
from repository_links import to_site_links

from minllm.bench.kernel_keys import share_keys
from minllm.sim.progress import VARIABLE as PROGRESS

ROOT = Path(__file__).parents[2]
# A lesson's outputs depend on these files besides its own text: a change in any of them executes it again.
EXECUTED = ("minllm/**/*.py", "minllm/**/*.json", "docs/results/**/*.json", "tools/site/lesson_*.py")


def sources_digest() -> str:
    """A hash of everything that a lesson executes or shows, and of the machine: part of the key of the output cache."""
    digest = hashlib.sha256()
    for pattern in EXECUTED:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.relative_to(ROOT).as_posix().encode())
            digest.update(path.read_bytes())
    digest.update(f"{platform.python_version()} {device_name()}".encode())
    return digest.hexdigest()


def device_name() -> str:
    """The GPU's name, or "cpu": outputs with and without a GPU differ."""
    from minllm.machine import driver
    from minllm.runtime.device import is_available

    return driver.device_name() if is_available() else "cpu"


def remember_sources(compute_key):
    """Extend mkdocs-jupyter's cache key, the lesson and the options, by what the lesson imports."""

    def key(path, config, executed):
        return hashlib.sha256((compute_key(path, config, executed) + sources_digest()).encode()).hexdigest()

    return key


@pass_context
def keep_markdown(self, context, source):
    """Replace nbconvert's Markdown by the source itself, for `lesson_html.markdown_of` to find."""
    return lesson_html.placeholder(source)


def with_quiet_kernels(get_nbconvert_app):
    """Let kernels print errors alone (each would warn that it talks over TCP), and each stream of a cell be one output."""

    def get(*arguments, **options):
        app = get_nbconvert_app(*arguments, **options)
        app.config["ExecutePreprocessor"].update(extra_arguments=["--IPKernelApp.log_level=ERROR"], coalesce_streams=True)
        return app

    return get


def end_quietly():
    """Keep MkDocs' command from removing its log handler when Python has already taken logging apart, which prints a TypeError."""
    for name in ("mkdocs.__main__", "__main__"):
        state = getattr(sys.modules.get(name), "State", None)
        if hasattr(state, "__del__"):
            del state.__del__


def on_startup(command, dirty):
    """Patch MkDocs, mkdocs-jupyter and nbconvert, once per process."""
    end_quietly()
    os.environ[PROGRESS] = "0"  # the simulator's depends on how fast this machine is
    if HTMLExporter.markdown2html is not keep_markdown:
        HTMLExporter.markdown2html = keep_markdown
        records = (json.loads(path.read_text(encoding="utf-8")) for path in ROOT.glob("docs/results/h200*.json"))
        share_keys(row for record in records for row in record["rows"] if "benchmark" in row)
        mkdocs_jupyter.nbconvert2.get_nbconvert_app = with_quiet_kernels(mkdocs_jupyter.nbconvert2.get_nbconvert_app)
        mkdocs_jupyter.plugin._compute_cache_key = remember_sources(mkdocs_jupyter.plugin._compute_cache_key)


@event_priority(100)  # before mkdocs-jupyter, which wraps the files that it finds
def on_files(files, config):
    """Add lessons/NN_name.py, which lie beside docs/."""
    for path in sorted((ROOT / "lessons").glob("[0-9][0-9]*_*.py")):
        files.append(File(f"lessons/{path.name}", str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def is_lesson(file) -> bool:
    return file.src_uri.startswith("lessons/") and file.src_uri.endswith(".py")


@event_priority(-100)  # after mkdocs-jupyter, whose render is wrapped
def on_pre_page(page, config, files):
    """Give a lesson's page its own render."""
    if not is_lesson(page.file):
        return page
    execute = page.render

    def render(config, files):
        lessons = [file.src_uri for file in files if is_lesson(file)]
        print(f"lesson {lessons.index(page.file.src_uri) + 1} of {len(lessons)}", flush=True)
        execute(config, files)
        source, outputs = lesson_html.markdown_of(page.content)
        html, page.toc = to_html(to_site_links(source, page.file.src_uri), page.file, config, files)
        page.content = with_download(lesson_html.with_outputs(html, outputs), notebook_name(page.file))

    page.render = render
    return page


def to_html(source: str, file, config, files):
    """(HTML, table of contents) of Markdown, through the extensions of mkdocs.yml and with links checked as on any page."""
    converter = markdown.Markdown(extensions=config.markdown_extensions, extension_configs=config.mdx_configs or {})
    _RelativePathTreeprocessor(file, files, config)._register(converter)
    return converter.convert(source), get_toc(getattr(converter, "toc_tokens", []))


def notebook_name(file) -> str:
    return Path(file.src_uri).with_suffix(".ipynb").name


def with_download(html: str, notebook: str) -> str:
    """The page with a link to its notebook below the title."""
    link = f'<p class="lesson-notebook"><a href="{notebook}" download>Download this lesson as a notebook</a></p>'
    return html.replace("</h1>", f"</h1>\n{link}", 1)


def on_post_page(output, page, config):
    """Put the lesson's notebook (tools/write_notebooks.py) beside the page."""
    if is_lesson(page.file):
        target = Path(page.file.abs_dest_path).with_name(notebook_name(page.file))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(page.file.abs_src_path).with_suffix(".ipynb"), target)
    return output
