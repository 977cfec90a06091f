"""`simulate`: a memory-limited window join over tables in this process, and what it lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from . import layout as L
from .errors import JoinweirError, unknown
from .metrics import recall as recall_of
from .metrics import relative_importance
from .policies import Parameters, Sizes, definition, policy, read_policy
from .state import (
    GHOST_SHARE,
    SKETCHES_TWO_LATE_STREAMS,
    JoinConfig,
    JoinState,
    Known,
    Outcome,
    can_be_informed,
    index_bytes_per_row,
    log_entry_bytes,
    make_batch,
    rows_of_batch,
)
from .tables import Times, bytes_per_row, n_rows, read_importance, read_keys, read_times
from .units import memory_bytes, time_length

ALLOCATIONS = ("even", "rates", "unified")
SIDES = ("left", "right")
COMBINATIONS = L.COMBINATIONS[1:]
HAS_NO_USE_FOR_KNOWN = (
    "policy {policy!r} has no use for known=; those with statistics='history', lba and elba have"
)


# --- windows -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Rows:
    """A count window: a row lives until `n` more rows of its own stream have come."""

    n: int


@dataclass(frozen=True)
class Landmark:
    """A landmark window: a row lives until the next of the times origin + i · every."""

    every: Any
    origin: Any = 0


def rows(n: int) -> Rows:
    """Window of the last n rows of a stream.

    >>> rows(1000)
    Rows(n=1000)
    """
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise JoinweirError(f"rows(n): n must be a whole number >= 1, not {n!r}")
    return Rows(int(n))


def landmark(every: Any, origin: Any = 0) -> Landmark:
    """Window since the last landmark; there is one `every` so much time, counted from `origin`.

    >>> landmark("1 day")
    Landmark(every='1 day', origin=0)
    """
    return Landmark(every, origin)


# --- results -----------------------------------------------------------------------------------
class Shed(NamedTuple):
    """Rows that were shed, in the order in which it happened."""

    stream: np.ndarray  # 0 = left, 1 = right, …
    row: np.ndarray
    reason: np.ndarray  # index into `joinweir.layout.REASONS`: evicted, not admitted
    n_matched: np.ndarray  # arrivals that it matched while it was held (two streams: results)


@dataclass(frozen=True)
class JoinResult:
    """What a simulated join produced, and what it did not.

    Attributes
    ----------
    n_in, n_null, n_late, n_evicted, n_refused, n_expired, rows_held
        Per stream: rows read, with a null key, too late, pushed out, not admitted, dead of age, and
        held at the end. ``n_in = n_null + n_late + n_evicted + n_refused + n_expired + rows_held``.
    n_out, n_exact, n_exact_error, recall
        Results, results of the exact join (None if not accounted), its standard error (0 when
        exact), and their ratio.
    pairs
        Row numbers of the results, an array a stream; None if not asked for.
    shed
        The rows that were shed; None if not asked for.
    importance, importance_exact, importance_recall
        If rows have importances: summed up over the results, over the exact join (None unless
        accounted exactly), and their ratio.
    pair_importance
        Importance of each of the `pairs`, so that a further join can use it.
    bytes_held, max_bytes
        With a budget in bytes: what the join takes at the end, and what it was allowed.
    """

    policy: Parameters
    n_in: tuple[int, ...]
    n_null: tuple[int, ...]
    n_late: tuple[int, ...]
    n_evicted: tuple[int, ...]
    n_refused: tuple[int, ...]
    n_expired: tuple[int, ...]
    rows_held: tuple[int, ...]
    n_out: int
    n_exact: int | float | None
    n_exact_error: float
    pairs: tuple[np.ndarray, ...] | None = field(repr=False, default=None)
    shed: Shed | None = field(repr=False, default=None)
    bytes_held: int | None = None
    max_bytes: int | None = None
    capacity: tuple[int, ...] | None = None
    importance: float | None = None
    importance_exact: float | None = None
    pair_importance: np.ndarray | None = field(repr=False, default=None)

    @property
    def n_shed(self) -> int:
        """Rows shed for want of memory, over all streams."""
        return sum(self.n_evicted) + sum(self.n_refused)

    @cached_property
    def recall(self) -> float | None:
        """Share of the exact join that was produced."""
        if self.n_exact is None:
            return None
        return recall_of(self.n_out, max(self.n_exact, 0))

    @cached_property
    def importance_recall(self) -> float | None:
        """Share of the exact join's importance that was produced."""
        if self.importance is None or self.importance_exact is None:
            return None
        # Both are sums of floats, and not always in the same order.
        return min(1.0, relative_importance(self.importance, self.importance_exact))

    def to_dict(self) -> dict[str, Any]:
        """Counts as plain numbers, for JSON."""
        weighed = ("importance", "importance_exact", "importance_recall")
        weighed = weighed if self.importance is not None else ()
        names = ("n_in", "n_null", "n_late", "n_evicted", "n_refused", "n_expired", "rows_held")
        return {
            "policy": str(self.policy),
            "n_out": self.n_out,
            "n_exact": self.n_exact,
            "n_exact_error": self.n_exact_error,
            "recall": self.recall,
            "n_shed": self.n_shed,
            **{name: list(getattr(self, name)) for name in names},
            "bytes_held": self.bytes_held,
            "max_bytes": self.max_bytes,
            **{name: getattr(self, name) for name in weighed},
        }

    def __repr__(self) -> str:
        exact = "not counted" if self.n_exact is None else f"{self.n_exact:,.0f}"
        if self.n_exact_error:
            exact += f" ± {self.n_exact_error:,.0f}"
        share = "" if self.recall is None else f" ({self.recall:.1%} of it)"
        lost = f"{self.n_shed:,} rows shed" + "".join(
            f", {sum(getattr(self, name)):,} {word}"
            for name, word in (("n_late", "late"), ("n_null", "with a null key"))
            if sum(getattr(self, name))
        )
        if self.importance is not None:
            share += f", importance {self.importance:,.6g}"
            if self.importance_recall is not None:
                share += f" ({self.importance_recall:.1%} of the exact join's)"
        return (
            f"<{self.policy}: {self.n_out:,} results, exact join {exact}{share}; "
            f"{sum(self.n_in):,} rows in, {lost}, {sum(self.rows_held):,} held>"
        )


# --- the join ----------------------------------------------------------------------------------
def simulate(
    left: Any,
    right: Any = None,
    *,
    on: Any,
    time: Any,
    within: Any,
    max_rows: int | Sequence[int] | None = None,
    memory: int | str | Sequence[int | str] | None = None,
    allocation: str | None = None,
    policy: str | Parameters = "gdj",
    order: str = "probe_first",
    closed: str = "left",
    lateness: Any = None,
    accounting: str | None = None,
    drop: float | str | Sequence[float | str] = 0.0,
    drop_probes: bool = False,
    thinning: str = "systematic",
    seed: int = 0,
    pairs: bool = True,
    shed: bool = True,
    known: Any = None,
    importance: str | Sequence[str | None] | None = None,
    combine: str | Callable[[np.ndarray, np.ndarray], np.ndarray] = "min",
) -> JoinResult:
    """Join streams over sliding windows within a memory budget, and count what is lost.

    Parameters
    ----------
    left, right
        Arrow tables, pandas or polars DataFrames, or dicts of arrays. For a join of more than two
        streams on a common key, give a list of them as `left` alone.
    on
        Key: a column name, a list of names (composite), or a list whose members are tuples with one
        name a stream. Rows whose key has a null never match; they are counted.
    time
        Time column: one name, or a tuple with one a stream. Integers are plain ticks, timestamps
        count in microseconds.
    within
        Life of a row: a duration such as ``"10 minutes"`` or a number in the time column's unit
        (seconds beside timestamps), or a tuple with one a stream, or ``jw.landmark("1 day")``, or
        ``jw.rows(1000)``. Two rows match if ``|l.ts - r.ts| < within``.
    max_rows, memory
        The budget over all streams, in rows or in bytes (``"64 MB"``, which covers the rows'
        columns, the index, the policy and the accounting); a tuple gives it per stream. Neither:
        unbounded.
    allocation
        ``even`` (default), ``rates`` (in proportion to the streams' rates) or ``unified`` (one pool
        in which any stream's row can displace any other's).
    policy
        A name, ``jw.policy(...)``, or text such as ``"gdj:initial_rank=0.2"``.
    order
        ``probe_first``: rows arrive one by one, each probes and then makes room for itself.
        ``simultaneous``: rows of one time probe together first. ``evict_first``: they are admitted
        first and probe then.
    closed
        ``left``: rows exactly `within` apart do not match; ``both``: they do.
    lateness
        None: rows are taken in order of time. Else rows arrive in the order given, and a row that
        is behind its own stream's largest time by more than this is late: dropped and counted.
    accounting
        How the exact join's size is found: ``exact``, ``sketch`` (fixed memory, with a standard
        error; time windows, and with `lateness` two streams only) or ``off``. Default: sketch with
        `memory` where it can be had, else exact.
    drop, drop_probes, thinning
        Drop this share of the rows ahead of the join (chang2004 §4.2), ``"fit"`` for just as many
        that the rest fits: 1 - B / (rate · within). Dropped rows still probe with
        ``drop_probes=True``. ``systematic`` thinning spaces the kept rows evenly, ``random`` flips
        a coin for each.
    seed
        For everything random.
    pairs, shed
        Whether to return the results' and the shed rows' numbers; without them only counts.
    known
        What `jw.characterize` found of these streams, or of earlier days of them, with one profile
        a stream. History statistics start from its frequencies, `lba` and `elba` from its models.
    importance
        Column of the rows' importances (finite, above 0): one name, or a tuple with one a stream;
        None in a tuple: all rows of that stream have 1. Policies such as `dgl` look at them, and
        the result sums them up. Not given: all rows have 1, and nothing is summed up.
    combine
        Importance of a result from those of its rows: ``min``, ``sum``, ``product``, ``max``,
        ``mean``, or a function of two arrays that returns one (of k streams: from left to right).

    Returns
    -------
    JoinResult

    Examples
    --------
    >>> import joinweir as jw
    >>> left = {"k": [1, 2, 1, 3], "ts": [0, 1, 2, 3]}
    >>> right = {"k": [1, 1, 2, 3], "ts": [1, 2, 3, 9]}
    >>> r = jw.simulate(left, right, on="k", time="ts", within=5, max_rows=2, policy="fifo")
    >>> r.n_out, r.n_exact
    (2, 5)
    """
    tables, labels = _streams(left, right)
    chosen = read_policy(policy)
    problem = _read(
        tables, labels, on=on, time=time, within=within, closed=closed, lateness=lateness,
        known=known, importance=importance,
    )  # fmt: skip
    if not callable(combine) and combine not in COMBINATIONS:
        raise unknown("combine", combine, (*COMBINATIONS, "a function of two arrays"))
    if accounting is None:
        timed = not problem.count_window and not problem.landmarks
        can_sketch = timed and (lateness is None or problem.streams == 2)
        accounting = "sketch" if memory is not None and can_sketch else "exact"
    if accounting not in L.ACCOUNTINGS:
        raise unknown("accounting", accounting, L.ACCOUNTINGS)
    if accounting == "sketch" and (problem.count_window or problem.landmarks):
        raise JoinweirError("accounting='sketch' needs a time window; use 'exact' or 'off'")
    if accounting == "sketch" and lateness is not None and problem.streams > 2:
        raise JoinweirError(SKETCHES_TWO_LATE_STREAMS)
    if order not in L.ORDERS:
        raise unknown("order", order, L.ORDERS)
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise JoinweirError(f"seed must be a whole number, not {seed!r}")
    config = JoinConfig(
        policy=chosen,
        lifetimes=problem.lifetimes,
        capacity=None,
        order=order,
        ordered=lateness is None,
        lateness=problem.lateness,
        count_window=problem.count_window,
        landmarks=problem.landmarks,
        accounting=accounting,
        seed=int(seed),
        importance=_engine_combination(problem, combine),
    )
    budget = _budget(config, problem, max_rows, memory, allocation)
    config = budget.config
    action = _actions(problem, config, drop, drop_probes, thinning, seed)
    state = start(config, problem)
    if known is not None:
        if not can_be_informed(chosen):
            raise JoinweirError(HAS_NO_USE_FOR_KNOWN.format(policy=str(chosen)))
        state.inform(problem.known)
    batch = problem.batch(config, budget.row_bytes, action)
    if problem.imps is None:
        outcome = state.process(batch, results=pairs, shed=shed)
        return _result(state, problem, budget, outcome, pairs, shed)
    outcome, weights = _process_weighed(state, problem, batch, combine, pairs, shed)
    return _result(state, problem, budget, outcome, pairs, shed, weights)


def start(config: JoinConfig, problem: Problem) -> JoinState:
    """A fresh join that has learned from the input what its policy wants to know of it."""
    known = None
    if config.policy.source_of_frequencies() == "oracle":
        known = {"key": problem.key, "side": problem.side}
    state = JoinState(config, known)
    if state.definition.learn and config.capacity is not None:
        if problem.count_window:
            raise JoinweirError(f"policy {config.policy.name!r} needs time windows, not rows(n)")
        capacity = [
            int(config.capacity[pool] // _mean_charge(config, problem)) for pool in config.pools
        ]
        view = LearningView(problem, config, capacity)
        state.policy_state = state.definition.learn(config.policy, state.policy_state, view)
    return state


@dataclass(frozen=True)
class Problem:
    """The input of a join: accepted rows in the order of processing, and what was set aside."""

    tables: tuple[Any, ...]
    ts: np.ndarray
    side: np.ndarray
    key: np.ndarray
    row: np.ndarray
    end: np.ndarray | None
    rows: np.ndarray  # per stream, as read
    n_null: tuple[int, ...]
    n_late: tuple[int, ...]
    lifetimes: tuple[int, ...]
    lateness: tuple[int, ...]
    count_window: bool
    landmarks: bool
    known: tuple[Known, ...] = ()  # what is known of the streams beforehand, if it is
    imps: tuple[np.ndarray, ...] | None = None  # per stream as read, if rows have importances

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return len(self.lifetimes)

    def batch(self, config: JoinConfig, row_bytes, action=None) -> L.Batch:
        """All rows for `JoinState.process`."""
        size = None if row_bytes is None else np.asarray(row_bytes, np.int32)[self.side]
        return make_batch(
            config,
            ts=self.ts,
            side=self.side,
            key=self.key,
            row=self.row,
            end=self.end,
            size=size,
            action=action,
            imp=self.imp,
        )

    @property
    def imp(self) -> np.ndarray | None:
        """Importances in the order of processing, if rows have them."""
        if self.imps is None:
            return None
        found = np.empty(self.ts.size)
        for s, values in enumerate(self.imps):
            mine = self.side == s
            found[mine] = values[self.row[mine]]
        return found

    def rates(self) -> np.ndarray:
        """Rows per tick of each stream, over the whole time that any stream spans."""
        if not self.ts.size:
            return np.zeros(self.streams)
        span = int(self.ts.max()) - int(self.ts.min()) + 1
        return np.bincount(self.side, minlength=self.streams) / span


@dataclass(frozen=True)
class LearningView:
    """What a policy may learn from: the input, its windows, and its budget in rows."""

    problem: Problem
    config: JoinConfig
    capacity: list[int]

    @property
    def lifetimes(self) -> tuple[int, ...]:
        """Life of a row, per stream."""
        return self.config.lifetimes

    @property
    def rows(self) -> np.ndarray:
        """Rows read, per stream."""
        return self.problem.rows

    def ages(self, share: float):
        """Of the exact join of the first share of the input: the age at which rows paid.

        Returns the earlier row's side, its age at the result, its number (sorted by side, number
        and age), how many rows each stream had, and the time they took.
        """
        p = self.problem
        n = int(np.ceil(share * p.ts.size))
        if not n:
            none = np.empty(0, np.int64)
            return none, none, none, np.zeros(p.streams), 1
        exact = JoinConfig(
            policy=policy("full"),
            lifetimes=self.config.lifetimes,
            capacity=None,
            ordered=self.config.ordered,
            lateness=self.config.lateness,
            landmarks=self.config.landmarks,
            accounting="off",
        )
        batch = p.batch(exact, None)
        batch = rows_of_batch(batch, slice(0, n))
        found = JoinState(exact).process(batch).results
        times = np.zeros((p.streams, int(p.rows.max())), np.int64)
        times[p.side[:n], p.row[:n]] = p.ts[:n]
        ts = np.stack([times[s][found[:, s]] for s in range(p.streams)], axis=1)
        latest = ts.max(axis=1)
        last = p.streams - 1 - np.argmax((ts == latest[:, None])[:, ::-1], axis=1)
        sides, ages, numbers = [], [], []
        for s in range(p.streams):
            earlier = last != s
            sides.append(np.full(int(earlier.sum()), s))
            ages.append((latest - ts[:, s])[earlier])
            numbers.append(found[earlier, s])
        side, age, number = (np.concatenate(parts) for parts in (sides, ages, numbers))
        by = np.lexsort((age, number, side))
        span = int(p.ts[:n].max()) - int(p.ts[:n].min()) + 1
        seen = np.bincount(p.side[:n], minlength=p.streams)
        return side[by], age[by], number[by], seen, span


def rows_in_window(left: Any, right: Any = None, *, time: Any, within: Any) -> list[float]:
    """Mean number of rows that each stream has in a window: what an exact join holds.

    >>> left = {"ts": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}
    >>> rows_in_window(left, {"ts": [0, 5]}, time="ts", within=4)
    [4.0, 0.8]
    """
    tables, labels = _streams(left, right)
    names = _per_stream(time, len(tables), "time")
    times = [read_times(t, name, label) for t, name, label in zip(tables, names, labels)]
    filled = [t for t in times if t.ticks.size]
    if not filled:
        return [0.0] * len(tables)
    lifetimes, _ = _windows(within, times, filled[0], "left")
    span = max(int(t.ticks.max()) for t in filled) - min(int(t.ticks.min()) for t in filled) + 1
    return [t.ticks.size / span * life for t, life in zip(times, lifetimes)]


# --- reading the call --------------------------------------------------------------------------
def _streams(left: Any, right: Any) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    if right is not None:
        return (left, right), SIDES
    if not isinstance(left, list | tuple) or len(left) < 2:
        raise JoinweirError("give two streams, or a list of two or more as the first argument")
    if len(left) == 2:
        return tuple(left), SIDES
    return tuple(left), tuple(f"{i + 1}." for i in range(len(left)))


def _per_stream(value: Any, k: int, name: str) -> list[Any]:
    if isinstance(value, tuple | list):
        if len(value) != k:
            raise JoinweirError(f"{name} has {len(value)} values for {k} streams")
        return list(value)
    return [value] * k


def _key_names(on: Any, k: int) -> list[list[str]]:
    columns = [on] if isinstance(on, str | tuple) else on
    if not isinstance(columns, list) or not columns:
        raise JoinweirError(f"on must be a column name or a list of them, not {on!r}")
    names: list[list[str]] = [[] for _ in range(k)]
    for entry in columns:
        for stream, name in zip(names, _per_stream(entry, k, "on")):
            if not isinstance(name, str):
                raise JoinweirError(f"on must name columns, not {name!r}")
            stream.append(name)
    return names


def _read(
    tables, labels, *, on, time, within, closed, lateness, known=None, importance=None
) -> Problem:
    k = len(tables)
    key_names = _key_names(on, k)
    time_names = _per_stream(time, k, "time")
    for name in time_names:
        if not isinstance(name, str):
            raise JoinweirError(f"time must name a column, not {name!r}")
    counts = np.array([n_rows(t, n, w) for t, n, w in zip(tables, time_names, labels)])
    times = [read_times(t, n, w) for t, n, w in zip(tables, time_names, labels)]
    filled = [t for t in times if t.ticks.size] or times[:1]  # no rows: of whatever kind
    if len({(t.timestamps, t.scale, t.zoned) for t in filled}) > 1:
        kinds = ", ".join(f"{w} {n!r}" for w, n in zip(labels, time_names))
        raise JoinweirError(f"time columns are of different kinds ({kinds}); cast one")
    imps = None if importance is None else _importances(tables, labels, importance, counts)
    profiles = [] if known is None else profiles_of(known, key_names, labels)
    keys, nulls = read_keys(
        [*tables, *(profile.key_table() for profile in profiles)],
        [*key_names, *(list(profile.key_columns) for profile in profiles)],
        [*labels, *(f"known {label}" for label in labels)],
    )
    if closed not in ("left", "both"):
        raise unknown("closed", closed, ("left", "both"))
    lifetimes, ends = _windows(within, times, filled[0], closed)
    count_window = isinstance(within, Rows)
    late = [np.zeros(n, np.bool_) for n in counts]
    clocks = [t.ticks for t in times]
    slack: tuple[int, ...] = ()
    if lateness is not None:
        if count_window:
            raise JoinweirError("lateness goes with time windows, not with rows(n)")
        slack = tuple(
            _length(value, "lateness", filled[0]) for value in _per_stream(lateness, k, "lateness")
        )
        for s in range(k):
            high = np.maximum.accumulate(clocks[s]) if counts[s] else clocks[s]
            late[s][1:] = clocks[s][1:] < high[:-1] - slack[s]
            clocks[s] = high
    nulls = nulls[:k]
    keep = [~(late[s] | nulls[s]) for s in range(k)]
    side = np.repeat(np.arange(k, dtype=np.int8), [int(kept.sum()) for kept in keep])
    row = np.concatenate([np.flatnonzero(kept) for kept in keep])
    clock = np.concatenate([c[kept] for c, kept in zip(clocks, keep)])
    by = np.lexsort((row, side, clock))
    joined = [
        np.concatenate([values[kept] for values, kept in zip(parts, keep)])[by]
        for parts in ([t.ticks for t in times], keys[:k])
    ]
    end = None
    if ends is not None:
        end = np.concatenate([values[kept] for values, kept in zip(ends, keep)])[by]
    return Problem(
        tables=tables,
        ts=joined[0],
        side=side[by],
        key=joined[1],
        row=row[by],
        end=end,
        rows=counts,
        n_null=tuple(int(null.sum()) for null in nulls),
        n_late=tuple(int((gone & ~null).sum()) for gone, null in zip(late, nulls)),
        lifetimes=lifetimes,
        lateness=slack,
        count_window=count_window,
        landmarks=ends is not None,
        known=tuple(
            Known(
                key=key,
                count=np.asarray(profile.counts, np.int64),
                rows=int(profile.n_rows),
                a=np.asarray(profile.model_a, np.float64),
                b=float(profile.model_b),
                rate=None if profile.rate is None else profile.rate / filled[0].scale,
            )
            for profile, key in zip(profiles, keys[k:])
        ),
        imps=imps,
    )


def _importances(tables, labels, importance, counts) -> tuple[np.ndarray, ...]:
    """Importance of every row, stream by stream."""
    names = _per_stream(importance, len(tables), "importance")
    if not any(isinstance(name, str) for name in names):
        raise JoinweirError(f"importance must name a column, not {importance!r}")
    found = []
    for table, name, label, n in zip(tables, names, labels, counts):
        if name is not None and not isinstance(name, str):
            raise JoinweirError(f"importance must name columns, not {name!r}")
        imp = np.ones(n) if name is None else read_importance(table, name, label)
        if imp.size != n:
            raise JoinweirError(
                f"importance column {name!r} of the {label} stream has {imp.size:,} rows instead "
                f"of {n:,}"
            )
        found.append(imp)
    return tuple(found)


def profiles_of(known: Any, key_names: list[list[str]], labels: Sequence[str]) -> Sequence[Any]:
    """The profiles of a characterization, if they are of these streams and keys."""
    profiles = getattr(known, "profiles", ())
    if len(profiles) != len(labels):
        raise JoinweirError(
            f"known must be a Characterization with a profile for each of the {len(labels)} "
            f"streams; it has {len(profiles)}"
        )
    for profile, names, label in zip(profiles, key_names, labels):
        if len(profile.key_columns) != len(names):
            raise JoinweirError(
                f"known: the {label} profile is of the key {', '.join(profile.key_columns)}, the "
                f"join is on {', '.join(names)}"
            )
    return profiles


def _length(value: Any, name: str, times: Times) -> int:
    return time_length(value, name, timestamps=times.timestamps, scale=times.scale)


def _windows(within: Any, times: list[Times], kind: Times, closed: str):
    k = len(times)
    if isinstance(within, Rows):
        return (within.n,) * k, None
    if isinstance(within, Landmark):
        every = _length(within.every, "landmark", kind)
        if every < 1:
            raise JoinweirError(f"landmark({within.every!r}) must be longer than nothing")
        origin = _length(within.origin, "landmark origin", kind)
        ends = [((t.ticks - origin) // every + 1) * every + origin for t in times]
        return (every,) * k, ends
    lengths = [_length(v, "within", kind) for v in _per_stream(within, k, "within")]
    if any(n + (closed == "both") < 1 for n in lengths):
        raise JoinweirError(f"within must be more than 0, not {within!r}")
    return tuple(n + (closed == "both") for n in lengths), None


# --- budget ------------------------------------------------------------------------------------
class Budget(NamedTuple):
    """A configuration with its capacity, and what rows are charged."""

    config: JoinConfig
    row_bytes: list[int] | None  # charge of a row of each stream; None: budget in rows
    fixed_bytes: int  # taken by the accounting sketch, and by a policy's model of the streams


def _budget(config: JoinConfig, problem: Problem, max_rows, memory, allocation) -> Budget:
    if max_rows is not None and memory is not None:
        raise JoinweirError("give max_rows or memory, not both")
    if allocation is not None and allocation not in ALLOCATIONS:
        raise unknown("allocation", allocation, ALLOCATIONS)
    given = max_rows if max_rows is not None else memory
    if given is None:
        if allocation is not None:
            raise JoinweirError("allocation needs max_rows or memory to allocate")
        return Budget(config, None, 0)
    k = config.streams
    if isinstance(given, tuple | list):
        if allocation is not None:
            raise JoinweirError("allocation does not go with a budget per stream")
        given = _per_stream(given, k, "max_rows" if memory is None else "memory")
    row_bytes = None
    given = given if isinstance(given, list) else [given]
    if memory is None:
        amounts = [whole_number(v, "max_rows") for v in given]
    else:
        amounts = [memory_bytes(v) for v in given]
        charge = _index_bytes(config) + policy_bytes_per_row(config)
        row_bytes = [bytes_per_row(table) + charge for table in problem.tables]
    unit = "rows" if memory is None else "bytes"
    ready, fixed, for_rows = with_capacity(config, amounts, unit, allocation, problem.rates())
    capacity = ready.capacity
    least = max(row_bytes) if row_bytes else 1
    if min(capacity) < least:
        per = k if len(given) > 1 else 1
        need = len(capacity) // per * int(np.ceil(least / for_rows)) + fixed // per
        more = " a stream" if per > 1 else ", more if one is slow" if allocation == "rates" else ""
        sketch = ""
        if fixed:
            what = "sketch; or use accounting='off'" if config.accounting == "sketch" else "model"
            sketch = f" ({fixed:,} for the {what})"
        what = f"max_rows={max_rows!r}" if memory is None else f"memory={memory!r}"
        raise JoinweirError(
            f"{what} leaves no room for a row of every stream; it must be at least {need:,} "
            f"{unit}{more}{sketch}"
        )
    if memory is not None:
        _refuse_a_log_that_does_not_fit(ready, problem, least)
    return Budget(ready, row_bytes, fixed)


def with_capacity(
    config: JoinConfig, amounts: Sequence[int], unit: str, allocation: str | None, rates: Any
) -> tuple[JoinConfig, int, float]:
    """The configuration for a budget: one amount for all streams, or one a stream.

    Of bytes some go elsewhere before rows get theirs: the accounting sketch, a policy's model of
    the streams, keys remembered for their frequency, ghosts. Also returned: the bytes of the first
    two, and the share of the rest for rows.
    """
    k = config.streams
    fixed, idle, for_rows = 0, None, 1.0
    if unit == "bytes" and config.accounting == "sketch":
        config = _sized_sketch(config, sum(amounts))
        fixed = _sketch_bytes(config)
    if unit == "bytes" and definition(config.policy.name).refit:
        fixed += _policy_bytes(config, 1)
    if len(amounts) > 1:
        capacity = [amount - fixed // k for amount in amounts]
    else:
        capacity = split_budget(amounts[0] - fixed, allocation or "even", rates)
    if unit == "bytes":  # a tenth of the budget remembers keys that are not held
        per_key = index_bytes_per_row(k) - L.SLOT.itemsize
        idle = max(16, sum(capacity) // 10 // per_key)
        if config.policy.source_of_frequencies() == "history":
            capacity, for_rows = [c - c // 10 for c in capacity], 0.9
        declared = definition(config.policy.name)
        if declared.alternatives and declared.alternatives(config.policy):  # ghosts, see state.py
            capacity = [c - c // GHOST_SHARE for c in capacity]
            for_rows *= 1 - 1 / GHOST_SHARE
    ready = replace(config, capacity=tuple(capacity), unit=unit, max_idle=idle)
    return ready, fixed, for_rows


def _refuse_a_log_that_does_not_fit(config: JoinConfig, problem: Problem, least: int) -> None:
    """Exact accounting and window statistics note all arrivals in the window, held or not."""
    for_policy = config.policy.source_of_frequencies() == "window"
    if not definition(config.policy.name).bounded or not (
        for_policy or config.accounting == "exact"
    ):
        return
    log = [0] * len(config.capacity)
    for s, pool in enumerate(config.pools):
        mine = problem.side == s
        n = int(mine.sum())
        if problem.count_window:
            alive = min(n, config.lifetimes[s])
        else:
            ts = np.sort(problem.ts[mine])
            end = ts + config.lifetimes[s] if problem.end is None else np.sort(problem.end[mine])
            end += max(config.lateness, default=0)
            alive = int((np.arange(1, n + 1) - np.searchsorted(end, ts, "right")).max(initial=0))
        log[pool] += alive * log_entry_bytes(config.streams, config.importance is not None)
    for needed, there in zip(log, config.capacity):
        if needed + least > there:
            what, other = "statistics='window'", "other statistics"
            if not for_policy:
                timed = not (config.count_window or config.landmarks)
                can_sketch = timed and (config.ordered or config.streams == 2)
                what = "accounting='exact'"
                other = "accounting='sketch'" if can_sketch else "accounting='off'"
            raise JoinweirError(
                f"{what} notes all arrivals in the window, for which {needed:,} of {there:,} bytes "
                f"are needed; give more memory, or use {other}"
            )


def _sized_sketch(config: JoinConfig, memory: int) -> JoinConfig:
    """A sketch that takes about a sixteenth of the memory: narrower, then with fewer panes."""
    panes, depth = config.sketch_panes, config.sketch_depth
    while True:
        per_column = 4 * config.streams * (panes + 2) * depth
        width = min(8192, 1 << max(0, (memory // 16 // per_column).bit_length() - 1))
        if width >= 64 or panes <= 8:
            return replace(config, sketch_width=max(32, width), sketch_panes=panes)
        panes //= 2


def _sketch_bytes(config: JoinConfig) -> int:
    """Bytes of the panes' counters, their sum, and the list of panes where it is a longer one."""
    counters = (config.sketch_panes + 2) * config.sketch_depth * config.sketch_width
    listed = 0 if config.ordered else 5 * (config.sketch_panes + 1)
    return config.streams * (4 * counters + 8 * listed)


def whole_number(value: Any, name: str) -> int:
    """A whole number of at least 1, or an error."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= value <= 2**31:
        raise JoinweirError(f"{name} must be a whole number from 1 to 2**31, not {value!r}")
    return int(value)


def split_budget(total: int, allocation: str, rates: np.ndarray) -> list[int]:
    """A budget for each stream, evenly or in proportion to rates; one for all when unified.

    >>> split_budget(10, "even", np.array([1, 1, 1])), split_budget(10, "rates", np.array([9, 1]))
    ([4, 3, 3], [9, 1])
    """
    if allocation == "unified":
        return [total]
    k = len(rates)
    weights = np.ones(k)
    if allocation == "rates" and rates.sum() > 0:
        weights = np.maximum(rates / rates.sum(), 1e-12)
    exact = total * weights / weights.sum()
    parts = np.floor(exact).astype(np.int64)
    for i in np.argsort(-(exact - parts), kind="stable")[: total - int(parts.sum())]:
        parts[i] += 1
    while total >= k and (parts < 1).any():  # nobody is left with nothing
        parts[np.argmin(parts)] += 1
        parts[np.argmax(parts)] -= 1
    return [int(part) for part in parts]


def policy_bytes_per_row(config: JoinConfig) -> int:
    """Bytes of the policy's arrays per held row that has a key of its own."""
    # Just above a power of two, where arrays that round up are twice as large as needed.
    return -(-(_policy_bytes(config, 4097) - _policy_bytes(config, 1)) // 4096)


def _policy_bytes(config: JoinConfig, n: int) -> int:
    """Bytes of the policy's arrays for n rows."""
    declared = definition(config.policy.name)
    params = config.policy
    if declared.alternatives and declared.alternatives(params):
        params = declared.alternatives(params)[0]
    sizes = Sizes(config.streams, config.streams, n, n)
    return _nbytes(declared.init(params, sizes, config.groups_match_as_one))


def _nbytes(part: Any) -> int:
    return part.nbytes if isinstance(part, np.ndarray) else sum(_nbytes(p) for p in part)


def _index_bytes(config: JoinConfig) -> int:
    return index_bytes_per_row(config.streams, config.importance is not None)


def _mean_charge(config: JoinConfig, problem: Problem) -> float:
    if config.unit == "rows":
        return 1.0
    charge = _index_bytes(config) + policy_bytes_per_row(config)
    return float(np.mean([bytes_per_row(table) for table in problem.tables])) + charge


# --- sampling ahead of the join ---------------------------------------------------------------
def _actions(problem: Problem, config: JoinConfig, drop, drop_probes, thinning, seed):
    """Which rows are dropped ahead of the join: systematic thinning, or a coin for each."""
    shares = _per_stream(drop, problem.streams, "drop")
    if all(share == 0 for share in shares):
        return None
    if thinning not in ("systematic", "random"):
        raise unknown("thinning", thinning, ("systematic", "random"))
    action = np.full(problem.ts.size, L.PROBES | L.INSERTS, np.uint8)
    generator = np.random.default_rng([seed % 2**64, 0xD509])
    for s, share in enumerate(shares):
        if share == "fit":
            share = _share_that_fits(problem, config, s)
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share <= 1:
            raise JoinweirError(f"drop must be from 0 to 1 or 'fit', not {share!r}")
        mine = np.flatnonzero(problem.side == s)
        if thinning == "systematic":
            # A phase from all of [0, 1), so that every row is kept with the same probability.
            steps = np.arange(mine.size + 1) * (1 - share) + generator.random()
            kept = np.diff(np.floor(steps)) > 0
        else:
            kept = generator.random(mine.size) >= share
        action[mine[~kept]] = L.PROBES if drop_probes else 0
    return action


def _share_that_fits(problem: Problem, config: JoinConfig, s: int) -> float:
    """p* = 1 - B / (rate · W): what stays is held for its whole life (Little's law)."""
    if config.capacity is None:
        return 0.0
    window = config.lifetimes[s] * (1 if config.count_window else problem.rates()[s])
    rows_held = config.capacity[config.pools[s]] / _mean_charge(config, problem)
    if len(config.capacity) == 1:
        rows_held *= problem.rates()[s] / max(problem.rates().sum(), 1e-300)
    return max(0.0, 1 - rows_held / window) if window > 0 else 0.0


# --- importance ------------------------------------------------------------------------------
class Weights(NamedTuple):
    """Importance of the results, of the exact join if known, and of each pair if wanted."""

    out: float
    exact: float | None
    pairs: np.ndarray | None


def _engine_combination(problem: Problem, combine: Any) -> str | None:
    """What the engine is to sum up; of a function it knows nothing, so its sums are not read."""
    if problem.imps is None:
        return None
    return COMBINATIONS[0] if callable(combine) else combine


def _process_weighed(
    state: JoinState, problem: Problem, batch: L.Batch, combine: Any, pairs: bool, shed: bool
) -> tuple[Outcome, Weights]:
    """Process all rows, and find the importance of what came of them."""
    wanted = pairs or callable(combine)
    found, lost, weights, total = [], [], [np.empty(0)], 0.0
    for piece in state.process_in_pieces(batch, results=wanted, shed=shed):
        lost.append(piece.shed)
        if wanted:
            weight = combined(problem.imps, piece.results, combine)
            total += float(weight.sum())
        if pairs:
            found.append(piece.results)
            weights.append(weight)
    out, exact = state.importance_totals()
    if callable(combine):
        out = total
        exact = _exact_importance(state.config, problem, combine) if exact is not None else None
    outcome = Outcome(
        np.concatenate([np.empty((0, problem.streams), np.int64), *found]),
        np.concatenate([np.empty((0, 4), np.int64), *lost]),
    )
    return outcome, Weights(out, exact, np.concatenate(weights) if pairs else None)


def _exact_importance(config: JoinConfig, problem: Problem, combine: Callable) -> float:
    """Importance of the exact join by a function, piece by piece."""
    exact = replace(
        config, policy=policy("full"), capacity=None, unit="rows", accounting="off", importance=None
    )
    pieces = JoinState(exact).process_in_pieces(problem.batch(exact, None))
    return sum(float(combined(problem.imps, piece.results, combine).sum()) for piece in pieces)


def combined(
    imps: Sequence[np.ndarray], rows: np.ndarray, combine: str | Callable = "min"
) -> np.ndarray:
    """Importance of each result, given the importances of each stream's rows and their numbers.

    >>> left, right = np.array([1.0, 5.0]), np.array([2.0, 3.0])
    >>> combined((left, right), np.array([[0, 0], [1, 1]]), "min")
    array([1., 3.])
    """
    fold = {"min": np.minimum, "max": np.maximum, "product": np.multiply}.get(combine, np.add)
    if callable(combine):
        fold = combine
    worth = imps[0][rows[:, 0]]
    for s in range(1, len(imps)):
        worth = fold(worth, imps[s][rows[:, s]])
        if callable(combine):
            worth = np.asarray(worth, np.float64)
            if worth.shape != (len(rows),) or not np.isfinite(worth).all():
                raise JoinweirError(
                    "combine must return one finite number for each pair of its two arrays"
                )
    return worth / len(imps) if combine == "mean" else worth


# --- the answer ------------------------------------------------------------------------------
def _result(
    state: JoinState, problem: Problem, budget: Budget, outcome, pairs, shed, weights=None
) -> JoinResult:
    counters = state.store.counters
    exact, error = state.exact_size()

    def per_side(column: int) -> tuple[int, ...]:
        return tuple(int(n) for n in counters[:, column])

    held = None
    if budget.row_bytes is not None:
        held = int(state.store.pool["used"].sum()) + budget.fixed_bytes
    lost = outcome.shed.T
    return JoinResult(
        policy=state.config.policy,
        n_in=tuple(int(n) for n in problem.rows),
        n_null=problem.n_null,
        n_late=problem.n_late,
        n_evicted=per_side(L.C_EVICTED),
        n_refused=per_side(L.C_REFUSED),
        n_expired=per_side(L.C_EXPIRED),
        rows_held=tuple(int(n) for n in state.store.side["held"]),
        n_out=int(state.store.reg[L.N_OUT]),
        n_exact=exact,
        n_exact_error=error,
        pairs=tuple(outcome.results.T.copy()) if pairs else None,
        shed=Shed(*(lost[i].copy() for i in range(4))) if shed else None,
        bytes_held=held,
        max_bytes=(
            sum(state.config.capacity) + budget.fixed_bytes
            if budget.row_bytes is not None and state.bounded
            else None
        ),
        capacity=state.config.capacity,
        importance=weights.out if weights else None,
        importance_exact=weights.exact if weights else None,
        pair_importance=weights.pairs if weights else None,
    )
