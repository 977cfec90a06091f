"""Data for the tests of joins on Spark: files that are one micro-batch each, rows to compare."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START_US = 1_700_000_000_000_000


def times(seconds: Any) -> pa.Array:
    """Timestamps so many seconds after a fixed moment; None and NaN become null."""
    values = [
        None if s is None or np.isnan(s) else START_US + round(float(s) * 1e6) for s in seconds
    ]
    return pa.array(values, pa.timestamp("us", "UTC"))


def write_batches(directory: Path, tables: Sequence[pa.Table | Sequence[pa.Table]]) -> Path:
    """Files that a source with `maxFilesPerTrigger` as many as in each entry reads one by one."""
    directory.mkdir(parents=True)
    for i, entry in enumerate(tables):
        for j, table in enumerate([entry] if isinstance(entry, pa.Table) else entry):
            path = directory / f"{i:03}-{j:03}.parquet"
            pq.write_table(table, path)
            # The source takes files in the order of their times.
            os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))
    return directory


def stream_of(spark: Any, directory: Path, files: int = 1) -> Any:
    """A streaming DataFrame over such a directory, `files` to a micro-batch."""
    schema = spark.read.parquet(str(directory)).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files)
    return reader.parquet(str(directory))


def multiset(rows: Iterable[Any]) -> Counter:
    """Rows to compare as a multiset; NaN is NaN here, and -0.0 is not 0.0."""
    return Counter(repr(tuple(row)) for row in rows)


def run_to_memory(frame: Any, table: str, checkpoint: Path) -> Any:
    """Start a query that takes all there is into a table in memory."""
    return (
        frame.writeStream.format("memory")
        .queryName(table)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
