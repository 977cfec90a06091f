"""The same join, the same rows: classic Spark, tables, Spark Connect, a Declarative Pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from entry_point import BOUNDED, JOIN, in_batch, rows_of, streamed
from spark_data import times, write_batches
from spark_session import SETTINGS, TESTS, worker_environment

BATCHES, ROWS = 3, 80


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Directory with the two streams: nulls, ties, rows out of order; none is late."""
    root = tmp_path_factory.mktemp("entry")
    rng = np.random.default_rng(8)
    for side in ("left", "right"):
        tables = []
        for i in range(BATCHES):
            seconds = 10 * i + rng.integers(0, 20, ROWS) / 2
            # At most lateness behind the largest time of the micro-batch before: none is late.
            seconds -= np.where(rng.random(ROWS) < 0.2, 1.5, 0)
            tables.append(pa.table({
                "k": pa.array([None if n == 0 else int(n) for n in rng.integers(0, 6, ROWS)]),
                "t": pa.array([f"t{n}" for n in rng.integers(0, 2, ROWS)]),
                "ts": times(seconds),
                "id": pa.array(np.arange(ROWS) + ROWS * i),
                "tags": pa.array([[f"{side}{n}"] * (n % 3) for n in range(ROWS)]),
            }))  # fmt: skip
        write_batches(root / side, tables)
    return root


@pytest.fixture(scope="module")
def classic(spark, root):
    """Rows and counts on classic Spark, with and without a budget."""
    rows, told = streamed(spark, root, JOIN, "classic")
    assert len(rows) > 300 and told["total_n_late_left"] == 0 and told["total_n_null_left"] > 10
    bounded, lost = streamed(spark, root, BOUNDED, "classic-bounded")
    assert lost["total_n_out"] < told["total_n_out"] == lost["total_n_exact"]
    return (rows, told), (bounded, lost)


def in_another_process(root, *command, **environment):
    """Run a Python program like Spark's users do."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | worker_environment() | environment,
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


def test_tables_give_the_same_rows(spark, root, classic):
    rows, told = in_batch(spark, root, JOIN)
    expected, counted = classic[0]
    assert rows == expected
    # In one go more rows are still held at the end.
    same = ("total_n_out", "total_n_exact", "total_n_in_left", "total_n_null_right")
    assert [told[name] for name in same] == [counted[name] for name in same]


def test_connect_gives_the_same_rows_and_counts(root, classic):
    in_another_process(root, TESTS / "entry_point.py", root, "connect")
    told = json.loads((root / "connect.json").read_text())
    for (rows, counted), name in zip(classic, ("stream", "bounded")):
        assert told[name] == [rows, counted]
    assert told["batch"][0] == classic[0][0]
    assert told["batch"][1]["total_n_exact"] == classic[0][1]["total_n_exact"]


PIPELINE = """
from pathlib import Path

from entry_point import JOIN, SIDES, streams
from pyspark import pipelines as dp

from joinweir.spark import window_join

# At module level: in a query function Spark forbids to look at a schema.
joined = window_join(*streams(spark, Path({root!r})), **JOIN)


@dp.table(format="parquet")
def joined_rows():
    return joined


tables = [spark.read.parquet({root!r} + "/" + side) for side in SIDES]
joined_tables = window_join(*tables, **JOIN)


@dp.materialized_view(format="parquet")
def joined_once():
    return joined_tables
"""


def test_a_declarative_pipeline_gives_the_same_rows(spark, root, classic, tmp_path):
    pytest.importorskip("yaml", reason="pyspark.pipelines needs PyYAML")
    (tmp_path / "join.py").write_text(PIPELINE.format(root=str(root)))
    # A pipeline takes settings of queries only; those of the server come by its command line.
    session = {n: v for n, v in SETTINGS.items() if n.startswith("spark.sql.")}
    del session["spark.sql.streaming.numRecentProgressUpdates"]  # static
    server = {n: v for n, v in SETTINGS.items() if not n.startswith("spark.sql.")}
    server["spark.connect.grpc.binding.address"] = "127.0.0.1"
    del server["spark.master"]  # the spec has spark.remote
    arguments = [f"--conf {name}={value}" for name, value in server.items()]
    spec = {
        "name": "joined",
        "storage": (tmp_path / "storage").as_uri(),
        "configuration": session | {"spark.remote": "local[2]"},
        "libraries": [{"glob": {"include": "join.py"}}],
    }
    (tmp_path / "spark-pipeline.yml").write_text(json.dumps(spec))  # JSON is YAML
    in_another_process(
        tmp_path, "-m", "pyspark.pipelines.cli", "run", "--spec", tmp_path / "spark-pipeline.yml",
        SPARK_TESTING="1", PYSPARK_SUBMIT_ARGS=" ".join([*arguments, "pyspark-shell"]),
    )  # fmt: skip
    for table in ("joined_rows", "joined_once"):
        found = spark.read.parquet(str(tmp_path / "spark-warehouse" / table))
        assert rows_of(found) == classic[0][0]
