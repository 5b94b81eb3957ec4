"""An MkDocs hook: a page below source/ for every Python file of the package, so that links to kernels open there; and edit links.

The pages are generated from the files at build time. They are left out of the navigation and of the search, which finds lessons instead.
"""

from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File
from repository_links import to_site_links

ROOT = Path(__file__).parents[2]
FRONT = "---\nsearch:\n  exclude: true\nhide: [navigation, toc]\ntitle: {path}\n---\n\n"


@event_priority(100)
def on_files(files, config):
    """One generated page per file: source/minllm/costs.py.md is served as source/minllm/costs.py/."""
    for path in sorted((ROOT / "minllm").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, f"source/{name}.md", content=page_of(name, path.read_text(encoding="utf-8"), config.repo_url)))
    return files


def page_of(name: str, source: str, repo_url: str | None) -> str:
    """The page's Markdown."""
    where = f"[In the repository]({repo_url.rstrip('/')}/blob/main/{name})" if repo_url else "In the repository, and in an installed minllm"
    lines = (
        f'~~~~~python linenums="1"\n{source.rstrip()}\n~~~~~' if source.strip() else "This file is empty: it makes its folder a package."
    )
    return f"{FRONT.format(path=name)}# `{name}`\n\n{where}: `{name}`.\n\n{lines}\n"


def on_pre_page(page, config, files):
    """An edit link to the file from which a page is generated, if the repository has an address."""
    if config.repo_url and not page.file.src_uri.startswith("source/"):
        path = page.file.src_uri if page.file.src_uri.startswith("lessons/") else f"docs/{page.file.src_uri}"
        page.edit_url = f"{config.repo_url.rstrip('/')}/edit/main/{path}"
    return page


def on_page_markdown(markdown, page, config, files):
    """Let pages link the package's files by their paths in the repository."""
    return to_site_links(markdown, page.file.src_uri)
