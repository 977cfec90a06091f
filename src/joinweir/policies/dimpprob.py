"""The row goes whose importance times partners is least now.

Keeps each key's rows by importance, and the keys by their least row. Rule: victim = min (importance
· m, importance, seq), m = how many partners of the key the other side has now; the newcomer
competes. DIMPPROB of ojewole2006 §4.3.3, with m from the held rows (``statistics="memory"``).
Deviations: as `simpprob`'s: fewest matches can decide no tie.
Cost per arrival: O(log B) amortised. All rows of a key share m, so among them the least important
one goes whatever m is: a small heap a key, and a heap of keys that moves when m does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..compiling import kernel
from ..engine import (
    arriving_importance,
    frequency,
    ignore_match,
    importance_of,
    is_partner,
    join_loop,
)
from ..layout import COMPETING, N_STREAMS, NOT_ADMITTED
from ..structures import (
    Heap,
    PairHeaps,
    heap_drop,
    heap_of_pool,
    heap_set,
    new_heap,
    new_pair_heaps,
    pair_insert,
    pair_remove,
)
from . import FrequencyParameters, Policy, Sizes


@dataclass(frozen=True)
class Params(FrequencyParameters):
    """Nothing of its own."""

    competing: bool = True
    statistics: str = "memory"


class DimpprobState(NamedTuple):
    """Keys by the value of their least row, and their rows by importance."""

    heap: Heap  # of cells (group * k + side), ties by importance
    rows: PairHeaps  # of slots, a heap a cell


def init(params: Params, sizes: Sizes, as_one: bool) -> DimpprobState:
    """Empty state."""
    cells = sizes.groups * sizes.streams
    return DimpprobState(
        heap=new_heap(sizes.streams, sizes.slots, cells, tie="f8"),
        rows=new_pair_heaps(sizes.slots, cells, base="f8"),
    )


@kernel
def enter(S, P, group, side):
    """Rank a key by its least important row."""
    cell = group * S.reg[N_STREAMS] + side
    slot = P.rows.root[cell]
    imp = importance_of(S, slot)
    heap_set(P.heap, side, cell, imp * frequency(S, group, side), imp, S.slot[slot].seq)


@kernel
def on_count(S, P, group, side, t, arrived):
    k = S.reg[N_STREAMS]
    for s in range(k):
        if is_partner(S, s, side) and S.cell[group * k + s].rows > 0:
            enter(S, P, group, s)


@kernel
def on_insert(S, P, slot, group, side, t):
    cell = group * S.reg[N_STREAMS] + side
    pair_insert(P.rows, S.slot, cell, slot, importance_of(S, slot))
    if P.rows.root[cell] == slot:
        enter(S, P, group, side)


@kernel
def on_remove(S, P, slot, group, side, t):
    cell = group * S.reg[N_STREAMS] + side
    was_least = P.rows.root[cell] == slot
    pair_remove(P.rows, S.slot, cell, slot)
    if S.cell[cell].rows == 1:
        heap_drop(P.heap, side, cell)
    elif was_least:
        enter(S, P, group, side)


@kernel
def victim(S, P, side, group, t, end, must):
    s = heap_of_pool(P.heap, S.side, side)
    least = P.heap.entry[s, 0]
    if S.reg[COMPETING] and not must:
        imp = arriving_importance(S)
        value = imp * frequency(S, group, side)
        if value < least.key or (value == least.key and imp < least.ts):
            return NOT_ADMITTED
    return P.rows.root[least.id]


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        on_count, ignore_match, on_insert, on_remove, victim,
    )  # fmt: skip


POLICY = Policy(
    params=Params,
    init=init,
    run=run,
    weighs=True,
    paper="ojewole2006 §4.3.3",
    cost="O(log B) amortised",
)
