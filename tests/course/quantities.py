"""Numbers as people type them, and what they mean; None: no number. For the package and for the site's script."""

QUANTITIES = {
    "16e9": 16e9,
    "16 GB": 16e9,
    "33MB": 33e6,
    "1,024": 1024,
    "80 %": 80,
    "3 billion": 3e9,
    "12 ms": 12,
    "5 tokens": 5,
    "5 Tokens": 5,
    "4.2 TB/s": 4.2e12,
    ".5": 0.5,
    "-3": -3,
    "2 k": 2000,
    "1 2 3": 123,
    "1e999": None,
    "": None,
    "many": None,
    "NaN": None,
    "0x10": None,
    "1.2.3": None,
}
