"""An MkDocs hook: a header cell without words is no header, yet screen readers would announce one.

Markdown writes such a cell for every first column.
"""

import re

EMPTY_HEADER = re.compile(r"<th( [^>]*)?>\s*</th>")


def on_page_content(content, page, config, files):
    """Empty header cells become plain ones."""
    return EMPTY_HEADER.sub(r"<td\1></td>", content)
