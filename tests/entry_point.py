"""The join of test_spark_entry_points.py, for all ways to reach Spark.

Run as a script it is the part that needs Spark Connect, which refuses a classic session beside it:
    python entry_point.py DIRECTORY connect
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from joinweir.spark import LossReport, loss_report, window_join
from spark_data import stream_of

JOIN = {"on": ["k", "t"], "time": "ts", "within": "5 seconds", "lateness": "2 seconds"}
BOUNDED = JOIN | {"max_rows": 40, "emit": "both", "name": "bounded"}
SIDES = ("left", "right")


def streams(spark, root: Path, files: int = 1) -> list:
    return [stream_of(spark, root / side, files) for side in SIDES]


def rows_of(frame) -> list[str]:
    """Rows as text, the same in all sessions: JSON by Spark, sorted."""
    return sorted(row[0] for row in frame.selectExpr("to_json(struct(*))").collect())


def streamed(spark, root: Path, arguments: dict, name: str):
    """Rows and report of a streaming query to the end of its input."""
    query = (
        window_join(*streams(spark, root), **arguments)
        .writeStream.format("parquet")
        .option("path", str(root / f"{name}-out"))
        .option("checkpointLocation", str(root / f"{name}-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    report = loss_report(query)
    return rows_of(spark.read.parquet(str(root / f"{name}-out"))), counts(report)


def in_batch(spark, root: Path, arguments: dict):
    """The same of tables."""
    from pyspark.sql import Observation

    observation = Observation("loss")
    frames = [spark.read.parquet(str(root / side)) for side in SIDES]
    rows = rows_of(window_join(*frames, **arguments | {"name": observation}))
    return rows, counts(LossReport.from_row(observation.get))


def counts(report: LossReport) -> dict:
    told = {name: getattr(report, name) for name in ("total_n_out", "total_n_exact", "budget")}
    for side in report.sides:
        told |= {
            f"{name}_{side.side}": getattr(side, name)
            for name in ("total_n_in", "total_n_late", "total_n_null", "total_n_shed", "rows_held")
        }
    return told


def main(directory: str, name: str) -> None:
    from spark_session import connect_session

    root = Path(directory)
    spark = connect_session()
    try:
        told = {
            "stream": streamed(spark, root, JOIN, name),
            "bounded": streamed(spark, root, BOUNDED, f"{name}-bounded"),
            "batch": in_batch(spark, root, JOIN),
        }
    finally:
        spark.stop()
    (root / f"{name}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
