"""Compares cache policies on the same traffic: sequences that fit, and memory that holds no token.

Needs no GPU. The cache holds CACHE_TOKENS tokens: 16 GiB for the shape of Llama-3.1-8B in bf16 (128 KiB per token). Requests arrive faster
than any policy can serve them (bench/traffic.py), so that the cache limits the batch; bench/replay.py replays them. Requests that begin
with one of a few system prompts show the gain from prefix sharing. The results are counts, the same on every machine.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minllm.bench.record import Row, stream, write_rows
from minllm.bench.replay import Replay, replay
from minllm.bench.traffic import Traffic
from minllm.cache.contiguous import ContiguousPolicy
from minllm.cache.hash_chain import HashChain
from minllm.cache.kv_cache import CacheShape
from minllm.cache.paged import PagedPolicy
from minllm.cache.policy import CachePolicy
from minllm.cache.prefix_sharing import PrefixSharingPolicy
from minllm.cache.radix_tree import RadixTree
from minllm.cache.virtual.cache import VirtualKVCache
from minllm.cache.virtual.policy import VirtualPolicy
from minllm.runtime.host_pages import HostPages

CACHE_TOKENS = 131_072
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
PAGE_TOKENS = 32  # tokens whose keys, over all layers of the 8B shape, fill one 2 MiB page
MOST_SEQUENCES = 1024
CHAT = Traffic()
SYSTEM_PROMPTS = Traffic(system_prompts=8, system_prompt_tokens=512)
COLUMNS = "{:<24}{:>12}{:>8}{:>12}{:>10}{:>11}{:>13}{:>11}{:>8}"
HEADINGS = ("policy", "sequences", "most", "with token", "waste", "preempted", "computed", "cached", "steps")

Cases = dict[str, Callable[[], CachePolicy]]


def virtual_policy() -> VirtualPolicy:
    """The virtual policy for CACHE_TOKENS tokens, PAGE_TOKENS per page; tokens have minimal size, because only pages are counted."""
    shape = CacheShape(num_layers=1, block_size=16, kv_heads=1, head_dim=2, dtype=np.dtype(np.float32))
    backend = HostPages(page_bytes=PAGE_TOKENS * shape.bytes_per_block // shape.block_size // 2)
    cache = VirtualKVCache(backend, shape, MOST_SEQUENCES, CHAT.max_model_len, CACHE_TOKENS // PAGE_TOKENS)
    return VirtualPolicy(cache, background=False)


def chat_policies() -> Cases:
    """Every policy without prefix sharing."""
    paged = {f"paged, blocks of {size}": lambda size=size: PagedPolicy(CACHE_TOKENS // size, size) for size in BLOCK_SIZES}
    length = CHAT.max_model_len
    return {"contiguous": lambda: ContiguousPolicy(CACHE_TOKENS // length, length), **paged, "virtual": virtual_policy}


def sharing_policies() -> Cases:
    """Blocks of 16 tokens, with prefix sharing and without."""
    sizes = CACHE_TOKENS // 16, 16
    return {
        "paged, blocks of 16": lambda: PagedPolicy(*sizes),
        "shared by hash chain": lambda: PrefixSharingPolicy(HashChain(16), *sizes),
        "shared by radix tree": lambda: PrefixSharingPolicy(RadixTree(16), *sizes),
    }


def case_name(traffic: Traffic) -> str:
    """The case of a traffic in rows of the record."""
    prompts = f", {traffic.system_prompts} system prompts of {traffic.system_prompt_tokens}" if traffic.system_prompts else ""
    return f"{traffic.requests} chat requests{prompts}, cache of {CACHE_TOKENS} tokens"


def rows(traffic: Traffic, name: str, played: Replay) -> Iterator[Row]:
    """Yields the four rows of one replay."""
    case, total = case_name(traffic), played.usage[0].total
    yield Row("cache sequences", case, name, round(played.mean_batch, 1), "sequences")
    yield Row("cache with tokens", case, name, round(100 * played.mean_holding / total, 2), "%")
    yield Row("cache waste", case, name, round(100 * played.waste, 2), "%")
    yield Row("cache hits", case, name, round(100 * played.hit_rate, 2), "%")


def run(json_file: Path | None, requests: int) -> None:
    """Replay, print the tables, and if `json_file` is given write the record.

    requests: their number per traffic.
    """
    out = stream(json_file)
    found = []
    for base, policies in ((CHAT, chat_policies()), (SYSTEM_PROMPTS, sharing_policies())):
        traffic = Traffic(requests, base.rate, base.max_model_len, base.system_prompts, base.system_prompt_tokens)
        generated = traffic.generate()
        print(case_name(traffic), COLUMNS.format(*HEADINGS), sep="\n", file=out, flush=True)
        for name, make in policies.items():
            played = replay(make(), generated)
            found += rows(traffic, name, played)
            print(line(name, played), file=out, flush=True)
        print(file=out)
    write_rows(json_file, "cpu", {}, found)


def line(name: str, played: Replay) -> str:
    """One policy's line of the table."""
    total = played.usage[0].total
    return COLUMNS.format(
        name, f"{played.mean_batch:.1f}", max(played.batch), f"{played.mean_holding / total:.1%}", f"{played.waste:.2%}",
        played.preemptions, played.computed_tokens, f"{played.hit_rate:.1%}", len(played.batch),
    )  # fmt: skip


def table(record: dict[str, Any]) -> str:
    """The record as Markdown: one table per traffic, one line per policy."""
    lines = []
    for case in dict.fromkeys(row["case"] for row in record["rows"]):
        values = {(row["benchmark"], row["variant"]): row["value"] for row in record["rows"] if row["case"] == case}
        headings = "| | sequences at a time | cache that holds tokens | waste | prompt tokens found |"
        lines += ["", f"{case}:", "", headings, "| --- " * 5 + "|"]
        for name in dict.fromkeys(variant for _, variant in values):
            cells = [f"{values['cache sequences', name]:.0f}"]
            cells += [f"{values[f'cache {what}', name]:.1f} %" for what in ("with tokens", "waste", "hits")]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines).strip()
