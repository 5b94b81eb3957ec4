"""An MkDocs hook: generate the lessons' navigation from the lessons themselves; tools/write_pages.py writes their list.

A lesson is lessons/NN_name.py with its title as the first heading; half of one is lessons/NNa_name.py or lessons/NNb_name.py.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TITLE = re.compile(r"^(?:# )?# (\d+[ab]?\. .+)$", re.MULTILINE)


def lessons() -> list[tuple[str, str]]:
    """(title, MkDocs path of the page) of every lesson, by number."""
    return [(title_of(path), f"lessons/{path.name}") for path in sorted((ROOT / "lessons").glob("[0-9][0-9]*_*.py"))]


def title_of(path: Path) -> str:
    """The first heading, without page-only markup; ValueError if a lesson has none with its number."""
    found = TITLE.search(path.read_text(encoding="utf-8"))
    number = path.name.partition("_")[0].lstrip("0")
    if found is None or found[1].partition(".")[0] != number:
        raise ValueError(f"{path.name} needs a first heading with its number: # {number}. What it is about")
    return re.sub(r"[`$*]", "", found[1])


def on_config(config):
    """Insert them behind the first page of the section Lessons."""
    for section in config.nav or []:
        if isinstance(section, dict) and "Lessons" in section:
            first, *rest = section["Lessons"]
            section["Lessons"] = [first, *({title: address} for title, address in lessons()), *rest]
    return config
