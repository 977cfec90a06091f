"""What `joinweir run` does with a job: a Spark session, the query, and a view of it while it runs.

The job was checked before (`joinweir.job`). What Spark refuses before the query runs is a
`JoinweirError`; a query that fails later is a `QueryFailed`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..errors import JoinweirError, unknown
from ..job import AVAILABLE_NOW, Job, Join, Source
from .loss import PREFIX, LossReport

STOPPED_BY_USER = 130  # as a shell reports SIGINT
POLL_SECONDS = 0.25  # between looks at the query's progress
KEPT_RECALLS = 60  # batches in the sparkline
BARS = "▁▂▃▄▅▆▇█"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class QueryFailed(Exception):
    """A query that ended with an error while it ran; the text is one line."""


def check_generator(options: Mapping[str, str]) -> None:
    """Check the options of a generator source; see `joinweir.job.read_job`."""
    from .source import check_source_options

    check_source_options(options)


# --- Spark -------------------------------------------------------------------------------------
def shard_count(job: Job) -> int:
    """Shards of the job's join: as the job says, else one for each core of a local master."""
    if job.join.shards:
        return job.join.shards
    cores = re.match(r"local\[(\d+|\*)", job.spark.master or "")
    if not cores:
        return 1
    if cores[1] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(cores[1])


def session_settings(job: Job) -> dict[str, str]:
    """The settings of the job's Spark session, those with secrets left out."""
    settings = {
        "spark.app.name": job.query.name,
        # transformWithState works with no other, and Spark's default is another.
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        # A stateful operator has this many tasks a micro-batch; the default is 200.
        "spark.sql.shuffle.partitions": str(shard_count(job)),
    }
    if job.spark.remote:
        return settings | dict(job.spark.options.plain)
    if job.spark.master.startswith("local"):
        # One machine: nothing listens on the network, and there is no page to serve.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings["spark.ui.enabled"] = "false"
        # A driver that is out of memory otherwise goes on without the thread that asked for it,
        # and the query waits for ever.
        settings["spark.driver.extraJavaOptions"] = "-XX:+ExitOnOutOfMemoryError"
    settings["spark.ui.showConsoleProgress"] = "false"  # it would draw over the view
    packages = job.spark.packages
    if job.spark.jars:
        settings["spark.jars"] = ",".join(str(jar) for jar in sorted(_jars(job.spark.jars)))
    elif packages is None and job.needs_kafka:
        packages = (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",)
    if packages:
        settings["spark.jars.packages"] = ",".join(packages)
    return settings | dict(job.spark.options.plain)


def _jars(folder: str) -> Iterator[str]:
    yield from ([folder] if "://" in folder else (str(p) for p in Path(folder).glob("*.jar")))


class SparkLog:
    """A file for what Spark and its Python workers say, so that it does not go over the view.

    Without a name it is a temporary one, which is kept if something failed.
    """

    def __init__(self, file: str | None) -> None:
        self.file, self.kept = file, file is not None

    def __enter__(self) -> SparkLog:
        if self.file is None:
            number, self.file = tempfile.mkstemp(prefix="joinweir-spark-", suffix=".log")
            os.close(number)
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        if kind is not None and issubclass(kind, (QueryFailed, JoinweirError)):
            self.kept = True
        if not self.kept:
            os.unlink(self.file)

    @contextlib.contextmanager
    def for_children(self) -> Iterator[None]:
        """Processes that are started meanwhile write to the file instead of to stderr."""
        sys.stderr.flush()
        own = os.dup(2)
        with open(self.file, "ab") as log:
            os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(own, 2)
            os.close(own)


def open_session(job: Job) -> SparkSession:
    """The Spark session that a job asks for."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run PATH's python3
    if (job.spark.master or "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = session_settings(job) | job.spark.options.filled()
    builder = SparkSession.builder
    builder = builder.remote(job.spark.remote) if job.spark.remote else builder.master(
        job.spark.master
    )  # fmt: skip
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except PySparkException as error:
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise JoinweirError(
                "Spark did not start: it needs Java 17 or 21 (JAVA_HOME), and its packages must be"
                " within reach"
            ) from None
        raise JoinweirError(f"Spark did not start: {first_line(error)}") from None
    return session


def read_source(spark: SparkSession, source: Source) -> DataFrame:
    """A job's source as a streaming DataFrame."""
    options = source.options.filled()
    if source.format == "generator":
        from .source import register_source

        register_source(spark)
        return spark.readStream.format("joinweir").options(**options).load()
    if source.format == "kafka":
        raw = spark.readStream.format("kafka").options(**options).load()
        # A value that is no JSON, or of other types, gives null columns: a null key is counted.
        value = F.from_json(F.col("value").cast("string"), source.schema)
        return raw.select(value.alias("value")).select("value.*")
    schema = source.schema or spark.read.format(source.format).load(source.path).schema
    reader = spark.readStream.format(source.format).schema(schema).options(**options)
    return reader.load(source.path)


def join_arguments(job: Job) -> dict[str, Any]:
    """What `window_join` is called with beside the streams."""
    join: Join = job.join
    given = {field.name: getattr(join, field.name) for field in dataclasses.fields(join)}
    given["on"] = list(join.on)
    if isinstance(join.columns, tuple):
        given["columns"] = list(join.columns)
    return given | {"shards": shard_count(job), "name": job.query.name}


def start_query(
    job: Job, joined: DataFrame, *, once: bool = False, show: Callable | None = None
) -> Any:
    """Start the query that writes a job's results; the console's go to `show(batch id, table)`."""
    sink = job.sink
    shaped = _as_messages(job, joined) if sink.format == "kafka" else joined
    for name in sink.partition_by:
        if name not in joined.columns:
            raise unknown("column of the result in [sink] partition_by", name, joined.columns)
    writer = shaped.writeStream.queryName(job.query.name).outputMode("append")
    if sink.format == "console":
        # Not limit(): it would run some of the tasks only, and the others' state stay behind.
        first = first_rows(sink.rows)
        writer = writer.foreachBatch(
            lambda frame, batch: show(batch, _fetched(frame.mapInArrow(first, frame.schema)))
        )
    else:
        writer = writer.format(sink.format).options(**sink.options.filled())
        if sink.path:
            writer = writer.option("path", sink.path)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
    if job.query.checkpoint:
        writer = writer.option("checkpointLocation", job.query.checkpoint)
    if once or job.query.trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    elif job.query.trigger:
        writer = writer.trigger(processingTime=job.query.trigger)
    return writer.start()


def first_rows(n: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow` that reads its whole partition and passes n rows on.

    A micro-batch can have millions of results; fetching them all, as Spark's own console sink does,
    filled the driver's heap of 1 GB.
    """

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        missing = n
        for batch in batches:
            if missing:
                yield batch.slice(0, missing)
                missing -= min(missing, batch.num_rows)

    return read


def _fetched(frame: DataFrame) -> pa.Table:
    try:
        return frame.toArrow()
    except Exception as error:
        # Spark searches the text with a regex that overflows its stack on a long traceback, such
        # as that of a batch which is interrupted by a stop.
        raise JoinweirError(what_failed(str(error))) from None


def _as_messages(job: Job, joined: DataFrame) -> DataFrame:
    """Rows as Kafka messages: the key's columns and all columns, each as JSON."""
    names = joined.columns
    key = job.sink.key
    if key is None:
        firsts = [name if isinstance(name, str) else name[0] for name in job.join.on]
        key = tuple(firsts) if set(firsts) <= set(names) else ()
    for name in key:
        if name not in names:
            raise unknown("column of the result in [sink] key", name, names)
    value = F.to_json(F.struct(*(F.col(f"`{n.replace('`', '``')}`") for n in names)))
    message = [value.alias("value")]
    if key:
        parts = F.struct(*(F.col(f"`{n.replace('`', '``')}`") for n in key))
        message.insert(0, F.to_json(parts).alias("key"))
    return joined.select(*message)


# --- running -----------------------------------------------------------------------------------
def run_job(
    job: Job,
    *,
    as_json: bool = False,
    once: bool = False,
    join: Callable[..., DataFrame] | None = None,
) -> int:
    """Run a job until it ends or is stopped; returns the exit code.

    0 when the query came to its end (`once`) or was stopped by SIGTERM, 130 when by Ctrl-C.

    Parameters
    ----------
    job
        From `joinweir.job.read_job`.
    as_json
        Print a JSON object a line: one a micro-batch, and a summary at the end.
    once
        Process what is there and stop, whatever the job's trigger.
    join
        Instead of `joinweir.spark.window_join`, with the same arguments.
    """
    if join is None:
        from .window_join import window_join as join
    view = _view(job, as_json)
    signals = _Signals()
    with signals, SparkLog(job.spark.log) as log, contextlib.ExitStack() as closing:
        try:
            with log.for_children():
                spark = open_session(job)
            closing.callback(_quietly, spark.stop)
            signals.take()  # again: a starting SparkContext takes SIGINT for itself
            if not signals.came:
                query = _start(job, spark, join, once, view)
                with view:
                    _follow(query, view, signals)
                view.end(signals.came)
        except (QueryFailed, JoinweirError) as error:
            raise type(error)(f"{error} (Spark's log: {log.file})") from None
    return STOPPED_BY_USER if signals.came == signal.SIGINT else 0


def _start(job: Job, spark: SparkSession, join: Callable, once: bool, view: View) -> Any:
    try:
        streams = [read_source(spark, source) for source in job.sources]
        frames = streams if len(streams) == 2 else [streams]
        joined = join(*frames, **join_arguments(job))
        return start_query(job, joined, once=once, show=view.rows)
    except PySparkException as error:
        raise JoinweirError(f"{job.file}: Spark refuses it: {first_line(error)}") from None


def _follow(query: Any, view: View, signals: _Signals) -> None:
    """Show each micro-batch until the query ends, fails, or is to be stopped."""
    seen: int | None = None
    try:
        ended = False
        while not ended and not signals.came:
            ended = query.awaitTermination(POLL_SECONDS)
            for progress in _since(query, seen):
                seen = progress["batchId"]
                view.batch(progress, _report(progress))
            view.refresh()
    except PySparkException as error:
        raise QueryFailed(what_failed(str(error))) from None
    except (Py4JError, ConnectionRefusedError, ConnectionResetError):
        raise QueryFailed(
            "Spark itself ended; if for want of memory, raise [spark.conf] 'spark.driver.memory'"
        ) from None
    finally:
        _quietly(query.stop)


def _since(query: Any, seen: int | None) -> Iterator[Any]:
    """Progress of the micro-batches after batch `seen`, in order."""
    last = query.lastProgress
    if last is None or last["batchId"] == seen:
        return
    recent = [last]
    if seen is None or last["batchId"] > seen + 1:
        recent = query.recentProgress or recent
    told = seen
    for progress in recent:
        # A trigger without new data reports the batch to come, without having run it.
        if progress["batchId"] != told and "addBatch" in progress["durationMs"]:
            if told is None or progress["batchId"] > told:
                told = progress["batchId"]
                yield progress


def _report(progress: Any) -> LossReport | None:
    for name, row in (progress["observedMetrics"] or {}).items():
        if name.startswith(PREFIX):
            return LossReport.from_row(row, name, progress=progress)
    return None


def _quietly(stop: Callable[[], Any]) -> None:
    """Stop what may be gone already."""
    with contextlib.suppress(Exception):
        stop()


class _Signals:
    """Ctrl-C and SIGTERM ask for an orderly stop; a second Ctrl-C does not wait for it."""

    def __init__(self) -> None:
        self.came: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def take(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python lets only the main thread set handlers
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._stop)
            self.before.setdefault(number, before)

    def _stop(self, number: int, frame: object) -> None:
        if self.came is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.came = number


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says something, without Spark's SQLSTATE."""
    lines = (line.strip() for line in str(error).splitlines())
    text = next((line for line in lines if line), type(error).__name__)
    return re.sub(r"\s*SQLSTATE: \w+$", "", text)


def what_failed(text: str) -> str:
    """One line out of the error of a streaming query.

    A Python worker's error is the last line of its traceback; of Spark's own error it is the first
    line, without ids.
    """
    text = text.partition("=== Streaming Query ===")[0]
    raised = re.findall(r"^\s*((?:\w+\.)*\w*(?:Error|Exception|Interrupt)): (.+)$", text, re.M)
    python = [found for found in raised if not re.match(r"(org|java|scala|py4j)\.", found[0])]
    if "Traceback (most recent call last)" in text and python:
        kind, message = python[-1]
        own = kind.startswith("joinweir.")
        return message.strip() if own else f"{kind.rpartition('.')[2]}: {message.strip()}"
    line = first_line(Exception(text))
    return re.sub(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", "", line)


# --- the view ----------------------------------------------------------------------------------
def _view(job: Job, as_json: bool) -> View:
    if as_json:
        return JsonView(job)
    return LiveView(job) if sys.stdout.isatty() else LineView(job)


class View:
    """Shows a running query; one of the kinds below."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.batches = 0
        self.began = monotonic()
        self.report: LossReport | None = None
        self.progress: Any = None

    def __enter__(self) -> View:
        self.began = monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def batch(self, progress: Any, report: LossReport | None) -> None:
        """A micro-batch is done."""
        self.batches += 1
        self.progress, self.report = progress, report or self.report

    def rows(self, batch: int, table: pa.Table) -> None:
        """First results of a micro-batch, for the console sink; called in another thread."""

    def refresh(self) -> None:
        """Time has passed."""

    def end(self, stopped_by: int | None) -> None:
        """The query has ended."""


class JsonView(View):
    """A JSON object a line."""

    def batch(self, progress: Any, report: LossReport | None) -> None:
        super().batch(progress, report)
        figures = report.to_dict() if report else {}
        _print_json({"event": "batch", **_batch_figures(progress), **figures})

    def rows(self, batch: int, table: pa.Table) -> None:
        shown = table.slice(0, self.job.sink.rows).to_pylist()
        _print_json({"event": "rows", "batch_id": batch, "rows": shown})

    def end(self, stopped_by: int | None) -> None:
        totals = self.report.to_dict() if self.report else {}
        _print_json(
            {
                "event": "summary",
                "stopped_by": signal.Signals(stopped_by).name if stopped_by else None,
                "batches": self.batches,
                "seconds": round(monotonic() - self.began, 3),
                "sink": self.job.sink.path or self.job.sink.format,
                "checkpoint": self.job.query.checkpoint,
                **{key: value for key, value in totals.items() if key.startswith("total_")},
                "sides": [
                    {k: v for k, v in side.items() if k == "side" or k.startswith("total_")}
                    for side in totals.get("sides", [])
                ],
            }
        )


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, default=str), flush=True)


def _batch_figures(progress: Any) -> dict[str, Any]:
    return {
        "batch_id": progress["batchId"],
        "rows_in": progress["numInputRows"],
        "batch_seconds": _seconds(progress),
    }


def _seconds(progress: Any) -> float:
    return progress["durationMs"].get("triggerExecution", 0) / 1000


class LineView(View):
    """A line a micro-batch, for files and pipes."""

    def batch(self, progress: Any, report: LossReport | None) -> None:
        super().batch(progress, report)
        print(" · ".join(_line(progress, report)), flush=True)

    def rows(self, batch: int, table: pa.Table) -> None:
        if table.num_rows:
            wide = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160)
            wide.print(_result_table(batch, table, self.job.sink.rows))

    def end(self, stopped_by: int | None) -> None:
        print(_summary(self, stopped_by), flush=True)


class LiveView(LineView):
    """A panel on the terminal that is drawn anew as the query goes on."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.recalls: deque[float] = deque(maxlen=KEPT_RECALLS)
        self.console = Console(file=sys.stdout, highlight=False, emoji=False)
        self.live = Live(console=self.console, auto_refresh=False, get_renderable=self._panel)

    def __enter__(self) -> LiveView:
        super().__enter__()
        self.live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def batch(self, progress: Any, report: LossReport | None) -> None:
        View.batch(self, progress, report)
        if report and report.recall is not None:
            self.recalls.append(report.recall)

    def rows(self, batch: int, table: pa.Table) -> None:
        if table.num_rows:
            self.console.print(_result_table(batch, table, self.job.sink.rows))

    def refresh(self) -> None:
        self.live.refresh()

    def _panel(self) -> Panel:
        job, report = self.job, self.report
        title = f"{job.query.name} · {job.join.policy} · within {_told(job.join.within)}"
        if self.progress is None:
            # Code for a policy that this machine never ran takes some 10 s to 60 s to compile.
            wait = "waiting for the first micro-batch; the first on a machine takes longer"
            body: Any = Text(wait, style="dim")
        else:
            body = live_table(self.progress, report, self.recalls)
        places = job.sink.path or job.sink.options.plain.get("topic") or "console"
        foot = f"{self.batches:,} batches in {self._elapsed()} → {places} · Ctrl-C stops"
        return Panel(Group(body), title=Text(title), subtitle=Text(foot), title_align="left")

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(monotonic() - self.began), 60)
        return f"{minutes}:{seconds:02d}"


def live_table(progress: Any, report: LossReport | None, recalls: deque[float]) -> Table:
    """The panel's body for the last micro-batch."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="dim")
    seconds = _seconds(progress)
    table.add_row("batch", f"{progress['batchId']:,}", f"{seconds:.2f} s")
    rate = progress["numInputRows"] / seconds if seconds else 0.0
    table.add_row("rows in", f"{rate:,.0f}/s", f"{progress['numInputRows']:,} in the batch")
    if report is None:
        return table
    if report.n_out is not None:
        out = report.n_out / seconds if seconds else 0.0
        table.add_row("results", f"{out:,.0f}/s", f"{report.total_n_out or 0:,} in total")
    if report.total_recall is not None:
        error = report.total_recall_error
        total = f"total {report.total_recall:.1%}{f' ± {error:.1%}' if error else ''}"
        table.add_row("recall", f"{report.recall or 0:.1%}  {sparkline(recalls)}", total)
    held = f"{report.rows_held or 0:,} rows, {_size(report.bytes_held)}"
    if report.budget:
        used = (report.used or 0) / report.budget
        amount = (
            _size(report.budget) if report.budget_unit == "bytes" else f"{report.budget:,} rows"
        )
        bar = ProgressBar(total=1.0, completed=min(used, 1.0), width=30)
        table.add_row("held", bar, f"{used:.0%} of {amount} ({held})")
    else:
        table.add_row("held", held, "no budget")
    for what in ("shed", "late", "null"):
        now, total = (_over(report, f"{prefix}n_{what}") for prefix in ("", "total_"))
        table.add_row(what, f"{now:,}", f"{total:,} in total")
    return table


def _over(report: LossReport, name: str) -> int:
    return sum(getattr(side, name) or 0 for side in report.sides)


def sparkline(shares: deque[float]) -> str:
    """Shares from 0 to 1 as a row of bars.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    top = len(BARS) - 1
    return "".join(BARS[round(min(max(share, 0.0), 1.0) * top)] for share in shares)


def _size(n: int | None) -> str:
    amount, unit = float(n or 0), "bytes"
    for larger in ("KB", "MB", "GB", "TB"):  # of 1024, as in memory=
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.0f} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"


def _told(window: Any) -> str:
    return ", ".join(map(str, window)) if isinstance(window, tuple) else str(window)


def _line(progress: Any, report: LossReport | None) -> Iterator[str]:
    seconds = _seconds(progress)
    yield f"batch {progress['batchId']}"
    yield f"{seconds:.2f} s"
    yield f"{progress['numInputRows']:,} rows in"
    if report is None:
        return
    yield f"{report.n_out or 0:,} out"
    if report.recall is not None:
        yield f"recall {report.recall:.1%} (total {report.total_recall or 0:.1%})"
    held = f"{report.rows_held or 0:,} rows, {_size(report.bytes_held)} held"
    if report.budget:
        held += f" ({(report.used or 0) / report.budget:.0%} of the budget)"
    yield held
    for what in ("shed", "late", "null"):
        yield f"{_over(report, f'n_{what}'):,} {what}"


def _summary(view: View, stopped_by: int | None) -> str:
    job, report = view.job, view.report
    how = f"stopped by {signal.Signals(stopped_by).name}" if stopped_by else "done"
    parts = [f"{job.query.name}: {how} after {view.batches:,} batches"]
    if report is not None:
        parts.append(f"{_over(report, 'total_n_in'):,} rows in")
        parts.append(f"{report.total_n_out or 0:,} results")
        if report.total_recall is not None:
            parts.append(f"recall {report.total_recall:.1%}")
        for what in ("shed", "late", "null"):
            parts.append(f"{_over(report, f'total_n_{what}'):,} {what}")
    return ", ".join(parts)


def _result_table(batch: int, results: pa.Table, most: int) -> Table:
    shown = min(most, results.num_rows)
    table = Table(title=f"batch {batch}: first {shown:,} results")
    for name in results.column_names:
        table.add_column(Text(name))
    for row in results.slice(0, shown).to_pylist():
        table.add_row(*(Text(str(value)) for value in row.values()))
    return table
