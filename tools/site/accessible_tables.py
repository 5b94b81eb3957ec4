"""An MkDocs hook: make empty header cells plain cells, because screen readers would announce them as headers.

Markdown writes such a cell for every first column.
"""

import re

EMPTY_HEADER = re.compile(r"<th( [^>]*)?>\s*</th>")


def on_page_content(content, page, config, files):
    """Empty header cells become plain ones."""
    return EMPTY_HEADER.sub(r"<td\1></td>", content)
