"""A join as the optimum sees it: arrivals in order, matches as ranges, and what memory allows.

A held row of one stream pays each time an arrival of the other stream matches it. Whether it was
held until then is the only question, so a stream's rows never influence those of the other one,
and each *pool* of memory is a problem of its own: two with a budget per stream, one if unified.

In a pool time passes in *gaps*: a gap is the stretch between two of the pool's own arrivals (or
instants), during which nothing needs to be decided. At most `slots` rows are held in a gap. A row
that arrives opens gap `first` and pays in later gaps; to be paid in gap q it is held in all gaps
from `first` to q. Which gap an arrival's probe falls into is all that tells the orders apart:

    probe_first    each arrival is an event of its own; its probe sees the gap before it
    simultaneous   the rows of a time are one event; their probes see the gap before it
    evict_first    the rows of a time are one event; their probes see the gap that it opens

In the last two, pairs inside of one event are always results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import JoinweirError, unknown
from ..layout import ORDERS
from ..tables import Times, column, n_rows, read_keys, read_times
from ..units import time_length

SIDES = ("left", "right")
ALLOCATIONS = ("even", "rates", "unified")


class Arrivals(NamedTuple):
    """Rows with a key in the order in which they arrive: by time, stream, row number."""

    ts: np.ndarray
    side: np.ndarray
    key: np.ndarray  # numbered from 0
    row: np.ndarray  # number in its own stream
    importance: np.ndarray  # empty if nobody asked
    event: np.ndarray  # number of its event; events come in order
    death: np.ndarray  # first arrival that cannot match it any more
    n_in: tuple[int, int]
    n_null: tuple[int, int]
    order: str


class Matches(NamedTuple):
    """The exact join: arrival i, as the held row, matches partner[first[i]:stop[i]], in order."""

    first: np.ndarray
    stop: np.ndarray
    partner: np.ndarray  # arrivals by stream and key, then in order
    inside_first: np.ndarray  # of left rows: partners inside of the same event
    inside_stop: np.ndarray

    @property
    def n_held(self) -> int:
        """Results for which a row must be held."""
        return int((self.stop - self.first).sum())

    @property
    def n_inside(self) -> int:
        """Results that no memory limit can prevent."""
        return int((self.inside_stop - self.inside_first).sum())


class Pool(NamedTuple):
    """One memory and the rows that share it."""

    rows: np.ndarray  # arrivals, in order
    first: np.ndarray  # the gap that each of them opens
    last: np.ndarray  # the last gap in which it is alive
    gap: np.ndarray  # of every arrival: the gap that its probe sees
    n_gaps: int
    slots: int


# --- reading the call ---------------------------------------------------------------------------
@dataclass(frozen=True)
class Join:
    """What is joined, and how; the arguments of `simulate` that matter here."""

    on: Any
    time: Any
    within: Any
    order: str = "probe_first"
    closed: str = "left"
    importance: Any = None


def read(left: Any, right: Any, join: Join) -> Arrivals:
    """The arrivals of two tables."""
    if right is None:
        raise JoinweirError("the optimum is for two streams: give left and right")
    if join.order not in ORDERS:
        raise unknown("order", join.order, ORDERS)
    if join.closed not in ("left", "both"):
        raise unknown("closed", join.closed, ("left", "both"))
    tables = (left, right)
    time_names = _pair(join.time, "time")
    for name in time_names:
        if not isinstance(name, str):
            raise JoinweirError(f"time must name a column, not {name!r}")
    n_in = [n_rows(*which) for which in zip(tables, time_names, SIDES)]
    times = [read_times(*which) for which in zip(tables, time_names, SIDES)]
    filled = [t for t in times if t.ticks.size] or times[:1]
    if len({(t.timestamps, t.scale, t.zoned) for t in filled}) > 1:
        raise JoinweirError("the time columns are of different kinds; cast one")
    keys, nulls = read_keys(tables, _key_names(join.on), SIDES)
    kept = [np.flatnonzero(~null) for null in nulls]
    side = np.repeat(np.arange(2, dtype=np.int8), [rows.size for rows in kept])
    row = np.concatenate(kept)
    ts = np.concatenate([t.ticks[rows] for t, rows in zip(times, kept)])
    by = np.lexsort((row, side, ts))
    ts, side, row = ts[by], side[by], row[by]
    key = np.concatenate([k[rows] for k, rows in zip(keys, kept)])[by]
    importance = np.empty(0)
    if join.importance is not None:
        columns = [
            _importance(*which)
            for which in zip(tables, _pair(join.importance, "importance"), SIDES)
        ]
        importance = np.concatenate([c[rows] for c, rows in zip(columns, kept)])[by]
    event = np.arange(ts.size)
    if join.order != "probe_first" and ts.size:
        event = np.cumsum(np.r_[0, np.diff(ts) != 0])
    return Arrivals(
        ts=ts,
        side=side,
        key=np.unique(key, return_inverse=True)[1].astype(np.int64),
        row=row,
        importance=importance,
        event=event.astype(np.int64),
        death=_deaths(join, filled[0], ts, side),
        n_in=tuple(n_in),
        n_null=tuple(int(null.sum()) for null in nulls),
        order=join.order,
    )


def _pair(value: Any, name: str) -> list[Any]:
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise JoinweirError(f"{name} has {len(value)} values for 2 streams")
        return list(value)
    return [value, value]


def _key_names(on: Any) -> list[list[str]]:
    columns = [on] if isinstance(on, str | tuple) else on
    if not isinstance(columns, list) or not columns:
        raise JoinweirError(f"on must be a column name or a list of them, not {on!r}")
    pairs = [_pair(entry, "on") for entry in columns]
    for name in (name for pair in pairs for name in pair):
        if not isinstance(name, str):
            raise JoinweirError(f"on must name columns, not {name!r}")
    return [[pair[s] for pair in pairs] for s in range(2)]


def _deaths(join: Join, kind: Times, ts: np.ndarray, side: np.ndarray) -> np.ndarray:
    """The first arrival that comes too late for each row."""

    def length(value: Any, name: str) -> int:
        return time_length(value, name, timestamps=kind.timestamps, scale=kind.scale)

    # rows(n) and landmark(...) are known by what they carry: their classes belong to simulation.
    if hasattr(join.within, "n"):
        if join.order != "probe_first":
            raise JoinweirError(f"order={join.order!r} needs a time window, not rows(n)")
        death = np.full(ts.size, ts.size)
        for s in range(2):
            own = np.flatnonzero(side == s)
            death[own[: max(0, own.size - join.within.n)]] = own[join.within.n :]
        return death
    if hasattr(join.within, "every"):
        every = length(join.within.every, "landmark")
        if every < 1:
            raise JoinweirError(f"landmark({join.within.every!r}) must be longer than nothing")
        origin = length(join.within.origin, "landmark origin")
        end = ((ts - origin) // every + 1) * every + origin
    else:
        lengths = [
            length(v, "within") + (join.closed == "both") for v in _pair(join.within, "within")
        ]
        if min(lengths) < 1:
            raise JoinweirError(f"within must be more than 0, not {join.within!r}")
        end = ts + np.asarray(lengths)[side]
    return np.searchsorted(ts, end, "left")


def _importance(table: Any, name: Any, what: str) -> np.ndarray:
    if not isinstance(name, str):
        raise JoinweirError(f"importance must name a column, not {name!r}")
    values = column(table, name, what)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)) and len(values):
        raise JoinweirError(
            f"importance column {name!r} of the {what} stream is {values.type}; it must be numeric"
        )
    plain = pc.fill_null(values.cast(pa.float64()), float("nan")).to_numpy()
    wrong = np.flatnonzero(~((plain > 0) & (plain < np.inf)))
    if wrong.size:
        value = values[int(wrong[0])].as_py()
        raise JoinweirError(
            f"importance column {name!r} of the {what} stream: row {wrong[0]} has "
            f"{'no value' if value is None else value}; every row needs a number above 0"
        )
    return plain


# --- memory -------------------------------------------------------------------------------------
def slots_per_pool(
    max_rows: Any, allocation: str | None, n_rows_each: Sequence[int]
) -> list[int] | None:
    """Rows that each pool holds: one number if unified, two otherwise; None: all of them.

    >>> slots_per_pool(5, None, [10, 10]), slots_per_pool(10, "rates", [90, 10])
    ([3, 2], [9, 1])
    """
    if allocation is not None and allocation not in ALLOCATIONS:
        raise unknown("allocation", allocation, ALLOCATIONS)
    if max_rows is None:
        if allocation is not None:
            raise JoinweirError("allocation needs max_rows to allocate")
        return None
    per_stream = isinstance(max_rows, tuple | list)
    amounts = _pair(max_rows, "max_rows") if per_stream else [max_rows]
    for amount in amounts:
        if isinstance(amount, bool) or not isinstance(amount, Integral) or not 1 <= amount <= 2**31:
            raise JoinweirError(f"max_rows must be a whole number from 1 to 2**31, not {amount!r}")
    if per_stream:
        if allocation is not None:
            raise JoinweirError("allocation does not go with a budget per stream")
        return [int(amount) for amount in amounts]
    total = int(amounts[0])
    if allocation == "unified":
        return [total]
    if total < 2:
        raise JoinweirError(
            f"max_rows={max_rows!r} leaves no room for a row of every stream; it must be at least 2"
        )
    left = total / 2
    if allocation == "rates" and sum(n_rows_each):
        left = total * (n_rows_each[0] / sum(n_rows_each))
    share = int(left) + (left - int(left) >= 0.5)  # the larger remainder; left, if they are equal
    share = min(max(share, 1), total - 1)
    return [share, total - share]


def pools(arrivals: Arrivals, slots: Sequence[int]) -> list[Pool]:
    """The pools of memory, each with its own course of time."""
    members = [np.arange(arrivals.ts.size)]
    if len(slots) == 2:
        members = [np.flatnonzero(arrivals.side == s) for s in range(2)]
    n_events = int(arrivals.event[-1]) + 1 if arrivals.event.size else 0
    begins = np.searchsorted(arrivals.event, np.arange(n_events))
    found = []
    for rows, size in zip(members, slots):
        is_own = np.zeros(n_events, np.int64)
        is_own[arrivals.event[rows]] = 1
        through = np.cumsum(is_own)  # own events up to and including each
        gap = through[arrivals.event] - 1
        first = gap[rows]
        if arrivals.order != "evict_first":
            gap = gap - is_own[arrivals.event]
        opened = begins[np.flatnonzero(is_own)]  # the arrival with which each gap opens
        last = np.searchsorted(opened, arrivals.death[rows], "left") - 1
        found.append(Pool(rows, first, last, gap, int(is_own.sum()), int(size)))
    return found


# --- matches ------------------------------------------------------------------------------------
def find_matches(arrivals: Arrivals) -> Matches:
    """All matches of the exact join as ranges: memory for the rows, not for the results."""
    n = arrivals.ts.size
    place = arrivals.key * (n + 1)
    partners, first, stop = [], np.zeros(n, np.int64), np.zeros(n, np.int64)
    after = np.arange(1, n + 1)
    begin = np.searchsorted(arrivals.event, arrivals.event, "left")
    if arrivals.order != "probe_first":
        after = np.searchsorted(arrivals.event, arrivals.event, "right")
    inside_first = inside_stop = np.empty(0, np.int64)
    offset = 0
    for s in range(2):
        own, others = np.flatnonzero(arrivals.side == s), np.flatnonzero(arrivals.side != s)
        spot = place[others] + others
        by = np.argsort(spot, kind="stable")
        spot = spot[by]
        lo = np.searchsorted(spot, place[own] + after[own])
        hi = np.searchsorted(spot, place[own] + arrivals.death[own])
        first[own], stop[own] = lo + offset, np.maximum(lo, hi) + offset
        if s == 0 and arrivals.order != "probe_first":
            inside_first = np.searchsorted(spot, place[own] + begin[own])
            inside_stop = lo
        partners.append(others[by])
        offset += others.size
    return Matches(first, stop, np.concatenate(partners), inside_first, inside_stop)
