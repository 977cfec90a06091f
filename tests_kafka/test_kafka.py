"""`joinweir run` between Kafka topics: killed at random, restarted, compared with brute force."""

from __future__ import annotations

import datetime as dt
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip(
    "joinweir.spark.window_join", reason="joinweir.spark.window_join is not there yet"
)

START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
WITHIN = 60  # seconds
KEYS = 50

Rows = list[tuple[int | None, int, str]]  # key, seconds, payload


def made_rows(side: str, n: int, seed: int) -> Rows:
    """Rows in order of time, a few with the same time, a few without a key."""
    dice = random.Random(f"{side} {seed}")
    seconds, rows = 0, []
    for i in range(n):
        seconds += dice.choice((0, 1, 1, 2))
        key = None if dice.random() < 0.02 else dice.randrange(KEYS)
        rows.append((key, seconds, f"{side}{i}"))
    return rows


def as_json(rows: Rows) -> list[str]:
    return [
        json.dumps({"k": key, "ts": (START + dt.timedelta(seconds=t)).isoformat(), "name": name})
        for key, t, name in rows
    ]


def brute_force(left: Rows, right: Rows) -> Counter:
    return Counter(
        (lname, rname)
        for lkey, lt, lname in left
        for rkey, rt, rname in right
        if lkey is not None and lkey == rkey and abs(lt - rt) < WITHIN
    )


def job_file(place: Path, address: str, topics: tuple[str, str], sink: str) -> Path:
    sources = "".join(
        f"""
[source.{side}]
format = "kafka"
bootstrap_servers = "{address}"
topic = "{topic}"
schema = "k bigint, ts timestamp, name string"
starting_offsets = "earliest"
max_rows_per_batch = 300
"""
        for side, topic in zip(("left", "right"), topics)
    )
    # Partitions are read side by side, so a topic's rows are out of order: none shall be late.
    rest = f"""
[join]
on = "k"
time = "ts"
within = "{WITHIN} seconds"
lateness = "1 day"
max_rows = 1_000_000
shards = 2

[sink]
{sink}

[query]
checkpoint = "checkpoint"

[spark]
master = "local[2]"
"""
    file = place / "job.toml"
    file.write_text(sources + rest)
    return file


def events(process) -> Iterator[dict]:
    for line in process.stdout:
        yield json.loads(line)


def committed_rows(out: Path) -> Iterator[dict]:
    """Rows of the files that Spark's file sink committed; a killed batch leaves others behind."""
    files: dict[str, str] = {}
    for log in (out / "_spark_metadata").iterdir():
        if log.name.split(".")[0].isdigit():
            for line in log.read_text().splitlines()[1:]:
                entry = json.loads(line)
                files[entry["path"]] = entry["action"]
    for path, action in files.items():
        assert action == "add"
        yield from pq.read_table(path.removeprefix("file://")).to_pylist()


def names(row: dict) -> tuple[str, str]:
    return row["name_left"], row["name_right"]


@pytest.mark.parametrize("seed", [1, 2])
def test_output_is_exact_after_kills_at_random_points(broker, runner, tmp_path, seed):
    topics = (f"left{seed}", f"right{seed}")
    rows = [made_rows(side, 3000, seed) for side in ("left", "right")]
    half = [len(side) // 2 for side in rows]
    for topic, side, n in zip(topics, rows, half):
        broker.create_topic(topic)
        broker.produce(topic, as_json(side[:n]))
    job = job_file(tmp_path, broker.address, topics, 'format = "parquet"\npath = "out"')
    dice = random.Random(seed)

    for kill in range(2):
        process = runner.start(job)
        batches = 0
        for event in events(process):
            batches += event["event"] == "batch"
            if batches >= 1 + kill:
                break
        assert process.poll() is None, runner.errors()
        time.sleep(dice.uniform(0, 2.5))
        runner.kill(process)
        assert process.returncode == -9
        if kill == 0:  # rows that come while nothing runs
            for topic, side, n in zip(topics, rows, half):
                broker.produce(topic, as_json(side[n:]))

    process = runner.start(job, "--once")
    told = list(events(process))
    assert process.wait() == 0, runner.errors()

    found = Counter(map(names, committed_rows(tmp_path / "out")))
    exact = brute_force(*rows)
    assert found == exact
    # What the loss report says of all runs together, kills or not.
    summary = told[-1]
    assert summary["event"] == "summary"
    assert summary["total_n_out"] == summary["total_n_exact"] == exact.total()
    assert summary["total_recall"] == 1.0
    for side, given in zip(summary["sides"], rows):
        assert side["total_n_in"] == len(given)
        assert side["total_n_null"] == sum(key is None for key, _, _ in given)
        assert side["total_n_late"] == side["total_n_shed"] == 0


def test_results_become_messages_with_the_join_key(broker, runner, tmp_path):
    topics = ("left_in", "right_in")
    rows = [made_rows(side, 400, 3) for side in ("left", "right")]
    for topic, side in zip(topics, rows):
        broker.create_topic(topic)
        broker.produce(topic, as_json(side))
    broker.create_topic("joined")
    sink = f'format = "kafka"\nbootstrap_servers = "{broker.address}"\ntopic = "joined"'
    process = runner.start(job_file(tmp_path, broker.address, topics, sink), "--once")
    told = list(events(process))
    assert process.wait() == 0, runner.errors()

    exact = brute_force(*rows)
    messages = [line.split("\t") for line in broker.consume("joined", exact.total())]
    assert Counter(names(json.loads(value)) for _, value in messages) == exact
    assert all(json.loads(key) == {"k": json.loads(value)["k"]} for key, value in messages)
    assert told[-1]["total_n_out"] == exact.total()


def test_a_broker_that_is_not_there_is_told_in_one_line(runner, tmp_path):
    sink = 'format = "parquet"\npath = "out"'
    job = job_file(tmp_path, "127.0.0.1:1", ("a", "b"), sink)
    short = "options.kafka.default.api.timeout.ms = 3000\noptions.kafka.request.timeout.ms = 2000\n"
    text = job.read_text().replace("max_rows_per_batch", f"{short}max_rows_per_batch")
    job.write_text(text)
    process = runner.start(job, "--once")
    list(events(process))
    assert process.wait() == 1
    last = runner.errors().strip().splitlines()[-1]
    assert last.startswith("joinweir: the query failed: ")
    assert "imeout" in last or "imed out" in last
