"""`characterize`: measure what one or two streams are like, in this process.

Rows are sorted by time, then by key, and summed up by `KeyRuns` and `PairCounts`, which Spark's
workers use as well; `profile_of` and `window_profiles` make the same figures of the sums wherever
they come from. A million rows take a few seconds, most of it for the locality models.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .characterization import (
    MEMORY_SHARE,
    Characterization,
    Curve,
    Entropy,
    StreamProfile,
    WindowProfile,
    scalars,
)
from .errors import JoinweirError
from .locality import LocalityModel, Popularity, models_over_h, stack_distance, zipf_of_counts
from .summaries import (
    GRID,
    MOST_WINDOWS,
    KeyRuns,
    PairCounts,
    log_grid,
    permuted_drift,
    permuted_mean_log,
    permuted_survival,
)
from .tables import Times, column, key_names, n_rows, per_stream, read_keys, read_times
from .units import time_length

H, TOP, PERMUTATIONS = 50, 1000, 5
SIDES = ("left", "right")
_LARGEST_H = 2000  # as in `locality`
_MOST_DEFAULT_WINDOWS = 5
_LADDER_OF_LAGS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
# Windows that people think in; in microseconds.
_DURATIONS = {
    "1 ms": 10**3,
    "10 ms": 10**4,
    "100 ms": 10**5,
    "1 second": 10**6,
    "10 seconds": 10**7,
    "1 minute": 6 * 10**7,
    "10 minutes": 6 * 10**8,
    "1 hour": 36 * 10**8,
    "6 hours": 216 * 10**8,
    "1 day": 864 * 10**8,
    "7 days": 6048 * 10**8,
    "30 days": 2592 * 10**9,
    "365 days": 31536 * 10**9,
}

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class _Stream:
    """One stream's rows that have a key, by time."""

    name: str
    table: Any
    columns: list[str]
    rows: np.ndarray  # their places in the table
    keys: np.ndarray  # int64, equal iff the key columns are
    ticks: np.ndarray
    times: Times | None
    n_null: int
    n_out_of_order: int


def characterize(
    left: Any,
    right: Any = None,
    *,
    key: Any,
    time: Any = None,
    within: Any = None,
    h: int = H,
    top: int = TOP,
    seed: int = 0,
    permutations: int = PERMUTATIONS,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Characterization:
    """Measure what one or two streams are like.

    Parameters
    ----------
    left, right
        Arrow tables, pandas or polars DataFrames, or dicts of arrays; `right` may be left out.
    key
        Key column: a name, a list of names (composite), or a list whose members are tuples with
        one name a stream. Rows whose key has a null are counted and set aside.
    time
        Time column: one name, or a tuple with one a stream. Rows are taken in its order; None:
        as they stand, row i of each stream at time i.
    within
        For two streams: windows to count the exact join for, one or a list, as durations such as
        ``"10 minutes"`` or numbers in the time column's unit (seconds beside timestamps). Default:
        some that hold from ten rows to a tenth of them.
    h
        Longest lag of the locality model, at most 2000.
    top
        How many of the most frequent keys to keep.
    seed
        For everything random.
    permutations
        How many shuffles tell the spread of `WindowProfile.n_expected`; 0: none.
    names
        What to call the streams; default left and right.
    progress
        Called with what comes next and with the share of the work (0 to 1) that is done.

    Returns
    -------
    Characterization

    Examples
    --------
    >>> from joinweir import streams
    >>> left, right = streams.copy_pair(5000, domain=100, shared=True, seed=1)
    >>> found = characterize(left, right, key="key", time="ts", within=100)
    >>> found.profiles[0].model_b < 0.5, found.windows[0].lift > 2
    (True, True)
    """
    check_settings(h, top, seed, permutations)
    say = progress or (lambda text, done: None)
    say("reading", 0.0)
    tables = [left] if right is None else [left, right]
    names = stream_names(names, len(tables))
    streams = _read(tables, names, key, time)
    windows = windows_of(streams, within, time)
    profiles = []
    share = 1 / (len(tables) + bool(windows))
    for number, stream in enumerate(streams):
        done = number * share

        def part(text: str, of: float, done: float = done, name: str = stream.name) -> None:
            say(f"{name}: {text}", done + share * of)

        profiles.append(_profiled(stream, h, top, seed, part))
    say("windows", 1 - share)
    found = _windows(streams, windows, seed, permutations) if windows else ()
    settings = {
        "engine": "process",
        "h": h,
        "top": top,
        "seed": int(seed),
        "permutations": permutations if found else 0,
    }
    return Characterization(tuple(profiles), found, settings)


def peak_memory() -> int:
    """Resident bytes that this process had at most so far.

    Not `ru_maxrss`, which a process takes over from the one that started it.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def check_settings(h: object, top: object, seed: object, permutations: object) -> None:
    """Complain about settings before any work is done."""
    limits = {
        "h": (h, 1, _LARGEST_H),
        "top": (top, 1, 10**6),
        "seed": (seed, 0, 2**63),
        "permutations": (permutations, 0, 1000),
    }
    for name, (value, low, high) in limits.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= high:
            raise JoinweirError(f"{name} must be an integer in [{low}, {high}], not {value!r}")


def stream_names(names: Sequence[str] | None, k: int) -> list[str]:
    """What to call the streams."""
    if names is None:
        return list(SIDES[:k]) if k > 1 else ["stream"]
    if len(names) != k or not all(isinstance(name, str) for name in names):
        raise JoinweirError(f"names must be {k} text(s), not {names!r}")
    return list(names)


def too_few(name: str, rows: int, nulls: int) -> JoinweirError:
    """The error for a stream of which there is nothing to say."""
    also = f" ({nulls:,} have a null)" if nulls else ""
    return JoinweirError(
        f"the {name} stream has {rows:,} row(s) with a key{also}; at least 2 are needed"
    )


def _read(tables: Sequence[Any], names: list[str], key: Any, time: Any) -> list[_Stream]:
    k = len(tables)
    columns = key_names(key, k, "key")
    time_names = [None] * k if time is None else per_stream(time, k, "time")
    for table, own, name in zip(tables, columns, names):
        n_rows(table, own[0], name)  # columns of one length
    keys, nulls = read_keys(tables, columns, names)
    times: list[Times | None] = []
    for table, time_name, name in zip(tables, time_names, names):
        if time_name is not None and not isinstance(time_name, str):
            raise JoinweirError(f"time must name a column, not {time_name!r}")
        times.append(None if time_name is None else read_times(table, time_name, name))
    check_kinds([t for t in times if t is not None and t.ticks.size], names, time_names)
    streams = []
    for s in range(k):
        ticks = np.arange(keys[s].size) if times[s] is None else times[s].ticks
        if ticks.size != keys[s].size:
            raise JoinweirError(
                f"the {names[s]} stream's columns differ in length: {columns[s][0]!r} has "
                f"{keys[s].size}, {time_names[s]!r} has {ticks.size}"
            )
        late = int((ticks[1:] < np.maximum.accumulate(ticks)[:-1]).sum())
        rows = np.argsort(ticks, kind="stable") if late else np.arange(ticks.size)
        rows = rows[~nulls[s][rows]]
        n_null = int(nulls[s].sum())
        if rows.size < 2:
            raise too_few(names[s], rows.size, n_null)
        streams.append(
            _Stream(
                name=names[s],
                table=tables[s],
                columns=columns[s],
                rows=rows,
                keys=keys[s][rows],
                ticks=ticks[rows],
                times=times[s],
                n_null=n_null,
                n_out_of_order=late,
            )
        )
    return streams


def check_kinds(times: Sequence[Any], names: Sequence[str], columns: Sequence[Any]) -> None:
    """Two streams must count their time alike."""
    if len({(t.timestamps, t.scale, t.zoned) for t in times}) > 1:
        told = ", ".join(f"{name} {column!r}" for name, column in zip(names, columns))
        raise JoinweirError(f"time columns are of different kinds ({told}); cast one")


def lags_up_to(h: int, n: int) -> list[int]:
    """The longest lags to try, up to h or one less than the rows.

    >>> lags_up_to(50, 1000), lags_up_to(50, 4)
    ([1, 2, 5, 10, 20, 50], [1, 2, 3])
    """
    longest = min(h, n - 1)
    return [lag for lag in _LADDER_OF_LAGS if lag < longest] + [longest]


def _profiled(stream: _Stream, h: int, top: int, seed: int, say: Progress) -> StreamProfile:
    n = stream.keys.size
    say("popularity and distances", 0.0)
    by_key = np.argsort(stream.keys, kind="stable")
    ordered = stream.keys[by_key]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[first, n])
    codes = np.empty(n, np.int64)  # keys as 0, 1, …
    codes[by_key] = np.repeat(np.arange(first.size), counts)
    hs = lags_up_to(h, n)
    runs = KeyRuns(n, hs[-1]).update(ordered, by_key).end()
    say("repeats at each lag", 0.2)
    shuffled = _generator(seed, "permuted").permutation(codes)
    models = models_over_h(codes, hs)
    say("repeats at each lag, random order", 0.45)
    permuted = models_over_h(shuffled, hs)
    say("stack distances", 0.65)
    stacks = [_stack_curve(values) for values in (codes, shuffled)]
    say("entropy", 0.8)
    a, b = models[-1]
    by_count = np.argsort(-counts, kind="stable")
    found = Popularity(by_count, counts[by_count], counts[by_count] / n)
    model = LocalityModel(a, b, found)
    frequency = runs.frequencies()
    entropy = Entropy(
        uniform=math.log(first.size),
        popularity=popularity_entropy(*frequency),
        conditional=model.entropy(codes),
        log_loss=finite(model.entropy(codes, method="log_loss")),
        log_loss_error=0.0,
    )
    say("frequent keys", 0.95)
    keys, kinds = _frequent(stream, stream.rows[by_key[first]], counts, top)
    notes = []
    if hs[-1] < h:
        notes.append(f"h={h} is cut to {hs[-1]}, since there are {n:,} rows")
    if stream.n_out_of_order:
        notes.append(
            f"{stream.n_out_of_order:,} rows were out of order; they were put in order of time"
        )
    clock = stream.times
    return profile_of(
        runs,
        name=stream.name,
        n_null=stream.n_null,
        n_out_of_order=stream.n_out_of_order,
        key_columns=stream.columns,
        key_types=kinds,
        keys=keys,
        span=None if clock is None else (int(stream.ticks[0]), int(stream.ticks[-1])),
        ticks_per_unit=None if clock is None else clock.scale,
        timestamps=clock is not None and clock.timestamps,
        stacks=stacks,
        n_stack=n,
        hs=hs,
        models=models,
        b_permuted=[each[1] for each in permuted],
        entropy=entropy,
        notes=notes,
    )


def _generator(seed: int, role: str) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(role.encode())))


def _stack_curve(codes: np.ndarray) -> Curve:
    return stack_curve(np.bincount(np.searchsorted(GRID, stack_distance(codes) + 1)))


def stack_curve(histogram: np.ndarray) -> Curve:
    """The share of repeats that an LRU cache of each size on the grid hits."""
    return _curve(GRID[: histogram.size], histogram)


def _curve(at: np.ndarray, histogram: np.ndarray) -> Curve:
    total = int(histogram.sum())
    if not total:
        return Curve()
    share = np.cumsum(histogram) / total
    return Curve(tuple(at.tolist()), tuple(share.tolist()))


def popularity_entropy(frequency: np.ndarray, keys: np.ndarray) -> float:
    """-Σ p ln p in nats, from the number of keys of each frequency.

    >>> round(popularity_entropy(np.array([5]), np.array([4])), 6) == round(math.log(4), 6)
    True
    """
    n = float((frequency * keys).sum())
    return max(0.0, math.log(n) - float((frequency * keys) @ np.log(frequency)) / n)


def finite(value: float) -> float | None:
    """None for what is not a number, or infinite: a model of few rows can rule out a key."""
    return value if math.isfinite(value) else None


def _frequent(
    stream: _Stream, rows: np.ndarray, counts: np.ndarray, top: int
) -> tuple[list[tuple[Any, int]], list[str]]:
    """The most frequent keys with their counts, equals in key order; and the columns' types.

    `rows` has for each key one row of the table.
    """
    if counts.size > top:
        least = np.partition(counts, counts.size - top)[counts.size - top]
        chosen = np.flatnonzero(counts >= least)
        rows, counts = rows[chosen], counts[chosen]
    columns = []
    for name in stream.columns:
        values = column(stream.table, name, stream.name).take(pa.array(rows))
        if pa.types.is_dictionary(values.type):
            values = pc.cast(values, values.type.value_type)
        columns.append(values)
    by = [f"k{i}" for i in range(len(columns))]
    listed = pa.table([*columns, pa.array(-counts)], names=[*by, "rank"])
    order = pc.sort_indices(listed, [(name, "ascending") for name in ("rank", *by)])[:top]
    keys = scalars([values.take(order) for values in columns])
    return list(zip(keys, counts[order.to_numpy()].tolist())), [str(c.type) for c in columns]


def profile_of(
    runs: KeyRuns,
    *,
    name: str,
    n_null: int,
    n_out_of_order: int | None,
    key_columns: Sequence[str],
    key_types: Sequence[str],
    keys: Sequence[tuple[Any, int]],
    span: tuple[int, int] | None,
    ticks_per_unit: int | None,
    timestamps: bool,
    stacks: Sequence[Curve],
    n_stack: int,
    hs: Sequence[int],
    models: Sequence[tuple[np.ndarray, float]],
    b_permuted: Sequence[float],
    entropy: Entropy,
    notes: Sequence[str],
) -> StreamProfile:
    """A stream's profile from its summary and what was found beside; the same for all engines."""
    frequency, n_keys = runs.frequencies()
    n, n_distinct = runs.n_rows, int(n_keys.sum())
    last = np.cumsum(n_keys)
    ranks = np.unique(np.minimum(log_grid(n_distinct), n_distinct))
    rows_to = np.r_[0, np.cumsum(frequency * n_keys)]
    tenth = -(-n_distinct // 10)
    group = int(np.searchsorted(last, tenth))
    in_tenth = int(rows_to[group + 1]) - (int(last[group]) - tenth) * int(frequency[group])
    # In Python's integers: squares overflow an int64 at 3e9 rows.
    equal = sum(c * (c - 1) * m for c, m in zip(frequency.tolist(), n_keys.tolist()))
    used = max(1, int(np.searchsorted(runs.histogram.cumsum(), runs.n_distances)) + 1)
    iad = _curve(GRID[:used], runs.histogram[:used])
    iad_permuted, means = Curve(), (None, None)
    if runs.n_distances:
        at = GRID[: int(np.searchsorted(GRID, n)) + 1]
        shares = 1 - permuted_survival(frequency, n_keys, at)
        shares = shares[: int(np.searchsorted(shares, 1 - 1e-4)) + 1]  # up to where all are
        iad_permuted = Curve(tuple(at[: shares.size].tolist()), tuple(shares.tolist()))
        mean_log = runs.sum_log / runs.n_distances
        means = (math.exp(mean_log), math.exp(permuted_mean_log(frequency, n_keys)))
    rate = None
    if span is not None and span[1] > span[0]:
        rate = n / (span[1] - span[0] + 1) * ticks_per_unit
    return StreamProfile(
        name=name,
        n_rows=n,
        n_null=n_null,
        n_out_of_order=n_out_of_order,
        n_distinct=n_distinct,
        key_columns=tuple(key_columns),
        key_types=tuple(key_types),
        keys=tuple(key for key, _ in keys),
        counts=tuple(int(count) for _, count in keys),
        first=None if span is None else span[0],
        last=None if span is None else span[1],
        ticks_per_unit=ticks_per_unit,
        timestamps=timestamps,
        rate=rate,
        zipf=zipf_of_counts(frequency, n_keys),
        skew=n_distinct * equal / (n * (n - 1)),
        top_tenth=in_tenth / n,
        ranks=tuple(ranks.tolist()),
        rank_counts=tuple(frequency[np.searchsorted(last, ranks)].tolist()),
        iad=iad,
        iad_permuted=iad_permuted,
        mean_iad=means[0],
        mean_iad_permuted=means[1],
        stack=stacks[0],
        stack_permuted=stacks[1],
        n_stack=n_stack,
        hs=tuple(hs),
        b=tuple(float(b) for _, b in models),
        b_permuted=tuple(float(b) for b in b_permuted),
        model_a=tuple(float(weight) for weight in models[-1][0]),
        model_b=float(models[-1][1]),
        entropy=entropy,
        drift=runs.drift,
        drift_permuted=permuted_drift(frequency, n_keys),
        notes=tuple(notes),
    )


# --- windows ------------------------------------------------------------------------------------
def windows_of(streams: Sequence[_Stream], within: Any, time: Any) -> list[tuple[Any, int]]:
    """The windows of two streams as they were given and in ticks, by length."""
    if len(streams) < 2:
        if within is not None:
            raise JoinweirError("within goes with two streams; give a second one, or leave it out")
        return []
    clock = streams[0].times
    scale, timestamps = (1, False) if clock is None else (clock.scale, clock.timestamps)
    first = min(int(stream.ticks[0]) for stream in streams)
    last = max(int(stream.ticks[-1]) for stream in streams)
    rows = sum(stream.keys.size for stream in streams)
    return read_windows(within, first, last, rows, timestamps=timestamps, scale=scale)


def read_windows(
    within: Any, first: int, last: int, rows: int, *, timestamps: bool, scale: int
) -> list[tuple[Any, int]]:
    """Windows as they were given and in ticks, by length; some that suit the streams if None.

    >>> read_windows(None, 0, 99_999, 200_000, timestamps=False, scale=1)
    [(10, 10), (100, 100), (1000, 1000), (10000, 10000)]
    >>> read_windows(["1 minute", 5], 0, 10**9, 1000, timestamps=True, scale=1_000_000)
    [(5, 5000000), ('1 minute', 60000000)]
    """
    if within is not None:
        given = within if isinstance(within, tuple | list) else [within]
        found = {}
        for value in given:
            ticks = time_length(value, "within", timestamps=timestamps, scale=scale)
            if ticks < 1:
                raise JoinweirError(f"within must be more than 0, not {value!r}")
            found.setdefault(ticks, value)
        if not found:
            raise JoinweirError("within must name at least one window")
        return [(found[ticks], ticks) for ticks in sorted(found)]
    span = last - first + 1
    if timestamps:
        choices = list(_DURATIONS.items())
    else:
        powers = [10**i for i in range(19) if 10**i * scale <= span]
        choices = [(power, power * scale) for power in powers]
    suiting = [
        (name, ticks) for name, ticks in choices if rows * ticks / span >= 10 and ticks <= span / 10
    ]
    if not suiting:
        unit = max(1, span // 10)
        return [(unit / scale if scale > 1 else unit, unit)]
    if len(suiting) <= _MOST_DEFAULT_WINDOWS:
        return suiting
    places = np.linspace(0, len(suiting) - 1, _MOST_DEFAULT_WINDOWS).round().astype(int)
    return [suiting[place] for place in places]


def _windows(
    streams: Sequence[_Stream], windows: list[tuple[Any, int]], seed: int, permutations: int
) -> tuple[WindowProfile, ...]:
    lengths = lengths_of(windows)
    ts = np.concatenate([stream.ticks for stream in streams])
    side = np.repeat(np.arange(2, dtype=np.int8), [stream.keys.size for stream in streams])
    by_time = np.argsort(ts, kind="stable")
    ts, side = ts[by_time], side[by_time]

    def counted(keys: Sequence[np.ndarray]) -> PairCounts:
        joined = np.concatenate(keys)[by_time]
        by_key = np.argsort(joined, kind="stable")
        found = PairCounts(lengths)
        return found.update(joined[by_key], ts[by_key], side[by_key]).end()

    exact = counted([stream.keys for stream in streams])
    close = PairCounts(lengths).update(np.zeros(ts.size, np.int64), ts, side).end()
    generator = _generator(seed, "windows")
    shuffled = [
        counted([generator.permutation(stream.keys) for stream in streams]).pairs
        for _ in range(permutations)
    ]
    spans = (min(int(s.ticks[0]) for s in streams), max(int(s.ticks[-1]) for s in streams))
    sizes = tuple(stream.keys.size for stream in streams)
    return window_profiles(windows, exact, close.pairs, sizes, spans, shuffled)


def lengths_of(windows: Sequence[tuple[Any, int]]) -> list[int]:
    """What to count: all windows, and then a tenth of each, a tick at least."""
    ticks = [length for _, length in windows]
    if 2 * len(ticks) > MOST_WINDOWS:
        raise JoinweirError(f"at most {MOST_WINDOWS // 2} windows at once, not {len(ticks)}")
    return ticks + [max(1, round(MEMORY_SHARE * length)) for length in ticks]


def window_profiles(
    windows: Sequence[tuple[Any, int]],
    exact: PairCounts,
    close: Sequence[int],
    sizes: tuple[int, int],
    span: tuple[int, int],
    shuffled: Sequence[Sequence[int]] = (),
) -> tuple[WindowProfile, ...]:
    """What is known of each window, from the counts; the same for all engines."""
    chance = exact.n_equal / (sizes[0] * sizes[1])
    spread = np.std(np.asarray(shuffled, float), axis=0, ddof=1) if len(shuffled) > 1 else None
    length = span[1] - span[0] + 1
    return tuple(
        WindowProfile(
            within=within,
            ticks=ticks,
            n_pairs=exact.pairs[w],
            n_matched=(exact.matched[0][w], exact.matched[1][w]),
            n_close=close[w],
            n_expected=close[w] * chance,
            spread=None if spread is None else float(spread[w]),
            n_recent=exact.pairs[w + len(windows)],
            n_recent_expected=close[w + len(windows)] * chance,
            popular=exact.popular_share(MEMORY_SHARE),
            rows=tuple(min(float(n), n / length * ticks) for n in sizes),
        )
        for w, (within, ticks) in enumerate(windows)
    )
