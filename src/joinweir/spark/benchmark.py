"""`window_join` beside Spark's own stream-stream join: same data, same sink, same settings.

Data. Two streams, one row a millisecond each, keys uniform, a number and a text as payload. With W
rows in the window of both streams and W / 2 / r keys, a row has r results on average. The streams
are written once as Parquet, one file a stream and micro-batch; all runs read these.

Runs. Each has a process of its own: a fresh JVM, fresh Python workers, an empty checkpoint. What is
compared differs between runs, nothing else does: cores, heap, sink (`noop`), trigger. Spark's join
is inner, with watermarks and the same window as its condition, so it forgets rows when
`window_join` does. Its three ways to hold state are each tried with several numbers of shuffle
partitions, RocksDB also with and without changelog checkpointing; the fastest counts.

Times. Of a micro-batch, Spark's `triggerExecution`: everything from looking for files to the commit
of the state. The first micro-batches, until the window has been filled and everything is compiled
and loaded, do not count; of the others the median does. A run ends at its time limit; one that
measured nothing until then has a lower bound instead of a time.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import JoinweirError
from ..units import memory_bytes

STATE = "spark.sql.streaming.stateStore"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
CHANGELOG = f"{STATE}.rocksdb.changelogCheckpointing.enabled"
PARTITIONS = "spark.sql.shuffle.partitions"
ROCKSDB = {f"{STATE}.providerClass": f"{PROVIDERS}.RocksDBStateStoreProvider"}
HDFS = {f"{STATE}.providerClass": f"{PROVIDERS}.HDFSBackedStateStoreProvider"}

SIZES = (200_000, 1_000_000)  # rows of both streams in a micro-batch
WINDOW_ROWS = 200_000  # of both streams
RESULTS_PER_ROW = 7.0
PAYLOAD, LARGE_PAYLOAD = 50, 200  # bytes
STEADY = 5  # micro-batches that count, if not told otherwise
WARM = 2  # micro-batches that never count: code is loaded and compiled in them
LIMIT = 600.0  # seconds for the micro-batches of a run
HOPELESS = 1.25  # a variant that takes so much longer than the best one so far is stopped
HEAP = "4g"
SCRATCH = "joinweir-bench-"
TRIED_PARTITIONS = (2, 1, 4)
FLOOR_ROWS, FLOOR_BATCHES = 20, 25
HELD = (10_000, 1_000_000)
STEP_US = 1000
MB = 1 << 20  # as in memory=
START_US = 1_767_225_600_000_000  # 2026; to Spark's join, times up to 1970 are late
START_LIMIT = 120.0  # seconds for a JVM to start

Progress = Callable[[str, float], None]


# --- data ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Workload:
    """Two streams in micro-batches.

    Attributes
    ----------
    rows_per_batch, batches
        Rows of both streams in a micro-batch; how many micro-batches.
    window_rows
        Rows of both streams in a window: what an exact join holds.
    results_per_row
        Of the exact join, in steady state.
    payload
        Length of the text column.
    warm
        Micro-batches at the start that do not count.
    """

    rows_per_batch: int
    batches: int
    window_rows: int = WINDOW_ROWS
    results_per_row: float = RESULTS_PER_ROW
    payload: int = PAYLOAD
    warm: int = WARM
    seed: int = 1

    @property
    def keys(self) -> int:
        """How many keys give that many results."""
        return max(1, round(self.window_rows / 2 / self.results_per_row))

    @property
    def within_us(self) -> int:
        """Length of the window."""
        return max(1, self.window_rows // 2) * STEP_US

    def write(self, folder: Path) -> None:
        """Write the streams: ``left/00000.parquet`` and so on."""
        half = self.rows_per_batch // 2
        random = np.random.default_rng([self.seed, self.rows_per_batch, self.window_rows])
        letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz012345", np.uint8)
        for side in ("left", "right"):
            (folder / side).mkdir(parents=True)
            for i in range(self.batches):
                number = np.arange(i * half, (i + 1) * half)
                text = letters[random.integers(0, letters.size, half * self.payload, np.uint8)]
                at = np.arange(half + 1, dtype=np.int32) * self.payload
                table = pa.table(
                    {
                        "key": random.integers(0, self.keys, half),
                        "ts": pa.array(START_US + number * STEP_US).cast(pa.timestamp("us", "UTC")),
                        "value": number,
                        "payload": pa.StringArray.from_buffers(
                            half, pa.py_buffer(at), pa.py_buffer(text)
                        ),
                    }
                )
                file = folder / side / f"{i:05d}.parquet"
                # Row groups of a size at which a file can be read by two tasks; random letters
                # and running numbers gain nothing from a dictionary.
                groups = max(1000, half // 4)
                pq.write_table(table, file, row_group_size=groups, use_dictionary=False)
                moment = 1_700_000_000 + 10 * i  # Spark takes files by age
                os.utime(file, (moment, moment))


def steady_workload(
    rows_per_batch: int, batches: int | None = None, window_rows: int = WINDOW_ROWS, **more: Any
) -> Workload:
    """A workload whose window is full before the first micro-batch that counts."""
    if rows_per_batch < 2:
        raise JoinweirError(f"a micro-batch needs 2 rows or more, not {rows_per_batch}")
    if window_rows < 2:
        raise JoinweirError(f"the window needs 2 rows or more, not {window_rows}")
    warm = max(WARM, -(-window_rows // rows_per_batch) + 1)
    if batches is None:
        batches = warm + STEADY
    if batches <= warm:
        raise JoinweirError(
            f"{batches} micro-batches of {rows_per_batch:,} rows are too few: the first {warm} "
            f"fill the window of {window_rows:,} rows; give --batches {warm + 1} or more"
        )
    return Workload(rows_per_batch, batches, window_rows, warm=warm, **more)


# --- what is compared ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Arm:
    """One way to do the join: Spark's own (`join` is None) or `window_join` with arguments."""

    name: str
    settings: dict[str, str]
    join: dict[str, Any] | None = None
    tune: tuple[str, ...] = ()  # what is tried: "partitions", "changelog"


SPARK_ARMS = (
    Arm("Spark, RocksDB", ROCKSDB, tune=("partitions", "changelog")),
    Arm(
        "Spark, RocksDB, format 4",
        ROCKSDB | {"spark.sql.streaming.join.stateFormatVersion": "4"},
        tune=("partitions", "changelog"),
    ),
    Arm("Spark, HDFS-backed", HDFS, tune=("partitions",)),
)
ROCKSDB_DEFAULT = SPARK_ARMS[0].name


def joinweir_arm(name: str, **arguments: Any) -> Arm:
    """`window_join` as an arm."""
    return Arm(name, ROCKSDB, arguments)


def joinweir_arms(workload: Workload) -> list[Arm]:
    """`window_join` with all, enough and little memory."""
    whole, tenth = workload.window_rows, max(2, workload.window_rows // 10)
    return [
        joinweir_arm("window_join, unbounded"),
        joinweir_arm("window_join, 100 %, gdj", max_rows=whole, policy="gdj"),
        joinweir_arm("window_join, 10 %, gdj", max_rows=tenth, policy="gdj"),
        joinweir_arm("window_join, 10 %, fifo", max_rows=tenth, policy="fifo"),
    ]


@dataclass
class Run:
    """What one arm did with one workload.

    Attributes
    ----------
    partitions, changelog
        Settings of this run.
    batches
        A dict a micro-batch: batch, rows, results, seconds, ms (Spark's durations), and for
        `window_join` recall, rows_held and bytes_held.
    seconds, lower_bound
        Median of the micro-batches that count; or, without any, the time after which the run was
        stopped, in the middle of a micro-batch.
    cpu_seconds
        CPU time of a micro-batch that counts: jvm, python.
    stopped
        Why the run ended early, or None.
    memory
        Largest resident sizes in bytes: jvm, python (all workers), python_largest (one worker).
    equal
        Whether every micro-batch had as many results as the exact arms that ran before; None if
        the arm is not exact, or there is nothing to compare with.
    """

    arm: str
    exact: bool
    partitions: int
    changelog: bool
    batches: list[dict[str, Any]] = field(default_factory=list)
    counted: int = 0
    seconds: float | None = None
    lower_bound: float | None = None
    rows_per_second: float | None = None
    results_per_second: float | None = None
    recall: float | None = None
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    stopped: str | None = None
    memory: dict[str, int] = field(default_factory=dict)
    equal: bool | None = None
    ratio_to_best_spark: float | None = None
    ratio_to_rocksdb: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        return asdict(self)

    def breakdown(self, warm: int) -> dict[str, float]:
        """Median of each of Spark's durations, in ms, over the micro-batches that count."""
        steady = [b["ms"] for b in self.batches if b["batch"] >= warm]
        names = dict.fromkeys(name for ms in steady for name in ms)
        return {name: statistics.median(ms.get(name, 0) for ms in steady) for name in names}

    def _measure(self, warm: int) -> None:
        steady = [b for b in self.batches if b["batch"] >= warm]
        self.counted = len(steady)
        if steady:
            self.seconds = statistics.median(b["seconds"] for b in steady)
            rate = 1 / max(self.seconds, 1e-9)
            self.rows_per_second = rate * statistics.median(b["rows"] for b in steady)
            self.results_per_second = rate * statistics.median(b["results"] for b in steady)
        seen = [b["cpu"] for b in self.batches if b["batch"] >= warm - 1 and "cpu" in b]
        if len(seen) > 1:
            self.cpu_seconds = {
                kind: (seen[-1][kind] - seen[0][kind]) / (len(seen) - 1) for kind in seen[0]
            }
        if self.batches and "total_recall" in self.batches[-1]:
            self.recall = self.batches[-1]["total_recall"]


def compare_joins(
    sizes: Sequence[int] = SIZES,
    *,
    batches: int | None = None,
    window_rows: int = WINDOW_ROWS,
    payload: int = PAYLOAD,
    partitions: Sequence[int] = TRIED_PARTITIONS,
    cores: int = 2,
    limit: float = LIMIT,
    heap: str = HEAP,
    seed: int = 1,
    spark_arms: Sequence[Arm] = SPARK_ARMS,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Time Spark's join and `window_join` at several sizes of micro-batch.

    Returns
    -------
    list of dict
        For each size: ``workload``, ``runs`` (one an arm, the best variant of Spark's),
        ``tried`` (the other variants), ``best_spark``, ``equal``.
    """
    loads = [
        steady_workload(size, batches, window_rows, payload=payload, seed=seed) for size in sizes
    ]
    _check_partitions(partitions)
    host = _Host(cores, heap, limit)
    found = []
    for number, load in enumerate(loads):
        arms = [*spark_arms, *joinweir_arms(load)]
        with _written(load) as folder:
            runs: list[Run] = []
            tried: list[Run] = []
            for place, arm in enumerate(arms):
                done = (number + place / len(arms)) / len(loads)

                def tell(text: str, load=load, done=done) -> None:
                    if progress:
                        progress(f"{load.rows_per_batch:,} rows: {text}", done)

                variants = _best_variant(host, arm, load, folder, partitions, tell)
                runs.append(variants.pop(0))
                tried += variants
        found.append(_compared(load, runs, tried))
    return found


def measure_floor(
    *,
    batches: int = FLOOR_BATCHES,
    cores: int = 2,
    heap: str = HEAP,
    limit: float = LIMIT,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Time micro-batches of 20 rows: what is left when there is nothing to do."""
    if batches <= 5:
        raise JoinweirError(f"--batches must be more than 5 for --floor, not {batches}")
    load = Workload(FLOOR_ROWS, batches, FLOOR_ROWS, warm=5)
    host = _Host(cores, heap, limit)
    arms = [*SPARK_ARMS, joinweir_arm("window_join, unbounded")]
    runs = []
    with _written(load) as folder:
        for place, arm in enumerate(arms):
            if progress:
                progress(f"{FLOOR_ROWS} rows: {arm.name}", place / len(arms))
            runs.append(host.run(arm, load, folder, cores))
    return _compared(load, runs, [])


def measure_held(
    held: Sequence[int] = HELD,
    *,
    rows_per_batch: int = SIZES[0],
    payload: int = LARGE_PAYLOAD,
    policies: Sequence[str] = ("gdj", "fifo"),
    cores: int = 2,
    heap: str = HEAP,
    limit: float = LIMIT,
    seed: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Time micro-batches of one size with few and with many rows held.

    The window is longer than the streams, so the budget, once full, stays full. There are as many
    keys as give each row the same number of results at either budget.
    """
    found = []
    host = _Host(cores, heap, limit)
    for place, budget in enumerate(held):
        if budget < 2:
            raise JoinweirError(f"--held must be 2 rows or more, not {budget}")
        warm = max(WARM, -(-budget // rows_per_batch) + 1)
        total = (warm + STEADY) * rows_per_batch
        load = Workload(
            rows_per_batch,
            warm + STEADY,
            window_rows=2 * total,
            results_per_row=RESULTS_PER_ROW * 2 * total / budget,
            payload=payload,
            warm=warm,
            seed=seed,
        )
        with _written(load) as folder:
            for turn, chosen in enumerate(policies):
                if progress:
                    done = (place + turn / len(policies)) / len(held)
                    progress(f"{budget:,} rows held, {chosen}", done)
                arm = joinweir_arm(f"window_join, {chosen}", max_rows=budget, policy=chosen)
                run = host.run(arm, load, folder, cores)
                found.append({"held": budget, "policy": chosen, "run": run})
    smallest = {r["policy"]: r["run"].seconds for r in found if r["held"] == min(held)}
    for r in found:
        r["ratio"] = _ratio(r["run"].seconds, smallest[r["policy"]])
        r["breakdown"] = r["run"].breakdown(max(WARM, -(-r["held"] // rows_per_batch) + 1))
        r["run"] = r["run"].to_dict()
    return {"rows_per_batch": rows_per_batch, "payload": payload, "runs": found}


def _check_partitions(partitions: Sequence[int]) -> None:
    if not partitions or any(n < 1 for n in partitions):
        raise JoinweirError(f"--partitions must be 1 or more, not {list(partitions)}")


@contextlib.contextmanager
def _written(load: Workload) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder:
        load.write(Path(folder))
        yield Path(folder)


def _best_variant(
    host: _Host, arm: Arm, load: Workload, folder: Path, partitions: Sequence[int], tell: Callable
) -> list[Run]:
    """All variants of an arm that were tried, the best one first.

    The numbers of partitions are tried with changelog checkpointing, the best of them also
    without.
    """
    runs: list[Run] = []

    def attempt(n: int, changelog: bool) -> None:
        tell(f"{arm.name}, {n} partitions" + ("" if changelog else ", no changelog"))
        runs.append(host.run(arm, load, folder, n, changelog, _patience(runs)))
        runs.sort(key=_rank)

    for n in partitions if "partitions" in arm.tune else (host.cores,):
        attempt(n, True)
    if "changelog" in arm.tune:
        attempt(runs[0].partitions, False)
    return runs


def _rank(run: Run) -> tuple[bool, float]:
    return run.seconds is None, run.seconds or -len(run.batches)


def _patience(runs: Sequence[Run]) -> float | None:
    """The time after which another variant cannot be the best any more."""
    whole = [sum(b["seconds"] for b in run.batches) for run in runs if run.stopped is None]
    return HOPELESS * min(whole) + 5.0 if whole else None


def _ratio(seconds: float | None, other: float | None) -> float | None:
    return None if not seconds or not other else seconds / other


def _compared(load: Workload, runs: list[Run], tried: list[Run]) -> dict[str, Any]:
    """Runs beside each other: ratios, and whether exact joins have the same results."""
    spark = [run for run in runs if run.arm in {arm.name for arm in SPARK_ARMS}]
    measured = [run for run in spark if run.seconds is not None]
    best = min(measured, key=lambda run: run.seconds, default=None)
    default = next((run for run in spark if run.arm == ROCKSDB_DEFAULT), None)
    known: dict[int, int] = {}
    for run in [*runs, *tried]:
        if not run.exact:
            continue
        own = {b["batch"]: b["results"] for b in run.batches}
        common = own.keys() & known.keys()
        run.equal = all(own[b] == known[b] for b in common) if common else None
        known = own | known
    for run in runs:
        if run.seconds is not None:
            run.ratio_to_best_spark = _ratio(best.seconds if best else None, run.seconds)
            run.ratio_to_rocksdb = _ratio(default.seconds if default else None, run.seconds)
    told = asdict(load) | {"keys": load.keys, "within_seconds": load.within_us / 1e6}
    return {
        "workload": told,
        "runs": [run.to_dict() | {"breakdown": run.breakdown(load.warm)} for run in runs],
        "tried": [run.to_dict() for run in tried],
        "best_spark": best.arm if best else None,
        "equal": all(run.equal is not False for run in [*runs, *tried]),
    }


# --- a long run ----------------------------------------------------------------------------------
SOAK_PAYLOAD = 200
SOAK_BATCH = 100_000
FIXED_BYTES = 28  # of a row beside the text: key, time, value and the text's offset


def soak(
    *,
    minutes: float = 10.0,
    memory: int | str = "64 MB",
    need: int | str = "1 GB",
    policy: str = "gdj",
    rows_per_batch: int = SOAK_BATCH,
    payload: int = SOAK_PAYLOAD,
    cores: int = 2,
    heap: str = "2g",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Join endless streams whose window needs much more than the budget, and watch the memory.

    The streams come from ``format("joinweir")``, as fast as they are joined. Keys come in bursts
    that both streams share.

    Parameters
    ----------
    minutes
        How long, from the end of the first micro-batch.
    memory
        The join's budget.
    need
        What the rows of a window take as bare columns, without any index.

    Returns
    -------
    dict
        ``parameters``; ``batches`` and ``resident``: what was seen when; ``summary``; ``exceeded``:
        how many micro-batches ended with more bytes held than the budget.
    """
    if not minutes > 0:
        raise JoinweirError(f"--minutes must be more than 0, not {minutes}")
    budget, needed = memory_bytes(memory), memory_bytes(need)
    window_rows = -(-needed // (payload + FIXED_BYTES))
    half = max(1, window_rows // 2)
    source = {
        "generator": "copy_pair",
        "shared": "true",
        "skew": "0",
        "domain": str(min(half, 1_000_000)),
        "seed": "1",
        "rowsPerBatch": str(max(1, rows_per_batch // 2)),
        "timeStep": "1 ms",
        "payloadBytes": str(payload),
    }
    parameters = {
        "minutes": minutes,
        "memory": budget,
        "need": needed,
        "window_rows": window_rows,
        "rows_per_batch": rows_per_batch,
        "payload": payload,
        "policy": policy,
        "source": source,
    }
    told = {
        "settings": session_settings(cores, heap, cores) | ROCKSDB,
        "source": source,
        "join": {"within": half / 1000, "memory": budget, "policy": policy},
        "seconds": 60 * minutes,
    }
    batches: list[dict[str, Any]] = []
    resident: list[dict[str, Any]] = []
    for step in beside("soak", told, 60 * minutes + LIMIT, "the soak"):
        if "batch" in step:
            batches.append(step)
        elif "memory" in step:
            resident.append({"at": step["at"], **step["memory"]})
        if progress and "at" in step:
            text = "first micro-batch"
            if batches:
                last = batches[-1]
                text = f"{last['bytes_held'] / MB:.1f} MB held"
            progress(text, min(1.0, step["at"] / (60 * minutes)))
    filled = next(
        (i for i, b in enumerate(batches) if _rows_until(batches, i) >= window_rows), None
    )
    return {
        "parameters": parameters,
        "batches": batches,
        "resident": resident,
        "window_full_at": None if filled is None else batches[filled]["at"],
        "summary": _soak_summary(batches, resident),
        "exceeded": sum(b["bytes_held"] > budget for b in batches),
    }


def _rows_until(batches: Sequence[dict[str, Any]], i: int) -> int:
    return sum(b["rows"] for b in batches[: i + 1])


def _soak_summary(batches: list, resident: list) -> dict[str, dict[str, float]]:
    """Smallest, median, largest and last of each measure; growth per minute in the second half."""
    series = {
        "bytes_held": batches,
        "rows_held": batches,
        "recall": batches,
        "seconds": batches,
        "python": resident,
        "python_anonymous": resident,
        "python_largest": resident,
        "jvm": resident,
    }
    found = {}
    for name, points in series.items():
        seen = [(p["at"], p[name]) for p in points if p.get(name) is not None]
        if seen:
            values = [value for _, value in seen]
            found[name] = {
                "min": min(values),
                "median": statistics.median(values),
                "max": max(values),
                "last": values[-1],
                "per_minute": _slope(seen[len(seen) // 2 :]),
            }
    return found


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Growth per minute of the line through points (seconds, value)."""
    if len(points) < 3:
        return None
    at, value = np.array(points, dtype=float).T
    at = at - at.mean()
    return float(60 * (at @ value) / (at @ at)) if (at @ at) > 0 else None


# --- tables --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sheet:
    """A table as text: the first column is flushed left, the others right."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As in docs/benchmarks.md."""
        lines = [
            f"| {' | '.join(c.replace(chr(10), ' ') for c in self.columns)} |",
            "|---" + "|---:" * (len(self.columns) - 1) + "|",
            *(f"| {' | '.join(row)} |" for row in self.rows),
        ]
        return "\n".join([self.title, "", *lines, "", *self.notes])


def comparison_sheet(found: dict[str, Any]) -> Sheet:
    """Arms of a comparison beside each other."""
    load = found["workload"]
    rows = []
    for run in found["runs"]:
        rows.append(
            (
                run["arm"],
                str(run["partitions"]) + ("" if run["changelog"] else ", no log"),
                _seconds(run),
                _amount(run["rows_per_second"]),
                _amount(run["results_per_second"]),
                _times(run["ratio_to_best_spark"]),
                _times(run["ratio_to_rocksdb"]),
                "" if run["recall"] is None else f"{run['recall']:.1%}",
                {True: "yes", False: "NO", None: ""}[run["equal"]],
                _megabytes(run["memory"].get("jvm")),
                _megabytes(run["memory"].get("python")),
            )
        )
    title = (
        f"{load['rows_per_batch']:,} rows a micro-batch, {load['window_rows']:,} rows in the window"
        f", {load['results_per_row']:g} results a row, payload {load['payload']} B"
    )
    notes = [
        f"Median of micro-batches {load['warm'] + 1} to {load['batches']}; the {load['warm']} "
        "before fill the window, load and compile. × best Spark: how many times as fast. "
        "Equal: as many results in each micro-batch as the other exact joins."
    ]
    for run in [*found["runs"], *found["tried"]]:
        if run["stopped"] == "time limit":
            notes.append(
                f"{run['arm']}, {run['partitions']} partitions: stopped at the time limit after "
                f"{len(run['batches'])} micro-batches, {run['counted']} of which count."
            )
    columns = ("join", "partitions", "micro-batch", "rows/s", "results/s", "× best\nSpark",
               "× Spark,\nRocksDB", "recall", "equal", "JVM\nMB", "Python\nMB")  # fmt: skip
    return Sheet(title, columns, rows, tuple(notes))


def breakdown_sheet(found: dict[str, Any]) -> Sheet:
    """Where the time of a micro-batch goes, by Spark's own account."""
    names = list(dict.fromkeys(name for run in found["runs"] for name in run["breakdown"]))
    names.sort(key=lambda name: (name != "triggerExecution", name != "addBatch", name))
    rows = [
        (
            run["arm"],
            *(f"{run['breakdown'].get(name, 0):,.0f}" for name in names),
            *(f"{1000 * run['cpu_seconds'].get(kind, 0):,.0f}" for kind in ("jvm", "python")),
        )
        for run in found["runs"]
        if run["breakdown"]
    ]
    columns = ("join", *names, "CPU,\nJVM", "CPU,\nPython")
    return Sheet("Milliseconds of a micro-batch: medians; CPU: means", columns, rows)


def held_sheet(found: dict[str, Any]) -> Sheet:
    """Micro-batch time by rows held."""
    rows = [
        (
            f"window_join, {r['policy']}",
            f"{r['held']:,}",
            _seconds(r["run"]),
            "" if r["ratio"] is None else f"{r['ratio']:.2f} ×",
            _amount(r["run"]["results_per_second"]),
            _megabytes(max((b["bytes_held"] for b in r["run"]["batches"]), default=None)),
            _megabytes(r["run"]["memory"].get("python")),
        )
        for r in found["runs"]
    ]
    title = f"{found['rows_per_batch']:,} rows a micro-batch, payload {found['payload']} B"
    columns = ("join", "rows held", "micro-batch", "time", "results/s", "held\nMB", "Python\nMB")
    return Sheet(title, columns, rows)


def soak_sheet(found: dict[str, Any]) -> Sheet:
    """Memory over a long run."""
    told = found["parameters"]
    names = {
        "bytes_held": ("held by the join, MB", MB, 2),
        "rows_held": ("rows held", 1, 0),
        "python": ("Python workers, resident MB", MB, 0),
        "python_anonymous": ("   of these not mapped files", MB, 0),
        "python_largest": ("   the largest worker", MB, 0),
        "jvm": ("JVM, resident MB", MB, 0),
        "recall": ("recall of a micro-batch", 0.01, 1),
        "seconds": ("micro-batch, seconds", 1, 2),
    }
    rows = []
    for name, (label, unit, digits) in names.items():
        seen = found["summary"].get(name)
        if seen is None:
            continue
        sign = " %" if name == "recall" else ""
        cells = [f"{seen[k] / unit:,.{digits}f}{sign}" for k in ("min", "median", "max", "last")]
        slope = seen["per_minute"]
        cells.append("" if slope is None else f"{slope / unit:+,.{max(1, digits)}f}")
        rows.append((label, *cells))
    joined = sum(b["rows"] for b in found["batches"])
    full = found["window_full_at"]
    title = (
        f"{told['minutes']:g} minutes, budget {told['memory'] / MB:,.0f} MB, window of "
        f"{told['window_rows']:,} rows needs {told['need'] / MB:,.0f} MB"
    )
    notes = (
        f"{joined:,} rows in {len(found['batches'])} micro-batches. "
        + (f"The window was full after {full:.0f} s. " if full is not None
           else "The window did not fill: the run was too short. ")
        + "Growth is that of the second half."
    )  # fmt: skip
    return Sheet(title, ("", "least", "median", "most", "last", "growth\na minute"), rows, (notes,))


def _seconds(run: dict[str, Any]) -> str:
    if run["seconds"] is not None:
        return f"{run['seconds']:.2f} s"
    return "?" if run["lower_bound"] is None else f"> {run['lower_bound']:.0f} s"


def _amount(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _megabytes(value: float | None) -> str:
    return "" if value is None else f"{value / MB:,.0f}"


# --- a process a run -----------------------------------------------------------------------------
@dataclass(frozen=True)
class _Host:
    """Where runs happen: each in a process of its own."""

    cores: int
    heap: str
    limit: float

    def run(
        self,
        arm: Arm,
        load: Workload,
        folder: Path,
        partitions: int,
        changelog: bool = True,
        patience: float | None = None,
    ) -> Run:
        """Run an arm until its end, the time limit or its patience's end."""
        result = Run(arm.name, _is_exact(arm), partitions, changelog)
        told = {
            "settings": session_settings(self.cores, self.heap, partitions, changelog)
            | arm.settings,
            "join": arm.join,
            "within_us": load.within_us,
            "folder": str(folder),
            "limit": min(self.limit, patience or self.limit),
        }
        ended: dict[str, Any] = {}
        for step in beside("query", told, self.limit + START_LIMIT, arm.name):
            if "batch" in step:
                if step["rows"]:  # not the last, in which Spark's join only forgets
                    result.batches.append(step)
            else:
                ended = step
        if ended.get("stopped"):
            hopeless = patience is not None and patience < self.limit
            result.stopped = "slower than another variant" if hopeless else "time limit"
        result.memory = ended.get("memory", {})
        result._measure(load.warm)
        if result.seconds is None:
            result.lower_bound = ended.get("unfinished")
        return result


def _is_exact(arm: Arm) -> bool:
    return arm.join is None or not {"max_rows", "memory"} & arm.join.keys()


def session_settings(
    cores: int, heap: str, partitions: int, changelog: bool = True
) -> dict[str, str]:
    """What all sessions of a comparison have in common, but for what is tried."""
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": heap,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        PARTITIONS: str(partitions),
        CHANGELOG: str(changelog).lower(),
        # A run is watched each second; a micro-batch of 20 rows takes less.
        "spark.sql.streaming.numRecentProgressUpdates": "100",
    }


def worker_environment() -> dict[str, str]:
    """Variables by which Spark's Python workers find this Python and this joinweir."""
    paths = [str(Path(__file__).parents[2])]
    paths += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in paths]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_LOCAL_IP": "127.0.0.1",  # else Spark takes the machine's address, with a warning
    }


def beside(call: str, told: dict[str, Any], limit: float, name: str) -> Iterator[dict[str, Any]]:
    """What a process of its own says, which ends with this one, by itself or after the limit."""
    with (
        tempfile.TemporaryFile("w+") as complaints,
        # Removed here, since the process is killed.
        tempfile.TemporaryDirectory(
            prefix="joinweir-bench-", ignore_cleanup_errors=True
        ) as scratch,
    ):
        told["checkpoint"] = f"{scratch}/checkpoint"
        told["settings"] |= {
            "spark.local.dir": f"{scratch}/local",
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "joinweir.spark.benchmark", call],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=os.environ | worker_environment(),
            start_new_session=True,
            text=True,
        )
        watch = threading.Timer(limit, _end, (process,))
        watch.daemon = True
        watch.start()
        ended = False
        try:
            with contextlib.suppress(BrokenPipeError):  # its end tells more
                process.stdin.write(json.dumps(told))
                process.stdin.close()
            for line in process.stdout:
                step = json.loads(line)
                ended = ended or "ended" in step
                yield step
            if not ended:
                process.wait()
                complaints.seek(0)
                raise JoinweirError(f"{name} failed: {_reason(complaints.read())}")
        finally:
            watch.cancel()
            _end(process)
            process.wait()
            process.stdout.close()


def _reason(complaints: str) -> str:
    """The line of a traceback that tells most."""
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    reason = (errors or lines or ["no reason given"])[-1][:400]
    return reason.removeprefix("joinweir.errors.JoinweirError: ")


def _end(process: subprocess.Popen) -> None:
    """End a process and the JVM that it started; Spark's Python workers end with the JVM."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


# --- inside of that process ----------------------------------------------------------------------
def start_session(settings: dict[str, str], name: str = "joinweir bench") -> Any:
    """A session of this process, its workers with the same Python and joinweir."""
    os.environ.update(worker_environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


SCHEMA = "key long, ts timestamp, value long, payload string"


def read_files(session: Any, folder: str, side: str, schema: str = SCHEMA) -> Any:
    """A stream of the files of a side, one a micro-batch."""
    reader = session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(f"{folder}/{side}")


def spark_join(left: Any, right: Any, within_us: int) -> Any:
    """Spark's own inner join of streams with columns key and ts, same window."""
    from pyspark.sql import functions as F

    window = F.expr(f"make_dt_interval(0, 0, 0, {within_us / 1e6:.6f})")
    left, right = (
        frame.withWatermark("ts", "0 seconds").select(
            F.col("key").alias(f"{side}_key"),
            *(F.col(c).alias(f"{c}_{side}") for c in frame.columns if c != "key"),
        )
        for frame, side in ((left, "left"), (right, "right"))
    )
    joined = left.join(
        right,
        (F.col("left_key") == F.col("right_key"))
        & (F.col("ts_left") < F.col("ts_right") + window)
        & (F.col("ts_right") < F.col("ts_left") + window),
    )
    return joined.drop("right_key").withColumnRenamed("left_key", "key")


def batch_figures(progress: Any) -> dict[str, Any]:
    """What a progress says about its micro-batch, as plain numbers."""
    found = {
        "batch": int(progress.batchId),
        "time": progress.timestamp,
        "rows": int(progress.numInputRows),
        "results": int(progress.sink.numOutputRows),
        "seconds": progress.durationMs["triggerExecution"] / 1e3,
        "ms": {name: int(ms) for name, ms in progress.durationMs.items()},
    }
    operators = progress.stateOperators
    if operators:
        found["state_rows"] = int(sum(o.numRowsTotal for o in operators))
        found["state_bytes"] = int(sum(o.memoryUsedBytes for o in operators))
        found["state_commit_ms"] = int(sum(o.commitTimeMs for o in operators))
    for name, row in (progress.observedMetrics or {}).items():
        if name.startswith("joinweir_"):
            metrics = row.asDict()
            found |= {
                "n_out": metrics["n_out"],
                "n_exact": _finite(metrics["n_exact"]),
                "recall": _finite(metrics["recall"]),
                "total_recall": _finite(metrics["total_recall"]),
                "rows_held": metrics["rows_held_left"] + metrics["rows_held_right"],
                "bytes_held": metrics["bytes_held"],
                "budget": metrics["budget"],
            }
            found["n_shed"] = metrics["n_shed_left"] + metrics["n_shed_right"]
    return found


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def watched(query: Any, limit: float | None = None) -> Iterator[dict[str, Any]]:
    """Figures of each micro-batch soon after its end, until the query ends or the time is up.

    Raises what made the query fail; does not stop it.
    """
    begin, last, active = monotonic(), -1, True
    while active and (limit is None or monotonic() - begin < limit):
        active = not query.awaitTermination(0.5)
        for progress in query.recentProgress:
            if progress.batchId > last and "addBatch" in progress.durationMs:
                last = progress.batchId
                yield batch_figures(progress)


def start_query(joined: Any, checkpoint: str) -> Any:
    """Run what there is, micro-batch by micro-batch, and throw the results away."""
    writer = joined.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def _query(told: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    session = start_session(told["settings"])
    left, right = (read_files(session, told["folder"], side) for side in ("left", "right"))
    within = told["within_us"]
    if told["join"] is None:
        joined = spark_join(left, right, within)
    else:
        from .window_join import window_join

        arguments = told["join"] | {"within": within / 1e6}
        joined = window_join(left, right, on="key", time="ts", **arguments)
    with Memory() as memory:
        since = monotonic()
        query = start_query(joined, told["checkpoint"])
        for figures in watched(query, told["limit"]):
            since = monotonic()
            say(figures | {"cpu": cpu_seconds()})
        # The parent ends this process: a query that is stopped in the middle of a micro-batch
        # takes its time.
        unfinished = monotonic() - since
        say(
            {
                "ended": True,
                "stopped": query.isActive,
                "unfinished": unfinished,
                "memory": memory.peaks(),
            }
        )


def _soak(told: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    from .source import register_source
    from .window_join import window_join

    session = start_session(told["settings"])
    register_source(session)
    left, right = (
        session.readStream.format("joinweir").options(**told["source"], side=side).load()
        for side in ("left", "right")
    )
    joined = window_join(left, right, on="key", time="ts", **told["join"])
    begin, last = monotonic(), None

    def look(**values: int) -> None:
        say({"at": round(monotonic() - begin, 3), "memory": values})

    with Memory(every=2.0, tell=look):
        writer = joined.writeStream.format("noop")
        query = writer.option("checkpointLocation", told["checkpoint"]).start()
        for figures in watched(query):
            now = monotonic()
            # The time counts from the end of the first micro-batch, in which code is compiled.
            last = last or now + told["seconds"]
            say(figures | {"at": round(now - begin, 3)})
            if now > last:
                break
    say({"ended": True})


# --- resident memory -----------------------------------------------------------------------------
class _Process(NamedTuple):
    """From /proc; `seconds` of CPU, those of ended children included."""

    parent: int
    name: str
    seconds: float


def _processes() -> dict[int, _Process]:
    tick = 1 / os.sysconf("SC_CLK_TCK")
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                name, _, rest = file.read().decode(errors="replace").rpartition(")")
                told = rest.split()
                seconds = tick * sum(map(int, told[11:15]))
                found[int(entry)] = _Process(int(told[1]), name.partition("(")[2], seconds)
    return found


def _resident(pid: int) -> tuple[int, int]:
    """Resident bytes of a process, and those that are not of files."""
    sizes = {"VmRSS": 0, "RssAnon": 0}
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in sizes:
                sizes[name] = int(value.split()[0]) * 1024
    return sizes["VmRSS"], sizes["RssAnon"]


def _below(pid: int) -> Iterator[tuple[str, int, float]]:
    """("jvm" or "python", process, CPU seconds) of the JVMs below a process and their workers."""
    processes = _processes()
    children: dict[int, list[int]] = {}
    for child, told in processes.items():
        children.setdefault(told.parent, []).append(child)
    below = [(child, False) for child in children.get(pid, [])]
    while below:
        process, in_jvm = below.pop()
        told = processes[process]
        is_java = told.name == "java"
        below += [(child, in_jvm or is_java) for child in children.get(process, [])]
        if is_java:
            yield "jvm", process, told.seconds
        elif in_jvm and told.name.startswith("python"):  # the JVM also forks for tools
            yield "python", process, told.seconds


def cpu_seconds(pid: int | None = None) -> dict[str, float]:
    """CPU time that the JVMs and Spark's Python workers below a process have taken so far.

    Unlike the clock's time it hardly depends on what else the machine does.
    """
    found = {"jvm": 0.0, "python": 0.0}
    for kind, _, seconds in _below(pid or os.getpid()):
        found[kind] += seconds
    return found


def resident_memory(pid: int | None = None) -> dict[str, int]:
    """Resident bytes of the JVMs and of Spark's Python workers below a process.

    Returns
    -------
    dict
        ``jvm``; ``python``: all workers; ``python_anonymous``: of these, what is not of mapped
        files, which the system takes back when it needs to; ``python_largest``: one worker's;
        ``workers``: how many. Pages that forked workers share count for each of them.
    """
    found = dict.fromkeys(("jvm", "python", "python_anonymous", "python_largest", "workers"), 0)
    for kind, process, _ in _below(pid or os.getpid()):
        rss, anonymous = _resident(process)
        found[kind] += rss
        if kind == "python":
            found["python_anonymous"] += anonymous
            found["python_largest"] = max(found["python_largest"], rss)
            found["workers"] += 1
    return found


class Memory:
    """Looks at the resident memory now and then, keeps the largest values, and tells each look."""

    def __init__(self, every: float = 1.0, tell: Callable[..., None] | None = None) -> None:
        self.every, self.tell = every, tell
        self._peaks: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self.every):
            self._look()

    def _look(self) -> None:
        now = resident_memory()
        for name, value in now.items():
            self._peaks[name] = max(value, self._peaks.get(name, 0))
        if self.tell:
            self.tell(**now)

    def peaks(self) -> dict[str, int]:
        """The largest values so far."""
        self._look()
        return dict(self._peaks)


def main(arguments: Sequence[str]) -> None:
    """In a process of its own: do what stdin says, and print a line of JSON for each step."""
    told = json.load(sys.stdin)
    # Spark's JVM writes to this process' stdout, too: steps leave by a copy of it.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)

        one = threading.Lock()  # the memory is told by a thread of its own

        def say(step: dict[str, Any]) -> None:
            with one:
                print(json.dumps(step, allow_nan=False), file=out, flush=True)

        if arguments[0] == "demo":
            from . import demo

            demo.run(told, say)
        elif arguments[0] == "characterize":
            from . import profiling

            profiling.run(told, say)
        else:
            {"query": _query, "soak": _soak}[arguments[0]](told, say)


if __name__ == "__main__":
    main(sys.argv[1:])
