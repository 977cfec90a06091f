"""The one small Spark session of the tests, each setting with its reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
SOURCES = TESTS.parent / "src"

SETTINGS = {
    # Two tasks at a time: enough to see rows arrive in another order, and the smallest machine
    # that runs the tests has two cores.
    "spark.master": "local[2]",
    # Loopback only, with SPARK_LOCAL_IP below.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The driver is also the only executor here; 2 GB are plenty for the tests' data, and the
    # Python workers live beside it.
    "spark.driver.memory": "2g",
    # A web server for each session would cost a second and a port, and nobody looks.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The default of 200 would start 200 tasks, and 200 state stores, for each micro-batch.
    "spark.sql.shuffle.partitions": "2",
    # transformWithState, on which `window_join` is built, works with RocksDB only.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Upload what changed in a micro-batch rather than a snapshot of the whole state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Tests compare times; without this they would depend on where the machine stands.
    "spark.sql.session.timeZone": "UTC",
    # collect() through pandas takes Arrow instead of pickled rows.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Python workers live on between tasks: a new one takes a second to import numba.
    "spark.python.worker.reuse": "true",
    # Progress is kept per micro-batch; a test may run more of them than the default of 100.
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


def worker_environment() -> dict[str, str]:
    """The variables through which Spark's Python workers find this Python, joinweir and the tests.

    `NUMBA_CACHE_DIR` (conftest.py) reaches them by inheritance.
    """
    paths = [str(SOURCES), str(TESTS)]
    paths += [
        p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p not in ("", *paths)
    ]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_LOCAL_IP": "127.0.0.1",  # else Spark takes the machine's address, with a warning
    }


def connect_session(**more: str) -> Any:
    """A Spark Connect session with a server of its own.

    For a process of its own: Spark refuses a Connect and a classic session side by side.
    """
    os.environ.update(worker_environment())
    # Makes PySpark take a free port for the server; else it is 15002, and two runs collide.
    os.environ["SPARK_TESTING"] = "1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(SETTINGS["spark.master"])
    settings = {name: value for name, value in SETTINGS.items() if name != "spark.master"}
    # Loopback only: the server's default is every address of the machine.
    settings["spark.connect.grpc.binding.address"] = "127.0.0.1"
    for name, value in (settings | more).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def small_session(directory: Path, **more: str) -> Any:
    """Start the session; tables and scratch files go below `directory`, never into the tree."""
    os.environ.update(worker_environment())  # before the JVM starts, which hands it on
    from pyspark.sql import SparkSession

    settings = SETTINGS | {
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "scratch"),
    }
    builder = SparkSession.builder.appName("joinweir tests")
    for name, value in (settings | more).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    # Spark warns about every native library and every metric; a failure is raised anyway.
    session.sparkContext.setLogLevel("ERROR")
    return session
