"""An MkDocs hook: Mermaid's flowcharts become SVG when the site is built (flowchart.py); wide pictures scroll on a phone."""

import re

import flowchart

PICTURE = re.compile(r'<p>(<img [^>]*src="[^"]+\.svg"[^>]*>)</p>')


def on_config(config):
    """Let flowchart.py format the fences that mkdocs.yml names `mermaid`."""
    for fence in config.mdx_configs["pymdownx.superfences"]["custom_fences"]:
        if fence["name"] == "mermaid":
            fence["format"] = drawn
    return config


def drawn(source, language, class_name, options, md, **_):
    """A fence as a figure, in the signature of pymdownx.superfences."""
    return flowchart.figure(source)


def on_page_content(html, page, config, files):
    """Put each picture into a frame that keeps its letters readable on a phone by scrolling sideways."""
    return PICTURE.sub(r'<div class="wide-picture" tabindex="0">\1</div>', html)
