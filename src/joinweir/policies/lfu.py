"""The row goes whose key was rarest on the other side when the row came.

Keeps one number a row, fixed at arrival: how often its key occurs in the partner stream.
Rule: victim = min (f(key) at arrival, ts, seq); the newcomer competes. LFU as chang2004 §4 reads
it: the initial value is proportional to the expected number of results; no increment, no decrement.
Deviations: none. Cost per arrival: O(log B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..compiling import kernel
from ..engine import frequency, ignore_count, ignore_match, join_loop
from ..layout import COMPETING, NOT_ADMITTED
from ..structures import Heap, heap_drop, heap_of_pool, heap_set, new_heap
from ..workload_engine import ignore_weight, workload_loop
from . import FrequencyParameters, Policy, Sizes


@dataclass(frozen=True)
class Params(FrequencyParameters):
    """Nothing of its own."""

    competing: bool = True


class LfuState(NamedTuple):
    """Rows by their value."""

    heap: Heap  # of slots


def init(params: Params, sizes: Sizes, as_one: bool) -> LfuState:
    """Empty state."""
    return LfuState(new_heap(sizes.streams, sizes.slots, sizes.slots))


@kernel
def on_insert(S, P, slot, group, side, t):
    row = S.slot[slot]
    heap_set(P.heap, side, slot, frequency(S, group, side), row.ts, row.seq)


@kernel
def on_remove(S, P, slot, group, side, t):
    heap_drop(P.heap, side, slot)


@kernel
def victim(S, P, side, group, t, end, must):
    s = heap_of_pool(P.heap, S.side, side)
    least = P.heap.entry[s, 0]
    if S.reg[COMPETING] and not must and frequency(S, group, side) < least.key:
        return NOT_ADMITTED
    return least.id


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        ignore_count, ignore_match, on_insert, on_remove, victim,
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
        ignore_weight, ignore_match, insert_weighed, remove_weighed, victim_weighed,
    )  # fmt: skip


POLICY = Policy(
    params=Params,
    init=init,
    run=run,
    run_workload=run_workload,
    paper="chang2004 §4",
    cost="O(log B)",
)
