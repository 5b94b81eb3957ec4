"""Convert links between files of the repository to links between pages of the site.

A lesson or a page links a file by its path in the repository (`../minllm/costs.py`, `../docs/glossary.md`), which works on a code host
and in an editor. On the site docs/ is the root, and each file of the package is a page below source/.
"""

import posixpath
import re

LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def to_site_links(source: str, src_uri: str) -> str:
    """The Markdown `source` of the page `src_uri`, with links to the repository's files pointing to the site's pages."""
    in_repository = src_uri if src_uri.startswith("lessons/") else f"docs/{src_uri}"
    here, page = posixpath.dirname(in_repository), posixpath.dirname(src_uri)

    def rewritten(match: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(here, match[2]))
        site_target = on_site(target)
        return match[0] if site_target is None else match[1] + posixpath.relpath(site_target, page or ".") + match[3]

    return LINK.sub(rewritten, source)


def on_site(path: str) -> str | None:
    """The MkDocs path of the page for a file of the repository, or None if the site has none."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("lessons/") and path.endswith((".py", ".ipynb")):  # a lesson and its notebook have one page
        return path.replace(".ipynb", ".py")
    if path.startswith("minllm/") and path.endswith(".py"):
        return f"source/{path}.md"
    return None
