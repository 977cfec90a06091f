"""The flow problem of one pool, made small before it is solved.

das2003 and ojewole2006 send a unit of flow through every slot of memory; a node is a row at an
instant. Here the nodes are the gaps' borders alone, 0 … n_gaps, and a slot travels from the first
to the last of them: for nothing along the chain, or as row i from border `start[i]` to the border
behind one of its *options*, the gaps in which it pays. An option's value is what the row has
earned by then. Gains in one gap are one option, and only gaps that can matter are left:

1. where all rows that could still pay fit into memory, nobody must give way;
2. a gap in which nobody is paid holds at most what the next one holds;
3. a gap that no row opens holds at most what the one before it held.

What a row earns before the first gap that is left is free. Gaps that no row spans together cut the
problem into *parts* that do not know of each other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from .problem import Matches, Pool
from .weights import Weights, weight_of


class Graph(NamedTuple):
    """Rows with options, by start, over the gaps that are left."""

    row: np.ndarray  # place among the pool's rows
    start: np.ndarray  # border from which the slot leaves as this row
    at: np.ndarray  # its options are at[x]:at[x + 1]
    gap: np.ndarray  # option: the last gap in which it is held; increasing
    value: np.ndarray  # option: what it has earned by then; increasing
    n_gaps: int
    slots: int
    free: int  # weight of what is earned without giving way
    forward: np.ndarray  # of the pool's gaps: the first that is left, from here on
    backward: np.ndarray  # … and the last one up to here, -1 if none

    @property
    def n_options(self) -> int:
        """Options of all rows."""
        return self.gap.size


@kernel
def _last_gaps(rows, first, stop, partner, gap, last_paid):
    """The gap of each row's last match."""
    for x in range(rows.size):
        i = rows[x]
        last_paid[x] = gap[partner[stop[i] - 1]] if stop[i] > first[i] else -1


@kernel
def _mark(rows, opens, first, stop, partner, gap, forward, backward, paid, opened):
    """Of the gaps left so far: in which somebody is paid, and which somebody opens."""
    for x in range(rows.size):
        i, entry, any_paid = rows[x], forward[opens[x]], False
        for at in range(first[i], stop[i]):
            q = backward[gap[partner[at]]]
            if q >= entry:
                paid[q] = True
                any_paid = True
        if any_paid:
            opened[entry] = True


@kernel
def _count_options(rows, opens, first, stop, partner, gap, forward, backward, n_options):
    for x in range(rows.size):
        i, before, n = rows[x], forward[opens[x]] - 1, 0
        for at in range(first[i], stop[i]):
            q = backward[gap[partner[at]]]
            if q > before:
                n += 1
                before = q
        n_options[x] = n


@kernel
def _fill_options(
    rows, opens, first, stop, partner, gap, forward, backward, weights, places, option_gap, value
):
    """Gaps and running totals of the options; returns what is earned for free."""
    free = 0
    for x in range(rows.size):
        i, before, earned, place = rows[x], forward[opens[x]] - 1, 0, places[x] - 1
        for at in range(first[i], stop[i]):
            j = partner[at]
            q = backward[gap[j]]
            gain = weight_of(weights, i, j)
            if q < forward[opens[x]]:
                free += gain
                continue
            earned += gain
            if q > before:
                place += 1
                option_gap[place] = q
                before = q
            value[place] = earned
    return free


def _neighbours(left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every gap: the number of the first one left at or behind it, and the last up to it."""
    through = np.cumsum(left)
    return through - left, through - 1


def build(pool: Pool, matches: Matches, weights: Weights) -> Graph:
    """The smallest problem that has this pool's optimum."""
    ranges = (matches.first, matches.stop, matches.partner, pool.gap)
    last_paid = np.empty(pool.rows.size, np.int64)
    _last_gaps(pool.rows, *ranges, last_paid)
    paying = last_paid >= 0
    steps = np.bincount(pool.first[paying], minlength=pool.n_gaps + 1)
    steps -= np.bincount(last_paid[paying] + 1, minlength=pool.n_gaps + 1)
    left = np.cumsum(steps)[: pool.n_gaps] > pool.slots
    for behind in (False, True):
        forward, backward = _neighbours(left)
        paid, opened = np.zeros(pool.n_gaps, np.bool_), np.zeros(pool.n_gaps + 1, np.bool_)
        _mark(pool.rows, pool.first, *ranges, forward, backward, paid, opened)
        numbers = np.flatnonzero(left)
        left = np.zeros(pool.n_gaps, np.bool_)
        left[numbers[(opened if behind else paid)[: numbers.size]]] = True
    forward, backward = _neighbours(left)
    n_options = np.empty(pool.rows.size, np.int64)
    _count_options(pool.rows, pool.first, *ranges, forward, backward, n_options)
    places = np.cumsum(n_options) - n_options
    total = int(n_options.sum())
    option_gap, value = np.empty(total, np.int32), np.empty(total, np.int64)
    free = _fill_options(
        pool.rows, pool.first, *ranges, forward, backward, weights, places, option_gap, value
    )
    row = np.flatnonzero(n_options)
    return Graph(
        row=row,
        start=forward[pool.first[row]].astype(np.int32),
        at=np.r_[places[row], total],
        gap=option_gap,
        value=value,
        n_gaps=int(left.sum()),
        slots=pool.slots,
        free=int(free),
        forward=forward,
        backward=backward,
    )


def parts(graph: Graph) -> list[tuple[int, int]]:
    """Ranges of gaps such that no row is held in two of them."""
    if not graph.n_gaps:
        return []
    reach = graph.gap[graph.at[1:] - 1]
    spans = np.bincount(graph.start, minlength=graph.n_gaps + 1)[: graph.n_gaps]
    spans -= np.bincount(reach, minlength=graph.n_gaps)
    borders = np.flatnonzero(np.cumsum(spans) == 0) + 1
    return list(zip(np.r_[0, borders[:-1]].tolist(), borders.tolist()))


@kernel
def _collect(rows, opens, chosen, first, stop, partner, gap, backward, forward, paid_until):
    """Where the matches end that each row is held for."""
    for x in range(rows.size):
        i, until = rows[x], chosen[x]
        if until < forward[opens[x]]:
            until = forward[opens[x]] - 1
        at = first[i]
        while at < stop[i] and backward[gap[partner[at]]] <= until:
            at += 1
        paid_until[x] = at


def matches_until(graph: Graph, pool: Pool, matches: Matches, held_in: np.ndarray) -> np.ndarray:
    """Of each of the pool's rows: behind its last match in `Matches.partner`.

    `held_in` has the last gap in which each row of the graph is held, -1 if in none.
    """
    chosen = np.full(pool.rows.size, -1, np.int64)
    chosen[graph.row] = held_in
    until = np.empty(pool.rows.size, np.int64)
    _collect(
        pool.rows,
        pool.first,
        chosen,
        matches.first,
        matches.stop,
        matches.partner,
        pool.gap,
        graph.backward,
        graph.forward,
        until,
    )
    return until
