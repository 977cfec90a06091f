"""`solve` and `exact`: from tables to the optimum, by whichever way is the fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..errors import JoinweirError, unknown
from .bound import find_bounds
from .flow import SOLVERS, choose_solver, solve_flow
from .graph import Graph, build, matches_until
from .odja import solve_odja
from .pieces import GAPS, Runner, bounds_from_pieces
from .problem import Arrivals, Join, Matches, Pool, find_matches, pools, read, slots_per_pool
from .weights import OBJECTIVES, Weights, add_up, combine_code, exact_importance, make_weights

METHODS = ("auto", "flow", "odja", "bound", "pieces")
LONGEST = 600.0  # seconds that a flow may take, by a rough estimate, before `auto` takes the bound


class Retained(NamedTuple):
    """Rows that the optimum holds, by stream and row number."""

    stream: np.ndarray  # 0 = left, 1 = right
    row: np.ndarray
    since: np.ndarray  # its time, in ticks
    until: np.ndarray  # time of the last arrival that it is held for
    n_out: np.ndarray  # results that it pays


class Exact(NamedTuple):
    """The exact join's size, and its importance (None if no importance was given)."""

    n_out: int
    importance: float | None


@dataclass(frozen=True)
class Optimum:
    """The best that memory allows.

    Attributes
    ----------
    value
        What was maximised: results, or their importance.
    n_out, importance
        Results, and their importance (None if no importance was given).
    upper_bound, gap
        No policy gets more than `upper_bound`; gap = (upper_bound - value) / upper_bound. 0 if the
        optimum is exact; with importances that are not whole numbers it is the rounding (see
        `scale`).
    n_exact, exact_importance
        Of the exact join.
    retained
        The rows that are held for it.
    solver
        Who found it, a name a pool.
    seconds
        From reading the tables to the answer.
    scale
        What importances were multiplied by before they were rounded to whole numbers.
    n_rows, n_gaps, n_options
        Size of the problem that was left to solve, over all pools: rows that might have to give
        way, gaps between events in which one must, and choices.
    slots
        Rows that each pool of memory holds; None: no limit.
    n_in, n_null
        Rows read and rows without a key, of each stream.
    """

    value: int | float
    n_out: int | None
    importance: float | None
    upper_bound: int | float
    gap: float
    n_exact: int
    exact_importance: float | None
    retained: Retained | None = field(repr=False)
    solver: tuple[str, ...]
    seconds: float
    objective: str
    order: str
    scale: float
    n_rows: int
    n_gaps: int
    n_options: int
    slots: tuple[int, ...] | None
    n_in: tuple[int, int]
    n_null: tuple[int, int]

    @property
    def recall(self) -> float:
        """Share of the exact join that is kept: of its results, or of its importance."""
        of = self.n_exact if self.objective == "count" else self.exact_importance
        return self.value / of if of else 1.0

    def __repr__(self) -> str:
        worth = "" if self.importance is None else f", importance {self.importance:,.6g}"
        results = "" if self.n_out is None else f"{self.n_out:,} results"
        found = (results + worth).removeprefix(", ")
        sure = f"; at most {self.upper_bound:,.6g} ({self.gap:.2%} more)" if self.gap else ""
        by = ", ".join(dict.fromkeys(self.solver))
        exact = f"{self.recall:.1%} of the exact join's {self.objective}"
        return f"<optimum by {by}: {found}, {exact}{sure}>"

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        names = ("value", "n_out", "importance", "upper_bound", "gap", "n_exact")
        more = ("exact_importance", "recall", "objective", "order", "seconds", "scale")
        sizes = ("n_rows", "n_gaps", "n_options")
        return {
            **{name: getattr(self, name) for name in (*names, *more, *sizes)},
            "solver": list(self.solver),
            "slots": None if self.slots is None else list(self.slots),
            "n_in": list(self.n_in),
            "n_null": list(self.n_null),
            "n_retained": None if self.retained is None else int(self.retained.row.size),
        }


def exact(
    left: Any,
    right: Any,
    *,
    on: Any,
    time: Any,
    within: Any,
    order: str = "probe_first",
    closed: str = "left",
    importance: Any = None,
    combine: str = "min",
) -> Exact:
    """Size and importance of the exact join.

    Examples
    --------
    >>> left, right = {"k": [1, 2], "ts": [0, 1]}, {"k": [2, 1], "ts": [2, 9]}
    >>> exact(left, right, on="k", time="ts", within=5)
    Exact(n_out=1, importance=None)
    """
    code = combine_code(combine)
    arrivals = read(left, right, Join(on, time, within, order, closed, importance))
    matches = find_matches(arrivals)
    total = None if importance is None else sum(exact_importance(arrivals, matches, code))
    return Exact(matches.n_held + matches.n_inside, total)


def solve(
    left: Any,
    right: Any,
    *,
    on: Any,
    time: Any,
    within: Any,
    max_rows: int | tuple[int, int] | None = None,
    memory: Any = None,
    allocation: str | None = None,
    objective: str = "count",
    importance: str | tuple[str, str] | None = None,
    combine: str = "min",
    method: str = "auto",
    solver: str | None = None,
    order: str = "probe_first",
    closed: str = "left",
    piece_gaps: int = GAPS,
    run_pieces: Runner = map,
    retained: bool = True,
    progress: Callable[[float, str], None] | None = None,
) -> Optimum:
    """The most that a join of two streams can give within a memory, knowing all that will come.

    Parameters
    ----------
    left, right, on, time, within, max_rows, allocation, order, closed
        As for `joinweir.simulate`; rows are taken in order of time.
    memory
        Not for the optimum: a budget in bytes is charged by policy and index, so give `max_rows`.
    objective
        ``count``: as many results as possible. ``importance``: as much importance as possible.
        Equal optima are told apart by the other one, where numbers are small enough.
    importance
        Column with the importance of each row, above 0: one name, or one a stream.
    combine
        Importance of a result: ``min``, ``sum``, ``product``, ``max`` or ``mean`` of its rows'.
    method
        ``flow``: exact. ``odja``: exact, for few slots only. ``bound``: a feasible answer and an
        upper bound, whose distance is the answer's `gap`; time does not grow with memory.
        ``pieces``: likewise, from pieces of the stream that are solved apart. ``auto``: the flow,
        unless it would take more than some ten minutes; then the bound.
    solver
        For the flow: ``paths`` or ``ortools``; default by size.
    piece_gaps, run_pieces
        For ``pieces``: their length in gaps that are left to decide, and what runs them: ``map``
        or ``joinweir.spark.run_pieces(spark)``.
    retained
        Whether to find the rows to hold. Without them ``odja`` needs memory for two instants only,
        however long the streams are, but then `n_out` and `importance` other than the `value` are
        unknown (None). The other methods always know them.
    progress
        Is called with a share done and what is being done.

    Returns
    -------
    Optimum

    Examples
    --------
    The worked example of ojewole2006: two of the exact join's nine results must be given up, and it
    is not the important ones.

    >>> left = {"k": [1, 9, 1, 3, 4, 2], "imp": [1, 20, 1, 5, 5, 1], "t": range(6)}
    >>> right = {"k": [3, 1, 1, 1, 9, 1], "imp": [5, 1, 1, 1, 20, 1], "t": range(6)}
    >>> join = dict(on="k", time="t", within=4, importance="imp", order="evict_first")
    >>> exact(left, right, **join)
    Exact(n_out=9, importance=32.0)
    >>> best = solve(left, right, max_rows=4, objective="importance", **join)
    >>> best.importance, best.n_out
    (30.0, 7)
    >>> most = solve(left, right, max_rows=4, objective="count", **join)
    >>> most.importance, most.n_out
    (12.0, 8)
    """
    begin = perf_counter()
    if memory is not None:
        raise JoinweirError(f"memory={memory!r}: the optimum counts rows; give max_rows instead")
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if solver is not None and solver not in SOLVERS:
        raise unknown("solver", solver, SOLVERS)
    code = combine_code(combine)
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    if objective == "importance" and importance is None:
        raise JoinweirError("objective='importance' needs importance=, a column of each stream")
    arrivals = read(left, right, Join(on, time, within, order, closed, importance))
    matches = find_matches(arrivals)
    weights = make_weights(objective, code, arrivals, matches)
    each = np.bincount(arrivals.side, minlength=2)
    slots = slots_per_pool(max_rows, allocation, each.tolist())
    if isinstance(piece_gaps, bool) or not isinstance(piece_gaps, Integral) or piece_gaps < 1:
        raise JoinweirError(f"piece_gaps must be a whole number >= 1, not {piece_gaps!r}")
    way = _Way(method, solver, int(piece_gaps), run_pieces, retained)
    of = pools(arrivals, slots or [max(1, int(n)) for n in each])
    found = []
    for x, pool in enumerate(of):

        def report(share: float, x: int = x) -> None:
            if progress:
                progress((x + share) / len(of), f"pool {x + 1} of {len(of)}")

        found.append(_solve_pool(pool, matches, weights, way, report))
    return _answer(
        arrivals,
        matches,
        weights,
        code,
        found,
        objective=objective,
        weighed=importance is not None,
        slots=None if slots is None else tuple(slots),
        begin=begin,
    )


class _Solved(NamedTuple):
    """A pool's answer."""

    pool: Pool
    until: np.ndarray | None  # of each row: behind its last match in Matches.partner
    upper: int  # weight that no policy exceeds
    solver: str
    size: tuple[int, int, int]  # rows, gaps and options that were left to solve


class _Way(NamedTuple):
    """How pools are to be solved."""

    method: str
    solver: str | None
    piece_gaps: int
    run_pieces: Runner
    retained: bool


def _solve_pool(
    pool: Pool, matches: Matches, weights: Weights, way: _Way, report: Callable[[float], None]
) -> _Solved:
    if way.method == "odja":
        value, held_in = solve_odja(pool, matches, weights, trail=way.retained, progress=report)
        until = None if held_in is None else _paid_until(pool, matches, held_in)
        return _Solved(pool, until, value, "odja", (pool.rows.size, pool.n_gaps, 0))
    graph = build(pool, matches, weights)
    held_in, upper, solver = _solve_graph(graph, way, report)
    until = matches_until(graph, pool, matches, held_in)
    size = (graph.row.size, graph.n_gaps, graph.n_options)
    return _Solved(pool, until, graph.free + upper, solver, size)


def _solve_graph(
    graph: Graph, way: _Way, report: Callable[[float], None]
) -> tuple[np.ndarray, int, str]:
    """Until when rows are held, the weight that nobody exceeds, and who found it."""
    solver, seconds = choose_solver(graph)
    if way.solver:
        solver, seconds = way.solver, 0.0
    method = way.method
    if method == "auto":
        method = "flow" if seconds <= LONGEST else "bound"
    if method == "flow":
        solution = solve_flow(graph, solver, report)
        return solution.held_in, solution.value, solution.solver
    if method == "bound":
        bounds = find_bounds(graph, progress=report)
    else:
        bounds = bounds_from_pieces(graph, gaps=way.piece_gaps, run=way.run_pieces, progress=report)
    return bounds.held_in, bounds.upper, method


def _paid_until(pool: Pool, matches: Matches, held_in: np.ndarray) -> np.ndarray:
    """Behind the last match of each row, from the gap up to which it is held."""
    n = (matches.stop - matches.first)[pool.rows]
    owner = np.repeat(np.arange(pool.rows.size), n)
    at = np.arange(owner.size) - np.repeat(np.cumsum(n) - n, n) + matches.first[pool.rows][owner]
    paid = pool.gap[matches.partner[at]] <= held_in[owner]
    return matches.first[pool.rows] + np.bincount(owner[paid], minlength=pool.rows.size)


def _answer(
    arrivals: Arrivals, matches: Matches, weights: Weights, code: int, found: list[_Solved], **how
) -> Optimum:
    counting = how["objective"] == "count"
    held_importance, inside = exact_importance(arrivals, matches, code)
    exact_total = held_importance + inside if how["weighed"] else None
    n_exact = matches.n_held + matches.n_inside
    most = sum(part.upper for part in found) // weights.unit
    value = most + matches.n_inside if counting else most / weights.scale + inside
    upper = min(n_exact, value) if counting else min(exact_total, value + weights.rounding)
    retained, n_out, earned = None, None, None
    if found[0].until is not None:
        retained, held, first, until = _retained(arrivals, matches, found)
        n_out = int((until - first).sum()) + matches.n_inside
        if how["weighed"]:
            paid = add_up(arrivals.importance, code, held, first, until, matches.partner)
            earned = inside + paid
        value = n_out if counting else earned
    elif counting:
        n_out = value
    else:
        earned = value
    upper = max(upper, value)
    sizes = np.array([part.size for part in found]).sum(axis=0)
    return Optimum(
        value=value,
        n_out=n_out,
        importance=earned,
        upper_bound=upper,
        gap=float((upper - value) / upper) if upper else 0.0,
        n_exact=n_exact,
        exact_importance=exact_total,
        retained=retained,
        solver=tuple(part.solver for part in found),
        seconds=perf_counter() - how["begin"],
        objective=how["objective"],
        order=arrivals.order,
        scale=weights.scale,
        n_rows=int(sizes[0]),
        n_gaps=int(sizes[1]),
        n_options=int(sizes[2]),
        slots=how["slots"],
        n_in=arrivals.n_in,
        n_null=arrivals.n_null,
    )


def _retained(
    arrivals: Arrivals, matches: Matches, found: list[_Solved]
) -> tuple[Retained, np.ndarray, np.ndarray, np.ndarray]:
    """The rows that are held, as told to the user, and as arrivals with their ranges of matches."""
    rows = np.concatenate([part.pool.rows for part in found])
    until = np.concatenate([part.until for part in found])
    kept = np.flatnonzero(until > matches.first[rows])
    kept = kept[np.lexsort((arrivals.row[rows[kept]], arrivals.side[rows[kept]]))]
    rows, until = rows[kept], until[kept]
    first = matches.first[rows]
    told = Retained(
        stream=arrivals.side[rows].astype(np.int64),
        row=arrivals.row[rows],
        since=arrivals.ts[rows],
        until=arrivals.ts[matches.partner[until - 1]],
        n_out=until - first,
    )
    return told, rows, first, until
