"""Nothing goes: the exact join, whatever memory it takes.

Keeps nothing. The denominator of every recall (FULL in chang2004 §5).
Deviations: none. Cost per arrival: O(1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from ..engine import ignore_count, ignore_insert, ignore_match, ignore_remove, join_loop
from ..layout import NOT_ADMITTED
from ..workload_engine import ignore_weight, workload_loop
from . import Parameters, Policy, Sizes


@dataclass(frozen=True)
class Params(Parameters):
    """Nothing of its own."""


class FullState(NamedTuple):
    """Nothing."""

    unused: np.ndarray


def init(params: Params, sizes: Sizes, as_one: bool) -> FullState:
    """Empty state."""
    return FullState(np.zeros(1, np.int64))


@kernel
def victim(S, P, side, group, t, end, must):
    return np.int32(NOT_ADMITTED)  # never asked: there is always room


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
    params=Params,
    init=init,
    run=run,
    run_workload=run_workload,
    paper="chang2004 §5",
    cost="O(1)",
    bounded=False,
)
