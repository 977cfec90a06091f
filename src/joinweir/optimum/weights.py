"""What a result is worth: one, or the importance of its two rows combined, as whole numbers.

The solvers add and compare whole numbers, so that nothing depends on the order of additions. Whole
importances stay as they are. Others are multiplied by a power of two and rounded; by how much the
total can be off is part of the answer. Equal optima are told apart by the other measure, as long
as both fit into 62 bits: of the largest results the most important, and the other way round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from ..errors import unknown
from .problem import Arrivals, Matches

OBJECTIVES = ("count", "importance")
COMBINE = ("min", "sum", "product", "max", "mean")
_MIN, _SUM, _PRODUCT, _MAX, _MEAN = range(5)
_ROOM = 2.0**62  # for the total of all results
_SCALED = 2.0**53  # for the total of scaled importances: every step is exact as a float, too


class Weights(NamedTuple):
    """weight of a result = base + times · round(scale · combined importance)."""

    base: int
    times: int
    scale: float
    combine: int
    importance: np.ndarray  # of every arrival; empty: results are only counted
    unit: int  # weight of one result, or of one step of scaled importance
    rounding: float  # how far the optimum's value can be off, in units of the objective


@kernel
def combined(importance, combine, i, j):
    """Importance of the result of arrivals i and j."""
    a, b = importance[i], importance[j]
    if combine == _MIN:
        return min(a, b)
    if combine == _MAX:
        return max(a, b)
    if combine == _PRODUCT:
        return a * b
    if combine == _MEAN:
        return (a + b) / 2
    return a + b


@kernel
def weight_of(weights, i, j):
    """Weight of the result of arrivals i and j, a whole number."""
    if not weights.importance.size:
        return weights.base
    value = combined(weights.importance, weights.combine, i, j)
    return weights.base + weights.times * np.int64(np.rint(weights.scale * value))


@kernel
def add_up(importance, combine, held, first, stop, partner):
    """Total importance of the results of the rows `held`, each with a range of partners."""
    total = 0.0
    for x in range(held.size):
        subtotal = 0.0  # many small terms lose less among themselves
        for at in range(first[x], stop[x]):
            subtotal += combined(importance, combine, held[x], partner[at])
        total += subtotal
    return total


def exact_importance(arrivals: Arrivals, matches: Matches, combine: int) -> tuple[float, float]:
    """Importance of the exact join: of the results that need memory, and of the others."""
    if not arrivals.importance.size:
        return 0.0, 0.0
    everyone = np.arange(arrivals.ts.size)
    held = add_up(
        arrivals.importance, combine, everyone, matches.first, matches.stop, matches.partner
    )
    left = np.flatnonzero(arrivals.side == 0)[: matches.inside_first.size]
    inside = add_up(
        arrivals.importance,
        combine,
        left,
        matches.inside_first,
        matches.inside_stop,
        matches.partner,
    )
    return held, inside


def combine_code(combine: str) -> int:
    """Number of a way to combine two importances."""
    if combine not in COMBINE:
        raise unknown("combine", combine, COMBINE)
    return COMBINE.index(combine)


def make_weights(objective: str, combine: int, arrivals: Arrivals, matches: Matches) -> Weights:
    """The weights of an objective on these arrivals."""
    values, n = arrivals.importance, matches.n_held
    if not values.size:
        return Weights(1, 0, 1.0, 0, np.empty(0), 1, 0.0)
    total, _ = exact_importance(arrivals, matches, combine)
    whole = bool((values == np.rint(values)).all()) and total * 2 < _SCALED
    if whole:
        scale = 2.0 if combine == _MEAN else 1.0
    else:
        scale = 2.0 ** np.floor(np.log2(_SCALED / max(total, 1.0)))
    rounding = 0.0 if whole else 0.5 * n / scale
    scaled = total * scale + 0.5 * n + 1
    if objective == "importance":
        fits = scaled * (n + 1) < _ROOM
        times = n + 1 if fits else 1
        return Weights(int(fits), times, scale, combine, values, times, rounding)
    if not whole:  # the tie-break needs no more than a few digits
        scale = min(scale, 2.0 ** np.floor(np.log2(_SCALED / max(n, 1) / max(total, 1.0))))
        scaled = total * scale + 0.5 * n + 1
    if scaled * (n + 1) < _ROOM:
        base = int(scaled)
        return Weights(base, 1, scale, combine, values, base, 0.0)
    return Weights(1, 0, 1.0, 0, np.empty(0), 1, 0.0)
