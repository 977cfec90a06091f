"""The oldest row goes.

Keeps nothing. Rule: victim = min (ts, seq). The buffer behind the first paper's unbiased sample
(chang2004 §4.2), and what a window does that is simply too short.
Deviations: none. Cost per arrival: O(1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from ..engine import ignore_count, ignore_insert, ignore_match, ignore_remove, join_loop
from ..layout import NIL
from ..structures import before
from ..workload_engine import ignore_weight, workload_loop
from . import Parameters, Policy, Sizes


@dataclass(frozen=True)
class Params(Parameters):
    """Nothing of its own. Competing changes nothing: a newcomer is never the oldest."""


class FifoState(NamedTuple):
    """Nothing: the engine's expiry lists already are in order of age."""

    unused: np.ndarray


def init(params: Params, sizes: Sizes, as_one: bool) -> FifoState:
    """Empty state."""
    return FifoState(np.zeros(1, np.int64))


@kernel
def victim(S, P, side, group, t, end, must):
    best = np.int32(NIL)
    for s in range(S.side.size):
        slot = S.expiry[s].head
        if S.side[s].pool == S.side[side].pool and slot != NIL:
            a, b = S.slot[slot], S.slot[best]
            if best == NIL or before(0, a.ts, a.seq, 0, b.ts, b.seq):
                best = slot
    return best


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        ignore_count, ignore_match, ignore_insert, ignore_remove, victim,
    )  # fmt: skip


@kernel
def run_workload(S, P, batch, start, out, shed):
    return workload_loop(
        S, P, batch, start, out, shed,
        ignore_weight, ignore_match, ignore_insert, ignore_remove, victim,
    )  # fmt: skip


POLICY = Policy(
    params=Params, init=init, run=run, run_workload=run_workload, paper="chang2004 §5", cost="O(1)"
)
