"""The invariants of the virtual policy, checked against the mapped ranges of memory."""

from typing import Any

from minllm.cache.paged_check import require
from minllm.cache.virtual.slots import Slots


def check_virtual(slots: Slots, held: dict[Any, Any], needed: dict[Any, int]) -> None:
    """Raise CacheError unless

    - every slot is idle or belongs to one sequence, so that no address has two writers;
    - exactly the counted pages of a slot, from its beginning on, are mapped, for keys and for values;
    - every running sequence has memory for everything that kernels may read or write for it;
    - the pages in use are those of the slots, and no more than exist.

    held: sequence -> claims.Occupied; needed: sequence -> pairs of pages that kernels touch.
    """
    cache, layout = slots.cache, slots.cache.layout
    occupied = [has.slot for has in held.values()]
    require(sorted([*occupied, *slots.idle]) == list(range(layout.num_slots)), f"slots {occupied} are held and {slots.idle} idle")
    for slot, count in enumerate(slots.mapped):
        start = slot * layout.slot_pairs
        for name, memory in (("keys", cache.keys), ("values", cache.values)):
            found = [memory.is_mapped(start + page) for page in range(layout.slot_pairs)]
            expected = [True] * count + [False] * (layout.slot_pairs - count)
            require(found == expected, f"slot {slot} has {found} for {name}, not {count} pages")
    for name, has in held.items():
        require(len(has.token_ids) <= has.room, f"{name!r} has {len(has.token_ids)} tokens and room for {has.room}")
        mapped = slots.mapped[has.slot]
        require(mapped >= needed[name], f"{name!r} has {mapped} pairs of pages and needs {needed[name]}")
    require(cache.pages.in_use == 2 * sum(slots.mapped), f"{cache.pages.in_use} pages are in use and the slots have {slots.mapped} pairs")
    require(sum(slots.mapped) <= cache.num_pairs, f"{sum(slots.mapped)} pairs are mapped, more than {cache.num_pairs}")
