"""Rows are kept for the age at which they have paid best (age-based model).

Keeps one age a stream, or one a row. p(a) = mean number of results that a row produces at age a,
C(a) its sum; best age k = argmax C(a) / a (smallest on ties, 1 if C is 0). If the buffer holds all
rows younger than k (B >= rate · k), it is a FIFO buffer; else it is *staggered*: rows are admitted
while there is room and keep their place until age k. AGE of srivastava2004, as described in
chang2004 §3.2. ``mode="mean"`` learns k on the first `training` share of the input; ``mode="row"``
is chang2004 §5.1's variant, the best age of every single row from an offline pass.
Deviations: a row past its best age goes when its place is needed, not before: it may still
match, never fewer results. Ages are learned in 1,000 steps of the window when it is longer.
Cost per arrival: O(log B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from ..engine import ignore_count, ignore_match, join_loop
from ..errors import JoinweirError
from ..layout import NIL, NOT_ADMITTED
from ..structures import Heap, before, heap_drop, heap_of_pool, heap_set, new_heap
from . import Parameters, Policy, Sizes, in_range, one_of

AGE_STEPS = 1000


@dataclass(frozen=True)
class Params(Parameters):
    """How ages are found.

    Parameters
    ----------
    keep
        Best age in ticks of the time column, for all streams. None: learned from the input.
    mode
        ``mean``: one age a stream; ``row``: one a row (needs the whole input).
    training
        Share of the input on which ``mean`` learns.
    """

    keep: int | None = None
    mode: str = "mean"
    training: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None:
            in_range(self, "keep", 1, 2**62)
            if self.keep != int(self.keep):
                raise JoinweirError(f"age: keep must be a whole number, not {self.keep!r}")
        one_of(self, "mode", ("mean", "row"))
        in_range(self, "training", 0.001, 1)

    def needs_whole_input(self) -> bool:
        """The best age of every single row is known only afterwards."""
        return self.mode == "row" and self.keep is None


class AgeState(NamedTuple):
    """Best ages, and rows by the time at which they reach theirs."""

    heap: Heap  # of slots by ts + best age
    keep: np.ndarray  # int64[k, 1] a stream's best age, or [k, rows] a row's
    fifo: np.ndarray  # bool[k] the buffer holds everything up to the best age


def init(params: Params, sizes: Sizes, as_one: bool) -> AgeState:
    """Empty state."""
    keep = np.full((sizes.streams, 1), params.keep or 1, np.int64)
    heap = new_heap(sizes.streams, sizes.slots, sizes.slots)
    return AgeState(heap, keep, np.zeros(sizes.streams, np.bool_))


def grow(old: AgeState, fresh: AgeState) -> AgeState:
    """Room for more rows."""
    fresh.heap.entry[:, : old.heap.entry.shape[1]] = old.heap.entry
    fresh.heap.pos[: old.heap.pos.size] = old.heap.pos
    fresh.heap.size[:] = old.heap.size
    return AgeState(fresh.heap, old.keep, old.fifo)


def learn(params: Params, P: AgeState, problem) -> AgeState:
    """Find best ages from the input (see `joinweir.state.Problem`)."""
    streams = len(problem.lifetimes)
    share = 1.0 if params.mode == "row" else params.training
    side, age, row, seen, duration = problem.ages(share)
    if params.mode == "row":
        keep = np.ones((streams, max(1, int(problem.rows.max()))), np.int64)
        for s in range(streams):
            of_side = side == s
            _best_age_per_row(row[of_side], age[of_side], keep[s])
        return P._replace(keep=keep)
    keep, fifo = P.keep.copy(), P.fifo.copy()
    for s in range(streams):
        if params.keep is None:
            keep[s, 0] = _best_age(age[side == s], int(problem.lifetimes[s]))
        fifo[s] = problem.capacity[s] * duration >= seen[s] * keep[s, 0]
    return P._replace(keep=keep, fifo=fifo)


def _best_age(age: np.ndarray, lifetime: int) -> int:
    step = -(-lifetime // AGE_STEPS)
    steps = -(-lifetime // step)
    produced = np.bincount(np.minimum((np.maximum(age, 1) - 1) // step, steps - 1), minlength=steps)
    ages = np.minimum(np.arange(1, steps + 1) * step, lifetime)
    return int(ages[np.argmax(np.cumsum(produced) / ages)])


@kernel
def _best_age_per_row(row, age, keep):
    """Rows' ages at their results, sorted by (row, age): argmax of count / age for each row."""
    i = 0
    while i < row.size:
        best, produced = 0.0, 0
        j = i
        while j < row.size and row[j] == row[i]:
            produced += 1
            a = max(age[j], 1)
            if produced / a > best:
                best = produced / a
                keep[row[i]] = a
            j += 1
        i = j


@kernel
def on_insert(S, P, slot, group, side, t):
    row = S.slot[slot]
    keep = P.keep[side, 0 if P.keep.shape[1] == 1 else row.row]
    heap_set(P.heap, side, slot, float(row.ts + keep), row.ts, row.seq)


@kernel
def on_remove(S, P, slot, group, side, t):
    heap_drop(P.heap, side, slot)


@kernel
def victim(S, P, side, group, t, end, must):
    if P.fifo[side] or must:
        best = np.int32(NIL)
        for s in range(S.side.size):
            slot = S.expiry[s].head
            if S.side[s].pool == S.side[side].pool and slot != NIL:
                a, b = S.slot[slot], S.slot[best]
                if best == NIL or before(0, a.ts, a.seq, 0, b.ts, b.seq):
                    best = slot
        return best
    s = heap_of_pool(P.heap, S.side, side)
    least = P.heap.entry[s, 0]
    if least.key > t:
        return np.int32(NOT_ADMITTED)
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
    grow=grow,
    learn=learn,
    paper="srivastava2004; chang2004 §3.2",
    cost="O(log B)",
)
