"""A long stream in pieces that are solved apart, and bounds for the whole from their prices.

The price of a slot now hardly depends on what happens a few lifetimes away. So time is cut into
pieces; each is solved exactly together with a margin on both sides, and only the prices of its own
gaps are kept. Any prices give an upper bound for the whole stream (`bound.dual_value`), and memory
that is run by them a lower one: rows that cross a border are treated like all others, nothing is
added up twice, and the gap between the two is known. A longer margin makes it smaller.

Pieces know nothing of each other, so that they can run anywhere: `run` is `map`, or something that
does the same on many machines (`joinweir.spark.run_pieces`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from .bound import Bounds, find_bounds
from .flow import solve_flow
from .graph import Graph

GAPS = 20_000  # of a piece: some seconds each
POLISH = 400  # rounds of prices after the pieces are put together
_WORTH_ANOTHER_TRY = 1e-3  # of the bound


class Piece(NamedTuple):
    """Part of a graph: rows that start in it, and as much of their options as lies in it."""

    before: int  # gaps of margin before its own
    own: int  # gaps of its own
    n_gaps: int  # with both margins
    slots: int
    start: np.ndarray
    at: np.ndarray
    gap: np.ndarray
    value: np.ndarray


def solve_piece(piece: Piece, solver: str = "paths") -> np.ndarray:
    """Prices of a slot in the piece's own gaps."""
    none = np.empty(0, np.int64)
    graph = Graph(
        row=np.arange(piece.start.size),
        start=piece.start,
        at=piece.at,
        gap=piece.gap,
        value=piece.value,
        n_gaps=piece.n_gaps,
        slots=piece.slots,
        free=0,
        forward=none,
        backward=none,
    )
    return solve_flow(graph, solver).price[piece.before : piece.before + piece.own]


def cut(graph: Graph, gaps: int = GAPS, margin: int | None = None) -> Iterator[Piece]:
    """The graph in pieces of `gaps` gaps, each with a margin (default: two usual stays)."""
    if margin is None:
        stays = graph.gap[graph.at[1:] - 1] - graph.start
        margin = 2 * int(np.ceil(stays.mean())) if stays.size else 0
    for lo in range(0, graph.n_gaps, gaps):
        hi = min(lo + gaps, graph.n_gaps)
        first, last = max(0, lo - margin), min(graph.n_gaps, hi + margin)
        rows = slice(*np.searchsorted(graph.start, [first, last]))
        options = slice(int(graph.at[rows.start]), int(graph.at[rows.stop]))
        inside = graph.gap[options] < last
        kept = np.concatenate([[0], np.cumsum(inside)])
        at = kept[graph.at[rows.start : rows.stop + 1] - options.start]
        any_left = np.diff(at) > 0
        yield Piece(
            before=lo - first,
            own=hi - lo,
            n_gaps=last - first,
            slots=graph.slots,
            start=(graph.start[rows] - first)[any_left],
            at=np.concatenate([at[:-1][any_left], at[-1:]]),
            gap=graph.gap[options][inside] - np.int32(first),
            value=graph.value[options][inside],
        )


Runner = Callable[[Callable[[Piece], np.ndarray], Iterable[Piece]], Iterable[np.ndarray]]


def bounds_from_pieces(
    graph: Graph,
    *,
    gaps: int = GAPS,
    margin: int | None = None,
    run: Runner = map,
    rounds: int = POLISH,
    progress=None,
) -> Bounds:
    """Bounds for the whole graph from prices that pieces of it found."""
    prices = []
    for price in run(solve_piece, cut(graph, gaps, margin)):
        prices.append(price)
        if progress:
            progress(sum(map(len, prices)) / graph.n_gaps)
    whole = np.concatenate(prices) if prices else np.empty(0, np.int64)
    found = find_bounds(graph, price=whole, rounds=rounds)
    if found.upper - found.value > _WORTH_ANOTHER_TRY * found.upper:
        # The best prices leave many ties, which a few slots cannot afford to break wrongly.
        other = find_bounds(graph, rounds=rounds)
        better = other if other.value > found.value else found
        found = better._replace(upper=min(found.upper, other.upper))
    return found
