"""The optimum as a flow: one unit per slot of memory (SJA of das2003, ESJA of ojewole2006 §4.2).

Two solvers for a `Graph`. Both are exact.

*paths* sends slot after slot along the path that earns most, given all slots sent before; a later
slot may push a row out of an earlier one's way, and pays for it. Nodes are the gaps' borders alone:
a row that is not held leads from its start to each of its options, one that is held from the end of
its stay back to its start or over to its other options. Potentials keep lengths non-negative, so
each path costs one run of Dijkstra's algorithm, O(gaps · log + options). They start from the
longest path in a graph whose arcs all lead forward in time. It ends with the last slot, or when
another one earns nothing. Besides the flow it leaves the *price* of a slot in each gap, which
proves the optimum: see `bound.dual_value`.

*ortools* gives the same graph to OR-tools' cost scaling, which does not care how many slots there
are. It needs a node more for each row with several options.
"""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from ..errors import JoinweirError
from .graph import Graph, parts
from .heap import ABSENT, remove, sift_up

SOLVERS = ("paths", "ortools")
FAR = np.int64(2**62)
CHAIN = -1  # an arc of a path that is no row's

# Seconds by size, roughly, fitted to the table in docs/optimum.md: a path looks at every option and
# every gap, cost scaling visits nodes and arcs some hundred times each.
_PATH_OPTION, _PATH_GAP = 8e-9, 1.7e-7
_SCALING_OPTION, _SCALING_NODE = 4e-6, 6e-5


class Solution(NamedTuple):
    """Which rows are held until when, and what a slot is worth."""

    held_in: np.ndarray  # of each row of the graph: the last gap in which it is held, or -1
    value: int  # weight earned, without what is free
    price: np.ndarray  # of a slot in each gap; empty if the solver gives none
    solver: str


def choose_solver(graph: Graph) -> tuple[str, float]:
    """The solver that should be faster on this graph, and its seconds, roughly."""
    paths = graph.slots * (graph.n_options * _PATH_OPTION + graph.n_gaps * _PATH_GAP)
    nodes = graph.n_gaps + graph.row.size
    scaling = graph.n_options * _SCALING_OPTION + nodes * _SCALING_NODE
    installed = importlib.util.find_spec("ortools") is not None
    if paths <= scaling or not installed or not _costs_fit(graph.value, nodes):
        return "paths", paths
    return "ortools", scaling


def solve_flow(graph: Graph, solver: str, progress=None) -> Solution:
    """The optimum of a graph."""
    if solver == "ortools":
        return _with_ortools(graph, progress)
    return _with_paths(graph, progress)


# --- paths ----------------------------------------------------------------------------------------
class _Paths(NamedTuple):
    """Working arrays of the path solver; one entry a border unless said otherwise."""

    potential: np.ndarray
    distance: np.ndarray
    came_from: np.ndarray  # border before it on the path
    came_as: np.ndarray  # row that the step belongs to, or CHAIN
    came_to: np.ndarray  # option that the row takes with this step, -1: it is dropped
    heap: np.ndarray
    place: np.ndarray  # in the heap
    leaving: np.ndarray  # a held row whose stay ends here; more of them through `next_leaving`
    first_row: np.ndarray  # rows that start at border b are first_row[b]:first_row[b + 1]
    idle: np.ndarray  # gap: slots without a row, of those sent so far
    option: np.ndarray  # row: its option, or -1
    next_leaving: np.ndarray  # row
    previous_leaving: np.ndarray  # row; -1 - border for the first


@kernel
def _reach(P, size, border, distance, source, row, option):
    """A step to `border`: keep it if it is the shortest so far. Returns the heap's size."""
    if distance < P.distance[border]:
        P.distance[border] = distance
        P.came_from[border], P.came_as[border], P.came_to[border] = source, row, option
        x = P.place[border]
        if x == ABSENT:
            x = size
            P.heap[x] = border
            size += 1
        sift_up(P.distance, P.heap, P.place, x)
    return size


@kernel
def _first_potentials(G, P, lo, hi):
    """Distances in the graph without a slot sent: all steps lead forward."""
    for b in range(lo, hi + 1):
        P.distance[b] = FAR
    P.distance[lo] = 0
    for b in range(lo, hi):
        here = P.distance[b]
        if here < P.distance[b + 1]:
            P.distance[b + 1] = here
            P.came_from[b + 1], P.came_as[b + 1] = b, CHAIN
        for row in range(P.first_row[b], P.first_row[b + 1]):
            for x in range(G.at[row], G.at[row + 1]):
                end = G.gap[x] + 1
                if here - G.value[x] < P.distance[end]:
                    P.distance[end] = here - G.value[x]
                    P.came_from[end], P.came_as[end], P.came_to[end] = b, row, x
    for b in range(lo, hi + 1):
        P.potential[b] = P.distance[b]


@kernel
def _shortest_path(G, P, lo, hi):
    """Dijkstra from the first border to the last, on lengths reduced by the potentials."""
    for b in range(lo, hi + 1):
        P.distance[b] = FAR
        P.place[b] = ABSENT
    P.distance[lo] = 0
    P.heap[0] = lo
    P.place[lo] = 0
    size = 1
    while size:
        b = P.heap[0]
        remove(P.distance, P.heap, P.place, 0, size)
        size -= 1
        if b == hi:
            break
        here = P.distance[b] + P.potential[b]
        size = _reach(P, size, b + 1, here - P.potential[b + 1], b, CHAIN, 0)
        if b > lo and P.idle[b - 1] > 0:
            size = _reach(P, size, b - 1, here - P.potential[b - 1], b, CHAIN, 0)
        for row in range(P.first_row[b], P.first_row[b + 1]):
            if P.option[row] < 0:
                for x in range(G.at[row], G.at[row + 1]):
                    end = G.gap[x] + 1
                    reached = here - G.value[x] - P.potential[end]
                    if reached < P.distance[end]:
                        size = _reach(P, size, end, reached, b, row, x)
        row = P.leaving[b]
        while row >= 0:
            back = here + G.value[P.option[row]]
            start = G.start[row]
            size = _reach(P, size, start, back - P.potential[start], b, row, -1)
            for x in range(G.at[row], G.at[row + 1]):
                end = G.gap[x] + 1
                reached = back - G.value[x] - P.potential[end]
                if reached < P.distance[end]:
                    size = _reach(P, size, end, reached, b, row, x)
            row = P.next_leaving[row]
    length = P.distance[hi]
    for b in range(lo, hi + 1):
        P.potential[b] += min(P.distance[b], length)


@kernel
def _unlink(P, row):
    following, before = P.next_leaving[row], P.previous_leaving[row]
    if before < 0:
        P.leaving[-1 - before] = following
    else:
        P.next_leaving[before] = following
    if following >= 0:
        P.previous_leaving[following] = before


@kernel
def _link(P, row, border):
    following = P.leaving[border]
    P.next_leaving[row], P.previous_leaving[row] = following, -1 - border
    if following >= 0:
        P.previous_leaving[following] = row
    P.leaving[border] = row


@kernel
def _send(P, lo, hi):
    """Send a slot along the path that was found. A row has at most one step of it."""
    b = hi
    while b != lo:
        source, row = P.came_from[b], P.came_as[b]
        if row == CHAIN:
            if source < b:
                P.idle[source] += 1
            else:
                P.idle[b] -= 1
        else:
            if P.option[row] >= 0:
                _unlink(P, row)
            P.option[row] = P.came_to[b]
            if P.came_to[b] >= 0:
                _link(P, row, b)
        b = source


@kernel
def _send_slots(G, P, lo, hi, sent, at_most, slots):
    """Send up to `at_most` more of the slots through gaps lo … hi-1; returns how many are sent."""
    for _ in range(at_most):
        if sent == slots:
            return sent
        if sent == 0:
            for b in range(lo, hi + 1):
                P.leaving[b] = -1
            for gap in range(lo, hi):
                P.idle[gap] = 0
            _first_potentials(G, P, lo, hi)
        else:
            _shortest_path(G, P, lo, hi)
        if P.potential[hi] >= P.potential[lo]:  # another slot earns nothing
            return slots
        _send(P, lo, hi)
        sent += 1
    return sent


def _with_paths(graph: Graph, progress) -> Solution:
    n, rows = graph.n_gaps + 1, graph.row.size
    border, node = np.zeros(n, np.int64), np.zeros(n, np.int32)
    paths = _Paths(
        potential=border,
        distance=border.copy(),
        came_from=node,
        came_as=node.copy(),
        came_to=border.copy(),
        heap=node.copy(),
        place=node.copy(),
        leaving=node.copy(),
        first_row=np.searchsorted(graph.start, np.arange(n + 1)),
        idle=border.copy(),
        option=np.full(rows, -1, np.int64),
        next_leaving=np.full(rows, -1, np.int32),
        previous_leaving=np.full(rows, -1, np.int32),
    )
    price = np.zeros(graph.n_gaps, np.int64)
    for lo, hi in parts(graph):
        # Some paths at a time, so that an interrupt is heard and progress is seen.
        sent, at_once = 0, max(1, int(2e7 // max(1, graph.n_options)))
        while sent < graph.slots:
            sent = _send_slots(graph, paths, lo, hi, sent, at_once, graph.slots)
            if progress:
                progress((lo + (hi - lo) * sent / graph.slots) / graph.n_gaps)
        price[lo:hi] = paths.potential[lo:hi] - paths.potential[lo + 1 : hi + 1]
    chosen = paths.option >= 0
    held_in = np.where(chosen, graph.gap[paths.option], -1) if rows else np.empty(0, np.int64)
    value = int(graph.value[paths.option[chosen]].sum())
    return Solution(held_in, value, price, "paths")


# --- OR-tools -------------------------------------------------------------------------------------
def import_ortools():
    """OR-tools' module of flows."""
    try:
        from ortools.graph.python import min_cost_flow
    except ImportError:
        raise JoinweirError(
            "solver 'ortools' needs OR-tools; install it with: pip install 'joinweir[optimum]'"
        ) from None
    return min_cost_flow


def _costs_fit(value: np.ndarray, nodes: int) -> bool:
    """Cost scaling multiplies costs by the number of nodes, and adds some of them up."""
    return float(value.max(initial=0)) * (nodes + 1) * 4 < 2.0**62


def _with_ortools(graph: Graph, progress) -> Solution:
    min_cost_flow = import_ortools()
    held_in, value = np.full(graph.row.size, -1, np.int64), 0
    for lo, hi in parts(graph):
        rows = slice(*np.searchsorted(graph.start, [lo, hi]))
        first, stop = int(graph.at[rows.start]), int(graph.at[rows.stop])
        n_options = np.diff(graph.at[rows.start : rows.stop + 1])
        start = graph.start[rows] - lo
        end, worth = graph.gap[first:stop] + 1 - lo, graph.value[first:stop]
        gaps, n = hi - lo, n_options.size
        junction = np.cumsum(n_options > 1) + gaps  # behind the borders 0 … gaps
        forks = n_options > 1
        tail = np.repeat(np.where(forks, junction, start), n_options)
        into = np.flatnonzero(forks)
        tails = np.concatenate([np.arange(gaps), start[into], tail])
        heads = np.concatenate([np.arange(1, gaps + 1), junction[into], end])
        capacity = np.ones(tails.size, np.int64)
        capacity[:gaps] = min(graph.slots, n)  # more slots than rows stay idle
        cost = np.zeros(tails.size, np.int64)
        cost[-worth.size :] = -worth
        nodes = int(tails.max(initial=gaps)) + 1
        if not _costs_fit(worth, nodes):
            raise JoinweirError(
                "the importances are too large for OR-tools on so long a stream; use "
                "solver='paths', or divide them all by a power of ten"
            )
        flow = min_cost_flow.SimpleMinCostFlow()
        arcs = flow.add_arcs_with_capacity_and_unit_cost(
            tails.astype(np.int32), heads.astype(np.int32), capacity, cost
        )
        supply = np.array([capacity[0], -capacity[0]])
        flow.set_nodes_supplies(np.array([0, gaps], np.int32), supply)
        status = flow.solve()
        if status != flow.OPTIMAL:
            raise JoinweirError(f"OR-tools ended with {status.name}; use solver='paths'")
        taken = np.flatnonzero(flow.flows(arcs[-worth.size :]))
        owner = np.repeat(np.arange(n), n_options)[taken]
        held_in[rows.start + owner] = end[taken] - 1 + lo
        value += int(worth[taken].sum())
        if progress:
            progress(hi / graph.n_gaps)
    return Solution(held_in, value, np.empty(0, np.int64), "ortools")
