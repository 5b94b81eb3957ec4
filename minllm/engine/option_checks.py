"""What an option allows, as metadata of its dataclass field, and the functions that check all of them.

    max_num_seqs: int | None = option(None, none_or(integer(1)))
    tensor_parallel_size: int = option(1, integer(1), Rule(lambda o: ..., "1 with batch_invariant={batch_invariant}"))
"""  # fmt: skip

from collections.abc import Callable
from dataclasses import Field, field, fields
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from minllm.errors import InvalidOptionError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Allowed(NamedTuple):
    """The values that an option may have, whatever the others are. says: completes the sentence "<option> is ..."."""

    says: str
    allows: Callable[[Any], bool]


class Rule(NamedTuple):
    """A dependence of an option on others. says: as for Allowed, with {names} of options for their values.

    name: what is refused, if it is not the option itself but a number derived from it.
    """

    holds: Callable[[Any], bool]
    says: str
    name: str = ""


FLAG = Allowed("True or False", lambda given: isinstance(given, bool))


def one_of(*names: str) -> Allowed:
    """One of these names. An array is none of them: its == compares element by element."""
    return Allowed(f"one of {', '.join(names)}", lambda given: isinstance(given, str) and given in names)


def integer(low: int, high: float = float("inf"), says: str = "") -> Allowed:
    """An integer in [low, high]; True is none."""
    allows = lambda given: isinstance(given, Integral) and not isinstance(given, bool) and low <= int(given) <= high  # noqa: E731
    return Allowed(says or f"an integer of at least {low}", allows)


def none_or(allowed: Allowed, says: str = "{}") -> Allowed:
    """None, or what `allowed` allows. says: {} stands for its words."""
    return Allowed(says.format(allowed.says), lambda given: given is None or allowed.allows(given))


def either(*several: Allowed, says: str) -> Allowed:
    """What one of them allows."""
    return Allowed(says, lambda given: any(one.allows(given) for one in several))


def option(default: Any, allowed: Allowed | Callable[[], Allowed], *rules: Rule) -> Any:
    """A dataclass field with its default and its checks. allowed: or a function that returns it, if the choices may grow."""
    return field(default=default, metadata={"allowed": allowed, "rules": rules})


def allowed_of(one: Field) -> Allowed:
    """The values that a field made by `option` may have."""
    allowed = one.metadata["allowed"]
    return allowed() if callable(allowed) else allowed


def check_values(options: "DataclassInstance") -> None:
    """Raise InvalidOptionError for the first option whose value is never allowed."""
    for one in fields(options):
        says, allows = allowed_of(one)
        _refuse_unless(allows(getattr(options, one.name)), options, one.name, says)


def check_rules(options: "DataclassInstance") -> None:
    """Raise InvalidOptionError for the first option whose value is not allowed beside those of the others."""
    for one in fields(options):
        for holds, says, name in one.metadata["rules"]:
            _refuse_unless(holds(options), options, name or one.name, says.format_map(vars(options)))


def _refuse_unless(allowed: bool, options: "DataclassInstance", name: str, says: str) -> None:
    if not allowed:
        raise InvalidOptionError(f"{name}={getattr(options, name)!r} is not allowed: {name} is {says}.")
