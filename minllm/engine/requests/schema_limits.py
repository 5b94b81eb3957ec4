"""Limits of the numbers in a JSON schema, for which llguidance has none."""

import json
import math
import re
from contextlib import suppress
from decimal import Decimal
from typing import Any

from minllm.errors import InvalidRequestError

LEAST = -(2.0**63)  # an integer of 64 bits
MOST_REMAINDERS = 100_000  # a multipleOf becomes an automaton with a state per remainder: 1 s and 70 MB at the limit
SCHEMA = re.compile(r"%json[ \t\r\n]*")


def check_numbers(lark: str, name: str) -> None:
    """Raise InvalidRequestError if a schema in this grammar has numbers beyond the limits. name: the description, for messages."""
    for place in SCHEMA.finditer(lark):
        numbers, multiples = _numbers(lark, place.end())
        if (least := min(numbers, default=0.0)) <= LEAST:
            raise InvalidRequestError(f"{name} is not allowed: it holds {least!r}, and the numbers of a schema are above -2**63.")
        if _are_too_many_remainders(multiples):
            raise InvalidRequestError(
                f"{name} is not allowed: the least common multiple of all multipleOf of a schema is at most {MOST_REMAINDERS:,} times the "
                "unit of their last decimal place: choose smaller ones, or leave multipleOf out."
            )


def _numbers(text: str, start: int) -> tuple[list[float], list[float]]:
    """All numbers of the JSON that begins at `start`, and those that are a multipleOf. Of what is no JSON, those before the error."""
    numbers: list[float] = []
    multiples: list[float] = []

    def number(digits: str) -> float:
        numbers.append(float(digits))
        return numbers[-1]

    def take(found: dict[str, Any]) -> None:
        if isinstance(multiple := found.get("multipleOf"), float):
            multiples.append(abs(multiple))

    with suppress(ValueError, RecursionError):  # llguidance refuses it
        json.JSONDecoder(parse_int=number, parse_float=number, object_hook=take).raw_decode(text, start)
    return numbers, multiples


def _are_too_many_remainders(multiples: list[float]) -> bool:
    exact = [Decimal(repr(one)).normalize() for one in multiples if 0 < one < math.inf]
    places, common = max([0, *(-int(one.as_tuple().exponent) for one in exact)]), 1
    for one in exact:
        common = math.lcm(common, int(one.scaleb(places)))
        if common > MOST_REMAINDERS:
            return True
    return False
