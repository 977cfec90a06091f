"""`characterize` on Spark: the measures of streams of any size, without collecting them.

The way of a row, for one stream or two at once:

```
select key in 64 bits, time in ticks ─ range-partition and sort by time ─ mapInArrow: number rows
   ─ shuffle by key ─ sort by key and time ─ mapInArrow: KeyRuns and PairCounts ─► a few MB, merged
```

Numbering tells the position of each row in the whole stream: every range partition counts its
rows and sends the number to every shard, ahead of the rows themselves. Behind the second shuffle
all rows of a key stand together in order, so that distances, repeats at each lag and pairs within
each window are exact, with no borders to mend, and a hot key costs a worker no more memory than
its rows in the longest window. Sorting is Spark's own, which spills to disk.

Pairs of rows whatever their keys, for the lift, come from a second pass over time alone, in
buckets at least as long as the longest window; each has the end of the one before as history.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyspark.sql.functions as F
from pyspark import TaskContext

from ..characterization import Characterization, Curve, Entropy, StreamProfile, scalars
from ..errors import JoinweirError
from ..locality import fit_sample, stack_distance
from ..profiling import (
    TOP,
    H,
    Progress,
    check_settings,
    finite,
    lags_up_to,
    lengths_of,
    peak_memory,
    popularity_entropy,
    profile_of,
    read_windows,
    stack_curve,
    stream_names,
    too_few,
    window_profiles,
)
from ..summaries import GRID, KeyRuns, PairCounts
from ..tables import FLOAT_TICKS, LATEST, file_kind, key_names, open_file, per_stream
from . import benchmark as B
from .window_join import (
    _check_columns,
    _common_type,
    _fits_64_bits,
    _normal,
    _quoted,
    _time_kind,
)

N_SAMPLED = 200_000  # rows for the locality model; its b is then off by less than 0.01
STACK_ROWS = 200_000  # for stack distances, from the first partition in time
ROWS_PER_TASK = 2_000_000  # 20 s of one core, and far below what a task's sort holds in memory
FEWEST_ROWS_PER_TASK = 100_000
LIMIT = 24 * 3600.0  # seconds, for a command
_PART = 1 << 40  # a row's place is its partition times this, plus its number there
# What a record between the passes is: a row of a side, or a message, whose key is null.
_ROW, _SIZE, _STACK, _STACK_PERMUTED = range(4)
_NUMBERED = "shard int, key long, ts long, what int, at long"  # `what` is kind * 2 + side
_SUMMARIES = "what string, side int, packed binary"


class _Clock(NamedTuple):
    timestamps: bool
    scale: int


class _Extent(NamedTuple):
    rows: int  # with a key
    nulls: int
    first: int
    last: int


def characterize(
    left: Any,
    right: Any = None,
    *,
    key: Any,
    time: Any,
    within: Any = None,
    h: int = H,
    top: int = TOP,
    seed: int = 0,
    names: Sequence[str] | None = None,
    partitions: int | None = None,
    progress: Progress | None = None,
) -> Characterization:
    """Measure what one or two streams are like, on the cluster.

    Counts, distances, the exact joins and their lifts are exact. The locality model, b over h and
    the entropy come from a sample of 200,000 rows with their lags, stack distances from the first
    200,000 rows; ``profiles[…].notes`` says so. Rows of one time are taken in the order in which
    Spark reads them.

    Parameters
    ----------
    left, right : DataFrame
        Batch DataFrames of any size; `right` may be left out.
    key
        Key column: a name, a list of names (composite), or a list whose members are tuples with
        one name a stream. Rows whose key has a null are counted and set aside.
    time
        Time column: one name, or a tuple with one a stream.
    within
        For two streams: windows to count the exact join for, one or a list of at most eight, as
        durations such as ``"10 minutes"`` or numbers in the time column's unit (seconds beside
        timestamps). Default: some that hold from ten rows to a tenth of them.
    h
        Longest lag of the locality model, at most 2000.
    top
        How many of the most frequent keys to keep.
    seed
        For the random order of stack distances.
    names
        What to call the streams; default left and right.
    partitions
        Of each pass; default a task for some hundred thousand to two million rows, no more than
        ``spark.sql.shuffle.partitions`` unless there are more rows than that.
    progress
        Called with what comes next and with the share of the work (0 to 1) that is done.

    Returns
    -------
    Characterization

    Examples
    --------
    >>> from joinweir.spark import characterize  # doctest: +SKIP
    >>> found = characterize(trades, quotes, key="symbol", time="ts")  # doctest: +SKIP
    >>> print(*found.verdict(), sep="\\n")  # doctest: +SKIP
    """
    check_settings(h, top, seed, 0)
    say = progress or (lambda text, done: None)
    frames = [left] if right is None else [left, right]
    k = len(frames)
    names = stream_names(names, k)
    if within is not None and k < 2:
        raise JoinweirError("within goes with two streams; give a second one, or leave it out")
    columns, times = key_names(key, k, "key"), _time_names(time, k)
    rows, clock = _selected(frames, names, columns, times)
    say("counting rows", 0.0)
    extents = [_extent(rows[s], names[s], times[s], clock) for s in range(k)]
    first = min(extent.first for extent in extents)
    last = max(extent.last for extent in extents)
    total = sum(extent.rows for extent in extents)
    windows = [] if k < 2 else read_windows(within, first, last, total, **clock._asdict())
    lengths = lengths_of(windows)
    rows = [frame.where("key is not null") for frame in rows]
    tasks = _tasks(left.sparkSession, total, partitions)
    h_used = [lags_up_to(h, extent.rows)[-1] for extent in extents]
    say("distances and repeats", 0.05)
    found = _summed_up(rows, tasks, h_used, lengths, [extent.first for extent in extents], seed)
    close: list[int] = []
    if windows:
        say("rows close in time", 0.6)
        close = _close(rows, lengths, first, last, tasks)
    profiles = []
    for s in range(k):
        say(f"{names[s]}: frequent keys", 0.75 + 0.25 * s / k)
        keys, kinds = _frequent(frames[s], columns[s], top)
        profiles.append(_profile(found, s, names[s], extents[s], columns[s], kinds, keys, clock, h))
    of_windows = ()
    if windows:
        sizes = (extents[0].rows, extents[1].rows)
        of_windows = window_profiles(windows, found.pairs, close, sizes, (first, last))
    settings = {"engine": "spark", "h": h, "top": top, "seed": int(seed), "permutations": 0}
    return Characterization(tuple(profiles), of_windows, settings)


# --- reading the call ---------------------------------------------------------------------------
def _time_names(time: Any, k: int) -> list[str]:
    if time is None:
        raise JoinweirError("time is missing: a DataFrame has no order of rows but by a column")
    return per_stream(time, k, "time")


def _selected(frames, names, columns, times) -> tuple[list[Any], _Clock]:
    """Of each frame the key in 64 bits, the time in ticks, and a number by which it was read."""
    for frame, name in zip(frames, names):
        if not hasattr(frame, "mapInArrow") or not hasattr(frame, "isStreaming"):
            raise JoinweirError(
                f"the {name} stream must be a Spark DataFrame, not {type(frame).__name__}; "
                "jw.characterize takes tables in this process"
            )
        if frame.isStreaming:
            raise JoinweirError(
                f"the {name} stream is a streaming DataFrame; give a batch one, such as "
                "spark.read of what was recorded"
            )
    schemas = [frame.schema for frame in frames]
    for schema, name, own, time in zip(schemas, names, columns, times):
        _check_columns(schema, name, [*own, time])
    kinds = [
        _common_type(
            [schema[own[i]].dataType for schema, own in zip(schemas, columns)],
            [own[i] for own in columns],
            tuple(names),
        )
        for i in range(len(columns[0]))
    ]
    kind = _time_kind(schemas, times, tuple(names))
    scale = {"timestamp": 1_000_000, "integer": 1, "float": FLOAT_TICKS}[kind]
    exact = len(kinds) == 1 and _fits_64_bits(kinds[0]) and kinds[0].typeName() != "date"
    selected = []
    for frame, schema, own, time in zip(frames, schemas, columns, times):
        compared = [_quoted(c).cast(as_kind) for c, as_kind in zip(own, kinds)]
        any_null = compared[0].isNull()
        for column in compared[1:]:
            any_null = any_null | column.isNull()
        if exact and kinds[0].typeName() in ("byte", "short", "integer", "long"):
            hashed = compared[0].cast("long")
        else:
            hashed = F.xxhash64(*(_normal(c, as_kind) for c, as_kind in zip(compared, kinds)))
        selected.append(
            frame.select(
                F.when(any_null, F.lit(None)).otherwise(hashed).alias("key"),
                _ticks(_quoted(time), schema[time].dataType.typeName(), kind).alias("ts"),
                F.monotonically_increasing_id().alias("id"),
            )
        )
    return selected, _Clock(kind == "timestamp", scale)


def _ticks(time: Any, type_name: str, kind: str) -> Any:
    if kind == "integer":
        return time.cast("long")
    if kind == "float":
        return F.rint(time.cast("double") * FLOAT_TICKS).cast("long")
    if type_name == "timestamp":
        return F.unix_micros(time)
    # The face of a clock, counted as if it stood in UTC.
    zero = F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
    return F.timestamp_diff("MICROSECOND", zero, time.cast("timestamp_ntz"))


def _extent(rows: Any, name: str, time: str, clock: _Clock) -> _Extent:
    """How many rows there are and when, in one pass; complains about what has no time."""
    keyed = F.col("key").isNotNull()
    found = rows.agg(
        F.count_if(keyed).alias("rows"),
        F.count_if(~keyed).alias("nulls"),
        F.count_if(F.col("ts").isNull()).alias("timeless"),
        F.min(F.when(keyed, F.col("ts"))).alias("first"),
        F.max(F.when(keyed, F.col("ts"))).alias("last"),
    ).first()
    if found["timeless"]:
        raise JoinweirError(
            f"time column {time!r} of the {name} stream has {found['timeless']} nulls; drop them"
        )
    if found["rows"] < 2:
        raise too_few(name, found["rows"], found["nulls"])
    if max(abs(found["first"]), abs(found["last"])) > LATEST:
        what = "huge" if clock.timestamps or clock.scale == 1 else "NaN, infinite or huge"
        raise JoinweirError(f"time column {time!r} of the {name} stream has {what} values")
    return _Extent(found["rows"], found["nulls"], found["first"], found["last"])


def _tasks(session: Any, rows: int, partitions: int | None) -> int:
    if partitions is not None:
        if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
            raise JoinweirError(f"partitions must be a whole number >= 1, not {partitions!r}")
        return partitions
    usual = int(session.conf.get(B.PARTITIONS, "200"))
    few = -(-rows // FEWEST_ROWS_PER_TASK)
    return max(min(usual, few), -(-rows // ROWS_PER_TASK))


# --- the main pass ------------------------------------------------------------------------------
class _Sums(NamedTuple):
    runs: list[KeyRuns]
    stacks: list[list[np.ndarray]]  # a side, as it is and in random order: histogram, and rows
    pairs: PairCounts


def _summed_up(
    rows: list[Any], tasks: int, h: list[int], lengths: list[int], first: list[int], seed: int
) -> _Sums:
    numbered = None
    for s, frame in enumerate(rows):
        ordered = frame.repartitionByRange(tasks, "ts", "id").sortWithinPartitions("ts", "id")
        own = ordered.select("key", "ts").mapInArrow(
            _numbering(s, tasks, first[s], seed), _NUMBERED
        )
        numbered = own if numbered is None else numbered.union(own)
    # The key comes first, since Spark compares 8 bytes of the first column fast; nulls, the
    # messages, stand ahead of all rows.
    by_key = (
        numbered.repartitionById(tasks, "shard")
        .drop("shard")
        .sortWithinPartitions("key", "ts", "what", "at")
    )
    summaries = by_key.mapInArrow(_summarising(h, lengths), _SUMMARIES).toArrow()
    runs: list[Any] = [None] * len(rows)
    stacks = [[np.zeros(GRID.size + 1, np.int64) for _ in range(2)] for _ in rows]
    pairs = PairCounts(lengths)
    for what, side, packed in zip(*(column.to_pylist() for column in summaries.columns)):
        if what == "runs":
            own = KeyRuns.from_bytes(packed)
            runs[side] = own if runs[side] is None else runs[side].merge(own)
        elif what == "pairs":
            pairs.merge(PairCounts.from_bytes(packed))
        else:
            stacks[side][int(what == "stack_permuted")] += np.frombuffer(packed, np.int64)
    return _Sums(runs, stacks, pairs)


def _numbering(side: int, shards: int, earliest: int, seed: int) -> Callable:
    """A function for `mapInArrow`: rows in order of time get their number and their shard.

    The partition with the earliest row also measures stack distances. Its number is not known
    here, since a union counts the partitions of both streams.
    """

    def number_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = TaskContext.get().partitionId()
        n, first = 0, []
        for batch in batches:
            key, ts = batch["key"].to_numpy(), batch["ts"].to_numpy()
            if n < STACK_ROWS and key.size and (first or (n == 0 and ts[0] == earliest)):
                first.append(key[: STACK_ROWS - n])
            at = part * _PART + n + np.arange(key.size)
            n += key.size
            yield _batch(_shard(key, shards), _ROW, key, ts, side, at)
        every, zeros = np.arange(shards), np.zeros(shards, np.int64)
        yield _batch(every, _SIZE, None, zeros + part, side, zeros + n)
        if first:
            keys = np.concatenate(first)
            generator = np.random.default_rng([seed % 2**64, 0x57AC, side])
            for kind, order in ((_STACK, keys), (_STACK_PERMUTED, generator.permutation(keys))):
                places = np.searchsorted(GRID, stack_distance(order) + 1)
                found = np.r_[np.bincount(places, minlength=GRID.size), keys.size]
                bins = np.flatnonzero(found)
                yield _batch(np.zeros(bins.size), kind, None, bins, side, found[bins])

    return number_rows


def _shard(key: np.ndarray, shards: int) -> np.ndarray:
    """A shard for each key; the keys' bits are mixed, since integers are taken as they are."""
    mixed = key.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    return (mixed * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(33)) % np.uint64(shards)


def _batch(shard, kind: int, key, ts, side: int, at) -> pa.RecordBatch:
    columns = {
        "shard": pa.array(shard.astype(np.int32)),
        "key": pa.nulls(len(ts), pa.int64()) if key is None else pa.array(key),
        "ts": pa.array(ts),
        "what": pa.array(np.full(len(ts), 2 * kind + side, np.int32)),
        "at": pa.array(at),
    }
    return pa.RecordBatch.from_pydict(columns)


def _summarising(h: list[int], lengths: list[int]) -> Callable:
    """A function for `mapInArrow`: the rows of some keys, sorted, become summaries."""

    def summarise(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sizes: list[dict[int, int]] = [{} for _ in h]
        stacks = np.zeros((len(h), 2, GRID.size + 1), np.int64)
        starts: list[np.ndarray] = []
        runs: list[KeyRuns] = []
        pairs = PairCounts(lengths)

        def begin() -> None:
            for own, longest in zip(sizes, h):
                counts = np.array([own.get(part, 0) for part in range(1 + max(own, default=0))])
                starts.append(np.cumsum(counts) - counts)
                runs.append(KeyRuns(int(counts.sum()), longest, N_SAMPLED))

        for batch in batches:
            ahead = batch["key"].null_count
            ts, what, at = (batch[name].to_numpy() for name in ("ts", "what", "at"))
            for i in range(ahead):  # a few for each partition
                kind, s = divmod(int(what[i]), 2)
                if kind == _SIZE:
                    sizes[s][int(ts[i])] = int(at[i])
                else:
                    stacks[s, kind - _STACK, ts[i]] += at[i]
            if ahead == ts.size:
                continue
            if not runs:
                begin()
            key = batch["key"].slice(ahead).to_numpy()
            ts, side, at = (values[ahead:] for values in (ts, what, at))
            for s in range(len(h)):
                mine = slice(None) if len(h) == 1 else side == s
                part, number = np.divmod(at[mine], _PART)
                runs[s].update(np.ascontiguousarray(key[mine]), starts[s][part] + number)
            if lengths:
                pairs.update(key, ts, side)
        if not runs:
            begin()
        found = [("runs", s, own.end().to_bytes()) for s, own in enumerate(runs)]
        found.append(("pairs", 0, pairs.end().to_bytes()))
        for s in range(len(h)):
            for name, histogram in zip(("stack", "stack_permuted"), stacks[s]):
                if histogram.any():
                    found.append((name, s, histogram.tobytes()))
        whats, sides, packed = zip(*found)
        yield pa.RecordBatch.from_arrays(
            [pa.array(whats), pa.array(sides, pa.int32()), pa.array(packed, pa.binary())],
            names=["what", "side", "packed"],
        )

    return summarise


# --- rows close in time -------------------------------------------------------------------------
def _close(rows: list[Any], lengths: list[int], first: int, last: int, tasks: int) -> list[int]:
    """Pairs of rows of the two streams in each window, whatever their keys."""
    longest, span = max(lengths), last - first + 1
    width = max(longest, -(-span // tasks))
    buckets = -(-span // width)
    since, wide = F.col("ts") - F.lit(first), F.lit(width).cast("long")
    union = None
    for s, frame in enumerate(rows):
        own = frame.select("ts", F.lit(s).alias("side"), F.floor(since / wide).alias("bucket"))
        union = own if union is None else union.union(own)
    # The division is in doubles: of large numbers it may be one off.
    bucket = F.col("bucket")
    bucket = (
        F.when(since < bucket * wide, bucket - 1)
        .when(since >= (bucket + 1) * wide, bucket + 1)
        .otherwise(bucket)
    )
    union = union.select(
        F.least(F.greatest(bucket, F.lit(0)), F.lit(buckets - 1)).cast("int").alias("bucket"),
        "ts",
        "side",
    )
    own = union.select("bucket", "ts", "side", F.lit(1).alias("counts"))
    left_over = (F.col("bucket") + 1) * wide - since
    history = union.where(
        (F.col("bucket") < F.lit(buckets - 1)) & (left_over < F.lit(longest))
    ).select((F.col("bucket") + 1).alias("bucket"), "ts", "side", F.lit(0).alias("counts"))
    by_time = (
        own.union(history)
        .repartitionById(buckets, "bucket")
        .drop("bucket")
        .sortWithinPartitions("ts", "side")
    )
    found = PairCounts(lengths)
    for packed in by_time.mapInArrow(_pairing(lengths), _SUMMARIES).toArrow()["packed"].to_pylist():
        found.merge(PairCounts.from_bytes(packed))
    return found.pairs


def _pairing(lengths: list[int]) -> Callable:
    """A function for `mapInArrow`: rows of a bucket of time, sorted, are counted as pairs."""

    def count_pairs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pairs = PairCounts(lengths)
        for batch in batches:
            ts, side, counts = (batch[name].to_numpy() for name in ("ts", "side", "counts"))
            pairs.update(np.zeros(ts.size, np.int64), ts, side, counts.astype(np.uint8))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(["pairs"]),
                pa.array([0], pa.int32()),
                pa.array([pairs.end().to_bytes()], pa.binary()),
            ],
            names=["what", "side", "packed"],
        )

    return count_pairs


# --- one stream's profile -----------------------------------------------------------------------
def _frequent(frame: Any, columns: list[str], top: int) -> tuple[list[tuple[Any, int]], list[str]]:
    """The most frequent keys and their rows, equals in key order; exact, by Spark's own grouping.

    A sketch such as lossy counting would save the shuffle of a row for each key and partition; but
    keys are shuffled by the main pass anyhow, and a budget is best chosen by true counts.
    """
    named = [_quoted(column) for column in columns]
    kept = frame.select(*named)
    for column in named:
        kept = kept.where(column.isNotNull())
    counted = kept.groupBy(*named).agg(F.count("*").alias("joinweir count"))
    found = (
        counted.orderBy(F.desc("joinweir count"), *(column.asc() for column in named))
        .limit(top)
        .toArrow()
    )
    keys = [found.column(i) for i in range(len(columns))]
    counts = found.column(len(columns)).to_pylist()
    return list(zip(scalars(keys), counts)), [str(values.type) for values in keys]


def _profile(
    found: _Sums,
    s: int,
    name: str,
    extent: _Extent,
    columns: list[str],
    kinds: list[str],
    keys: list[tuple[Any, int]],
    clock: _Clock,
    h: int,
) -> StreamProfile:
    runs = found.runs[s]
    hs = lags_up_to(h, extent.rows)
    frequency, n_keys = runs.frequencies()
    models = _models(runs, hs, frequency, n_keys)
    loss, error = runs.log_loss(*models[-1])
    n_sampled = runs.sample()[0].size
    n_stack = int(found.stacks[s][0][-1])
    notes = ["rows of one time are in the order in which Spark read them"]
    if n_sampled < extent.rows - hs[-1]:
        notes.append(
            f"b, the model and the entropy given the rows before are from {n_sampled:,} rows, "
            "sampled all over the stream"
        )
    else:
        error = 0.0
    if n_stack < extent.rows:
        notes.append(f"stack distances are of the first {n_stack:,} rows")
    notes.append("in a random order b is 1: no order was drawn")
    if hs[-1] < h:
        notes.append(f"h={h} is cut to {hs[-1]}, since there are {extent.rows:,} rows")
    return profile_of(
        runs,
        name=name,
        n_null=extent.nulls,
        n_out_of_order=None,
        key_columns=columns,
        key_types=kinds,
        keys=keys,
        span=(extent.first, extent.last),
        ticks_per_unit=clock.scale,
        timestamps=clock.timestamps,
        stacks=[_trimmed(histogram[:-1]) for histogram in found.stacks[s]],
        n_stack=n_stack,
        hs=hs,
        models=models,
        b_permuted=[1.0] * len(hs),
        entropy=Entropy(
            uniform=math.log(int(n_keys.sum())),
            popularity=popularity_entropy(frequency, n_keys),
            conditional=None,
            log_loss=finite(loss),
            log_loss_error=error if math.isfinite(error) else 0.0,
        ),
        notes=notes,
    )


def _trimmed(histogram: np.ndarray) -> Curve:
    filled = np.flatnonzero(histogram)
    return stack_curve(histogram[: filled[-1] + 1] if filled.size else histogram[:0])


def _models(runs: KeyRuns, hs: list[int], frequency, n_keys) -> list[tuple[np.ndarray, float]]:
    """The likeliest models of the sampled rows, each with its longest lag."""
    sample = runs.sample()
    if int(n_keys.sum()) == 1 or not sample[0].size:
        return [(np.zeros(lag), 1.0) for lag in hs]
    return [fit_sample(*sample, np.full(lag + 1, 1 / (lag + 1))) for lag in hs]


# --- for the command line -----------------------------------------------------------------------
def characterize_files(
    files: Sequence[str | Path],
    *,
    progress: Progress | None = None,
    cores: int | None = None,
    heap: str = "2g",
    **asked: Any,
) -> Characterization:
    """`characterize` over Parquet, CSV or JSON files, on a local Spark in a process of its own."""
    # What can be said without Spark is said before it starts.
    times = _time_names(asked["time"], len(files))
    where = [asked["where"][0]] if asked.get("where") else []
    for file, own, time in zip(files, key_names(asked["key"], len(files), "key"), times):
        open_file(file, [*own, time, *where])
    kinds = [file_kind(file) for file in files]
    figures = measured(list(map(str, files)), kinds, progress, cores, heap, asked)
    return Characterization.from_json(figures["found"])


def measured(
    files: list[str],
    kinds: list[str],
    progress: Progress | None,
    cores: int | None,
    heap: str,
    asked: dict[str, Any],
) -> dict[str, Any]:
    """What `run` tells at its end: the result as JSON, seconds and memory."""
    figures: dict[str, Any] = {}
    for step in _beside(files, kinds, cores, heap, asked):
        if "text" in step and progress:
            progress(step["text"], step["done"])
        if "found" in step:
            figures = step
    return figures


def _beside(files, kinds, cores, heap, asked) -> Iterator[dict[str, Any]]:
    cores = cores or len(os.sched_getaffinity(0))
    told = {
        "settings": B.session_settings(cores, heap, 4 * cores),
        "files": files,
        "kinds": kinds,
        "asked": asked,
    }
    for step in B.beside("characterize", told, LIMIT, "characterize"):
        if "error" in step:
            raise JoinweirError(step["error"])
        yield step


def run(told: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """In a process of its own: start Spark, read the files, characterize, tell time and memory."""
    say({"text": "starting Spark", "done": 0.0})
    session = B.start_session(told["settings"], "joinweir characterize")
    asked = dict(told["asked"])
    where = asked.pop("where", None)
    for name in ("key", "time"):  # JSON has no tuples
        if isinstance(asked[name], list):
            asked[name] = [tuple(n) if isinstance(n, list) else n for n in asked[name]]
    if isinstance(asked["time"], list):
        asked["time"] = tuple(asked["time"])
    try:
        frames = []
        for s, (file, kind) in enumerate(zip(told["files"], told["kinds"])):
            reader = session.read
            if kind == "csv":
                reader = reader.option("header", "true").option("inferSchema", "true")
            frame = reader.format(kind).load(str(Path(file).absolute()))
            if where:
                column, values = where
                _check_columns(frame.schema, asked["names"][s], [column])
                value = values[s if len(values) == len(told["files"]) else 0]
                frame = frame.where(_quoted(column).cast("string") == F.lit(value))
            frames.append(frame)
        begin, cpu = perf_counter(), B.cpu_seconds()
        with B.Memory(every=0.5) as memory:
            found = characterize(
                *frames, **asked, progress=lambda text, done: say({"text": text, "done": done})
            )
            seconds = perf_counter() - begin
            cpu = {kind: after - cpu[kind] for kind, after in B.cpu_seconds().items()}
            peaks = memory.peaks()
    except JoinweirError as error:
        say({"error": str(error)})
    else:
        say(
            {
                "found": found.to_json(),
                "seconds": seconds,
                "cpu_seconds": cpu,
                "driver_bytes": peak_memory(),
                "peaks": peaks,
            }
        )
    say({"ended": True})
    session.stop()
