"""The `joinweir` source of Spark: rows that can be made again, options, offsets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from joinweir import streams
from joinweir.errors import JoinweirError
from joinweir.spark import check_source_options, register_source, source
from spark_session import worker_environment

DOCS = Path(__file__).parent.parent / "docs"
NEEDED = {"interval_locality": {"master_rows": 500, "limit": 400_000}}


def made(start: int, stop: int, start_us: int = 0, **options: object) -> pa.Table:
    checked = check_source_options(options)
    batches = list(source.record_batches(checked, start, stop, start_us))
    return pa.Table.from_batches(batches, schema=source._arrow_schema(checked))


def column(table: pa.Table, name: str) -> np.ndarray:
    values = table.column(name)
    return (values.cast(pa.int64()) if name == "ts" else values).to_numpy()


def keys(start: int, stop: int, **options: object) -> np.ndarray:
    return column(made(start, stop, **options), "key")


# --- rows are a pure function of their numbers ----------------------------------------------------

CUTS = st.lists(st.integers(130_000, 133_000), min_size=2, max_size=6, unique=True).map(sorted)


@pytest.mark.parametrize("kind", streams.GENERATORS)
@given(cuts=CUTS, side=st.sampled_from(["left", "right"]))
def test_any_cut_of_the_rows_gives_the_same_rows(kind, cuts, side):
    options = {
        "generator": kind,
        "side": side,
        "nullShare": 0.1,
        "disorder": "3 s",
        "payloadBytes": 20,
        "burstFactor": 7,
        "seed": 3,
        **NEEDED.get(kind, {}),
    }
    whole = made(cuts[0], cuts[-1], **options)  # across the edge of a block: 2 * 65,536 = 131,072
    source._block.cache_clear()
    pieces = [made(low, high, **options) for low, high in zip(cuts, cuts[1:])]  # noqa: RUF007
    assert pa.concat_tables(pieces).equals(whole)


@pytest.mark.parametrize("kind", ["zipf", "interval_locality"])
def test_single_streams_are_those_of_the_generator(kind):
    options = {"skew": 1.1, "seed": 5}
    if kind == "interval_locality":
        options |= {"master_rows": 500, "intervals": 7}
    expected = streams.generate(kind, 100_000, **options)["key"]
    got = keys(60_000, 90_000, generator=kind, limit=100_000, **options)
    assert np.array_equal(got, expected[60_000:90_000])


@pytest.mark.parametrize("correlation", streams.CORRELATIONS)
def test_pairs_are_those_of_the_generator(correlation):
    expected = streams.zipf_pair(
        100_000, domain=50, skew=(0.5, 1.0), correlation=correlation, seed=9
    )
    for side, stream in zip(("left", "right"), expected):
        got = keys(
            66_000,
            99_000,
            domain=50,
            skew="0.5,1.0",
            correlation=correlation,
            seed=9,
            side=side,
        )
        assert np.array_equal(got, stream["key"][66_000:99_000])


def test_the_copy_process_goes_on_across_blocks_as_if_it_were_not_cut():
    n = 3 * source.BLOCK_ROWS
    got = keys(0, n, generator="copy_model", lags=4, fresh=0.3, domain=1000)
    table = streams._zipf_table(1000, 0.75)
    fresh = np.searchsorted(
        table[0], source._uniform(0, "copy_model fresh", 0, n), side="right"
    ).tolist()
    # Lag 0, fresh, has probability 0.3; lags 1 … 4 have 0.175 each.
    lags = np.ceil((source._uniform(0, "copy_model lags", 0, n) - 0.3) / 0.175).clip(0)
    expected: list[int] = []
    for i, lag in enumerate(lags.astype(int).tolist()):
        expected.append(expected[i - lag] if 0 < lag <= i else fresh[i])
    assert np.mean(got == expected) > 0.99999  # rounding at a lag's edge may differ
    assert np.array_equal(got[-100:], expected[-100:])


@pytest.mark.parametrize("kind", ["random_walk", "random_walk_pair"])
def test_a_walk_does_not_jump_where_a_block_ends(kind):
    options = {"noise": 0} if kind == "random_walk_pair" else {}
    n = 4 * source.BLOCK_ROWS + 10
    walk = keys(0, n, generator=kind, domain=10_000, step=2.0, **options)
    assert walk.std() > 5
    assert np.abs(np.diff(walk)).max() <= 2.0 * 6  # of 262,154 normal steps none is beyond 6 σ


@pytest.mark.parametrize("kind", ["gismo", "gismo_pair"])
def test_each_block_of_gismo_has_the_zipf_counts(kind):
    blocks = keys(0, 2 * source.BLOCK_ROWS, generator=kind, domain=20, skew=1.0).reshape(2, -1)
    law = streams.zipf_probabilities(20, 1.0) * source.BLOCK_ROWS
    for block in blocks:
        assert np.abs(np.bincount(block, minlength=20) - law).max() <= 20
    assert not np.array_equal(*blocks)


# --- the two sides --------------------------------------------------------------------------------


def test_the_sides_of_a_pair_share_what_the_generator_shares():
    left, right = (
        keys(0, 50_000, generator="random_walk_pair", noise=0, side=side) for side in (1, 2)
    )
    assert np.array_equal(left, right)
    left, right = (
        keys(0, 50_000, generator="random_walk_pair", noise=0, shared="false", side=side)
        for side in (1, 2)
    )
    assert np.mean(left == right) < 0.2


def test_a_shared_copy_process_repeats_its_keys_on_the_other_side():
    def repeated(shared: str) -> float:
        left, right = (
            keys(0, 20_000, generator="copy_pair", domain=10_000, skew=0, shared=shared, side=side)
            for side in ("left", "right")
        )
        return np.mean([left[i] in right[max(i - 100, 0) : i + 100] for i in range(20_000)])

    assert repeated("true") > 0.7
    assert repeated("false") < 0.1


def test_a_shared_copy_process_deals_each_row_to_one_side():
    options = {"generator": "copy_pair", "domain": 10_000, "shared": "true"}
    sides = [keys(0, 70_000, side=side, **options) for side in ("left", "right")]
    process = source._Keys(check_source_options(options))._blocks(0, 140_000)
    assert np.array_equal(np.sort(sides, axis=0), np.sort(process.reshape(-1, 2).T, axis=0))


def test_drift_changes_both_sides_at_the_same_event_time():
    options = {"generator": "drift_pair", "domain": 1000, "skew": 60, "period": 3}
    left = made(0, 600, rowsPerSecond=10, **options)
    right = made(0, 1200, rowsPerSecond=20, side="right", **options)
    of_period = {}
    for table in (left, right):
        periods = column(table, "ts") // 3_000_000
        for period in range(20):
            of_period.setdefault(period, set()).update(column(table, "key")[periods == period])
    assert all(len(found) == 1 for found in of_period.values())
    assert len(set.union(*of_period.values())) > 15


@pytest.mark.parametrize("kind", streams.GENERATORS)
def test_the_two_sides_are_not_the_same_rows(kind):
    options = {"generator": kind, **NEEDED.get(kind, {})}
    left, right = (made(0, 2000, side=side, **options) for side in ("left", "right"))
    assert not left.column("key").equals(right.column("key"))
    assert not left.column("value").equals(right.column("value"))


def test_a_third_side_follows_the_same_law():
    third = keys(0, 50_000, side=3, skew="0.1,2.0", domain=10)
    assert np.bincount(third)[0] / 50_000 == pytest.approx(
        streams.zipf_probabilities(10, 2.0)[0], abs=0.01
    )
    assert not np.array_equal(third, keys(0, 50_000, side=2, skew="0.1,2.0", domain=10))


# --- skew, nulls, disorder, bursts, payload -------------------------------------------------------


@pytest.mark.parametrize("skew", [0.0, 0.75, 1.5])
def test_keys_have_the_skew_that_was_asked_for(skew):
    counts = np.bincount(keys(0, 200_000, skew=skew, domain=30), minlength=30)
    law = streams.zipf_probabilities(30, skew) * 200_000
    assert (np.abs(counts - law) < 5 * np.sqrt(law)).all()


def test_the_share_of_null_keys():
    table = made(0, 100_000, nullShare=0.25)
    assert table.column("key").null_count / 100_000 == pytest.approx(0.25, abs=0.01)
    assert table.column("ts").null_count == table.column("value").null_count == 0
    plain = made(0, 100_000).column("key").to_pylist()
    kept = table.column("key").to_pylist()
    assert all(k is None or k == p for k, p in zip(kept, plain))


def test_no_row_is_further_behind_than_disorder():
    ts = column(made(0, 100_000, disorder="2 s", rowsPerSecond=500), "ts")
    behind = np.maximum.accumulate(ts) - ts
    assert 1_900_000 < behind.max() < 2_000_000
    in_order = column(made(0, 100_000, rowsPerSecond=500), "ts")
    assert (np.diff(in_order) == 2000).all()


def test_a_burst_multiplies_the_rate_in_its_part_of_each_period():
    # 8 s at 10 rows/s and 2 s at 50 rows/s: 80 + 100 rows in each 10 s.
    options = {"rowsPerSecond": 10, "burstFactor": 5, "burstPeriod": "10 s", "burstShare": 0.2}
    ts = column(made(0, 1800, **options), "ts")
    seconds = np.bincount(ts // 1_000_000, minlength=100).reshape(10, 10)
    assert (seconds == [10] * 8 + [50] * 2).all()
    pace = source._Pace(check_source_options(options))
    for row in (0, 1, 79, 80, 81, 179, 180, 181, 12_345):
        arrival = int(pace.arrival_us(np.array([row]))[0])
        assert pace.rows_due(arrival - 1) <= row <= pace.rows_due(arrival + 1) + 1


@given(
    rate=st.floats(0.01, 1e6),
    factor=st.floats(0.01, 100),
    period=st.floats(0.001, 1000),
    share=st.floats(0, 1),
    start=st.integers(0, 10**12),
)
def test_times_never_step_back(rate, factor, period, share, start):
    options = check_source_options(
        {"rowsPerSecond": rate, "burstFactor": factor, "burstPeriod": period, "burstShare": share}
    )
    times = source._Pace(options).arrival_us(np.arange(start, start + 5000))
    assert (np.diff(times) >= 0).all()


def test_time_step_and_start_time_set_the_event_time():
    table = made(7, 10, start_us=1_000_000, timeStep="250 ms", rowsPerSecond=9)
    assert column(table, "ts").tolist() == [2_750_000, 3_000_000, 3_250_000]


@pytest.mark.parametrize("width", [1, 7, 8, 100])
def test_payload_has_its_bytes(width):
    payload = made(100, 1100, payloadBytes=width).column("payload").to_pylist()
    assert {len(text) for text in payload} == {width}
    assert set("".join(payload)) == set("abcdefghijklmnop")
    if width >= 7:
        assert len(set(payload)) == 1000


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"generator": "zipff"}, ["generator", "'zipff'", "did you mean 'zipf'", "gismo"]),
        ({"skw": 1}, ["'skw'", "did you mean 'skew'", "rowsPerSecond", "correlation"]),
        ({"generator": "random_walk", "skew": 1}, ["random_walk", "'skew'", "persistence"]),
        ({"skew": "steep"}, ["skew", "number", "'steep'"]),
        ({"skew": -1}, ["zipf_pair", "skew", ">= 0"]),
        ({"domain": 1.5}, ["domain", "whole number", "'1.5'"]),
        ({"domain": 10**12}, ["domain", "at most", "100,000,000"]),
        ({"correlation": "odd"}, ["correlation", "direct, inverse, none"]),
        ({"generator": "copy_pair", "shared": "perhaps"}, ["shared", "true or false"]),
        ({"generator": "copy_model", "lags": 2, "weights": "1,x"}, ["weights", "commas"]),
        ({"generator": "copy_model", "lags": 2, "weights": "1,2,3"}, ["weights", "2 numbers"]),
        ({"generator": "interval_locality", "master_rows": 50}, ["limit", "sweep"]),
        ({"generator": "interval_locality", "limit": 5}, ["master_rows"]),
        ({"rate": 5}, ["rate", "use rowsPerSecond"]),
        ({"n": 5}, ["n", "use limit"]),
        ({"seed": -1}, ["seed", "from 0"]),
        ({"side": "middle"}, ["side", "left, right", "'middle'"]),
        ({"side": 0}, ["side", "left, right", "'0'"]),
        ({"generator": "gismo_pair", "side": 3}, ["side", "left or right", "gismo_pair"]),
        ({"generator": "copy_pair", "shared": "true", "side": 3}, ["side", "left or right"]),
        ({"rowsPerSecond": 0}, ["rowsPerSecond", "from 1e-06"]),
        ({"rowsPerSecond": "nan"}, ["rowsPerSecond", "'nan'"]),
        ({"rowsPerBatch": 0}, ["rowsPerBatch", "from 1"]),
        ({"burstFactor": 0}, ["burstFactor", "from 0.001"]),
        ({"burstPeriod": "10 s"}, ["burstPeriod", "burstFactor"]),
        ({"burstFactor": 2, "burstPeriod": "soon"}, ["burstPeriod", "duration", "'soon'"]),
        ({"burstFactor": 2, "burstShare": 2}, ["burstShare", "from 0 to 1"]),
        ({"startTime": "noon"}, ["startTime", "2026-01-01T12:00:00Z", "'noon'"]),
        ({"timeStep": -1}, ["timeStep", "duration"]),
        ({"timeStep": "inf"}, ["timeStep", "duration"]),
        ({"disorder": "much"}, ["disorder", "duration", "'much'"]),
        ({"nullShare": 1.5}, ["nullShare", "from 0 to 1"]),
        ({"payloadBytes": 2**21}, ["payloadBytes", "1,048,576"]),
        ({"limit": "many"}, ["limit", "whole number"]),
        ({"limit": 2**53, "rowsPerSecond": 0.001}, ["limit", "year"]),
        ({"limit": 2**53, "timeStep": "1 day"}, ["limit", "timeStep"]),
        ({"limit": 2**50, "burstFactor": 0.001, "burstShare": 1}, ["limit", "year"]),
        ({"numPartitions": 0}, ["numPartitions", "from 1"]),
    ],
)
def test_a_bad_option_gives_one_clear_line(options, words):
    with pytest.raises(JoinweirError) as raised:
        check_source_options(options)
    message = str(raised.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_names_of_options_are_read_in_any_case():
    written = {"ROWSPERSECOND": 5, "rows_per_batch": 7, "masterrows": 9}
    options = check_source_options(
        {"generator": "interval_locality", "limit": 10, "intervals": 2, **written}
    )
    assert (options.rows_per_second, options.rows_per_batch) == (5.0, 7)
    assert dict(options.parameters) == {"intervals": 2, "master_rows": 9}


def test_start_time_is_utc_unless_it_says_otherwise():
    for text in ("1970-01-01T01:00:00Z", "1970-01-01 01:00:00", "1970-01-01T03:00:00+02:00"):
        assert check_source_options({"startTime": text}).start_us == 3_600_000_000


def test_the_page_names_every_option():
    page = (DOCS / "source.md").read_text()
    assert [name for name in source._OPTIONS if f"`{name}`" not in page] == []
    assert [name for name in streams.GENERATORS if f"`{name}`" not in page] == []


# --- offsets --------------------------------------------------------------------------------------


def stream_reader(**options: object) -> source.JoinweirStreamReader:
    return source.JoinweirStreamReader(check_source_options(options))


def test_rows_per_batch_sets_the_offsets_whatever_the_clock():
    reader = stream_reader(rowsPerBatch=400, limit=1000)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(400)
    at, rows = reader.initialOffset(), []
    for _ in range(4):
        at = reader.latestOffset(at, limit)
        rows.append(at["row"])
    assert rows == [400, 800, 1000, 1000]
    assert reader.latestOffset({"row": 0}, ReadAllAvailable()) == {"row": 1000}
    assert stream_reader(rowsPerBatch=4).latestOffset({"row": 8}, ReadAllAvailable()) == {"row": 12}


def test_the_clock_goes_on_from_the_offsets_own_beginning(monkeypatch):
    monkeypatch.setattr(source, "_now_us", lambda: 1_000_000_000)
    first = stream_reader(rowsPerSecond=100)
    began = first.initialOffset()
    assert began == {"row": 0, "began_us": 1_000_000_000}
    monkeypatch.setattr(source, "_now_us", lambda: 1_010_000_000)
    later = stream_reader(rowsPerSecond=100)  # as after a restart
    end = later.latestOffset(began | {"row": 300}, later.getDefaultReadLimit())
    assert end == {"row": 1000, "began_us": 1_000_000_000}
    parts = later.partitions(began | {"row": 300}, end)
    assert [(p.start, p.stop, p.start_us) for p in parts] == [
        (300, 650, 1_000_000_000),
        (650, 1000, 1_000_000_000),
    ]
    # A clock that was set back makes no offset go back.
    monkeypatch.setattr(source, "_now_us", lambda: 0)
    assert later.latestOffset(end, ReadAllAvailable()) == end
    assert later.partitions(end, end) == []


def test_available_now_ends(monkeypatch):
    monkeypatch.setattr(source, "_now_us", lambda: 5_000_000)
    reader = stream_reader(rowsPerSecond=10)
    reader.prepareForTriggerAvailableNow()
    monkeypatch.setattr(source, "_now_us", lambda: 9_000_000)
    end = reader.latestOffset({"row": 0, "began_us": 0}, ReadAllAvailable())
    assert end["row"] == 50
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    limited = stream_reader(rowsPerSecond=10, limit=77)
    limited.prepareForTriggerAvailableNow()
    assert limited.latestOffset({"row": 0, "began_us": 0}, ReadAllAvailable())["row"] == 77
    with pytest.raises(JoinweirError, match="availableNow needs the option limit"):
        stream_reader(rowsPerBatch=5).prepareForTriggerAvailableNow()


def test_a_checkpoint_without_a_clock_is_refused_by_the_clock():
    with pytest.raises(JoinweirError, match="rowsPerBatch"):
        stream_reader().latestOffset({"row": 5}, ReadAllAvailable())


@given(start=st.integers(0, 10**9), n=st.integers(0, 100), parts=st.integers(1, 9))
def test_partitions_cover_the_rows_once(start, n, parts):
    reader = stream_reader(rowsPerBatch=1, numPartitions=parts)
    ranges = reader.partitions({"row": start}, {"row": start + n})
    rows = [row for each in ranges for row in range(each.start, each.stop)]
    assert rows == list(range(start, start + n))
    assert len(ranges) == min(n, parts)


# --- on Spark -------------------------------------------------------------------------------------


def rows_of(frame) -> list[tuple]:
    table = frame.toArrow()
    return sorted(zip(*(table.column(name).to_pylist() for name in table.column_names)), key=str)


def expected_rows(start: int, stop: int, **options: object) -> list[tuple]:
    table = made(start, stop, start_us=source.DEFAULT_START_US, **options)
    return sorted(zip(*(table.column(name).to_pylist() for name in table.column_names)), key=str)


def run_to_the_end(spark, options: dict, directory: Path, name: str) -> list[int]:
    """Append what is available now to Parquet; the rows of each micro-batch."""
    query = (
        spark.readStream.format("joinweir")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(directory / name))
        .option("checkpointLocation", str(directory / f"{name}-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]


@pytest.fixture(scope="module")
def source_spark(spark):
    register_source(spark)
    return spark


def test_batch_and_stream_read_the_same_rows(source_spark, tmp_path):
    options = {"generator": "copy_pair", "nullShare": "0.1", "payloadBytes": "20", "limit": "2500"}
    batch = source_spark.read.format("joinweir").options(**options).load()
    assert batch.schema.simpleString() == (
        "struct<key:bigint,ts:timestamp,value:double,payload:string>"
    )
    expected = expected_rows(0, 2500, **options)
    assert rows_of(batch) == expected
    counts = run_to_the_end(source_spark, options | {"rowsPerBatch": "1000"}, tmp_path, "out")
    assert [n for n in counts if n] == [1000, 1000, 500]
    assert rows_of(source_spark.read.parquet(str(tmp_path / "out"))) == expected


def test_a_restart_from_the_checkpoint_leaves_no_gap_and_no_duplicate(source_spark, tmp_path):
    options = {"rowsPerBatch": "300", "timeStep": "1 ms"}
    run_to_the_end(source_spark, options | {"limit": "1000"}, tmp_path, "out")
    # As if the driver had died before the last micro-batch, already planned, was committed and
    # its files were entered in the sink's log: it is run again, and those files do not count.
    offsets = tmp_path / "out-checkpoint" / "offsets"
    last = max(int(path.name) for path in offsets.iterdir() if path.name.isdigit())
    for log in (tmp_path / "out-checkpoint" / "commits", tmp_path / "out" / "_spark_metadata"):
        (log / f"{last}").unlink()
        (log / f".{last}.crc").unlink(missing_ok=True)
    run_to_the_end(source_spark, options | {"limit": "2100"}, tmp_path, "out")
    written = source_spark.read.parquet(str(tmp_path / "out"))
    assert rows_of(written) == expected_rows(0, 2100, **options)


def test_the_clock_drives_a_query_and_goes_on_after_a_restart(source_spark, tmp_path):
    def run_until(rows: int) -> dict:
        query = (
            source_spark.readStream.format("joinweir")
            .options(rowsPerSecond="500", limit="2000", startTime="2026-01-01T00:00:00Z")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            while True:
                assert query.isActive, query.exception()
                progress = query.lastProgress
                end = json.loads(progress["sources"][0]["endOffset"]) if progress else {"row": 0}
                if end["row"] >= rows:
                    return end
                query.awaitTermination(0.2)
        finally:
            query.stop()

    first, last = run_until(100), run_until(2000)
    assert last == first | {"row": 2000}
    written = source_spark.read.parquet(str(tmp_path / "out"))
    assert rows_of(written) == expected_rows(0, 2000, rowsPerSecond="500")


def test_both_sides_join_in_one_query(source_spark, tmp_path):
    options = {"generator": "random_walk_pair", "noise": "0", "limit": "500", "timeStep": "1 s"}
    left, right = (
        source_spark.readStream.format("joinweir")
        .options(**options, side=side, rowsPerBatch="200")
        .load()
        .select("key", "ts")
        for side in ("left", "right")
    )
    query = (
        left.join(right, ["key", "ts"])
        .writeStream.format("memory")
        .queryName("both_sides")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert source_spark.table("both_sides").count() == 500


def test_spark_shows_the_line_of_a_bad_option(source_spark):
    for reader in (source_spark.read, source_spark.readStream):
        with pytest.raises(AnalysisException, match=r"JoinweirError: option rowsPerSecond must be"):
            reader.format("joinweir").option("rowsPerSecond", "fast").load()
    with pytest.raises(AnalysisException, match=r"spark\.read needs the option limit"):
        source_spark.read.format("joinweir").load().collect()
    with pytest.raises(AnalysisException, match=r"leave out \.schema"):
        frame = source_spark.read.format("joinweir").option("limit", 5).schema("a INT").load()
        frame.collect()


def test_an_empty_batch_has_no_rows(source_spark):
    assert source_spark.read.format("joinweir").option("limit", 0).load().count() == 0


# --- entry points ---------------------------------------------------------------------------------

CONNECT = """
import sys
from joinweir.spark import register_source
from spark_session import connect_session

spark = connect_session()
try:
    assert type(spark).__module__.startswith("pyspark.sql.connect")
    register_source(spark)
    frame = spark.read.format("joinweir").option("limit", 1000).load()
    assert frame.count() == 1000
    query = (
        spark.readStream.format("joinweir").option("limit", 1000).option("rowsPerBatch", 600)
        .load().writeStream.format("memory").queryName("rows")
        .option("checkpointLocation", sys.argv[1]).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    rows = spark.table("rows")
    same = rows.exceptAll(frame).count(), frame.exceptAll(rows).count()
    print("differences", *same)
finally:
    spark.stop()
"""


def in_a_process(arguments: list[str], directory: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=os.environ | worker_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_spark_connect_reads_the_source(tmp_path):
    done = in_a_process(["-c", CONNECT, str(tmp_path / "checkpoint")], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "differences 0 0"


def test_the_pages_example_runs_as_printed(tmp_path):
    page = (DOCS / "source.md").read_text()
    example, shown = re.search(r"```python\n(.*?)```\n```\n(.*?)```", page, re.DOTALL).groups()
    (tmp_path / "example.py").write_text(example)
    done = in_a_process(["example.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown
