"""Draw docs/assets/sharing.png, the picture that a link to the site shows elsewhere. Needs Chromium.

    python tools/site/sharing_picture.py

It holds the first page's kernel, the simulator's finding and the recorded chart. The file keeps a hash of what it was drawn from, so that a
test can tell whether it is current.
"""

import hashlib
import html
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import home_page

PICTURE = Path(__file__).parents[2] / "docs" / "assets" / "sharing.png"
WIDTH, HEIGHT = 1200, 630
KEYWORD = b"drawn from"
STYLE = """
body { margin: 0; width: 1200px; height: 630px; background: #0d2136; color: #e6edf3; overflow: hidden;
  font-family: 'DejaVu Sans', sans-serif;
  --course-1: #5aa9f0; --course-2: #ff9a52; --course-3: #5fc58d; --course-muted: #a3adbd; --course-grid: #ffffff2b; --course-page: #0d2136 }
h1 { margin: 40px 40px 8px; font-size: 43px } p { margin: 0 40px 30px; font-size: 22px; color: #c3cad6 }
main { display: grid; grid-template-columns: 640px 490px; gap: 0 24px; margin-left: 40px } figure { margin: 0 } figcaption { display: none }
pre { margin: 0 0 14px; padding: 14px 16px; background: #16324f; border-radius: 6px; font: 13.3px/1.62 'DejaVu Sans Mono', monospace }
pre.found { color: #ffb272; font-size: 11.5px } svg { width: 100%; height: auto }
"""


def page() -> str:
    """The picture as HTML."""
    kernel, race = (html.escape(block.partition("\n")[2].rpartition("\n")[0]) for block in (home_page.kernel(), home_page.race()))
    return (
        f"<!doctype html><meta charset='utf-8'><style>{STYLE}</style><h1>The LLM inference engine that you can read</h1>"
        f"<p>GPU kernels in Python, beside their equations, raced against cuBLAS, cuDNN and vLLM</p>"
        f"<main><div><pre>{kernel}</pre><pre class='found'>{race}</pre></div>{home_page.chart()._repr_html_()}</main>"
    )


def digest() -> str:
    """The hash of what the picture is drawn from."""
    return hashlib.sha256(page().encode()).hexdigest()


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def drawn_from(png: bytes) -> str:
    """The hash inside a picture, "" if it has none."""
    at = png.find(b"tEXt" + KEYWORD + b"\0")
    start = at + 4 + len(KEYWORD) + 1
    return png[start : start + 64].decode() if at >= 0 else ""


def main() -> int:
    """Draw the picture with a Chromium that runs without a window."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no chromium on the path: install it, or name it in CHROMIUM", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "sharing.html"), Path(folder, "sharing.png")
        source.write_text(page(), encoding="utf-8")
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
        subprocess.run([chromium, *options, f"--screenshot={target}", source.as_uri()], check=True, capture_output=True, timeout=60)
        png = target.read_bytes()
    end = png.rindex(b"IEND") - 4
    PICTURE.write_bytes(png[:end] + chunk(b"tEXt", KEYWORD + b"\0" + digest().encode()) + png[end:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
