"""Few cases that meet everything which many cases meet: the part of a long list that `make test` runs; `make test-all` runs the list.

A case is described by its features: properties on which a bug could depend, such as a kernel's dtype. A covering selection of a list has,
for every feature of any case in the list, at least one case with this feature. It leaves out combinations of features, and no feature.

    @pytest.mark.covering("case.dtype", "case.head_dim", "module + case.dtype")
    @pytest.mark.parametrize("case", CASES) ...

The mark `detected` takes features too: all cases run, and a covering selection of them runs under the simulator's detectors. Its features
are those on which the order of memory accesses depends (a kernel's variant, tiling or block), not those that change numbers only.

A feature of a mark is a parameter of the test, an attribute of one, or several of them whose combinations must all be met; or a mark has
functions of all parameters, `pytest.mark.covering.with_args(features)`, which return any number of features.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial, reduce
from typing import Any, TypeVar

Case = TypeVar("Case")


def covering(cases: Sequence[Case], features: Callable[[Case], Iterable[Hashable]]) -> list[Case]:
    """A covering selection in the order of `cases`, the same in every run: the case with the most features not yet met is taken first."""
    features_of = [set(features(case)) for case in cases]
    cases_with = defaultdict(list)
    for index, its_features in enumerate(features_of):
        for feature in its_features:
            cases_with[feature].append(index)
    chosen, missing = [], [len(its_features) for its_features in features_of]
    while most := max(missing, default=0):
        chosen.append(missing.index(most))  # the first of equals
        for feature in features_of[chosen[-1]]:
            for index in cases_with.pop(feature, ()):
                missing[index] -= 1
    return [cases[index] for index in sorted(chosen)]


def left_out(items: Iterable[Any]) -> list[Any]:
    """The pytest items that the covering selections of their tests leave out."""
    return not_chosen(items, "covering")


def without_detectors(items: Iterable[Any]) -> list[Any]:
    """The pytest items that compare results only, because other cases of their tests run under detectors."""
    return not_chosen(items, "detected")


def not_chosen(items: Iterable[Any], mark: str) -> list[Any]:
    """The items with this mark that are not in the covering selections of their tests."""
    cases_of = defaultdict(list)
    for item in items:
        if item.get_closest_marker(mark) and hasattr(item, "callspec"):
            cases_of[item.path, item.originalname].append(item)
    chosen = {item for cases in cases_of.values() for item in covering(cases, partial(marked_features, mark=mark))}
    return [item for cases in cases_of.values() for item in cases if item not in chosen]


def marked_features(item: Any, mark: str) -> list[tuple]:
    """The features of a test's case that its mark names, as (feature, value)."""
    found, parameters = [], item.callspec.params
    for one in item.get_closest_marker(mark).args:
        found += one(**parameters) if callable(one) else [(one, *(value_at(parameters, path.strip()) for path in one.split("+")))]
    return found


def value_at(parameters: dict[str, Any], path: str) -> Hashable:
    """The parameter or attribute at a dotted path, as a text where it cannot be hashed."""
    first, *attributes = path.split(".")
    value = reduce(getattr, attributes, parameters[first])
    return value if isinstance(value, int | str | None) else repr(value)
