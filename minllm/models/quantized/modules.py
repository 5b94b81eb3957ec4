"""The format of a checkpoint in which each module may have its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from minllm.errors import UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.layout import layout_of, leaves
from minllm.weights.format import LinearKernels, WeightFormat
from minllm.weights.stored import StoredLinear


@dataclass(frozen=True)
class FormatOfModules(WeightFormat):
    """The formats of the quantised modules, by their names; all other modules are plain."""

    chosen: Mapping[str, WeightFormat] = field(default_factory=dict)

    is_option = False

    def covers(self, name: str) -> bool:
        """Whether the module `name` is quantised."""
        return name in self.chosen

    def of(self, modules: list[str]) -> WeightFormat | None:
        """The format of modules stacked in one Linear, or None. Raises UnsupportedModelError if formats differ."""
        found = [self.chosen.get(name) for name in modules]
        if any(one != found[0] for one in found):
            formats = ", ".join(f"{name} is {'plain' if one is None else one.name}" for name, one in zip(modules, found, strict=True))
            raise UnsupportedModelError(f"minllm multiplies by {' and '.join(modules)} together, so they need one format: {formats}.")
        return found[0]

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Upper bound: the largest matrix_bytes of the formats."""
        return max(one.matrix_bytes(outputs, inputs) for one in self.chosen.values())

    def workspace_bytes(self, rows: int, outputs: int, inputs: int, itemsize: int) -> int:
        """Upper bound: the largest workspace_bytes of the formats."""
        return max(one.workspace_bytes(rows, outputs, inputs, itemsize) for one in self.chosen.values())

    @property
    def kernels(self) -> LinearKernels:
        """The kernels of the first format."""
        return next(one.kernels for one in self.chosen.values())


def by_module(
    name: str, config: ModelConfig, prefixed: bool, decide: Callable[[str], WeightFormat | None], together: bool = False
) -> FormatOfModules | None:
    """The format of a checkpoint; None if all its modules are plain.

    decide(module) -> the module's format, None for plain. prefixed: see layout_of. together: the modules of a Linear are plain unless all
    of them have the same format. A tied head has no tensors of its own and stays plain.
    """
    model = layout_of(config, prefixed).model
    chosen: dict[str, WeightFormat] = {}
    for leaf in leaves(model):
        if isinstance(leaf, StoredLinear) and not (leaf is model.lm_head and config.tie_word_embeddings):
            decided = ((one, decide(one.name)) for one in leaf.projections)
            found = {one.name: form and form.for_inputs(one.inputs) for one, form in decided}
            if not together or all(one == next(iter(found.values())) for one in found.values()):
                chosen |= {module: one for module, one in found.items() if one is not None}
    if not chosen:
        return None
    since = max((one.since for one in chosen.values() if one.since is not None), default=None)
    return FormatOfModules(name, max(one.matrix_itemsize for one in chosen.values()), since=since, chosen=chosen)
