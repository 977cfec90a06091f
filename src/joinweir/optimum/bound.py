"""Bounds for streams on which the flow is too large: prices from above, a policy from below.

Let a slot of memory cost price[g] ≥ 0 in gap g. If everybody may rent, each row rents for as long
as pays it best, and nobody else matters. What all rows earn net of rent, plus the rent for all
slots there are, is at least the optimum, whatever the prices are (`dual_value`). The linear
programme is integral, so that the best prices give the optimum itself. They are found by
subgradient steps: where more rows rent than there are slots, the price rises, and falls elsewhere.

From below: memory is run through time once, and when it is full the row gives way that would earn
least from here on, net of rent (`feasible`). The rent up to now is the same for everybody, so that
a row's place in the heap changes only when it is paid: O(options · log slots).

One round of prices costs O(gaps + options), however many slots there are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from .graph import Graph
from .heap import ABSENT, remove, sift_down, sift_up

ROUNDS = 1000
_PATIENCE = 20  # rounds without a better bound, after which steps get shorter
_SHORTEST = 1e-4
_TRY_EVERY = 10  # rounds, a way to use memory
_ROUNDING = 1e-10  # relative, of sums of floats: added to every bound


class Bounds(NamedTuple):
    """What is known of an optimum, without what is free."""

    held_in: np.ndarray  # of each row of the graph: the last gap in which it is held, or -1
    value: int  # what that earns
    upper: int  # no more is possible
    price: np.ndarray
    rounds: int


@kernel
def _rent(G, paid, occupied):
    """Every row rents as it likes. `paid[b]`: the prices of all gaps before border b.

    Returns what the rows earn net of rent; occupied[g] becomes the rows that rent gap g.
    """
    total = 0.0
    occupied[:] = 0
    for row in range(G.start.size):
        best, until, entry = 0.0, -1, paid[G.start[row]]
        for x in range(G.at[row], G.at[row + 1]):
            net = G.value[x] - (paid[G.gap[x] + 1] - entry)
            if net > best:
                best, until = net, G.gap[x]
        total += best
        if until >= 0:
            occupied[G.start[row]] += 1
            occupied[until + 1] -= 1
    running = 0
    for g in range(occupied.size):
        running += occupied[g]
        occupied[g] = running
    return total


@kernel
def _rank_options(G, paid, best_from):
    """Of each option: the most that its row has at it or a later one, less all rent till then."""
    for row in range(G.start.size):
        best = -np.inf
        for x in range(G.at[row + 1] - 1, G.at[row] - 1, -1):
            best = max(best, G.value[x] - paid[G.gap[x] + 1])
            best_from[x] = best


class _Memory(NamedTuple):
    """Working arrays of `feasible`."""

    key: np.ndarray  # row: what it will have earned, less what it has, less all rent till then
    heap: np.ndarray
    place: np.ndarray  # row: in the heap
    upcoming: np.ndarray  # row: its next option
    waiting: np.ndarray  # gap: a row that is paid next in it; more through next_waiting
    next_waiting: np.ndarray  # row


@kernel
def _run_memory(G, best_from, M, held_in):
    """Hold rows gap by gap; returns what they earn."""
    size, row, total = 0, 0, 0
    for g in range(G.n_gaps):
        while row < G.start.size and G.start[row] == g:
            x = G.at[row]
            M.upcoming[row] = x
            M.key[row] = best_from[x]
            M.heap[size], M.place[row] = row, size
            size += 1
            sift_up(M.key, M.heap, M.place, size - 1)
            M.next_waiting[row], M.waiting[G.gap[x]] = M.waiting[G.gap[x]], row
            if size > G.slots:
                remove(M.key, M.heap, M.place, 0, size)
                size -= 1
            row += 1
        paid = M.waiting[g]
        while paid >= 0:
            following = M.next_waiting[paid]
            if M.place[paid] != ABSENT:
                x = M.upcoming[paid]
                held_in[paid] = g
                total += G.value[x] - (G.value[x - 1] if x > G.at[paid] else 0)
                x += 1
                if x == G.at[paid + 1]:
                    remove(M.key, M.heap, M.place, M.place[paid], size)
                    size -= 1
                else:
                    M.upcoming[paid] = x
                    M.key[paid] = best_from[x] - G.value[x - 1]
                    sift_up(M.key, M.heap, M.place, M.place[paid])
                    sift_down(M.key, M.heap, M.place, M.place[paid], size)
                    M.next_waiting[paid], M.waiting[G.gap[x]] = M.waiting[G.gap[x]], paid
            paid = following
    return total


def _paid(price: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(price, dtype=np.float64)])


def _above(total: float) -> int:
    """A whole number that is not below the total, whatever was lost in adding it up."""
    return int(np.floor(total * (1 + _ROUNDING)))


def dual_value(graph: Graph, price: np.ndarray) -> int:
    """What no policy exceeds, by these prices."""
    occupied = np.zeros(graph.n_gaps + 1, np.int64)
    net = _rent(graph, _paid(price), occupied)
    return _above(net + graph.slots * float(price.sum()))


def feasible(graph: Graph, price: np.ndarray) -> tuple[np.ndarray, int]:
    """A way to use memory, guided by prices: until when each row is held, and what that earns."""
    rows = graph.start.size
    best_from = np.empty(graph.n_options)
    _rank_options(graph, _paid(price), best_from)
    memory = _Memory(
        key=np.zeros(rows),
        heap=np.zeros(min(rows, graph.slots + 1), np.int64),
        place=np.full(rows, ABSENT),
        upcoming=np.zeros(rows, np.int64),
        waiting=np.full(graph.n_gaps, -1),
        next_waiting=np.full(rows, -1),
    )
    held_in = np.full(rows, -1)
    return held_in, int(_run_memory(graph, best_from, memory, held_in))


def _even_price(graph: Graph) -> np.ndarray:
    """One price for all gaps, at which on average as many rows rent as there are slots."""
    occupied = np.zeros(graph.n_gaps + 1, np.int64)
    low, high = 0.0, float(graph.value.max(initial=0))
    for _ in range(40):
        middle = (low + high) / 2
        _rent(graph, _paid(np.full(graph.n_gaps, middle)), occupied)
        if occupied[:-1].mean() > graph.slots:
            low = middle
        else:
            high = middle
    return np.full(graph.n_gaps, high)


def _better(one: tuple[np.ndarray, int], other: tuple[np.ndarray, int]) -> tuple[np.ndarray, int]:
    return max(one, other, key=lambda found: found[1])


def find_bounds(
    graph: Graph, *, price: np.ndarray | None = None, rounds: int = ROUNDS, progress=None
) -> Bounds:
    """Prices for a graph, and a way to use memory, until both agree or `rounds` are over."""
    if not graph.n_gaps:
        return Bounds(np.empty(0, np.int64), 0, 0, np.empty(0), 0)
    price = _even_price(graph) if price is None else price.astype(np.float64)
    held_in, value = feasible(graph, price)
    best_price, upper = price, np.inf
    occupied = np.zeros(graph.n_gaps + 1, np.int64)
    direction = np.zeros(graph.n_gaps)
    step, stale, done = 1.0, 0, 0
    for done in range(1, rounds + 1):
        total = _rent(graph, _paid(price), occupied) + graph.slots * price.sum()
        if total < upper:
            stale = stale if total > upper * (1 - 1e-5) else 0
            best_price, upper = price, total
        if done % _TRY_EVERY == 0:  # the best prices leave ties, others near them break them
            held_in, value = _better((held_in, value), feasible(graph, price))
        if _above(upper) <= value:
            break
        stale += 1
        if stale >= _PATIENCE:
            step, stale, price = step * 0.7, 0, best_price
            if step < _SHORTEST:
                break
        # Some of the last direction damps the zigzag of plain subgradients.
        direction = 0.6 * direction + 0.4 * (occupied[:-1] - graph.slots)
        direction[(price <= 0) & (direction < 0)] = 0
        # Not direction @ direction: BLAS wakes threads for it, which took 2 ms on a busy machine.
        length = float(np.square(direction).sum())
        if not length:
            break
        price = np.maximum(0.0, price + step * (total - value) / length * direction)
        if progress:
            progress(done / rounds)
    held_in, value = _better((held_in, value), feasible(graph, best_price))
    return Bounds(held_in, value, max(_above(upper), value), best_price, done)
