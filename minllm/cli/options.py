"""Options shared by several commands of the command line, and their meaning."""

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


ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", metavar="PATH", help="Hugging Face directory or GGUF file. Default: the bundled model.")
]
DeviceOption = Annotated[DeviceName, typer.Option(help="Where to compute; auto takes a GPU if there is one.")]
DtypeOption = Annotated[DtypeName, typer.Option(help="Of weights and activations; auto is the checkpoint's own.")]
KvCacheDtypeOption = Annotated[
    str, typer.Option("--kv-cache-dtype", metavar="FORMAT", help="Of keys and values: auto, int8, int4, fp8_e4m3, fp8_e5m2, kivi_int4.")
]
KvWindowOption = Annotated[
    int | None,
    typer.Option("--kv-window", help="Newest tokens that a quantised cache keeps as they are; a multiple of 32.", show_default=False),
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
MaxTokensOption = Annotated[int, typer.Option(help="Most tokens to generate.")]
TemperatureOption = Annotated[float | None, typer.Option(help="0 is greedy, 1 the model's own distribution.", show_default=False)]
TopPOption = Annotated[float | None, typer.Option(help="Sample among the likeliest tokens that sum to this.", show_default=False)]
TopKOption = Annotated[int | None, typer.Option(help="Sample among this many likeliest tokens; 0 is all.", show_default=False)]
MinPOption = Annotated[float | None, typer.Option(help="Drop tokens less likely than this times the likeliest.", show_default=False)]
PenaltyOption = Annotated[float | None, typer.Option(help="Above 1, tokens that occurred become less likely.", show_default=False)]
SeedOption = Annotated[int | None, typer.Option(help="The same seed gives the same text.", show_default=False)]
StopOption = Annotated[list[str] | None, typer.Option(help="End before this text. May be repeated.", show_default=False)]


def variants(texts: list[str] | None) -> dict[str, Any] | None:
    """["attention=naive"] as {"attention": "naive"}; if a value is an exercise's file, its kernel instead of a name."""
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
