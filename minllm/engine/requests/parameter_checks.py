"""Checks of a request's parameters: each returns a value in its canonical form, or raises InvalidRequestError saying what is allowed."""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, NoReturn

from minllm.errors import InvalidRequestError, shown


def refuse(name: str, given: object, allowed: str, advice: str = "") -> NoReturn:
    """Raise InvalidRequestError for a parameter's value."""
    raise InvalidRequestError(f"{name}={shown(given)} is not allowed: {name} is {allowed}{'; ' + advice if advice else ''}")


def integer(name: str, value: object, low: int, high: int | None, allowed: str) -> int:
    """`value` as an int within [low, high]; True and 3.0 are refused, because they are usually mistakes."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < low or (high is not None and int(value) > high):
        refuse(name, value, allowed)
    return int(value)


def real(name: str, value: object, low: float, high: float, allowed: str, low_is_allowed: bool = True) -> float:
    """`value` as a finite float within [low, high], or (low, high]."""
    number = _finite(value)
    if number is None or number > high or (number < low if low_is_allowed else number <= low):
        refuse(name, value, allowed)
    return number


def _finite(value: object) -> float | None:
    """A real number as a finite float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int or a fraction beyond the largest float
        return None
    return number if math.isfinite(number) else None


def flag(name: str, value: object) -> bool:
    """`value`, which is True or False."""
    if not isinstance(value, bool):
        refuse(name, value, "True or False")
    return value


def strings(name: str, value: object) -> tuple[str, ...]:
    """A string, or a list of strings, without repetitions; () for None."""
    texts = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        refuse(name, value, "a string or a list of strings")
    return tuple(dict.fromkeys(texts))


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """A list of token ids, without repetitions; () for None."""
    ids = () if value is None else value
    if not isinstance(ids, list | tuple):
        refuse(name, ids, "a list of token ids")
    return tuple(dict.fromkeys(_token_id(f"{name}[{index}]", token_id) for index, token_id in enumerate(ids)))


def _token_id(name: str, value: object) -> int:
    return integer(name, value, 0, None, "an integer of at least 0")


def biases(name: str, value: object, most: float) -> dict[int, float] | None:
    """{token id: bias}, with ids as integers or as the decimal texts that JSON has for keys; None for no bias."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        refuse(name, value, "a dictionary from token ids to biases")
    found: dict[int, float] = {}
    for key, bias in value.items():
        token_id = int(key) if _is_decimal(key) else _token_id(f"a token id of {name}", key)
        if token_id in found:
            refuse(name, value, "a dictionary with one bias per token id", f"id {token_id} is given twice")
        found[token_id] = real(f"{name}[{token_id}]", bias, -most, most, f"a number from -{most:g} to {most:g}")
    return found or None


def _is_decimal(key: object) -> bool:
    """Whether a key is a text of a few decimal digits. int() would also take spaces, underscores and other scripts' digits."""
    return isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 19


def functions(name: str, value: Any) -> tuple[Callable, ...]:
    """A list of functions; () for None."""
    given: Iterable[Any] = () if value is None else value
    if not isinstance(given, list | tuple) or not all(callable(function) for function in given):
        refuse(name, value, "a list of functions")
    return tuple(given)
