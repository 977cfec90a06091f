"""The tour of `joinweir demo`: Spark's exact join and `window_join` with little memory, in turn.

Two streams whose keys come in bursts that both share, as Parquet files, one a stream and
micro-batch. One local session runs three queries after each other on them, so that none slows
another down.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .. import streams
from ..errors import JoinweirError
from . import benchmark as B

ROWS, BATCHES = 240_000, 12  # of each stream; micro-batches
WINDOW_BATCHES = 2  # length of the window
SHARE = 0.10
POLICIES = ("gdj", "fifo")
PAYLOAD = 50
LIMIT = 600.0  # seconds for a query
COLUMNS = "key long, ts timestamp, value double, payload string"
EXACT = "Spark's exact join"


def tour(
    rows: int = ROWS,
    *,
    policies: tuple[str, ...] = POLICIES,
    cores: int = 2,
    progress: B.Progress | None = None,
) -> dict[str, Any]:
    """Run the tour in a process of its own.

    Returns
    -------
    dict
        ``rows`` of a stream, ``batches``, ``within_seconds``, ``window_rows`` (of both streams),
        ``max_rows``, ``n_exact``, and ``joins``: for each its ``name``, ``policy`` (None: Spark's),
        ``n_out``, ``recall``, ``rows_per_second``, ``seconds`` and ``batches``, the figures of its
        micro-batches.
    """
    per_batch = rows // BATCHES
    if per_batch < 20:
        raise JoinweirError(f"--rows must be {20 * BATCHES} or more, not {rows}")
    window = WINDOW_BATCHES * per_batch
    told = {
        "settings": B.session_settings(cores, "2g", cores) | B.ROCKSDB,
        "per_batch": per_batch,
        "batches": BATCHES,
        "window": window,
        "max_rows": max(2 * cores, round(SHARE * 2 * window)),
        "policies": list(policies),
    }
    joins: list[dict[str, Any]] = []
    queries = 1 + len(policies)
    if progress:
        progress("starting Spark", 0.0)
    for step in B.beside("demo", told, queries * LIMIT + B.START_LIMIT, "the demo"):
        if "name" in step:
            joins.append(step | {"batches": []})
        elif "batch" in step and step["rows"]:
            joins[-1]["batches"].append(step)
        if progress and joins:
            seen = len(joins[-1]["batches"])
            text = f"{joins[-1]['name']}: {seen} of {BATCHES} micro-batches"
            progress(text, (len(joins) - 1 + seen / BATCHES) / queries)
    exact = sum(b["results"] for b in joins[0]["batches"])
    for join in joins:
        _sum_up(join, exact)
    return {
        "rows": per_batch * BATCHES,
        "batches": BATCHES,
        "within_seconds": window * B.STEP_US / 1e6,
        "window_rows": 2 * window,
        "max_rows": told["max_rows"],
        "n_exact": exact,
        "joins": joins,
    }


def _sum_up(join: dict[str, Any], exact: int) -> None:
    """Totals of a join; recall is by counting, against what Spark's exact join returned."""
    batches = join["batches"]
    steady = batches[len(batches) // 4 :]  # code is loaded and compiled in the first
    join["n_out"] = sum(b["results"] for b in batches)
    join["recall"] = join["n_out"] / exact if exact else 1.0
    join["seconds"] = sum(b["seconds"] for b in batches)
    join["rows_per_second"] = sum(b["rows"] for b in steady) / sum(b["seconds"] for b in steady)
    join["rows_held"] = max(b.get("rows_held", b.get("state_rows", 0)) for b in batches)
    join["bytes_held"] = max(b.get("bytes_held", b.get("state_bytes", 0)) for b in batches)
    join["n_shed"] = sum(b.get("n_shed", 0) for b in batches)


def run(told: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """In the process of the tour: start Spark and run the queries."""
    from .window_join import window_join

    session = B.start_session(told["settings"], "joinweir demo")
    with tempfile.TemporaryDirectory(dir=Path(told["checkpoint"]).parent) as folder:
        _write(Path(folder), told["per_batch"], told["batches"], told["window"])
        within = told["window"] * B.STEP_US
        for policy in (None, *told["policies"]):
            left, right = (
                B.read_files(session, folder, side, COLUMNS) for side in ("left", "right")
            )
            # Spark's join has its default store, in memory, which is also its fastest.
            for name, value in (B.HDFS if policy is None else B.ROCKSDB).items():
                session.conf.set(name, value)
            if policy is None:
                name, joined = EXACT, B.spark_join(left, right, within)
            else:
                name = f"window_join, {policy}"
                joined = window_join(
                    left,
                    right,
                    on="key",
                    time="ts",
                    within=within / 1e6,
                    max_rows=told["max_rows"],
                    policy=policy,
                    name="demo",
                )
            say({"name": name, "policy": policy})
            query = B.start_query(joined, f"{told['checkpoint']}-{policy}")
            for figures in B.watched(query, LIMIT):
                say(figures)
            if query.isActive:
                raise JoinweirError(f"{name} took longer than {LIMIT:.0f} s")
    say({"ended": True})


def _write(folder: Path, per_batch: int, batches: int, window: int) -> None:
    pair = streams.copy_pair(per_batch * batches, domain=5 * window, lags=400, shared=True, seed=1)
    random = np.random.default_rng(1)
    text = "".join(chr(97 + i) for i in random.integers(0, 26, PAYLOAD))
    for side, stream in zip(("left", "right"), pair):
        (folder / side).mkdir()
        for i in range(batches):
            at = np.arange(i * per_batch, (i + 1) * per_batch)
            table = pa.table(
                {
                    "key": stream["key"][at],
                    "ts": pa.array(B.START_US + at * B.STEP_US).cast(pa.timestamp("us", "UTC")),
                    "value": random.random(per_batch),
                    "payload": pa.repeat(text, per_batch),
                }
            )
            file = folder / side / f"{i:05d}.parquet"
            pq.write_table(table, file)
            os.utime(file, (1_700_000_000 + 10 * i,) * 2)  # Spark takes files by age
