"""How often Python's garbage collector runs."""

import gc


def collect_rarely() -> None:
    """Run the collector of this process rarely: for programs, not for libraries, because it changes the whole process.

    Imports, compilers and simulated kernels make millions of objects, nearly all without cycles. At Python's own thresholds, 700 or 2,000
    objects, collections take a tenth of their time.
    """
    gc.set_threshold(50_000, 20, 50)
