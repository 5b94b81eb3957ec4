"""The chart of the README and of the site's first page: minllm's speed over its peers' in the rows of the README's table (headline.py)."""

from minllm.bench.headline import Run, Wanted, origin, rows_of
from minllm.bench.results_table import number
from minllm.figures.bars import Bar, bars
from minllm.figures.figure import Figure

COLOURS = {"vLLM": 1, "TensorRT-LLM": 1, "cuDNN": 2}  # by a word of the peer's name; 0: any other


def speed_chart(run: Run) -> Figure:
    """Bars of the ratios of speeds, with a line at 1; a row without a peer has no bar."""
    return bars(
        [bar(wanted, row) for rows in rows_of(run).values() for wanted, row in rows if row["ratio"]],
        unit="x",
        title="Speed of minllm over its peers",
        limit=1.0,
        limit_name="equally fast:",
        caption=origin(run).replace("`", ""),
    )


def bar(wanted: Wanted, row: dict) -> Bar:
    """The bar of a measurement."""
    remark = f"{row['peer']} {number(row['peer_value'])}, ours {number(row['value'])} {row['unit']}"
    colour = next((index for word, index in COLOURS.items() if word in row["peer"]), 0)
    return Bar(wanted.bar, round(row["ratio"], 2), remark, colour)
