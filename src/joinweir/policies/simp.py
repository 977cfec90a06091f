"""The least important row goes.

Keeps the rows by importance. Rule: victim = min (importance, ts, seq); the newcomer competes. SIMP
of ojewole2006 §4.3.1: neither matches nor age count. Without importances all rows have 1, and the
oldest goes.
Deviations: none. Cost per arrival: O(log B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..compiling import kernel
from ..engine import (
    arriving_importance,
    ignore_count,
    ignore_match,
    importance_of,
    join_loop,
)
from ..layout import COMPETING, NOT_ADMITTED
from ..structures import Heap, heap_drop, heap_of_pool, heap_set, new_heap
from . import Parameters, Policy, Sizes


@dataclass(frozen=True)
class Params(Parameters):
    """Nothing of its own."""

    competing: bool = True


class SimpState(NamedTuple):
    """Rows by importance."""

    heap: Heap  # of slots


def init(params: Params, sizes: Sizes, as_one: bool) -> SimpState:
    """Empty state."""
    return SimpState(new_heap(sizes.streams, sizes.slots, sizes.slots))


@kernel
def on_insert(S, P, slot, group, side, t):
    row = S.slot[slot]
    heap_set(P.heap, side, slot, importance_of(S, slot), row.ts, row.seq)


@kernel
def on_remove(S, P, slot, group, side, t):
    heap_drop(P.heap, side, slot)


@kernel
def victim(S, P, side, group, t, end, must):
    s = heap_of_pool(P.heap, S.side, side)
    least = P.heap.entry[s, 0]
    if S.reg[COMPETING] and not must and arriving_importance(S) < least.key:
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
    paper="ojewole2006 §4.3.1",
    cost="O(log B)",
)
