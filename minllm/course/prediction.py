"""A reader's predictions, compared with computed and measured values.

    guess = Prediction(
        bytes="How many bytes does a decode step read?",
        limit=("What is the bottleneck?", "memory", "arithmetic"),
    )
    guess.ask()
    ...
    guess.against(bytes=cost.bytes, limit="memory", measured=dict(bytes=counted))

In a notebook the cell asks the questions. On the site they are a form: docs/assets/javascripts/predictions.js locks the guesses, only then
shows the answer, and keeps the guesses in the browser. A number is easier to remember after a guess.
"""

import html

from minllm.course.quantity import parse_quantity
from minllm.errors import LessonError
from minllm.figures.scale import short

Guess = float | str | None


class Prediction:
    """Questions by name: a text, for a number as answer, or (text, choice, choice, ...)."""

    def __init__(self, **questions: str | tuple[str, ...]):
        self.texts = {name: asked if isinstance(asked, str) else asked[0] for name, asked in questions.items()}
        self.choices = {name: () if isinstance(asked, str) else asked[1:] for name, asked in questions.items()}
        self.guesses: dict[str, Guess] = dict.fromkeys(questions)
        self.was_asked = False  # in a notebook, by somebody who can answer

    def ask(self) -> "Prediction":
        """Ask the questions if this is a notebook, each until the input is an answer; an empty input skips one."""
        for name in self.texts if in_notebook() else ():
            try:
                self.guesses[name] = self.typed_answer(name)
            except (NotImplementedError, EOFError):  # a notebook that runs without a user
                break
            self.was_asked = True
        return self

    def typed_answer(self, name: str) -> Guess:
        """The first input that is an answer, None for an empty one; any other is answered with what is allowed."""
        while typed := input(f"{self.asked(name)} ").strip():
            if (guess := self.answer(name, typed)) is not None:
                return guess
            allowed = " or ".join(self.choices[name]) or "a number, such as 16e9, 1,024 or 33 MB"
            print(f"{typed!r} is not {allowed}. Try again, or press Enter to skip the question.")
        return None

    def asked(self, name: str) -> str:
        """The text of a question with its choices."""
        return self.texts[name] + (f" ({' / '.join(self.choices[name])})" if self.choices[name] else "")

    def answer(self, name: str, typed: str) -> Guess:
        """The typed answer as a number or as one of the choices; None for anything else."""
        if not self.choices[name]:
            return parse_quantity(typed)
        return next((choice for choice in self.choices[name] if choice.lower() == typed.strip().lower()), None)

    def against(self, measured: dict[str, float] | None = None, **computed: float | str) -> "Comparison":
        """A table of guesses, computed and `measured` values. Raises LessonError for a name without a question."""
        if unknown := computed.keys() - self.texts.keys():
            raise LessonError(f"Nothing was asked about {', '.join(sorted(unknown))}; this prediction has {', '.join(self.texts)}.")
        measured = measured or {}
        rows = [(name, self.texts[name], self.guesses[name], value, measured.get(name)) for name, value in computed.items()]
        return Comparison(rows)

    def _repr_html_(self) -> str:
        if self.was_asked:
            rows = [f"<tr><td>{html.escape(self.texts[name])}</td><td>{shown(guess)}</td></tr>" for name, guess in self.guesses.items()]
            return f"<table><tbody>{''.join(rows)}</tbody></table>"
        fields = "".join(self.field(name) for name in self.texts)
        return (
            f'<form class="prediction" novalidate>{fields}<p><button type="submit" class="md-button">Lock in my guesses</button> '
            '<button type="reset" class="md-button" hidden>Guess again</button> <span role="status"></span></p></form>'
        )

    def field(self, name: str) -> str:
        """The HTML of a question of the form."""
        if self.choices[name]:
            options = "".join(f"<option>{html.escape(choice)}</option>" for choice in ("", *self.choices[name]))
            entry = f'<select id="predict-{name}" name="{name}">{options}</select>'
        else:
            entry = f'<input id="predict-{name}" name="{name}" type="text" inputmode="text" autocomplete="off" size="12">'
        text = html.escape(self.texts[name], quote=False)
        return f'<p><label for="predict-{name}">{text}</label> {entry} <span class="prediction-complaint" role="alert"></span></p>'

    def __repr__(self) -> str:
        return "\n".join(f"{self.asked(name)} {shown(guess)}" for name, guess in self.guesses.items())


class Comparison:
    """Rows of (name, question, guess, computed, measured); displays itself as a table."""

    def __init__(self, rows: list[tuple[str, str, Guess, float | str, float | None]]):
        self.rows = rows

    def _repr_html_(self) -> str:
        some_measured = any(measured is not None for *_, measured in self.rows)
        head = "".join(f"<th>{title}</th>" for title in ("Prediction", "your guess", "computed", *["measured"] * some_measured, "verdict"))
        body = "".join(self.row(*row, some_measured) for row in self.rows)
        return f'<div class="prediction-answer"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

    @staticmethod
    def row(name: str, question: str, guess: Guess, computed: float | str, measured: float | None, some_measured: bool) -> str:
        """The HTML of a row of the table; the site's script reads its data attributes."""
        actual = computed if measured is None else measured
        cells = [html.escape(question, quote=False), shown(guess), shown(computed)]
        cells += ["" if measured is None else shown(measured)] if some_measured else []
        listed = "".join(f"<td>{cell}</td>" for cell in (*cells, verdict(guess, actual)))
        return f'<tr data-name="{name}" data-actual="{html.escape(str(actual))}">{listed}</tr>'

    def __repr__(self) -> str:
        return "\n".join(
            f"{question} guess {shown(guess)}, computed {shown(computed)}"
            + (f", measured {shown(measured)}" if measured is not None else "")
            + f" ({verdict(guess, computed if measured is None else measured)})"
            for _, question, guess, computed, measured in self.rows
        )


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def verdict(guess: Guess, actual: float | str) -> str:
    """The accuracy of a guess in words: within 10 %, 2.3x too high, and so on."""
    if guess is None:
        return "not predicted"
    if isinstance(guess, str) or isinstance(actual, str):
        return "right" if guess == actual else "otherwise"
    if guess == actual:
        return "exactly"
    if guess <= 0 or actual <= 0:
        return "too high" if guess > actual else "too low"
    ratio = guess / actual
    if 1 / 1.1 <= ratio <= 1.1:
        return "within 10 %"
    return f"{ratio:.3g}x too high" if ratio > 1 else f"{1 / ratio:.3g}x too low"


def shown(value: float | str | None) -> str:
    """A value as HTML text for the table; "?" for None."""
    return "?" if value is None else html.escape(value) if isinstance(value, str) else short(value)
