"""Kill a join's driver, executor or Python worker, restart it, and find nothing changed.

`JOINWEIR_SOAK=n` repeats the kills n times, at other moments.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from joinweir.spark import loss_report, window_join
from spark_data import multiset, stream_of, times, write_batches
from spark_session import TESTS, worker_environment

BATCHES, FILES, ROWS = 5, 4, 60
SOAK = int(os.environ.get("JOINWEIR_SOAK", "0"))
JOIN = {"on": "k", "time": "ts", "within": "30 seconds", "max_rows": 90, "policy": "gdj",
        "name": "killed", "emit": "both"}  # fmt: skip
# A file is a partition, hence a map task: 4 of each stream.
SPLIT = {"spark.sql.files.maxPartitionBytes": "4194304", "spark.task.maxFailures": "8"}


def tables_of(side: str) -> list[list[pa.Table]]:
    """Micro-batches of several files; many rows have the same time, in different files."""
    rng = np.random.default_rng(len(side))
    batches = []
    for i in range(BATCHES):
        files = []
        for j in range(FILES):
            number = np.arange(ROWS) + 1000 * i + 100 * j
            k = np.minimum(rng.zipf(1.6, ROWS), 25)
            files.append(pa.table({
                "k": pa.array(k, pa.int64()),
                "ts": times(10 * i + rng.integers(0, 10, ROWS)),
                "id": pa.array(number, pa.int64()),
                "text": pa.array([f"{side} {n}" * (n % 5) for n in number]),
                "pairs": pa.array([[(f"p{n % 3}", int(n))] for n in number],
                                  pa.map_(pa.string(), pa.int64())),
            }))  # fmt: skip
        batches.append(files)
    return batches


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Directory with left/ and right/."""
    root = tmp_path_factory.mktemp("recovery")
    for side in ("left", "right"):
        write_batches(root / side, tables_of(side))
    return root


# --- kills ----------------------------------------------------------------------------------------
def written(spark, path) -> Counter:
    """Rows of a sink, by its own log."""
    return multiset(tuple(row) for row in spark.read.parquet(str(path)).collect())


@pytest.fixture(scope="module")
def undisturbed(spark, inputs, tmp_path_factory):
    """What a join that nobody kills writes."""
    root = tmp_path_factory.mktemp("undisturbed")
    frames = [stream_of(spark, inputs / side, FILES) for side in ("left", "right")]
    query = (
        window_join(*frames, **JOIN)
        .writeStream.format("parquet")
        .option("path", str(root / "output"))
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    report = loss_report(query)
    assert report.total_n_out < report.total_n_exact / 2  # little memory
    return written(spark, root / "output"), report


class Driver:
    """A driver program of its own, with the processes that it started."""

    def __init__(self, root: Path, inputs: Path, master: str) -> None:
        self.root = root
        self.job = root / "job.json"
        settings = {"spark.master": master, **SPLIT}
        if master.startswith("local-cluster"):
            settings |= {"spark.executor.memory": "1g", "spark.driver.memory": "1g"}
        self.job.write_text(json.dumps({
            "root": str(inputs), "streams": ["left", "right"], "files": FILES,
            "checkpoint": str(root / "checkpoint"), "output": str(root / "output"),
            "scratch": str(root / "scratch"), "join": JOIN, "settings": settings,
        }))  # fmt: skip
        self.log = root / "log.txt"
        self.process = None

    def start(self) -> None:
        environment = os.environ | worker_environment()
        if "SPARK_HOME" not in environment:
            from pyspark.find_spark_home import _find_spark_home

            environment["SPARK_HOME"] = _find_spark_home()  # local-cluster starts its scripts
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(TESTS / "recovery_driver.py"), str(self.job)],
                stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=self.root,
            )  # fmt: skip

    def wait_for_batch(self, number: int) -> None:
        """Until a micro-batch has begun."""
        begun = self.root / "checkpoint" / "offsets" / str(number)
        while not begun.exists():
            if self.process.poll() is not None:
                raise AssertionError(f"the driver ended early:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.02)

    def finish(self) -> int:
        return self.process.wait()

    def metrics(self) -> dict:
        lines = [t for t in self.log.read_text().splitlines() if t.startswith("metrics ")]
        return json.loads(lines[-1].removeprefix("metrics "))

    def descendants(self) -> list[tuple[int, int, str]]:
        """(process, parent, command line) of all that this driver started."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError, ValueError, IndexError):
                    stat = (entry / "stat").read_text()
                    command = (entry / "cmdline").read_text().replace("\0", " ")
                    parents[int(entry.name)] = (int(stat.rpartition(")")[2].split()[1]), command)
        found, wanted = [], {self.process.pid}
        while wanted:
            wanted = {p for p, (parent, _) in parents.items() if parent in wanted}
            found += [(p, *parents[p]) for p in wanted]
        return found

    def chosen(self, victim: str) -> list[int]:
        """Processes to kill."""
        processes = self.descendants()
        if victim == "executor":
            return [
                p for p, _, c in processes if "CoarseGrainedExecutorBackend" in c and "java" in c
            ]
        daemons = {p for p, _, c in processes if "pyspark.daemon" in c}
        return [p for p, parent, _ in processes if parent in daemons]

    def kill(self, victim: str, rng: random.Random) -> int:
        if victim == "driver":  # its JVM and its Python, before either can tidy up
            jvms = [p for p, parent, _ in self.descendants() if parent == self.process.pid]
            for pid in [*jvms, self.process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            return len(jvms)
        victims = sorted(self.chosen(victim))
        if victims:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(victims), signal.SIGKILL)
        return len(victims)

    def end(self) -> None:
        """Leave nothing running."""
        if self.process is None:
            return
        mine = [p for p, _, _ in self.descendants()]
        for pid in [*mine, self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


MASTERS = {
    "driver": "local[2]",
    "worker": "local[2,8]",  # 8 tries: otherwise one failed task ends a local query
    "executor": "local-cluster[2,1,1024]",
}


@pytest.mark.parametrize("seed", range(1 + SOAK))
@pytest.mark.parametrize("victim", MASTERS)
def test_a_kill_changes_nothing(spark, inputs, undisturbed, tmp_path, victim, seed):
    expected, report = undisturbed
    rng = random.Random(f"{victim} {seed}")
    driver = Driver(tmp_path, inputs, MASTERS[victim])
    kills = 0
    try:
        driver.start()
        # Two moments, each somewhere in a micro-batch; a micro-batch takes about a second.
        for batch in sorted(rng.sample(range(1, BATCHES - 1), 2)):
            driver.wait_for_batch(batch)
            time.sleep(1.2 * rng.random())
            kills += driver.kill(victim, rng) > 0
            if driver.process.poll() is not None:
                driver.start()
        tries = 0
        while driver.finish() != 0:  # Spark gave up: a restart must do
            tries += 1
            assert tries < 4, driver.log.read_text()[-3000:]
            driver.start()
        assert kills == 2
        assert written(spark, tmp_path / "output") == expected
        told = driver.metrics()["joinweir_killed"]
        assert told["total_n_out"] == report.total_n_out
        assert told["total_n_exact"] == report.total_n_exact
        assert told["total_n_in_left"] == BATCHES * FILES * ROWS
    finally:
        driver.end()


# --- restarts with other arguments ----------------------------------------------------------------
SOME = 3  # micro-batches before the restart
AMPLE = {"on": "k", "time": "ts", "within": "30 seconds", "max_rows": 100_000}


@pytest.fixture(scope="module")
def stopped(spark, inputs, tmp_path_factory):
    """Streams, a checkpoint after some micro-batches, and the rows until then."""
    root = tmp_path_factory.mktemp("stopped")
    for side in ("left", "right"):
        write_batches(root / side, tables_of(side)[:SOME])
    rows = run(spark, root, root / "checkpoint", AMPLE)[0]
    assert len(rows) > 100
    for side in ("left", "right"):
        for path in (inputs / side).iterdir():
            shutil.copy2(path, root / side / path.name)
    return root, rows


def run(spark, root, checkpoint, join, change=lambda left, right: (left, right)):
    """Rows and the query of a run to the end of what there is."""
    frames = change(*(stream_of(spark, root / side, FILES) for side in ("left", "right")))
    joined = window_join(*frames, **join)
    rows = []
    query = (
        joined.writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows, query


def as_text(left, right):
    return tuple(frame.selectExpr("*", "cast(k as string) t") for frame in (left, right))


def retyped(left, right):
    return tuple(
        frame.selectExpr("cast(k as string) k", "ts", "id", "text", "pairs")
        for frame in (left, right)
    )


def other_time(left, right):
    return tuple(frame.selectExpr("*", "ts as ts2") for frame in (left, right))


REFUSED = {
    "other key": ({"on": "id"}, None, "on"),
    "more keys": ({"on": ["k", "t"]}, as_text, "on"),
    "other type": ({}, retyped, "key types"),
    "other time": ({"time": "ts2"}, other_time, "time"),
    "other within": ({"within": "31 seconds"}, None, "within"),
    "closed": ({"closed": "both"}, None, "within"),
    "more shards": ({"shards": 4}, None, "shards"),
    "fewer shards": ({"shards": 1}, None, "shards"),
}


@pytest.mark.filterwarnings("ignore:.*shards")
@pytest.mark.parametrize("changes, change, culprit", REFUSED.values(), ids=REFUSED)
def test_a_restart_with_another_join_is_refused(spark, stopped, tmp_path, changes, change, culprit):
    checkpoint = shutil.copytree(stopped[0] / "checkpoint", tmp_path / "checkpoint")
    rest = {} if change is None else {"change": change}
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, stopped[0], checkpoint, AMPLE | changes, **rest)
    message = str(caught.value)
    assert f"{culprit} " in message
    assert "new checkpointLocation" in message


def pairs_of(rows) -> Counter:
    return Counter((row["id_left"], row["id_right"]) for row in rows)


@pytest.fixture(scope="module")
def whole(spark, stopped, tmp_path_factory):
    """All rows of a restart that changes nothing, and what it counted."""
    checkpoint = tmp_path_factory.mktemp("whole") / "checkpoint"
    shutil.copytree(stopped[0] / "checkpoint", checkpoint)
    rows, query = run(spark, stopped[0], checkpoint, AMPLE)
    report = loss_report(query)
    assert report.total_n_out == report.total_n_exact == len(rows) + len(stopped[1])
    return rows, report


def test_a_restart_may_change_the_budget_and_the_policy(spark, stopped, whole, tmp_path):
    exact = pairs_of(whole[0])
    checkpoint = shutil.copytree(stopped[0] / "checkpoint", tmp_path / "checkpoint")
    join = AMPLE | {"max_rows": 80, "policy": "fifo"}
    rows, query = run(spark, stopped[0], checkpoint, join)
    report = loss_report(query)
    assert rows and pairs_of(rows) < exact
    assert report.total_n_out == len(rows) + len(stopped[1])
    assert report.total_n_exact == whole[1].total_n_exact
    for side in report.sides:
        left = (side.total_n_late, side.total_n_null, side.total_n_shed, side.total_n_expired)
        assert side.total_n_in == sum(left) + side.rows_held == BATCHES * FILES * ROWS
        assert side.rows_held <= 40


def test_a_restart_may_go_over_to_bytes_and_a_sketch(spark, stopped, whole, tmp_path):
    checkpoint = shutil.copytree(stopped[0] / "checkpoint", tmp_path / "checkpoint")
    join = AMPLE | {"max_rows": None, "memory": "64 MB", "policy": "lfu"}
    rows, query = run(spark, stopped[0], checkpoint, join)
    assert pairs_of(rows) == pairs_of(whole[0])
    report = loss_report(query)
    assert (report.budget, report.budget_unit) == (64 << 20, "bytes")
    assert report.total_n_exact == pytest.approx(whole[1].total_n_exact, rel=0.5)


def test_a_restart_may_add_columns(spark, stopped, whole, tmp_path):
    """Rows from before have null in them."""
    checkpoint = shutil.copytree(stopped[0] / "checkpoint", tmp_path / "checkpoint")

    def more(left, right):
        return left.selectExpr("*", "concat('new', id) added"), right

    rows, _ = run(spark, stopped[0], checkpoint, AMPLE, more)
    assert pairs_of(rows) == pairs_of(whole[0])
    assert {row["added"] is None for row in rows} == {True, False}
    for row in rows:
        old = row["id_left"] < 1000 * SOME
        assert row["added"] == (None if old else f"new{row['id_left']}")


def test_a_restart_may_add_columns_to_none(spark, tmp_path):
    """A stream of which nothing but the key was carried: its old rows have no value either."""
    tables = [
        pa.table({"k": pa.array([5, 6]), "ts": times([i, i]), "v": pa.array([10 + i, 20 + i])})
        for i in range(2)
    ]
    join = {"on": "k", "time": "ts", "within": "30 seconds"}
    for side in ("left", "right"):
        write_batches(tmp_path / side, tables[:1])
    first, _ = run(spark, tmp_path, tmp_path / "checkpoint", join | {"columns": [["v"], []]})
    assert multiset(first) == multiset([(5, 10), (6, 20)])
    for side in ("left", "right"):
        pq.write_table(tables[1], tmp_path / side / "001.parquet")
    rows, _ = run(spark, tmp_path, tmp_path / "checkpoint", join | {"columns": [["v"], ["v"]]})
    expected = [(5, 10, 11), (5, 11, None), (5, 11, 11), (6, 20, 21), (6, 21, None), (6, 21, 21)]
    assert multiset(rows) == multiset(expected)


@pytest.mark.parametrize("seed", range(2 + SOAK))
def test_nothing_wrong_comes_out_of_a_damaged_state(spark, stopped, whole, tmp_path, seed):
    """Spark's own checksums find most of it; without them, ours or Spark's formats."""
    rng = random.Random(seed)
    checkpoint = Path(shutil.copytree(stopped[0] / "checkpoint", tmp_path / "checkpoint"))
    files = [
        path for path in (checkpoint / "state").rglob("*")
        if path.suffix in (".changelog", ".zip", ".sst") and path.stat().st_size > 200
    ]  # fmt: skip
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        for _ in range(1 + 3 * seed):
            data[rng.randrange(60, len(data))] ^= rng.randrange(1, 256)
        path.write_bytes(data)
    if seed:
        for path in checkpoint.rglob("*.crc"):
            path.unlink()
    try:
        rows, _ = run(spark, stopped[0], checkpoint, AMPLE)
    except StreamingQueryException:
        return
    assert multiset(rows) == multiset(whole[0])
