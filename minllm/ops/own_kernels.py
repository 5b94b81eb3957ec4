"""Kernels from outside the package for a stage of the forward, for example a reader's own attention inside the engine.

    LLM(kernel_variants={"rms_norm": my_rms_norm, "attention": my_module})

A stage's kernel is a launcher with the signature of the package's own: `matmul_naive`, `int4_naive` (for weights of quantization="int4"
or one of its variants), `rms_norm`, `silu_and_multiply`, `accept` (for greedy and n-gram drafts, with a speculative_config),
`sort_by_expert` (for models with experts; on a GPU for steps of more tokens than the gather GEMV takes); for attention
a module, or any object, with `attention` and `workspace_shapes`, as kernels/attention/__init__.py describes.
On a GPU engine it runs on the GPU. On a CPU it runs in the simulator, and the other operations in NumPy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minllm.errors import KernelArgumentError

STAGES = ("accept", "attention", "int4_matmul", "matmul", "rms_norm", "silu_and_multiply", "sort_by_expert")


@dataclass(frozen=True)
class OwnKernel:
    """A launcher for a stage.

    most_rows: the most rows of x, or new tokens of a sequence, that it supports; larger calls use the package's kernel.
    simulated_options: keyword arguments for the simulator, in which tile sizes for a GPU would be slow.
    """

    stage: str
    launch: Callable
    workspace_shapes: Callable | None = None  # for attention only
    most_rows: int | None = None
    simulated_options: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, rows: int) -> bool:
        """Whether the kernel supports this number of rows."""
        return self.most_rows is None or rows <= self.most_rows


def as_own_kernel(stage: str, thing: Any) -> OwnKernel:
    """The entry of kernel_variants for a stage as an OwnKernel. Raises KernelArgumentError if it cannot be one."""
    if stage not in STAGES:
        raise KernelArgumentError(f"kernel_variants gives a kernel of your own for the stage {stage!r}; it may for {', '.join(STAGES)}")
    if isinstance(thing, OwnKernel):
        if thing.stage != stage:
            raise KernelArgumentError(f"a kernel for the stage {thing.stage} was given for {stage}")
        return thing
    if stage == "attention":
        if not (hasattr(thing, "attention") and hasattr(thing, "workspace_shapes")):
            raise KernelArgumentError("your own attention is a module with the functions attention and workspace_shapes, or the like")
        return OwnKernel(stage, thing.attention, thing.workspace_shapes)
    if not callable(thing):
        raise KernelArgumentError(f"kernel_variants gives {thing!r} for {stage}; give a variant's name or a launcher, a function")
    return OwnKernel(stage, thing)


def own_kernels(variants: Mapping[str, Any]) -> dict[str, OwnKernel]:
    """The entries of kernel_variants that are not names."""
    return {stage: as_own_kernel(stage, thing) for stage, thing in variants.items() if not isinstance(thing, str)}
