"""A driver program for test_spark_recovery.py, which kills it or parts of it while it runs.

    python recovery_driver.py JOB.json

JOB.json: root (directory with left/ and right/), checkpoint, output, join (arguments), settings.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from joinweir.spark import window_join
from spark_data import stream_of
from spark_session import small_session


def main(path: str) -> None:
    job = json.loads(Path(path).read_text())
    root = Path(job["root"])
    spark = small_session(Path(job["scratch"]), **job["settings"])
    frames = [stream_of(spark, root / side, job["files"]) for side in job["streams"]]
    joined = window_join(*frames, **job["join"])
    query = (
        joined.writeStream.format("parquet")
        .option("path", job["output"])
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    print(f"started {spark.sparkContext.applicationId}", flush=True)
    query.awaitTermination()
    last = query.lastProgress
    told = {n: r.asDict() for n, r in last["observedMetrics"].items()} if last else {}
    print("metrics " + json.dumps(told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
