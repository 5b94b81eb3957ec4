"""Options that several commands share, and the parsing of --variant."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from minllm.errors import InvalidOptionError


class DeviceName(StrEnum):
    """Where to compute; auto uses a GPU if possible."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class DtypeName(StrEnum):
    """The dtype of weights and activations; auto is that of the checkpoint."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT = "float"
    FP32 = "fp32"
    HALF = "half"
    FP16 = "fp16"
    BF16 = "bf16"


ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", metavar="PATH", help="Hugging Face directory or GGUF file. Default: the bundled model.")
]
DeviceOption = Annotated[DeviceName, typer.Option(help="Where to compute; auto takes a GPU if there is one.")]
DtypeOption = Annotated[
    DtypeName,
    typer.Option(
        metavar="DTYPE",
        help="Type of weights and activations: float32 (or float, fp32), float16 (half, fp16), bfloat16 (bf16), or the checkpoint's own.",
    ),
]
QuantizationOption = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="Quantise the layers' weights while loading: int8, fp8, int4, nf4, ...", show_default=False),
]
VariantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="STAGE=NAME",
        help="Use this kernel for a stage (GPU), or that of an exercise's FILE.py (simulated without a GPU). May be repeated.",
    ),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write it as JSON; - is standard output.", show_default=False)
]


def variants(texts: list[str] | None) -> dict[str, Any] | None:
    """["attention=naive"] as {"attention": "naive"}; a value that is a Python file is replaced by the kernel in it.

    Raises InvalidOptionError for any other form.
    """
    pairs = {}
    for text in texts or []:
        stage, equals, name = text.partition("=")
        if not (stage and equals and name):
            raise InvalidOptionError(f"--variant {text} is not allowed: write STAGE=NAME, for example --variant matmul=naive.")
        pairs[stage] = name
        if name.endswith(".py"):
            from minllm.course.plug import own_kernel

            pairs[stage] = own_kernel(stage, Path(name))
    return pairs or None
