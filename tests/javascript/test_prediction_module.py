"""The site reads numbers, and judges guesses, as the package does."""

import numpy as np

from minllm.course.prediction import verdict
from minllm.course.quantity import parse_quantity
from minllm.figures.scale import short
from tests.course.quantities import QUANTITIES
from tests.javascript.modules import needs_javascript, run


def pairs():
    """Guesses and actual values over many orders of magnitude, equal ones and ones that are not positive."""
    rng = np.random.default_rng(0)
    actual = 10 ** rng.uniform(-3, 14, 300)
    guess = actual * 10 ** rng.uniform(-2.5, 2.5, 300)
    return [*zip(guess.tolist(), actual.tolist()), (1.0, 1.0), (0.0, 3.0), (-2.0, -5.0), (None, 2.0), (1e3, 1.0)]


@needs_javascript
def test_typed_numbers_mean_the_same():
    given = [dict(text=text) for text in QUANTITIES]
    assert run("prediction_cases.mjs", "prediction-values.js", given) == [parse_quantity(text) for text in QUANTITIES]


@needs_javascript
def test_guesses_are_judged_alike():
    given = [dict(guess=guess, actual=actual) for guess, actual in pairs()]
    expected = [[verdict(guess, actual), short(actual)] for guess, actual in pairs()]
    assert run("prediction_cases.mjs", "prediction-values.js", given) == expected
