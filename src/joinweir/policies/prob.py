"""The row goes whose key is rarest on the other side now.

Keeps counts of keys (the engine's) and a heap of keys. Rule: victim = min (f(key), ts, seq), f =
how often the key occurs in the partner stream; the newcomer competes. PROB of das2003, as compared
in chang2004 §3.1 and §5.1 with exact counts of the whole history (``statistics="history"``).
Deviations: none for two streams. For k > 2 the paper looks at the next stream only;
``partner="product"`` multiplies over all others.
Cost per arrival: O(log B). All rows of a key share f, so the heap holds keys; inside a key the
oldest row goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..compiling import kernel
from ..engine import frequency, ignore_match, is_partner, join_loop
from ..layout import COMPETING, N_STREAMS, NOT_ADMITTED
from ..structures import Heap, heap_drop, heap_of_pool, heap_set, new_heap
from ..workload_engine import workload_loop
from . import FrequencyParameters, Policy, Sizes


@dataclass(frozen=True)
class Params(FrequencyParameters):
    """Nothing of its own."""

    competing: bool = True


class ProbState(NamedTuple):
    """Keys by frequency."""

    heap: Heap  # of cells (group * k + side)


def init(params: Params, sizes: Sizes, as_one: bool) -> ProbState:
    """Empty state."""
    return ProbState(new_heap(sizes.streams, sizes.slots, sizes.groups * sizes.streams))


@kernel
def enter(S, P, group, side, slot):
    """Rank a key by its frequency; `slot` is its oldest row."""
    row = S.slot[slot]
    cell = group * S.reg[N_STREAMS] + side
    heap_set(P.heap, side, cell, frequency(S, group, side), row.ts, row.seq)


@kernel
def on_count(S, P, group, side, t, arrived):
    k = S.reg[N_STREAMS]
    for s in range(k):
        if is_partner(S, s, side) and S.cell[group * k + s].rows > 0:
            enter(S, P, group, s, S.cell[group * k + s].head)


@kernel
def on_insert(S, P, slot, group, side, t):
    if S.cell[group * S.reg[N_STREAMS] + side].head == slot:
        enter(S, P, group, side, slot)


@kernel
def on_remove(S, P, slot, group, side, t):
    cell = group * S.reg[N_STREAMS] + side
    if S.cell[cell].rows == 1:
        heap_drop(P.heap, side, cell)
    elif S.cell[cell].head == slot:
        enter(S, P, group, side, S.slot[slot].knext)


@kernel
def victim(S, P, side, group, t, end, must):
    s = heap_of_pool(P.heap, S.side, side)
    least = P.heap.entry[s, 0]
    if S.reg[COMPETING] and not must and frequency(S, group, side) < least.key:
        return NOT_ADMITTED
    return S.cell[least.id].head


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        on_count, ignore_match, on_insert, on_remove, victim,
    )  # fmt: skip


# --- several joins: a row's weight is the sum over them ----------------------------------------
@kernel
def weigh(S, P, slot, side, t):
    row = S.slot[slot]
    heap_set(P.heap, side, slot, row.weight, row.ts, row.seq)


@kernel
def insert_weighed(S, P, slot, group, side, t):
    weigh(S, P, slot, side, t)


@kernel
def remove_weighed(S, P, slot, group, side, t):
    heap_drop(P.heap, side, slot)


@kernel
def victim_weighed(S, P, side, group, t, end, must):
    s = heap_of_pool(P.heap, S.side, side)
    least = P.heap.entry[s, 0]
    if S.reg[COMPETING] and not must and S.newcomer[0] < least.key:
        return NOT_ADMITTED
    return least.id


@kernel
def run_workload(S, P, batch, start, out, shed):
    return workload_loop(
        S, P, batch, start, out, shed,
        weigh, ignore_match, insert_weighed, remove_weighed, victim_weighed,
    )  # fmt: skip


POLICY = Policy(
    params=Params,
    init=init,
    run=run,
    run_workload=run_workload,
    paper="das2003; chang2004 §3.1",
    cost="O(log B)",
)
