"""A streaming source for trying things: ``spark.readStream.format("joinweir")``.

It serves the generators of `joinweir.streams` as an endless, replayable stream. A row is a pure
function of the options and its row number, so offsets are row numbers and any range of them can be
made again after a failure, on any worker, without the rows before it.

How a row is found without its predecessors, by generator:

* ``zipf``, ``zipf_pair``, ``interval_locality``: one uniform number a row, and numpy's PCG64 can
  jump to any draw. The keys are those of `joinweir.streams.generate`, bit for bit.
* ``drift_pair``: the same, and each period's permutation has a seed of its own.
* ``copy_model``, ``copy_pair``, ``random_walk``, ``random_walk_pair``: the process is cut into
  blocks of 65,536 rows; a block is run from the start of the block before it, which is its warm-up.
  Both processes forget: after that many rows the result is in practice that of an uncut process,
  unless ``fresh`` is below about 0.001, or ``persistence`` is 1 and the walk is too slow to meet
  its walls. Then the process starts afresh once a block.
* all others (``gismo``, ``gismo_pair``): one run of the generator per block, each with a seed of
  its own; bursts end where a block ends.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .. import streams
from ..errors import JoinweirError, unknown
from ..units import duration_us

BLOCK_ROWS = 1 << 16
# Rows of one Arrow batch, and bytes of payload in it. Around these sizes a row costs least; Spark
# splits nothing, so an Arrow batch is also what the JVM holds at once.
ARROW_ROWS, ARROW_BYTES = 1 << 16, 1 << 24
LARGEST_ROW = 2**53  # beyond it a float64 does not hold a row number
LARGEST_DOMAIN = 10**8  # the table to draw from takes 16 bytes a key
LATEST_US = 2**60  # the year 38505

# Without a clock the first row has this time, so that runs on different days agree.
DEFAULT_START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z

# What the source has options of its own for.
_OWN_OPTION = {
    "rate": "rowsPerSecond",
    "arrivals": "burstFactor",
    "cycle": "burstPeriod",
    "n": "limit",
}

# Pairs that can be continued to a third stream and more.
_ANY_SIDE = {"zipf_pair", "copy_pair", "drift_pair", "random_walk_pair"}


# --- options --------------------------------------------------------------------------------------


def _bad(name: str, wanted: str, given: object) -> JoinweirError:
    return JoinweirError(f"option {name} must be {wanted}, not {given!r}")


def _whole(name: str, text: str, low: int, high: int = LARGEST_ROW) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise _bad(name, f"a whole number from {low:,} to {high:,}", text)
    return value


def _number(name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise _bad(name, f"a number from {low:g} to {high:g}", text)
    return value


def _length_us(name: str, text: str, low: int = 0) -> int:
    """Microseconds of a duration; a bare number is seconds."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            length = duration_us(text)
        except JoinweirError:
            raise _bad(name, "a duration such as '10 ms', or seconds", text) from None
    else:
        length = round(seconds * 1e6) if abs(seconds) < 1e12 else LATEST_US
    if not low <= length < LATEST_US:
        raise _bad(name, f"a duration of at least {low} µs such as '10 ms', or seconds", text)
    return length


def _moment_us(name: str, text: str) -> int:
    """Microseconds since 1970 of an ISO date and time (UTC unless it says otherwise)."""
    try:
        # Python 3.10 reads no Z.
        moment = dt.datetime.fromisoformat(text.strip().upper().replace("Z", "+00:00"))
    except ValueError:
        raise _bad(name, "a date and time such as '2026-01-01T12:00:00Z'", text) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.timezone.utc)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return (moment - epoch) // dt.timedelta(microseconds=1)


def _side(name: str, text: str) -> int:
    named = {"left": 1, "right": 2}.get(text.strip().lower())
    try:
        return named or _whole(name, text, 1, 1000)
    except JoinweirError:
        raise _bad(name, "left, right, or a number from 1 (left) on", text) from None


def _generator(name: str, text: str) -> str:
    if text not in streams.GENERATORS:
        raise unknown(name, text, streams.GENERATORS)
    return text


@dataclass(frozen=True)
class _Option:
    field: str
    read: Callable[[str, str], Any]
    default: Any = None


_OPTIONS = {
    "generator": _Option("generator", _generator, "zipf_pair"),
    "side": _Option("side", _side, 1),
    "seed": _Option("seed", lambda name, text: _whole(name, text, 0), 0),
    "limit": _Option("limit", lambda name, text: _whole(name, text, 0)),
    "rowsPerSecond": _Option(
        "rows_per_second", lambda name, text: _number(name, text, 1e-6, 1e9), 1000.0
    ),
    "rowsPerBatch": _Option("rows_per_batch", lambda name, text: _whole(name, text, 1)),
    "burstFactor": _Option("burst_factor", lambda name, text: _number(name, text, 1e-3, 1e6), 1.0),
    "burstPeriod": _Option(
        "burst_period_us", lambda name, text: _length_us(name, text, 1000), 60_000_000
    ),
    "burstShare": _Option("burst_share", lambda name, text: _number(name, text, 0, 1), 0.2),
    "startTime": _Option("start_us", _moment_us),
    "timeStep": _Option("time_step_us", _length_us),
    "disorder": _Option("disorder_us", _length_us, 0),
    "nullShare": _Option("null_share", lambda name, text: _number(name, text, 0, 1), 0.0),
    "payloadBytes": _Option("payload_bytes", lambda name, text: _whole(name, text, 0, 1 << 20), 0),
    "numPartitions": _Option("partitions", lambda name, text: _whole(name, text, 1, 10_000), 2),
}


def _folded(name: str) -> str:
    """Option names without case, as Spark has them, and without underscores."""
    return name.replace("_", "").lower()


def _parameter(name: str, annotation: object, text: str) -> object:
    """A generator's parameter from its text, by the annotation in the generator's signature."""
    if annotation is str:
        return text
    if annotation is bool:
        if text.strip().lower() not in ("true", "false"):
            raise _bad(name, "true or false", text)
        return text.strip().lower() == "true"
    if annotation is int:
        try:
            return int(text)
        except ValueError:
            raise _bad(name, "a whole number", text) from None
    several = annotation is not float
    try:
        values = tuple(float(each) for each in text.split(","))
        if len(values) > 1 and not several:
            raise ValueError
    except ValueError:
        wanted = "a number, or several with commas between" if several else "a number"
        raise _bad(name, wanted, text) from None
    sequence = several and "Sequence" in str(annotation)
    return values if sequence or len(values) > 1 else values[0]


@dataclass(frozen=True)
class SourceOptions:
    """The options of one source, checked. Hashable, so that blocks can be cached by it."""

    generator: str
    parameters: tuple[tuple[str, Any], ...]
    side: int
    seed: int
    limit: int | None
    rows_per_second: float
    rows_per_batch: int | None
    burst_factor: float
    burst_period_us: int
    burst_share: float
    start_us: int | None
    time_step_us: int | None
    disorder_us: int
    null_share: float
    payload_bytes: int
    partitions: int

    @property
    def is_pair(self) -> bool:
        return self.generator.endswith("_pair")

    @property
    def side_name(self) -> str:
        return {1: "left", 2: "right"}.get(self.side, str(self.side))


def check_source_options(options: Mapping[str, object]) -> SourceOptions:
    """Check the options of the ``joinweir`` source without starting Spark.

    Parameters
    ----------
    options : mapping of str to str
        As for ``spark.readStream.format("joinweir").options(...)``; names in any case.

    Returns
    -------
    SourceOptions

    Raises
    ------
    JoinweirError
        One line that names the option and what is allowed.

    Examples
    --------
    >>> check_source_options({"generator": "zipf", "skew": "1.2", "rowsPerSecond": "50"}).parameters
    (('skew', 1.2),)
    """
    own = {_folded(name): name for name in _OPTIONS}
    given = {_folded(name): (name, str(value)) for name, value in options.items()}
    fields = {}
    for folded, name in own.items():
        option = _OPTIONS[name]
        fields[option.field] = (
            option.read(name, given[folded][1]) if folded in given else option.default
        )
    kind = fields["generator"]
    allowed = {
        _folded(name): (name, parameter.annotation)
        for name, parameter in streams.options(kind).items()
        if name not in _OWN_OPTION and name != "seed"
    }
    parameters = {}
    for folded, (written, text) in given.items():
        if folded in own:
            continue
        if folded in _OWN_OPTION:
            raise JoinweirError(
                f"option {written} is not for the joinweir source; use {_OWN_OPTION[folded]}"
            )
        if folded not in allowed:
            choices = [*_OPTIONS, *(name for name, _ in allowed.values())]
            raise unknown(f"option of generator {kind}", written, choices)
        name, annotation = allowed[folded]
        parameters[name] = _parameter(name, annotation, text)
    _check_together(fields, parameters, given)
    checked = SourceOptions(**fields, parameters=tuple(sorted(parameters.items())))
    last = checked.limit or 0
    if checked.time_step_us is None:
        length = float(_Pace(checked).arrival(np.array([last]))[0])
    else:
        length = float(last * checked.time_step_us)
    if max(checked.start_us or 0, 0) + length >= LATEST_US:
        raise JoinweirError(
            "option limit: the last row would come after the year 38,000; raise rowsPerSecond"
            " or lower timeStep"
        )
    return checked


def _check_together(fields: dict, parameters: dict, given: Mapping) -> None:
    """What one option means for another, and the generator's own checks."""
    kind = fields["generator"]
    for name in ("domain", "master_rows"):
        if parameters.get(name, 0) > LARGEST_DOMAIN:
            raise _bad(name, f"at most {LARGEST_DOMAIN:,}", parameters[name])
    try:
        streams.generate(kind, 0, **parameters)
    except ValueError as error:
        raise JoinweirError(f"option of generator {kind}: {error}") from None
    for name in ("burstPeriod", "burstShare"):
        if _folded(name) in given and "burstfactor" not in given:
            raise JoinweirError(f"option {name} has no effect without burstFactor; give both")
    if kind == "interval_locality" and not fields["limit"]:
        raise JoinweirError(
            "generator interval_locality needs the option limit: its sweep over the master table"
            " takes that many rows"
        )
    dealt = kind == "copy_pair" and parameters.get("shared")
    two_only = kind.endswith("_pair") and (dealt or kind not in _ANY_SIDE)
    if two_only and fields["side"] > 2:
        raise JoinweirError(
            f"option side must be left or right, as generator {kind} makes two streams, not"
            f" {fields['side']}"
        )


# --- seekable randomness --------------------------------------------------------------------------


def _from_draw(seed: int, role: str, draw: int) -> np.random.Generator:
    """The random generator of a role, as after `draw` draws of 64 bits: O(log draw)."""
    rng = streams._random(seed, role)
    rng.bit_generator.advance(draw)
    return rng


def _uniform(seed: int, role: str, start: int, stop: int) -> np.ndarray:
    return _from_draw(seed, role, start).random(stop - start)  # one draw each


def _derived_seed(seed: int, *path: int) -> int:
    state = np.random.SeedSequence(seed, spawn_key=path).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(12))


# --- keys -----------------------------------------------------------------------------------------

# Blocks and tables are kept per worker process, which Spark uses again for the next micro-batch.
# 8 blocks of int64 are 4 MB.
_zipf_table = functools.lru_cache(maxsize=4)(streams._zipf_table)


class _Keys:
    """The keys of one side; `between` is a pure function of the options and the rows."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.kind = options.generator
        defaults = {name: p.default for name, p in streams.options(self.kind).items()}
        self.law: dict[str, Any] = defaults | dict(options.parameters)
        for name, value in self.law.items():  # (left, right) values; a third side is as the right
            if isinstance(value, tuple) and name != "weights":
                self.law[name] = value[min(options.side, 2) - 1]
        # The sides of a pair have one seed and roles of their own. Two sides of a single stream's
        # generator would be the same rows, so each side has another seed.
        self.seed = options.seed
        if not options.is_pair and options.side > 1:
            self.seed = _derived_seed(options.seed, options.side)
        self.role = f"{self.kind} {options.side_name}" if options.is_pair else self.kind

    def between(self, start: int, stop: int, seconds: np.ndarray) -> np.ndarray:
        """Keys of the rows start … stop-1, whose non-decreasing times in seconds are given."""
        if self.kind in ("zipf", "zipf_pair"):
            return self._zipf(start, stop)
        if self.kind == "drift_pair":
            return self._drift(start, stop, seconds)
        if self.kind == "interval_locality":
            return self._sweep(start, stop)
        if self.kind == "copy_pair" and self.law["shared"]:
            # One process, of whose rows 2i and 2i+1 a coin sends one to the left.
            coins = _uniform(self.seed, "copy_pair deal", start, stop) < 0.5
            first = coins if self.options.side == 1 else ~coins
            both = self._blocks(2 * start, 2 * stop)
            return np.where(first, both[0::2], both[1::2])
        return self._blocks(start, stop)

    def _ranks(self, start: int, stop: int) -> np.ndarray:
        table = _zipf_table(self.law["domain"], self.law["skew"])
        return streams._invert_cdf(*table, _uniform(self.seed, f"{self.role} keys", start, stop))

    def _zipf(self, start: int, stop: int) -> np.ndarray:
        ranks = self._ranks(start, stop)
        correlation = self.law.get("correlation", "direct")
        if self.options.side == 1 or correlation == "direct":
            return ranks
        if correlation == "inverse":
            return self.law["domain"] - 1 - ranks
        role = "zipf_pair permutation"
        if self.options.side > 2:
            role += f" {self.options.side}"
        return _permutation(self.seed, role, self.law["domain"])[ranks]

    def _drift(self, start: int, stop: int, seconds: np.ndarray) -> np.ndarray:
        keys = self._ranks(start, stop)
        periods, begins = np.unique(seconds // self.law["period"], return_index=True)
        for period, rows in zip(periods, itertools.pairwise([*begins, keys.size])):
            role, now = f"drift_pair period {period}", slice(*rows)
            keys[now] = _permutation(self.seed, role, self.law["domain"])[keys[now]]
        return keys

    def _sweep(self, start: int, stop: int) -> np.ndarray:
        n, intervals = self.options.limit, self.law["intervals"]
        n_keys = self.law["master_rows"] // self.law["repeats"]
        bounds = np.array([i * n // intervals for i in range(intervals + 1)])
        uniform = _uniform(self.seed, self.role, start, stop)
        keys = np.empty(stop - start, np.int64)
        at = start
        while at < stop:
            i = int(np.searchsorted(bounds, at, side="right")) - 1
            end = min(stop, int(bounds[i + 1]))
            first, last = i * n_keys // intervals, (i + 1) * n_keys // intervals
            rows = slice(at - start, end - start)
            table = _zipf_table(last - first, self.law["skew"])
            keys[rows] = first + streams._invert_cdf(*table, uniform[rows])
            at = end
        return keys

    def _blocks(self, start: int, stop: int) -> np.ndarray:
        """Rows start … stop-1 of a process that is made in blocks."""
        size = max(BLOCK_ROWS, 4 * self.law.get("lags", 0))
        if self.kind not in _PROCESSES:  # each block shows the whole law, rare keys too
            size = max(size, 4 * self.law.get("domain", 0))
        process = self.role
        if self.law.get("shared"):
            process = f"{self.kind} shared"
        law = tuple(sorted(self.law.items()))
        parts = []
        for block in range(start // size, (stop - 1) // size + 1):
            side = self.options.side
            made = _block(self.kind, law, self.seed, process, self.role, side, size, block)
            parts.append(made[max(start - block * size, 0) : stop - block * size])
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


@functools.lru_cache(maxsize=64)
def _permutation(seed: int, role: str, domain: int) -> np.ndarray:
    return streams._random(seed, role).permutation(domain)


@functools.lru_cache(maxsize=8)
def _block(
    kind: str, law: tuple, seed: int, process: str, role: str, side: int, size: int, block: int
) -> np.ndarray:
    """Block number `block`, of `size` rows, of a sequential process."""
    if kind in _PROCESSES:
        return _PROCESSES[kind](dict(law), seed, process, role, size, block)
    chosen = dict(law) | {"seed": _derived_seed(seed, block)}
    asked = size
    while True:  # a generator may return a few rows less than asked for
        made = streams.generate(kind, asked, **chosen)
        keys = (made[min(side, 2) - 1] if isinstance(made, tuple) else made)["key"]
        if keys.size >= size:
            return keys[:size]
        asked += max(size - keys.size, asked // 8)


def _copy_block(law: dict, seed: int, process: str, role: str, size: int, block: int) -> np.ndarray:
    first = max(block - 1, 0) * size
    names = ("domain", "skew", "lags", "fresh", "weights")
    _, domain, skew, shares = streams._check_copy(0, *(law[name] for name in names))
    stop = (block + 1) * size
    fresh = streams._invert_cdf(
        *_zipf_table(domain, skew), _uniform(seed, f"{process} fresh", first, stop)
    )
    cdf = np.cumsum(shares)
    cdf[np.flatnonzero(shares)[-1] :] = 1.0  # a lag of weight 0 is never drawn
    lags = np.searchsorted(cdf, _uniform(seed, f"{process} lags", first, stop), side="right")
    return streams._copy(fresh, lags)[-size:]


def _walk_block(law: dict, seed: int, process: str, role: str, size: int, block: int) -> np.ndarray:
    top, step, persistence = float(law["domain"] - 1), law["step"], law["persistence"]
    shocks, start = [], 0.0
    for each in range(max(block - 1, 0), block + 1):
        rng = streams._random(seed, f"{process} block {each}")
        # The first block that is run starts in the walk's long-run law (see `streams`).
        if persistence < 1:
            long_run = rng.normal(top / 2, step / math.sqrt(1 - persistence**2))
        else:
            long_run = rng.uniform(0, top)
        start = start if shocks else min(max(long_run, 0.0), top)
        shocks.append(rng.normal(0, step, size))
    path = streams._bounded_walk(np.concatenate(shocks), start, top / 2, persistence, top)[-size:]
    if "noise" in law:
        path = path + streams._random(seed, f"{role} noise {block}").normal(0, law["noise"], size)
    return np.rint(np.clip(path, 0, top)).astype(np.int64)


_PROCESSES = {
    "copy_model": _copy_block,
    "copy_pair": _copy_block,
    "random_walk": _walk_block,
    "random_walk_pair": _walk_block,
}


# --- times ----------------------------------------------------------------------------------------


class _Pace:
    """When row i arrives: `rowsPerSecond`, times `burstFactor` at the end of each period."""

    def __init__(self, options: SourceOptions) -> None:
        self.rate = options.rows_per_second / 1e6  # rows a microsecond
        self.period = float(options.burst_period_us)
        self.calm = self.period * (1 - options.burst_share)
        self.factor = options.burst_factor
        self.steady = options.burst_factor == 1 or options.burst_share == 0
        self.calm_rows = self.calm * self.rate
        self.period_rows = self.calm_rows + (self.period - self.calm) * self.rate * self.factor

    def arrival_us(self, rows: np.ndarray) -> np.ndarray:
        """Microseconds from the start to each row, rounded to the nearest."""
        return np.rint(self.arrival(rows)).astype(np.int64)

    def arrival(self, rows: np.ndarray) -> np.ndarray:
        """As `arrival_us`, unrounded.

        Each step is non-decreasing in `rows` also in floating point, so that no cut of the rows
        can show a step back.
        """
        if self.steady:
            return rows / self.rate
        period = np.floor(rows / self.period_rows)
        rest = np.clip(rows - period * self.period_rows, 0.0, self.period_rows)
        calm = np.minimum(rest / self.rate, self.calm)
        burst = np.maximum(rest - self.calm_rows, 0.0) / (self.rate * self.factor)
        return period * self.period + np.minimum(calm + burst, self.period)

    def rows_due(self, elapsed_us: int) -> int:
        """How many rows have arrived after `elapsed_us`."""
        elapsed = max(float(elapsed_us), 0.0)
        if self.steady:
            return int(elapsed * self.rate)
        period, rest = divmod(elapsed, self.period)
        calm = min(rest, self.calm)
        rows = period * self.period_rows + calm * self.rate
        return int(rows + (rest - calm) * self.rate * self.factor)


# --- rows -----------------------------------------------------------------------------------------


def _schema(options: SourceOptions) -> StructType:
    fields = [
        StructField("key", LongType()),
        StructField("ts", TimestampType()),
        StructField("value", DoubleType()),
    ]
    if options.payload_bytes:
        fields.append(StructField("payload", StringType()))
    return StructType(fields)


def _arrow_schema(options: SourceOptions) -> pa.Schema:
    fields = [("key", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("value", pa.float64())]
    if options.payload_bytes:
        fields.append(("payload", pa.string()))
    return pa.schema(fields)


def _payload(options: SourceOptions, start: int, stop: int) -> pa.Array:
    """Letters a … p, eight to a draw: 0.7 GB/s for 20 bytes a row, 1.3 GB/s for 1,000."""
    n, width = stop - start, options.payload_bytes
    words = -(-width // 8)
    role = f"source {options.side_name} payload"
    raw = _from_draw(options.seed, role, start * words).bit_generator.random_raw(n * words)
    letters = raw.view(np.uint8).reshape(n, words * 8)[:, :width] & np.uint8(15)
    letters = np.ascontiguousarray(letters) + np.uint8(ord("a"))
    offsets = np.arange(n + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(letters))


def record_batches(
    options: SourceOptions, start: int, stop: int, start_us: int
) -> Iterator[pa.RecordBatch]:
    """Rows start … stop-1 as Arrow batches: a pure function of its arguments."""
    keys, pace, schema = _Keys(options), _Pace(options), _arrow_schema(options)
    step = min(ARROW_ROWS, max(1, ARROW_BYTES // max(options.payload_bytes, 1)))
    role = f"source {options.side_name}"
    for first in range(start, stop, step):
        last = min(first + step, stop)
        rows = np.arange(first, last)
        if options.time_step_us is None:
            offset_us = pace.arrival_us(rows)
        else:
            offset_us = rows * options.time_step_us
        ts = start_us + offset_us
        if options.disorder_us:
            # A row that arrives now happened up to `disorder` ago. So no row is further behind
            # the largest time before it, and no row has to be held back to be shuffled.
            delay = _uniform(options.seed, f"{role} disorder", first, last) * options.disorder_us
            ts -= delay.astype(np.int64)
        nulls = None
        if options.null_share:
            nulls = _uniform(options.seed, f"{role} nulls", first, last) < options.null_share
        columns = [
            pa.array(keys.between(first, last, offset_us // 1_000_000), mask=nulls),
            pa.array(ts, pa.timestamp("us", "UTC")),
            pa.array(_uniform(options.seed, f"{role} values", first, last)),
        ]
        if options.payload_bytes:
            columns.append(_payload(options, first, last))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


# --- what Spark calls -----------------------------------------------------------------------------


@dataclass
class RowRange(InputPartition):
    """The rows of one task."""

    start: int
    stop: int
    start_us: int


def _split(options: SourceOptions, start: int, stop: int, start_us: int) -> list[RowRange]:
    n, parts = stop - start, min(options.partitions, stop - start)
    cuts = [start + i * n // parts for i in range(parts + 1)] if n > 0 else []
    return [RowRange(low, high, start_us) for low, high in itertools.pairwise(cuts)]


class JoinweirBatchReader(DataSourceReader):
    """Rows 0 … limit-1 as a batch DataFrame."""

    def __init__(self, options: SourceOptions) -> None:
        self.source_options = options
        if options.limit is None:
            raise JoinweirError("spark.read needs the option limit: the number of rows to read")

    def partitions(self) -> list[RowRange]:
        options = self.source_options
        start_us = DEFAULT_START_US if options.start_us is None else options.start_us
        # Spark wants at least one partition.
        return _split(options, 0, options.limit, start_us) or [RowRange(0, 0, start_us)]

    def read(self, partition: RowRange) -> Iterator[pa.RecordBatch]:
        return record_batches(
            self.source_options, partition.start, partition.stop, partition.start_us
        )


class JoinweirStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is the next row's number and, if the clock drives, when the query first began."""

    def __init__(self, options: SourceOptions) -> None:
        self.source_options = options
        self.pace = _Pace(options)
        self.available_now_us: int | None = None

    def initialOffset(self) -> dict:
        if self.source_options.rows_per_batch is not None:
            return {"row": 0}
        return {"row": 0, "began_us": _now_us()}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.source_options.rows_per_batch is None:
            return ReadAllAvailable()
        return ReadMaxRows(self.source_options.rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        options = self.source_options
        if options.rows_per_batch is not None and options.limit is None:
            raise JoinweirError(
                "the trigger availableNow needs the option limit: with rowsPerBatch rows never end"
            )
        self.available_now_us = _now_us()

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        options = self.source_options
        if options.rows_per_batch is not None:
            end = start["row"] + options.rows_per_batch
            if isinstance(limit, ReadAllAvailable) and options.limit is not None:
                end = options.limit
        elif self.available_now_us is not None and options.limit is not None:
            end = options.limit
        else:
            now = _now_us() if self.available_now_us is None else self.available_now_us
            end = self.pace.rows_due(now - self._began_us(start))
        if isinstance(limit, ReadMaxRows):
            end = min(end, start["row"] + limit.max_rows)
        end = min(end, LARGEST_ROW if options.limit is None else options.limit)
        return start | {"row": max(start["row"], end)}

    def partitions(self, start: dict, end: dict) -> list[RowRange]:
        start_us = self.source_options.start_us
        if start_us is None:
            start_us = end.get("began_us", DEFAULT_START_US)
        return _split(self.source_options, start["row"], end["row"], start_us)

    def read(self, partition: RowRange) -> Iterator[pa.RecordBatch]:
        return record_batches(
            self.source_options, partition.start, partition.stop, partition.start_us
        )

    def commit(self, end: dict) -> None:
        """Nothing is held for replay: rows are made again."""

    @staticmethod
    def _began_us(offset: dict) -> int:
        if "began_us" not in offset:
            raise JoinweirError(
                "the checkpoint was written with rowsPerBatch; give that option again, or start"
                " with a new checkpoint"
            )
        return offset["began_us"]


def _now_us() -> int:
    return time.time_ns() // 1000


class JoinweirSource(DataSource):
    """``format("joinweir")``; see docs/source.md for its options."""

    @classmethod
    def name(cls) -> str:
        return "joinweir"

    def schema(self) -> StructType:
        return _schema(check_source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return JoinweirBatchReader(self._checked(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return JoinweirStreamReader(self._checked(schema))

    def _checked(self, schema: StructType) -> SourceOptions:
        options = check_source_options(self.options)
        own = _schema(options)
        if schema != own:
            raise JoinweirError(
                f"the joinweir source has the schema {own.simpleString()}; leave out .schema(...)"
            )
        return options


def register_source(spark: SparkSession) -> None:
    """Make ``format("joinweir")`` known to a Spark session, classic or Connect.

    joinweir must be importable where Spark's Python workers run.

    Parameters
    ----------
    spark : SparkSession

    Examples
    --------
    >>> register_source(spark)  # doctest: +SKIP
    >>> left = spark.readStream.format("joinweir").option("side", "left").load()  # doctest: +SKIP
    """
    spark.dataSource.register(JoinweirSource)
