"""A row drawn at random goes.

Keeps the held rows of a pool in an array, in order of insertion; a removed row's place is taken by
the last one. Rule: victim = row at floor(u n), u uniform. RAND of chang2004 §5; the newcomer is one
of the n if it competes.
Deviations: none. Cost per arrival: O(1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from ..engine import ignore_count, ignore_match, join_loop
from ..layout import COMPETING, NOT_ADMITTED, RNG
from ..structures import draw
from ..workload_engine import ignore_weight, workload_loop
from . import Parameters, Policy, Sizes


@dataclass(frozen=True)
class Params(Parameters):
    """Nothing of its own; the seed belongs to the join."""


class RandState(NamedTuple):
    """The held rows of each pool, without gaps."""

    rows: np.ndarray  # int32[pools, slots]
    place: np.ndarray  # int32[slots] where a slot stands in `rows`
    n: np.ndarray  # int64[pools]


def init(params: Params, sizes: Sizes, as_one: bool) -> RandState:
    """Empty state."""
    return RandState(
        np.zeros((sizes.pools, sizes.slots), np.int32),
        np.zeros(sizes.slots, np.int32),
        np.zeros(sizes.pools, np.int64),
    )


@kernel
def on_insert(S, P, slot, group, side, t):
    pool = S.side[side].pool
    P.rows[pool, P.n[pool]] = slot
    P.place[slot] = P.n[pool]
    P.n[pool] += 1


@kernel
def on_remove(S, P, slot, group, side, t):
    pool = S.side[side].pool
    P.n[pool] -= 1
    last = P.rows[pool, P.n[pool]]
    P.rows[pool, P.place[slot]] = last
    P.place[last] = P.place[slot]


@kernel
def victim(S, P, side, group, t, end, must):
    pool = S.side[side].pool
    n = P.n[pool]
    chosen = np.int64(draw(S.reg, RNG) * (n + (S.reg[COMPETING] if not must else 0)))
    if chosen == n:
        return np.int32(NOT_ADMITTED)
    return P.rows[pool, chosen]


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        ignore_count, ignore_match, on_insert, on_remove, victim,
    )  # fmt: skip


@kernel
def run_workload(S, P, batch, start, out, shed):
    return workload_loop(
        S, P, batch, start, out, shed,
        ignore_weight, ignore_match, on_insert, on_remove, victim,
    )  # fmt: skip


POLICY = Policy(
    params=Params, init=init, run=run, run_workload=run_workload, paper="chang2004 §5", cost="O(1)"
)
