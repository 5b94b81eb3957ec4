"""A reader's predictions, compared with counts and measurements.

    guess = Prediction(bytes=17e6, flops=17e6, milliseconds=0.004)
    guess.against(bytes=cost.bytes, flops=cost.flops, milliseconds=measured)

Guessing first, and seeing the difference, makes the number stick.
"""

from minllm.errors import LessonError
from minllm.figures.scale import short


class Prediction:
    """Named quantities, for example bytes, flops, milliseconds, tokens_per_second, limit="memory". None means "I do not know"."""

    def __init__(self, **quantities: float | str | None):
        self.quantities = quantities

    def against(self, title: str = "Predicted, and counted or measured", **actual: float | str) -> "Comparison":
        """A table of both. Raises LessonError for a name that was not predicted."""
        if unknown := actual.keys() - self.quantities.keys():
            known = ", ".join(self.quantities)
            raise LessonError(f"Nothing was predicted for {', '.join(sorted(unknown))}; this prediction has {known}.")
        return Comparison(title, [(name, self.quantities[name], value) for name, value in actual.items()])

    def __repr__(self) -> str:
        return "Prediction: " + ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in self.quantities.items())


class Comparison:
    """Rows of (quantity, predicted, actual); displays itself as a table."""

    def __init__(self, title: str, rows: list[tuple[str, float | str | None, float | str]]):
        self.title, self.rows = title, rows

    def _repr_markdown_(self) -> str:
        lines = [f"| {self.title} | predicted | actual | |", "| --- | ---: | ---: | --- |"]
        lines += [
            f"| {name.replace('_', ' ')} | {_shown(guess)} | {_shown(actual)} | {verdict(guess, actual)} |"
            for name, guess, actual in self.rows
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return "\n".join(
            f"{name.replace('_', ' ')}: predicted {_shown(guess)}, actual {_shown(actual)} ({verdict(guess, actual)})"
            for name, guess, actual in self.rows
        )


def verdict(guess: float | str | None, actual: float | str) -> str:
    """The accuracy of a guess in words: within 10 %, 2.3x too high, and so on."""
    if guess is None:
        return "not predicted"
    if isinstance(guess, str) or isinstance(actual, str):
        return "as predicted" if guess == actual else "otherwise than predicted"
    if guess == actual:
        return "exactly"
    if guess <= 0 or actual <= 0:
        return ""
    ratio = guess / actual
    if 1 / 1.1 <= ratio <= 1.1:
        return "within 10 %"
    return f"{ratio:.3g}x too high" if ratio > 1 else f"{1 / ratio:.3g}x too low"


def _shown(value: float | str | None) -> str:
    return "?" if value is None else value if isinstance(value, str) else short(value)
