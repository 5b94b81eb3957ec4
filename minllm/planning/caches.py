"""Compares all policies and formats of the KV cache: sequences that fit, unused memory, least step time."""

from dataclasses import replace

from rich.table import Table

from minllm.costs.cache_policies import POLICIES
from minllm.errors import KernelArgumentError
from minllm.kernels.quantization.formats import KV_FORMATS
from minllm.machine.hardware import Gpu
from minllm.models.config import ModelConfig
from minllm.planning.card import giga, milliseconds, size
from minllm.planning.formats import KV_ITEMSIZES, kv_format_name, kv_itemsize
from minllm.planning.plan import Plan, Wishes, make_plan


def compare_caches(config: ModelConfig, gpu: Gpu, wishes: Wishes) -> list[Plan]:
    """Plans for each policy with the wished 16-bit or 32-bit format (else bfloat16), then for each quantised format.

    Quantised formats take the wished policy, or paged if that is virtual, which keeps numbers as they are; those that do not support the
    model's head_dim are left out. Each plan is for its own largest batch, or for one sequence if none fits.
    """
    wished = kv_format_name(wishes.kv_dtype)
    wide = wished if wished in KV_ITEMSIZES else "bfloat16"
    quantised = "paged" if wishes.policy.name == "virtual" else wishes.policy.name
    choices = [(policy, wide) for policy in POLICIES] + [(quantised, name) for name in KV_FORMATS]
    plans = []
    for policy, kv_dtype in choices:
        try:
            kv_itemsize(kv_dtype, config.head_dim)
        except KernelArgumentError:
            continue
        window = wishes.kv_window if kv_dtype == wished else None
        one = replace(wishes, kv_dtype=kv_dtype, kv_window=window, policy=replace(wishes.policy, name=policy))
        most = make_plan(config, gpu, one).largest_batch
        plans.append(make_plan(config, gpu, replace(one, batch=max(1, most))))
    return plans


def cache_table(plans: list[Plan]) -> Table:
    """A table with one line per plan."""
    context = plans[0].wishes.context
    table = Table(title=f"caches for {context:,} tokens a sequence, each at its largest batch", title_justify="left")
    table.box, table.pad_edge = None, False
    for head in ("policy", "format"):
        table.add_column(head, no_wrap=True)
    for head in ("a token", "fit", "cache", "unused", "least step", "tokens/s ≤"):
        table.add_column(head, justify="right", no_wrap=True)
    for plan in plans:
        table.add_row(plan.wishes.policy.name, plan.wishes.kv_dtype, size(plan.kv_bytes_per_token), *figures(plan))
    return table


def figures(plan: Plan) -> tuple[str, ...]:
    """Largest batch, cache, unused share, least step and tokens per second of a plan; dashes if not one sequence fits."""
    if not plan.largest_batch:
        return "none", "-", "-", "-", "-"
    share = f"{100 * plan.kv_wasted_share:.1f} %"
    return f"{plan.largest_batch:,}", giga(plan.kv_bytes), share, milliseconds(plan.decode.floor_ms), f"{plan.decode.tokens_per_s:,.0f}"
