"""`joinweir.spark.characterize` gives what `jw.characterize` gives on the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import joinweir as jw
from joinweir import JoinweirError, cli
from joinweir.spark import characterize
from joinweir.spark import profiling as on_spark
from spark_data import START_US
from spark_session import TESTS, worker_environment

EXACT = (
    "n_rows", "n_null", "n_distinct", "key_columns", "keys", "counts", "first", "last", "rate",
    "ticks_per_unit", "timestamps", "ranks", "rank_counts", "iad", "iad_permuted", "hs",
)  # fmt: skip
NEARLY = ("skew", "top_tenth", "mean_iad", "mean_iad_permuted", "drift", "drift_permuted")


def assert_alike(found, expected):
    """Sums are added in another order, and the models stop within 0.01 of the likeliest."""
    for p, q in zip(found.profiles, expected.profiles, strict=True):
        for name in EXACT:
            assert getattr(p, name) == getattr(q, name), name
        for name in NEARLY:
            near = getattr(q, name)
            near = None if near is None else pytest.approx(near, rel=1e-9)
            assert getattr(p, name) == near, name
        assert p.zipf.mle == pytest.approx(q.zipf.mle, nan_ok=True)
        assert p.b == pytest.approx(q.b, abs=0.01)
        assert p.model_a == pytest.approx(q.model_a, abs=0.01)
        assert p.entropy.popularity == pytest.approx(q.entropy.popularity)
    for v, w in zip(found.windows, expected.windows, strict=True):
        for name in ("within", "ticks", "n_pairs", "n_matched", "n_close", "n_recent"):
            assert getattr(v, name) == getattr(w, name), name
        assert (v.n_expected, v.popular) == (
            pytest.approx(w.n_expected),
            pytest.approx(w.popular),
        )
        assert v.rows == pytest.approx(w.rows)


def table_of(stream, seed, *, texts=False) -> pa.Table:
    """A stream with timestamps, several rows at a time, out of order, and some null keys."""
    rng = np.random.default_rng(seed)
    n = stream["key"].size
    keys = [f"key {key}" for key in stream["key"]] if texts else stream["key"].tolist()
    keys = [None if missing else key for key, missing in zip(keys, rng.random(n) < 0.01)]
    ts = START_US + stream["ts"] // 3 * 1_000_000
    columns = {
        "k": pa.array(keys),
        "half": pa.array((stream["key"] % 2).tolist(), pa.int32()),
        "ts": pa.array(ts, pa.timestamp("us", "UTC")),
    }
    return pa.table(columns).take(pa.array(np.argsort(rng.random(n) * 50 + np.arange(n))))


def test_two_streams_with_texts_nulls_ties_and_disorder(spark):
    streams = jw.streams.copy_pair(4000, domain=100, shared=True, seed=1)
    left, right = (table_of(stream, s, texts=True) for s, stream in enumerate(streams))
    asked = {"key": ["k", "half"], "time": "ts", "within": ["5 seconds", "1 minute", 900], "h": 20}
    found = characterize(
        *(spark.createDataFrame(table) for table in (left, right)), **asked, partitions=3
    )
    expected = jw.characterize(left, right, **asked)
    assert_alike(found, expected)
    assert found.favoured == expected.favoured
    assert found.profiles[0].n_out_of_order is None
    assert found.profiles[0].entropy.log_loss == pytest.approx(
        expected.profiles[0].entropy.log_loss, abs=0.02
    )
    again = jw.Characterization.from_json(found.to_json())
    assert again == found
    # The first of three partitions of time has a third of the rows, more or less.
    assert 500 < found.profiles[1].n_stack < 2500
    assert any("stack distances" in note for note in found.profiles[1].notes)


def test_one_stream_of_numbers_is_the_same_for_any_number_of_partitions(spark):
    stream = jw.streams.gismo_pair(3000, domain=50, horizon=3000, seed=2)[0]
    table = {"k": stream["key"], "t": stream["ts"] / 4}  # a clock of floats
    frame = spark.createDataFrame(pa.table(table))
    expected = jw.characterize(table, key="k", time="t", top=7)
    one = characterize(frame, key="k", time="t", top=7, partitions=1)
    four = characterize(frame, key="k", time="t", top=7, partitions=4)
    for found in (one, four):
        assert_alike(found, expected)
    assert one.profiles[0].stack == expected.profiles[0].stack
    assert one.profiles[0].n_stack == one.profiles[0].n_rows
    assert one.windows == ()


def test_a_hot_key_and_names_that_differ(spark):
    rng = np.random.default_rng(3)
    n = 3000
    left = {"a": np.where(rng.random(n) < 0.8, 7, rng.integers(0, 99, n)), "t": np.arange(n)}
    right = {"b": np.where(rng.random(n) < 0.8, 7, rng.integers(0, 99, n)), "u": np.arange(n)}
    asked = {"key": [("a", "b")], "time": ("t", "u"), "within": [1, 10, n], "h": 70}
    frames = [spark.createDataFrame(pa.table(table)) for table in (left, right)]
    found = characterize(*frames, **asked, partitions=2)
    assert_alike(found, jw.characterize(left, right, **asked))


def test_sampled_rows_give_nearly_the_same_model():
    stream = jw.streams.copy_pair(20_000, domain=100, seed=4)[0]
    runs = on_spark.KeyRuns(20_000, 50, 5000)
    by_key = np.argsort(stream["key"], kind="stable")
    runs.update(stream["key"][by_key], by_key).end()
    expected = jw.characterize(stream, key="key", time="ts").profiles[0]
    models = on_spark._models(runs, [10, 50], *runs.frequencies())
    # 5,000 of 20,000 rows; b's standard error is about √(b(1-b)/5000) = 0.006, four of them.
    assert models[1][1] == pytest.approx(expected.model_b, abs=0.024)
    loss, error = runs.log_loss(*models[1])
    assert loss == pytest.approx(expected.entropy.log_loss, abs=4 * error + 0.01)
    assert 0 < error < 0.05


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([7] * 60, "one key"),
        (list(range(60)), "a key of its own"),
        ([1, 2, 1], "most frequent tenth"),
    ],
    ids=["constant", "distinct", "fewer rows than h"],
)
def test_streams_that_are_hard_to_digest(spark, keys, said):
    table = {"k": keys, "t": np.arange(len(keys))}
    found = characterize(spark.createDataFrame(pa.table(table)), key="k", time="t")
    assert_alike(found, jw.characterize(table, key="k", time="t"))
    assert said in found.verdict()[0]
    assert found._repr_html_()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": "nope"}, "unknown column of the stream stream 'nope'"),
        ({"time": "nope"}, "unknown column"),
        ({"time": None}, "time is missing"),
        ({"time": "text"}, "it must be timestamp, date, integer or float"),
        ({"key": "list"}, "join on its parts"),
        ({"h": 0}, "h must be an integer"),
        ({"within": 5}, "within goes with two streams"),
        ({"partitions": 0}, "partitions must be"),
        ({"time": "gap"}, "1 nulls; drop them"),
        ({"key": "gap"}, r"1 row\(s\) with a key \(1 have a null\)"),
    ],
)
def test_bad_input_is_one_clear_line(spark, changes, message):
    frame = spark.createDataFrame(
        [(1, 1, "x", [1], None), (2, 2, "y", [2], 3)],
        "k long, t long, text string, list array<int>, gap long",
    )
    with pytest.raises(JoinweirError, match=message):
        characterize(frame, **({"key": "k", "time": "t"} | changes))


def test_what_is_not_a_batch_frame_is_refused(spark, tmp_path):
    with pytest.raises(JoinweirError, match="must be a Spark DataFrame, not dict"):
        characterize({"k": [1]}, key="k", time="t")
    rate = spark.readStream.format("rate").load()
    with pytest.raises(JoinweirError, match="streaming DataFrame"):
        characterize(rate, key="value", time="timestamp")


def test_a_clock_without_a_zone_and_dates(spark):
    days = pa.array(np.arange(40) // 2, pa.int32()).cast(pa.date32())
    wall = pa.array(START_US + np.arange(40) * 10**6, pa.timestamp("us"))
    table = pa.table({"k": np.arange(40) % 3, "day": days, "wall": wall})
    frame = spark.createDataFrame(table)
    for time in ("day", "wall"):
        # With more lags than one many models explain three keys in turn.
        found = characterize(frame, key="k", time=time, partitions=1, h=1)
        assert_alike(found, jw.characterize(table, key="k", time=time, h=1))


CONNECT = """
import sys
from spark_session import connect_session
from joinweir.spark import characterize

spark = connect_session()
left, right = (spark.read.parquet(f"{sys.argv[1]}/{side}.parquet") for side in ("left", "right"))
found = characterize(left, right, key="key", time="ts", within=[10, 100])
found.save(f"{sys.argv[1]}/found.json")
spark.stop()
"""


@pytest.fixture
def folder(tmp_path):
    for name, stream in zip(("left", "right"), jw.streams.zipf_pair(1500, domain=40, seed=5)):
        pq.write_table(pa.table(stream), tmp_path / f"{name}.parquet")
    return tmp_path


def expected_of(folder):
    tables = [pq.read_table(folder / f"{side}.parquet") for side in ("left", "right")]
    return jw.characterize(*tables, key="key", time="ts", within=[10, 100])


def test_connect_gives_the_same(folder):
    environment = os.environ | worker_environment()
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, str(folder)],
        env=environment, cwd=TESTS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert_alike(jw.Characterization.load(folder / "found.json"), expected_of(folder))


def test_the_command_gives_the_same(folder, capsys):
    files = [str(folder / f"{side}.parquet") for side in ("left", "right")]
    asked = ["--key", "key", "--time", "ts", "--within", "10,100", "--spark", "--json"]
    assert cli.main(["characterize", *files, *asked]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["settings"]["engine"] == "spark"
    assert_alike(jw.Characterization.from_json(out), expected_of(folder))


def test_the_command_tells_what_is_wrong_on_spark_as_well(folder, capsys):
    file = str(folder / "left.parquet")
    assert cli.main(["characterize", file, "--key", "nope", "--time", "ts", "--spark"]) == 2
    assert "left.parquet 'nope'; choices: ts, key" in capsys.readouterr().err
    assert cli.main(["characterize", file, "--key", "key", "--spark"]) == 2
    assert "time is missing" in capsys.readouterr().err
