"""The row goes that has gone longest without a match.

Keeps per key when it last matched. Rule: victim = min (last match or else arrival, ts, seq): the
LRU stack of chang2004 §4, where a match is a reference.
Deviations: none.
Cost per arrival: O(log B) when rows come one by one and in order, since an arrival then matches all
rows of its key: only the key's oldest row can be last. Else O((1 + m) log B), row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from ..engine import ignore_count, join_loop
from ..layout import N_STREAMS
from ..structures import Heap, heap_drop, heap_of_pool, heap_set, new_heap
from ..workload_engine import ignore_weight, workload_loop
from . import Parameters, Policy, Sizes


@dataclass(frozen=True)
class Params(Parameters):
    """Nothing of its own. Competing changes nothing: a newcomer is the latest reference."""


class LruState(NamedTuple):
    """Keys (or rows) by last match."""

    heap: Heap  # of cells (group * k + side), or of slots
    touched: np.ndarray  # int64[cells] arrival that last matched the key


def init(params: Params, sizes: Sizes, as_one: bool) -> LruState:
    """Empty state."""
    cells = sizes.groups * sizes.streams
    heap = new_heap(sizes.streams, sizes.slots, cells if as_one else sizes.slots)
    return LruState(heap, np.zeros(cells, np.int64))


# --- all rows of a key match as one ----------------------------------------------------------
@kernel
def enter(S, P, cell, side, slot):
    row = S.slot[slot]
    heap_set(P.heap, side, cell, max(P.touched[cell], row.seq), row.ts, row.seq)


@kernel
def on_match(S, P, group, side, t, seq, first, n):
    cell = group * S.reg[N_STREAMS] + side
    P.touched[cell] = seq
    enter(S, P, cell, side, first)


@kernel
def on_insert(S, P, slot, group, side, t):
    cell = group * S.reg[N_STREAMS] + side
    if S.cell[cell].rows == 1:
        P.touched[cell] = -1
        enter(S, P, cell, side, slot)


@kernel
def on_remove(S, P, slot, group, side, t):
    cell = group * S.reg[N_STREAMS] + side
    if S.cell[cell].rows == 1:
        heap_drop(P.heap, side, cell)
    elif S.cell[cell].head == slot:
        enter(S, P, cell, side, S.slot[slot].knext)


@kernel
def victim(S, P, side, group, t, end, must):
    s = heap_of_pool(P.heap, S.side, side)
    return S.cell[P.heap.entry[s, 0].id].head


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        ignore_count, on_match, on_insert, on_remove, victim,
    )  # fmt: skip


# --- row by row ------------------------------------------------------------------------------
@kernel
def touch_rows(S, P, group, side, t, seq, first, n):
    slot = first
    for _ in range(n):
        row = S.slot[slot]
        heap_set(P.heap, side, slot, seq, row.ts, row.seq)
        slot = row.knext


@kernel
def insert_row(S, P, slot, group, side, t):
    row = S.slot[slot]
    heap_set(P.heap, side, slot, row.seq, row.ts, row.seq)


@kernel
def remove_row(S, P, slot, group, side, t):
    heap_drop(P.heap, side, slot)


@kernel
def victim_row(S, P, side, group, t, end, must):
    s = heap_of_pool(P.heap, S.side, side)
    return P.heap.entry[s, 0].id


@kernel
def run_by_row(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        ignore_count, touch_rows, insert_row, remove_row, victim_row,
    )  # fmt: skip


def choose_run(params: Params, as_one: bool):
    """The loop that fits."""
    return run if as_one else run_by_row


@kernel
def run_workload(S, P, batch, start, out, shed):
    return workload_loop(
        S, P, batch, start, out, shed,
        ignore_weight, touch_rows, insert_row, remove_row, victim_row,
    )  # fmt: skip


POLICY = Policy(
    params=Params,
    init=init,
    run=run,
    run_workload=run_workload,
    choose_run=choose_run,
    paper="chang2004 §4",
    cost="O(log B)",
)
