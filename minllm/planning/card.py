"""A plan as a card for a terminal, and as JSON."""

from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from minllm.costs import Stage
from minllm.costs.pipeline import micro_batches
from minllm.planning.floor import Floor
from minllm.planning.measured import Comparison
from minllm.planning.plan import Plan


def as_text(title: str, rows: list[tuple[str, str]]) -> Text:
    """A title, and below it one line per row."""
    text = Text(title, style="bold")
    for name, value in rows:
        text.append(f"\n{name:<20}", style="not bold dim").append(value, style="not bold")
    return text


def plan_rows(plan: Plan, predicted_ms: float | None = None, prefill_ms: float | None = None) -> list[tuple[str, str]]:
    """(name, value) for every line of the card; a line with an empty name continues the one above.

    predicted_ms, prefill_ms: the predicted times of the decode step and of the prefill, if there are any.
    """
    wishes = plan.wishes
    each = " a GPU" if wishes.gpus > 1 else ""
    used = plan.weight_bytes + plan.kv_bytes + plan.activation_bytes
    rows = [
        ("memory", f"{giga(plan.memory_bytes)}{each}, of which {100 * wishes.memory_share:.0f} % to use: {giga(plan.budget_bytes)}"),
        ("  weights", f"{giga(plan.weight_bytes)}{each}: {plan.parameters / 1e9:.3g} billion numbers in {wishes.dtype}"),
        *([("", experts_words(plan))] if plan.touched_experts is not None else []),
        ("  KV cache", f"{giga(plan.kv_bytes)}{each} for {wishes.batch:,} x {wishes.context:,} tokens in {wishes.kv_dtype}"),
        ("", policy_words(plan)),
        *([("", window_words(plan))] if plan.window_bytes else []),
        *([("", f"layers with a sliding window keep {plan.sliding_window:,} tokens")] if plan.sliding_window else []),
        ("  one forward", f"{giga(plan.activation_bytes)}{each}: activations and logits; {limits_words(plan)}"),
        ("  in all", f"{giga(used)}{each}: {'fits' if plan.fits else f'does not fit, {giga(used - plan.budget_bytes)} too much'}"),
        ("KV bytes per token", kv_line(plan)),
        ("largest batch", largest_batch_line(plan)),
        ("limits", f"{plan.bandwidth_tb_s:.4g} TB/s ({plan.bandwidth_source}), {plan.tflops:.4g} TFLOP/s ({plan.tflops_source})"),
        *([("stages", stages_line(plan))] if wishes.pipeline_parallel > 1 else []),
        ("decode step", floor_line(plan.decode)),
        *([("", predicted_words(predicted_ms))] if predicted_ms is not None else []),
        *[("", line) for line in link_lines(plan.decode)],
        ("", f"{counted(wishes.batch, 'token')}, at most {plan.decode.tokens_per_s:,.0f} tokens a second"),
        ("", f"up to a batch of about {plan.ridge_batch:,.0f} reading the weights takes longer than multiplying them"),
        ("prefill", floor_line(plan.prefill)),
        *([("", f"about {milliseconds(prefill_ms)} to its token with minllm's kernels, predicted")] if prefill_ms is not None else []),
        *[("", line) for line in link_lines(plan.prefill)],
        ("", f"one prompt of {wishes.context:,} tokens, at most {plan.prefill.tokens_per_s:,.0f} tokens a second"),
    ]
    if wishes.price_per_hour is not None:
        generated, read = plan.cost_per_million(plan.decode), plan.cost_per_million(plan.prefill)
        rows.append(("cost a million", f"{generated:.3g} for generated tokens, {read:.3g} for prompt tokens, at least"))
    return rows


def stage_table(title: str, stages: list[Stage]) -> Table:
    """A table with one line per stage: bytes, operations and arithmetic intensity."""
    table = Table("stage", title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("weights", "keys, values", "activations", "GFLOP", "FLOP per byte"):
        table.add_column(head, justify="right")
    for stage in stages:
        moved = (stage.weight_bytes, stage.kv_bytes, stage.activation_bytes)
        operations = stage.flops + stage.other_flops
        table.add_row(stage.name, *map(short_size, moved), three_figures(operations / 1e9), three_figures(stage.arithmetic_intensity))
    return table


def experts_words(plan: Plan) -> str:
    """The numbers that one token multiplies by, and the experts that a decode step reads."""
    active = f"{plan.active_parameters / 1e9:.3g} billion of them for one token"
    return f"{active}; a decode step reads about {plan.touched_experts:.3g} experts of each layer, if tokens choose uniformly"


def limits_words(plan: Plan) -> str:
    """The engine's limits of a step, for whose tokens there must be memory."""
    return f"by default a step has at most {plan.max_num_seqs:,} sequences and {plan.max_num_batched_tokens:,} tokens"


def policy_words(plan: Plan) -> str:
    """The cache's policy, and the share of its allocation that is unused."""
    policy = plan.wishes.policy
    sizes = {
        "contiguous": f"contiguous, {policy.max_model_len or 0:,} tokens for each",
        "paged": f"paged in blocks of {policy.block_size}",
        "virtual": "virtual in pages of 2 MiB",
    }
    return f"{sizes[policy.name]}: {100 * plan.kv_wasted_share:.1f} % of it waits unused"


def window_words(plan: Plan) -> str:
    """The size of the residual windows, and their part of the cache."""
    return f"windows of {plan.wishes.residual_window} tokens as they are: {giga(plan.wishes.batch * plan.window_bytes)} of it"


def kv_line(plan: Plan) -> str:
    """KV bytes per token, and for grouped-query attention also the result without shared KV heads."""
    line = size(plan.all_kv_bytes_per_token)
    if plan.ungrouped_kv_bytes_per_token == plan.all_kv_bytes_per_token:
        return line
    times = plan.ungrouped_kv_bytes_per_token / plan.all_kv_bytes_per_token
    tokens = plan.wishes.batch * plan.wishes.context
    wrong, right = (giga(tokens * each) for each in (plan.ungrouped_kv_bytes_per_token, plan.all_kv_bytes_per_token))
    return (
        f"{line}: each KV head serves {times:.3g} query heads. Without that sharing it would be {size(plan.ungrouped_kv_bytes_per_token)}, "
        f"and {wrong} in place of {right}"
    )


def largest_batch_line(plan: Plan) -> str:
    """The number of sequences that fit, or the reason that none does."""
    if plan.largest_batch:
        return f"{counted(plan.largest_batch, 'sequence')} of {plan.wishes.context:,} tokens"
    if plan.weight_bytes > plan.budget_bytes:
        return "none: the weights alone do not fit. Take more GPUs (--tensor-parallel), a larger one, or a smaller format (--dtype)"
    return "none: beside the weights not one sequence of this context fits. Take a shorter --context or a smaller --kv-dtype"


def floor_line(floor: Floor) -> str:
    """The floor of a step with its parts."""
    link = f" + link {milliseconds(floor.link_ms)}" if floor.link_ms else ""
    parts = f"memory {milliseconds(floor.memory_ms)}, arithmetic {milliseconds(floor.compute_ms)}{link}"
    return f"at least {milliseconds(floor.floor_ms)}: {parts}; {floor.bound} sets it"


def stages_line(plan: Plan) -> str:
    """The number of pipeline stages, and the share of a decode step that each is idle."""
    stages = plan.wishes.pipeline_parallel
    parts = counted(micro_batches(plan.wishes.batch, stages).count, "micro-batch", "micro-batches")
    return f"{stages} of equal numbers of layers; in a decode step of {parts} each waits {100 * plan.decode.bubble:.0f} % of the time"


def predicted_words(ms: float) -> str:
    """The predicted time of a decode step."""
    return f"about {milliseconds(ms)} with minllm's kernels in a CUDA graph, predicted"


def link_lines(floor: Floor) -> list[str]:
    """Bytes sent between GPUs, and the step with measured all-reduces instead of their floor; empty for one GPU."""
    lines = [f"each GPU sends at most {short_size(floor.sent_bytes)}"] if floor.sent_bytes else []
    for by, taken in (("NCCL", floor.nccl_ms), ("kernels of our own", floor.kernels_ms)):
        if taken is not None:
            step = milliseconds(floor.step_ms(taken))
            lines.append(f"all-reduces by {by}, as measured between such GPUs, take {milliseconds(taken)}: the step {step}")
    return lines


def comparison_rows(compared: list[Comparison]) -> list[tuple[str, str]]:
    """(name, value) lines of predicted and measured times, two per run."""
    rows = []
    for one in compared:
        lengths = f"prompt {one.prompt}, new {one.new}, {one.dtype}"
        rows.append((one.model, f"decode step: {difference(one.decode_floor_ms, one.decode_ms)} ({lengths}, batch 1)"))
        rows.append(("", f"first token: {difference(one.prefill_floor_ms, one.prefill_ms)}"))
    if any(one.decode_ms > 2 * one.decode_floor_ms or one.prefill_ms > 2 * one.prefill_floor_ms for one in compared):
        text = "a floor counts bytes and operations alone; launches, waits and slow kernels come on top, most so in small models"
        rows.append(("note", text))
    return rows


def difference(predicted: float, measured: float) -> str:
    """ "predicted 3.5 ms, measured 3.8 ms: 0.3 ms more, 1.09 times the floor"."""
    more = f"{milliseconds(measured - predicted)} more" if measured >= predicted else f"{milliseconds(predicted - measured)} less"
    return f"predicted {milliseconds(predicted)}, measured {milliseconds(measured)}: {more}, {measured / predicted:.2f} times the floor"


def as_json(plan: Plan, compared: list[Comparison]) -> dict[str, Any]:
    """All figures of a plan and its comparisons, derived ones included, for JSON."""
    floors = {
        name: {**asdict(floor), "floor_ms": floor.floor_ms, "bound": floor.bound, "tokens_per_s": floor.tokens_per_s}
        | {"cost_per_million": plan.cost_per_million(floor)}
        for name, floor in (("decode", plan.decode), ("prefill", plan.prefill))
    }
    return {**asdict(plan), "fits": plan.fits, **floors, "measured": [asdict(one) for one in compared]}


def counted(number: int, noun: str, nouns: str = "") -> str:
    """A number and its noun: "1 token", "16 tokens"."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def giga(count: float) -> str:
    """Bytes as text in GB, below 0.1 GB in MB."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def three_figures(value: float) -> str:
    """A number as text with three figures: 0.625, 15.9, 1,790."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def short_size(count: float) -> str:
    """Bytes as text in B, kB, MB or GB; "-" for none."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B" if count else "-"


def size(count: float) -> str:
    """Bytes of one token as text, in MB or kB."""
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"


def milliseconds(value: float) -> str:
    """Milliseconds as text with three figures, in µs below 0.1 ms and in seconds from 10,000 ms."""
    if value >= 1e4:
        return f"{value / 1e3:,.3g} s"
    return f"{value:.3g} ms" if value >= 0.1 and value < 1000 else f"{value:,.0f} ms" if value >= 1000 else f"{1e3 * value:.3g} µs"
