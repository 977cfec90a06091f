"""The row goes whose importance times partners, when it came, was least.

Keeps one number a row, fixed when it is taken in: p = importance · m, m = how many partners of its
key the other side has then. Rule: victim = min (p, importance, seq); the newcomer competes with p
as it is then. SIMPPROB of ojewole2006 §4.3.2, with m from the held rows (``statistics="memory"``).
Deviations: the paper's next tie-break, fewest matches, can decide nothing: rows that are equal in p
and in importance are equal in m. Then the oldest goes, by arrival where rows come late.
Cost per arrival: O(log B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..compiling import kernel
from ..engine import (
    arriving_importance,
    frequency,
    ignore_count,
    ignore_match,
    importance_of,
    join_loop,
)
from ..layout import COMPETING, NOT_ADMITTED
from ..structures import Heap, heap_drop, heap_of_pool, heap_set, new_heap
from . import FrequencyParameters, Policy, Sizes


@dataclass(frozen=True)
class Params(FrequencyParameters):
    """Nothing of its own."""

    competing: bool = True
    statistics: str = "memory"


class SimpprobState(NamedTuple):
    """Rows by their value."""

    heap: Heap  # of slots, ties by importance


def init(params: Params, sizes: Sizes, as_one: bool) -> SimpprobState:
    """Empty state."""
    return SimpprobState(new_heap(sizes.streams, sizes.slots, sizes.slots, tie="f8"))


@kernel
def on_insert(S, P, slot, group, side, t):
    imp = importance_of(S, slot)
    heap_set(P.heap, side, slot, imp * frequency(S, group, side), imp, S.slot[slot].seq)


@kernel
def on_remove(S, P, slot, group, side, t):
    heap_drop(P.heap, side, slot)


@kernel
def victim(S, P, side, group, t, end, must):
    s = heap_of_pool(P.heap, S.side, side)
    least = P.heap.entry[s, 0]
    if S.reg[COMPETING] and not must:
        imp = arriving_importance(S)
        value = imp * frequency(S, group, side)
        if value < least.key or (value == least.key and imp < least.ts):
            return NOT_ADMITTED
    return least.id


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        ignore_count, ignore_match, on_insert, on_remove, victim,
    )  # fmt: skip


POLICY = Policy(
    params=Params,
    init=init,
    run=run,
    weighs=True,
    paper="ojewole2006 §4.3.2",
    cost="O(log B)",
)
