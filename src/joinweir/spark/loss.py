"""What a running join lost: `loss_report(query)` to look at, `LossListener` to keep and to watch.

A window join publishes its counts with `DataFrame.observe`, so they arrive in the query's progress
under a name that starts with ``joinweir_``. The same metrics come in three forms: classic
listeners get a Row of Python values; `query.recentProgress` gets a Row made from JSON, in which
NaN is the text ``"NaN"``; and on Spark Connect that Row has the two fields `values` and `schema`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import html
import json
import logging
import math
import os
import re
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.streaming.listener import StreamingQueryListener

from ..errors import JoinweirError, unknown

PREFIX = "joinweir_"
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
FLUSH_SECONDS = 60.0  # a Parquet record waits no longer, if the query has any event

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SideLoss:
    """The counts of one stream of a join: of the micro-batch, and `total_` since the first start.

    `n_shed` is `n_evicted` (held, then pushed out) plus `n_refused` (never admitted).
    `watermark` is the largest time seen, in microseconds since 1970.
    """

    side: str
    n_in: int | None = None
    n_shed: int | None = None
    n_evicted: int | None = None
    n_refused: int | None = None
    n_late: int | None = None
    n_null: int | None = None
    n_expired: int | None = None
    total_n_in: int | None = None
    total_n_shed: int | None = None
    total_n_evicted: int | None = None
    total_n_refused: int | None = None
    total_n_late: int | None = None
    total_n_null: int | None = None
    total_n_expired: int | None = None
    rows_held: int | None = None
    watermark: int | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class LossReport:
    """What one join did in its latest micro-batch and since the query's first start.

    A count that was not reported is None: `n_exact` and `recall` with ``accounting="off"``,
    `budget` of an unbounded join, the query's fields of a batch join.

    >>> report = LossReport.from_row(
    ...     {"n_in_left": 9, "n_in_right": 7, "n_out": 3, "n_exact": 4.0, "recall": 0.75},
    ...     name="orders",
    ... )
    >>> report.recall, report.side("left").n_in, report.budget is None
    (0.75, 9, True)
    """

    name: str | None
    sides: tuple[SideLoss, ...]
    n_out: int | None = None
    n_exact: float | None = None
    recall: float | None = None
    total_n_out: int | None = None
    total_n_exact: float | None = None
    total_recall: float | None = None
    total_n_exact_error: float | None = None
    bytes_held: int | None = None
    budget: int | None = None
    budget_unit: str | None = None
    shards: int | None = None
    query_id: str | None = None
    run_id: str | None = None
    query_name: str | None = None
    batch_id: int | None = None
    timestamp: str | None = None
    batch_seconds: float | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None

    @classmethod
    def from_row(cls, row: Any, name: str | None = None, *, progress: Any = None) -> LossReport:
        """Read the observed metrics of one join.

        Parameters
        ----------
        row
            A Row or dict of observed metrics in any of Spark's forms. For a batch join:
            ``LossReport.from_row(observation.get)``.
        name
            The join's name, without the prefix ``joinweir_``.
        progress
            The `StreamingQueryProgress` that the row came in, for batch id, time and rates.
        """
        metrics = _metrics(row)
        if "n_out" not in metrics:
            given = ", ".join(map(str, metrics)) or "nothing"
            raise JoinweirError(f"these are not the metrics of a window join: no n_out in {given}")
        sides = tuple(
            SideLoss(
                side,
                **{
                    field.name: _whole(metrics.get(f"{field.name}_{side}"))
                    for field in dataclasses.fields(SideLoss)[1:]
                },
            )
            for side in _side_names(metrics)
        )
        unit = metrics.get("budget_unit")
        return cls(
            name=name,
            sides=sides,
            **{field: _whole(metrics.get(field)) for field in _WHOLE_FIELDS},
            **{field: _number(metrics.get(field)) for field in _NUMBER_FIELDS},
            budget_unit=None if unit is None else str(unit),
            **({} if progress is None else _of_progress(progress)),
        )

    def side(self, side: str | int) -> SideLoss:
        """The counts of one stream: "left" or "right", or 1 to k in a join of more than two."""
        for counts in self.sides:
            if counts.side == str(side):
                return counts
        raise unknown("side", side, [counts.side for counts in self.sides])

    @property
    def rows_held(self) -> int | None:
        """Rows held on all sides."""
        held = [counts.rows_held for counts in self.sides]
        return None if not held or None in held else sum(held)

    @property
    def used(self) -> int | None:
        """How much of the budget is in use, in `budget_unit`."""
        return {"rows": self.rows_held, "bytes": self.bytes_held}.get(self.budget_unit or "")

    @property
    def total_recall_error(self) -> float | None:
        """Standard error of `total_recall`, to first order; 0 when counted exactly."""
        if self.total_recall is None or self.total_n_exact_error is None or not self.total_n_exact:
            return None
        return abs(self.total_recall * self.total_n_exact_error / self.total_n_exact)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, valid as JSON (no NaN); `sides` is a list with one dict a stream.

        The keys are the same for any number of streams, so that records of different joins
        fit in one table.
        """
        record = {field: getattr(self, field) for field in _QUERY_FIELDS}
        record["join"] = self.name
        record |= {field: getattr(self, field) for field in (*_WHOLE_FIELDS, *_NUMBER_FIELDS)}
        record |= {"budget_unit": self.budget_unit, "rows_held": self.rows_held}
        record["sides"] = [dataclasses.asdict(counts) for counts in self.sides]
        return record

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        """(what, of the batch, since the start) as text, for both representations."""
        error = self.total_recall_error
        yield "recall", _percent(self.recall), _percent(self.total_recall, error)
        yield (
            "results",
            _of(self.n_out, self.n_exact),
            _of(self.total_n_out, self.total_n_exact, self.total_n_exact_error),
        )
        for s in self.sides:
            label = f"stream {s.side}" if s.side.isdecimal() else s.side
            yield f"{label} in", _count(s.n_in), _count(s.total_n_in)
            yield (
                "  shed",
                _shed(s.n_shed, s.n_evicted, s.n_refused),
                _shed(s.total_n_shed, s.total_n_evicted, s.total_n_refused),
            )
            yield "  late", _count(s.n_late), _count(s.total_n_late)
            yield "  null key", _count(s.n_null), _count(s.total_n_null)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """(what, text) of what is not counted twice."""
        if self.budget is None:
            used = "no budget"
        else:
            amount = _bytes if self.budget_unit == "bytes" else _count
            unit = "" if self.budget_unit == "bytes" else f" {self.budget_unit or ''}".rstrip()
            used = f"{amount(self.used)} of {amount(self.budget)}{unit}"
            if self.used is not None and self.budget:
                used += f" ({self.used / self.budget:.0%})"
        held = ", ".join(f"{s.side} {_count(s.rows_held)}" for s in self.sides)
        yield "memory", used
        yield "held", f"{_count(self.rows_held)} rows ({held}), {_bytes(self.bytes_held)}"
        if self.batch_seconds is not None:
            rate = self.processed_rows_per_second
            yield "speed", f"batch of {self.batch_seconds:.2f} s, {_count(rate)} rows/s"

    def _title(self) -> str:
        title = f"join {_printable(self.name)}" if self.name is not None else "join"
        if self.query_id is not None or self.query_name is not None:
            title += f" of query {_printable(self.query_name or self.query_id)}"
        if self.batch_id is not None:
            title += f", batch {self.batch_id} at {self.timestamp}"
        return title

    def __repr__(self) -> str:
        rows = [("", "batch", "since start"), *self._rows()]
        first = max(len(what) for what, *_ in rows)
        second = max(len(batch) for _, batch, _ in rows)
        return "\n".join(
            [
                self._title(),
                *(f"{what:{first}}  {batch:{second}}  {total}" for what, batch, total in rows),
                *(f"{what:{first}}  {text}" for what, text in self._lines()),
            ]
        )

    def _repr_html_(self) -> str:
        def cells(tag: str, texts: Iterable[str], span: str = "") -> str:
            return "".join(f"<{tag}{span}>{html.escape(text)}</{tag}>" for text in texts)

        body = [f"<tr>{cells('th', ('', 'batch', 'since start'))}</tr>"]
        for what, batch, total in self._rows():
            name = html.escape(what.strip())
            indent = "&emsp;" if what.startswith(" ") else ""
            body.append(f"<tr><td>{indent}{name}</td>{cells('td', (batch, total))}</tr>")
        for what, text in self._lines():
            body.append(f"<tr>{cells('td', [what])}{cells('td', [text], ' colspan=2')}</tr>")
        return f"<table><caption>{html.escape(self._title())}</caption>{''.join(body)}</table>"


_QUERY_FIELDS = {
    "query_id": pa.string(),
    "run_id": pa.string(),
    "query_name": pa.string(),
    "batch_id": pa.int64(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "batch_seconds": pa.float64(),
    "input_rows_per_second": pa.float64(),
    "processed_rows_per_second": pa.float64(),
}
_WHOLE_FIELDS = ("n_out", "total_n_out", "bytes_held", "budget", "shards")
_NUMBER_FIELDS = (
    "n_exact",
    "recall",
    "total_n_exact",
    "total_recall",
    "total_n_exact_error",
)
# Of Parquet records. The same for any number of streams: pyarrow.dataset takes the schema of the
# first file it finds, and would leave out columns that only other files have.
SCHEMA = pa.schema(
    {
        **_QUERY_FIELDS,
        "join": pa.string(),
        **dict.fromkeys(_WHOLE_FIELDS, pa.int64()),
        **dict.fromkeys(_NUMBER_FIELDS, pa.float64()),
        "budget_unit": pa.string(),
        "rows_held": pa.int64(),
        "sides": pa.list_(
            pa.struct(
                {
                    field.name: pa.string() if field.name == "side" else pa.int64()
                    for field in dataclasses.fields(SideLoss)
                }
            )
        ),
    }
)


def loss_report(query: Any, name: str | None = None) -> LossReport:
    """What a join of a streaming query lost, from the query's latest progress that tells.

    Parameters
    ----------
    query
        A running or stopped `StreamingQuery`, classic or of Spark Connect.
    name
        Which join, if the query has several: the ``name=`` it was given.

    Raises
    ------
    JoinweirError
        If nothing was reported yet, or `name` is missing or unknown.
    """
    seen: dict[str, None] = {}
    for progress in _newest_first(query):
        observed = _observations(progress)
        seen |= dict.fromkeys(observed)
        if name is None and len(observed) > 1:
            raise JoinweirError(
                f"this query has {len(observed)} joins; say which with name=: {', '.join(observed)}"
            )
        found = next(iter(observed), None) if name is None else _find(name, observed)
        if found is not None and _whole(observed[found].get("n_out")) is not None:
            return LossReport.from_row(observed[found], found, progress=progress)
    if name is not None and seen and _find(name, seen) is None:
        raise unknown("join", name, seen)
    raise JoinweirError(
        "the query's recent progress has no loss report; wait for its first micro-batch with rows "
        "(Spark forgets all but the latest spark.sql.streaming.numRecentProgressUpdates)"
    )


def _newest_first(query: Any) -> Iterator[Any]:
    # The latest alone is enough while rows arrive, and Spark sends up to 100 otherwise.
    try:
        last = query.lastProgress
        if last is not None:
            yield last
        yield from reversed(query.recentProgress)
    except AttributeError:
        raise JoinweirError(
            f"loss_report needs a StreamingQuery, not {type(query).__name__}; "
            "for a batch join use LossReport.from_row(observation.get)"
        ) from None


def _observations(progress: Any) -> dict[str, dict[str, Any]]:
    """Join name -> metrics, of the window joins in a progress, by name: Spark has no order."""
    found = {}
    for observed, row in sorted((_attribute(progress, "observedMetrics") or {}).items()):
        if observed.startswith(PREFIX):
            metrics = _metrics(row)
            if "n_out" in metrics:  # another joinweir operator may report other things
                found[observed.removeprefix(PREFIX)] = metrics
    return found


def _find(name: str, names: Mapping[str, Any]) -> str | None:
    """The one that is meant: by its own name, or else by that of its observation."""
    return next((n for n in (name, name.removeprefix(PREFIX)) if n in names), None)


def _metrics(row: Any) -> dict[str, Any]:
    """Field -> value, from any form in which Spark hands over observed metrics."""
    if isinstance(row, Mapping):
        metrics = dict(row)
    elif hasattr(row, "asDict"):
        metrics = row.asDict()
    else:
        raise JoinweirError(f"observed metrics are a Row or a dict, not {type(row).__name__}")
    if set(metrics) == {"values", "schema"}:  # Spark Connect
        schema = metrics["schema"]
        schema = json.loads(schema) if isinstance(schema, str) else schema
        if hasattr(schema, "fieldNames"):
            names = schema.fieldNames()
        else:
            names = [field["name"] for field in _metrics(schema)["fields"]]
        metrics = dict(zip(names, metrics["values"], strict=True))
    return metrics


def _side_names(metrics: Mapping[str, Any]) -> list[str]:
    sides = [found[1] for field in metrics if (found := re.fullmatch(r"n_in_(\w+)", field))]
    return sorted(sides, key=lambda side: (int(side), "") if side.isdecimal() else (0, side))


def _number(value: Any) -> float | None:
    """A finite float, or None: NaN and infinities have no place in JSON."""
    if value is None:
        return None
    number = float(value)  # also "NaN" and "Infinity", as Spark's JSON has them
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int | None:
    # Not by way of float for an int, which would round beyond 2**53.
    if isinstance(value, int):
        return int(value)
    number = _number(value)
    return None if number is None else int(number)


def _attribute(progress: Any, key: str) -> Any:
    value = getattr(progress, key, None)
    return progress.get(key) if value is None and isinstance(progress, Mapping) else value


def _of_progress(progress: Any) -> dict[str, Any]:
    def text(key: str) -> str | None:
        value = _attribute(progress, key)
        return None if value is None else str(value)

    def rate(key: str) -> float | None:
        try:
            return _number(_attribute(progress, key))
        except (KeyError, TypeError, ValueError):  # Spark leaves out rates that are not finite
            return None

    milliseconds = _number(_attribute(progress, "batchDuration"))
    return {
        "query_id": text("id"),
        "run_id": text("runId"),
        "query_name": text("name"),
        "batch_id": _whole(_attribute(progress, "batchId")),
        "timestamp": text("timestamp"),
        "batch_seconds": None if milliseconds is None else milliseconds / 1000,
        "input_rows_per_second": rate("inputRowsPerSecond"),
        "processed_rows_per_second": rate("processedRowsPerSecond"),
    }


def _printable(text: str | None) -> str:
    return text if text and text.isprintable() else repr(text)


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _percent(value: float | None, error: float | None = None) -> str:
    if value is None:
        return "not counted"
    shown = f"{value * 100:.1f}"
    if shown == "100.0" and value < 1:
        shown = "> 99.9"  # no loss is rounded away
    return f"{shown} % ± {error * 100:.1f}" if error else f"{shown} %"


def _of(value: int | None, exact: float | None, error: float | None = None) -> str:
    if exact is None:
        return _count(value)
    return f"{_count(value)} of {_count(exact)}" + (f" ± {_count(error)}" if error else "")


def _shed(shed: int | None, evicted: int | None, refused: int | None) -> str:
    if not shed:
        return _count(shed)
    return f"{_count(shed)} ({_count(evicted)} evicted, {_count(refused)} refused)"


def _bytes(value: float | None) -> str:
    if value is None or value < 1024:
        return f"{_count(value)} bytes"
    power = 1
    while value >= 1024 ** (power + 1) and power < 4:
        power += 1
    return f"{value / 1024**power:,.1f} {'KMGT'[power - 1]}B"  # of 1024, as in memory=


class LossListener(StreamingQueryListener):
    """Keeps the loss of every micro-batch in a file and shows the latest to Prometheus.

    Add it with ``spark.streams.addListener(listener)``, on classic Spark and on Spark Connect; it
    runs in the Python process that adds it, and is not pickled. A failure to write is logged once
    and never reaches the query.

    Parameters
    ----------
    path
        A local file of JSON lines (``.jsonl``) to append to, or a directory of Parquet files
        (``.parquet``). One record a join and micro-batch: `LossReport.to_dict`.
    format
        "jsonl" or "parquet" if the suffix of `path` does not tell.
    prometheus_port
        Serve the gauges on this port of 127.0.0.1; 0 takes a free one, see `port`.
    registry
        A `prometheus_client` registry to publish in; with `prometheus_port` a fresh one if None.
    names
        The joins to listen to; all if None.
    records_per_file
        How many records a Parquet file gets. Fewer if a query ends, the listener is closed,
        or a record has waited for a minute.

    Attributes
    ----------
    port : int or None
        The port that Prometheus can scrape.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        format: str | None = None,
        prometheus_port: int | None = None,
        registry: Any = None,
        names: Iterable[str] | None = None,
        records_per_file: int = 100,
    ) -> None:
        if path is None and prometheus_port is None and registry is None:
            raise JoinweirError(
                "LossListener has nowhere to report to; give path=, prometheus_port= or registry="
            )
        if path is None and format is not None:
            raise JoinweirError("format= says how to write path=, which is missing")
        self._names = None if names is None else {names} if isinstance(names, str) else {*names}
        self._lock = threading.Lock()  # Spark calls from several threads
        self._complained: set[str] = set()
        self._closed = False
        self._file = None if path is None else _open(path, format, records_per_file)
        self._scraped: _Scraped | None = None
        if prometheus_port is not None or registry is not None:
            self._scraped = _Scraped(prometheus_port, registry)
        self.port: int | None = self._scraped.port if self._scraped else None
        # Writes what is buffered also when nobody calls close() before the process ends.
        self._finish = weakref.finalize(self, _close, self._file, self._scraped)

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to report yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Report every join that this micro-batch has counts of."""
        # Each step by itself: a full disk must not stop what Prometheus shows.
        reports = self._guarded("read a query's progress", self._reports, event.progress) or []
        if self._scraped:
            self._guarded("update Prometheus", self._scraped.update, reports)
        if self._file:
            self._guarded("write", self._file.write, [report.to_dict() for report in reports])

    def onQueryIdle(self, event: Any) -> None:
        """Write what has waited long enough."""
        if self._file:
            self._guarded("write", self._file.write, [])

    def onQueryTerminated(self, event: Any) -> None:
        """Write what waits, and stop showing the query to Prometheus."""
        if self._scraped:
            self._guarded("update Prometheus", self._scraped.remove, str(event.runId))
        if self._file:
            self._guarded("write", self._file.flush)

    def close(self) -> None:
        """Write what waits and stop serving; later events are ignored."""
        with self._lock:
            self._closed = True
        self._finish()

    def __enter__(self) -> LossListener:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _reports(self, progress: Any) -> list[LossReport]:
        reports = [
            LossReport.from_row(metrics, name, progress=progress)
            for name, metrics in _observations(progress).items()
            if self._names is None or not self._names.isdisjoint((name, PREFIX + name))
        ]
        return [report for report in reports if report.n_out is not None]

    def _guarded(self, doing: str, action: Callable[..., Any], *arguments: Any) -> Any:
        """Run it; an exception must neither reach the query nor fill the log."""
        with self._lock:
            if self._closed:
                return None
            try:
                return action(*arguments)
            except Exception:
                level = logging.DEBUG if doing in self._complained else logging.ERROR
                self._complained.add(doing)
                message = "LossListener could not %s; the query goes on, and this is said once"
                logger.log(level, message, doing, exc_info=True)
                return None


class _JsonLines:
    """Appends records to a file, one line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write([])  # a path that cannot be written is the caller's error, not the query's

    def write(self, records: list[dict[str, Any]]) -> None:
        lines = b"".join(
            json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
            for record in records
        )
        # Opened anew for each micro-batch, so that the file can be rotated meanwhile.
        with open(self.path, "ab+", buffering=0) as file:
            if lines and file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a process was killed, or the disk full, within a line
                    lines = b"\n" + lines
            if lines:
                file.write(lines)

    def flush(self) -> None:
        """Nothing waits."""


class _ParquetFiles:
    """Gathers records and writes them as files of a directory that a reader sees whole."""

    def __init__(self, path: Path, records_per_file: int) -> None:
        self.path = path
        self.records_per_file = records_per_file
        self.waiting: list[dict[str, Any]] = []
        self.since = 0.0
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied", str(path))

    def write(self, records: list[dict[str, Any]]) -> None:
        if not self.waiting:
            self.since = monotonic()
        self.waiting += records
        if len(self.waiting) >= self.records_per_file or monotonic() - self.since > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        if not self.waiting:
            return
        columns = {name: [record[name] for record in self.waiting] for name in SCHEMA.names}
        columns["timestamp"] = [_time(text) for text in columns["timestamp"]]
        table = pa.table(columns, schema=SCHEMA)
        now = dt.datetime.now(dt.timezone.utc)
        name = f"loss-{now:%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}.parquet"
        unfinished = self.path / f".{name}"  # readers leave out names that start with a dot
        try:
            pq.write_table(table, unfinished)
            unfinished.rename(self.path / name)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            # A disk that stays full must not fill the memory: the oldest records go.
            del self.waiting[: -10 * self.records_per_file]
            raise
        self.waiting = []


def _time(text: str | None) -> dt.datetime | None:
    # Python 3.10 reads no "Z".
    return None if text is None else dt.datetime.fromisoformat(text.replace("Z", "+00:00"))


def _open(
    path: str | os.PathLike[str], format: str | None, records_per_file: int
) -> _JsonLines | _ParquetFiles:
    text = os.fspath(path)
    if "://" in text:
        raise JoinweirError(f"LossListener writes local files only, not {text!r}")
    if format is None:
        format = FORMATS.get(Path(text).suffix.lower())
        if format is None:
            raise JoinweirError(
                f"cannot tell the format of {text!r}; give format='jsonl' or 'parquet'"
            )
    if format not in FORMATS.values():
        raise unknown("format", format, dict.fromkeys(FORMATS.values()))
    if not isinstance(records_per_file, int) or records_per_file < 1:
        raise JoinweirError(
            f"records_per_file must be a whole number >= 1, not {records_per_file!r}"
        )
    try:
        # Absolute, since the process may change its directory later.
        where = Path(text).absolute()
        return _JsonLines(where) if format == "jsonl" else _ParquetFiles(where, records_per_file)
    except OSError as error:
        raise JoinweirError(f"cannot write {text!r}: {error.strerror or error}") from error


class _Scraped:
    """The latest report of every join, as Prometheus metrics made when they are scraped.

    A collector rather than a set of gauges: a scrape then sees all figures of one micro-batch, and
    those of a query that ended are gone with its reports.
    """

    def __init__(self, port: int | None, registry: Any) -> None:
        try:
            import prometheus_client
            from prometheus_client import core
        except ModuleNotFoundError:
            raise JoinweirError(
                "prometheus_port= and registry= need prometheus_client; "
                "install it with: pip install 'joinweir[prometheus]'"
            ) from None
        self.gauge, self.counter = core.GaugeMetricFamily, core.CounterMetricFamily
        self.latest: dict[tuple[str, str], LossReport] = {}
        self.lock = threading.Lock()
        self.registry = prometheus_client.CollectorRegistry() if registry is None else registry
        self.server: Any = None
        self.port: int | None = None
        try:
            self.registry.register(self)
        except ValueError:
            raise JoinweirError(
                "this registry has joinweir's metrics already; share one LossListener, "
                "or give each a registry of its own"
            ) from None
        if port is not None:
            try:
                self.server, self.thread = prometheus_client.start_http_server(
                    port, addr="127.0.0.1", registry=self.registry
                )
            except (OSError, OverflowError) as error:
                self.registry.unregister(self)
                raise JoinweirError(
                    f"cannot serve Prometheus on port {port}: {error}; 0 takes a free port"
                ) from error
            self.port = self.server.server_port

    def update(self, reports: list[LossReport]) -> None:
        with self.lock:
            for report in reports:
                query = report.query_name or report.query_id or ""
                self.latest[query, report.name or ""] = report

    def remove(self, run_id: str) -> None:
        # By run, since a restarted query may report before the end of its last run is told.
        with self.lock:
            self.latest = {k: r for k, r in self.latest.items() if r.run_id != run_id}

    def close(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.thread.join()
        self.registry.unregister(self)

    def describe(self) -> Iterable[Any]:
        """The metrics by name, so that a registry refuses a second listener."""
        return self._families({})

    def collect(self) -> Iterable[Any]:
        """What a scrape gets."""
        with self.lock:
            latest = dict(self.latest)
        return self._families(latest)

    def _families(self, latest: Mapping[tuple[str, str], LossReport]) -> list[Any]:
        def family(kind: Any, name: str, text: str, values: Any, *labels: str) -> Any:
            made = kind(name, text, labels=("query", "join", *labels))
            for key, report in latest.items():
                for *more, value in values(report):
                    if value is not None:
                        made.add_metric((*key, *more), value)
            return made

        def by_side(field: str) -> Callable[[LossReport], Iterable[tuple[Any, ...]]]:
            return lambda report: [(s.side, getattr(s, field)) for s in report.sides]

        def shed(report: LossReport) -> Iterator[tuple[Any, ...]]:
            for s in report.sides:
                yield s.side, "evicted", s.total_n_evicted
                yield s.side, "refused", s.total_n_refused

        gauge, counter = self.gauge, self.counter
        return [
            family(
                gauge,
                "joinweir_recall",
                "Results of the latest micro-batch over those of the exact join",
                lambda r: [(r.recall,)],
            ),
            family(
                gauge,
                "joinweir_total_recall",
                "Results since the first start over those of the exact join",
                lambda r: [(r.total_recall,)],
            ),
            family(
                counter,
                "joinweir_results_total",
                "Results since the first start",
                lambda r: [(r.total_n_out,)],
            ),
            # A gauge, since an estimate may go down, which in a counter would mean a restart.
            family(
                gauge,
                "joinweir_exact_results_total",
                "Results of the exact join since the first start, counted or estimated",
                lambda r: [(r.total_n_exact,)],
            ),
            family(
                gauge,
                "joinweir_exact_results_error",
                "Standard error of joinweir_exact_results_total",
                lambda r: [(r.total_n_exact_error,)],
            ),
            family(
                counter,
                "joinweir_rows_in_total",
                "Rows that came in since the first start",
                by_side("total_n_in"),
                "side",
            ),
            family(
                counter,
                "joinweir_rows_shed_total",
                "Rows evicted or refused for want of memory since the first start",
                shed,
                "side",
                "reason",
            ),
            family(
                counter,
                "joinweir_rows_late_total",
                "Rows dropped as late since the first start",
                by_side("total_n_late"),
                "side",
            ),
            family(
                counter,
                "joinweir_rows_null_total",
                "Rows with a null key since the first start",
                by_side("total_n_null"),
                "side",
            ),
            family(gauge, "joinweir_rows_held", "Rows held now", by_side("rows_held"), "side"),
            family(
                gauge,
                "joinweir_bytes_held",
                "Bytes held now: index, payload and accounting",
                lambda r: [(r.bytes_held,)],
            ),
            family(
                gauge,
                "joinweir_budget",
                "What may be held, in rows or bytes",
                lambda r: [(r.budget_unit or "", r.budget)],
                "unit",
            ),
            family(
                gauge,
                "joinweir_batch_seconds",
                "Duration of the latest micro-batch",
                lambda r: [(r.batch_seconds,)],
            ),
        ]


def _close(file: _JsonLines | _ParquetFiles | None, scraped: _Scraped | None) -> None:
    try:
        if file is not None:
            file.flush()
    finally:
        if scraped is not None:
            scraped.close()
