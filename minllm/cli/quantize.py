"""`minllm quantize`: writes a checkpoint with 4-bit or 8-bit weights from one with 16-bit weights."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minllm.cli.options import refuse_idle
from minllm.cli.terminal import user_errors
from minllm.cli.text_input import read_text_file
from minllm.post_training import UNCALIBRATED

METHOD_HELP = "round, clip (int4, nf4), smoothquant, awq, gptq, smoothquant+gptq or awq+gptq; all but the first two calibrate on a text."
TEXT_HELP = "A text file to calibrate on; default minllm's own source."


def quantize_command(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="IN", help="Directory of a Hugging Face model in 16 or 32 bits.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new directory.")],
    weight_format: Annotated[str, typer.Option("--format", metavar="FORMAT", help="int8, fp8, fp8_block, int4, int4_g128_zeros, nf4, ...")],
    method: Annotated[str, typer.Option(metavar="METHOD", help=METHOD_HELP)] = "round",
    text: Annotated[Path | None, typer.Option(help=TEXT_HELP, exists=True, dir_okay=False, show_default=False)] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of the text to calibrate on.")] = 16384,
) -> None:
    """Write a quantised copy of a model, in compressed-tensors' layout (nf4: bitsandbytes'); embeddings and head stay as they are."""
    if method in UNCALIBRATED:
        refuse_idle(context, f"{method} reads no text", ("model", "out", "weight_format", "method"))
    with user_errors():
        from minllm.post_training.quantize import quantize

        console = Console(stderr=True)
        with console.status("Quantising") as status:
            calibration = None if text is None else read_text_file(text)
            quantize(
                model, out, weight_format, method, calibration, tokens,
                progress=lambda done, total: status.update(f"Quantised {done} of {total} layers"),
            )  # fmt: skip
        console.print(f"{out}: {weight_format} by {method}")
