"""The specimens of the stages that the catalogue does not describe yet."""

import importlib
from collections.abc import Iterator

from minllm.kernels import attention, matmul
from minllm.kernels.specimen import Specimen

TABLES = {"matmul": matmul.VARIANTS, "attention": attention.VARIANTS}  # stages with several variants


def specimens_of(stage: str) -> Iterator[Specimen]:
    """The specimens of one stage: of all variants in its table, or of its module `specimens`."""
    return (TABLES.get(stage) or importlib.import_module(f"minllm.kernels.{stage}.specimens")).specimens()
