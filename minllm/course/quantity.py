"""Parses numbers as people type them: 16e9, 1,024, 33 MB, 128 KiB, 4.2 TB, 80 %, 3 billion.

docs/assets/javascripts/prediction-values.js follows the same rules on the site.
"""

import re

PREFIXES = {
    "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "ki": 2**10, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
    "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12,
}  # fmt: skip
# A letter is a prefix, with or without i, only alone or before B (bytes) or FLOP: "3 tokens" and "12 ms" are 3 and 12.
QUANTITY = re.compile(
    r"^\s*(?P<number>[+-]?(?:\d[\d, _]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
    r"(?P<prefix>thousand|million|billion|trillion|[kKMGT]i?(?=$|\s|B|FLOP))?\s*(?P<unit>[^\d]*)$"
)


def parse_quantity(text: str) -> float | None:
    """The number in `text`; None if there is none, or if it is too large."""
    found = QUANTITY.match(text)
    if found is None:
        return None
    value = float(re.sub(r"[, _]", "", found["number"])) * PREFIXES.get(found["prefix"], 1.0)
    return value if abs(value) < 1e100 else None
