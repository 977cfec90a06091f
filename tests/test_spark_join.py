"""`window_join` on Spark: the same rows as Spark's own stream-stream join, and what it tells."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Observation
from pyspark.sql import functions as F

import joinweir as jw
from joinweir.spark import LossReport, loss_report, window_join
from spark_data import START_US, multiset, run_to_memory, stream_of, times, write_batches

BATCHES, ROWS = 4, 70
SECONDS = 10.0  # of event time in a micro-batch


def seconds_of(rng: np.random.Generator, batch: int, disorder: float) -> np.ndarray:
    """Times of a micro-batch on a coarse grid, so that rows tie; some `disorder` seconds back."""
    s = SECONDS * batch + rng.integers(0, int(SECONDS * 4), ROWS) / 4
    back = rng.random(ROWS) < 0.3
    # Never behind the smallest time of the stream's first micro-batch: only order matters here.
    return np.where(back, np.maximum(s - disorder * rng.random(ROWS), 0), s)


def with_nulls(rng: np.random.Generator, values: list, share: float = 0.06) -> list:
    return [None if rng.random() < share else value for value in values]


def with_copies(rng: np.random.Generator, table: pa.Table) -> pa.Table:
    """Some rows twice: equal in all columns."""
    return pa.concat_tables([table, table.take(pa.array(rng.integers(0, table.num_rows, 6)))])


def random_table(rng, batch, keys, tag, disorder=4.0) -> pa.Table:
    """`keys`: name -> function of (rng, n) that gives a list of values, and the Arrow type."""
    columns = {
        name: pa.array(with_nulls(rng, make(rng, ROWS)), kind)
        for name, (make, kind) in keys.items()
    }
    columns["ts"] = times(seconds_of(rng, batch, disorder))
    columns[f"{tag}v"] = pa.array(
        with_nulls(rng, [f"{tag}{i}" for i in rng.integers(0, 40, ROWS)], 0.1)
    )
    return with_copies(rng, pa.table(columns))


def choice(*values):
    return lambda rng, n: [values[i] for i in rng.integers(0, len(values), n)]


NAN = float("nan")
TEXTS = choice("a", "b", "ß", "", "a ", "日本", "A")
NUMBERS = choice(0, 1, -1, 7, 2**31 - 1)
DOUBLES = choice(0.0, -0.0, NAN, -NAN, 1.5, math.inf, 5e-324)

# What is joined: key columns of each stream, `on`, lives in seconds, closed, shards.
CASES = {
    "one shard, text": {
        "keys": [{"key": (TEXTS, pa.string())}] * 2, "on": "key", "lives": (3, 3), "shards": 1,
    },
    "two shards, composite, int and bigint, unequal lives": {
        "keys": [
            {"key": (TEXTS, pa.string()), "n": (NUMBERS, pa.int32())},
            {"key": (TEXTS, pa.string()), "m": (NUMBERS, pa.int64())},
        ],
        "on": ["key", ("n", "m")], "lives": (2, 9), "shards": 2,
    },
    "five shards, doubles, closed": {
        "keys": [{"x": (DOUBLES, pa.float64())}] * 2, "on": "x", "lives": (1, 1), "shards": 5,
        "closed": "both",
    },
    "three streams": {
        "keys": [{"key": (TEXTS, pa.string())}] * 3, "on": "key", "lives": (0.75,) * 3, "shards": 2,
    },
}  # fmt: skip


def spark_join(frames, case, delay):
    """The oracle: Spark's own stream-stream join, in our order of columns.

    With watermarks, except for three streams: Spark refuses a second join that has two of them.
    """
    on = case["on"] if isinstance(case["on"], list) else [case["on"]]
    pairs = [entry if isinstance(entry, tuple) else (entry,) * len(frames) for entry in on]
    named = [
        (frame.withWatermark("ts", delay) if len(frames) == 2 else frame).select(
            *(F.col(c).alias(f"{c}__{s}") for c in frame.columns)
        )
        for s, frame in enumerate(frames)
    ]  # fmt: skip
    joined = named[0]
    for s in range(1, len(frames)):
        condition = F.lit(True)
        for pair in pairs:
            condition &= F.col(f"{pair[0]}__0") == F.col(f"{pair[s]}__{s}")
        for t in range(s):
            for one, other in ((s, t), (t, s)):
                end = F.col(f"ts__{other}") + F.expr(f"interval '{case['lives'][other]}' second")
                within = F.col(f"ts__{one}") <= end if case.get("closed") == "both" else (
                    F.col(f"ts__{one}") < end
                )  # fmt: skip
                condition &= within
        joined = joined.join(named[s], condition)
    shared = [pair[0] for pair in pairs if len(set(pair)) == 1]
    order = [f"{c}__0" for c in shared]
    order += [
        f"{c}__{s}" for s, frame in enumerate(frames) for c in frame.columns if c not in shared
    ]
    return joined.select(*order)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_with_enough_memory_it_is_sparks_own_join(spark, tmp_path, case):
    rng = np.random.default_rng(len(str(case)))
    frames = []
    for s, keys in enumerate(case["keys"]):
        tables = [random_table(rng, i, keys, "lrt"[s]) for i in range(BATCHES)]
        frames.append(stream_of(spark, write_batches(tmp_path / f"in{s}", tables)))
    name = f"case{case['shards']}{len(frames)}"
    joined = window_join(
        *(frames if len(frames) == 2 else [frames]), on=case["on"], time="ts",
        within=tuple(case["lives"]), closed=case.get("closed", "left"), lateness="5 seconds",
        memory="64 MB", accounting="exact", shards=case["shards"], name=name,
    )  # fmt: skip
    ours = run_to_memory(joined, f"{name}_ours", tmp_path / "a")
    theirs = run_to_memory(spark_join(frames, case, "5 seconds"), f"{name}_spark", tmp_path / "b")
    ours.awaitTermination()
    theirs.awaitTermination()
    got, expected = (multiset(spark.table(f"{name}_{who}").collect()) for who in ("ours", "spark"))
    assert got == expected
    assert sum(got.values()) > 100
    assert max(got.values()) > 1  # duplicates are there
    told = loss_report(ours, name)
    assert told.total_n_out == told.total_n_exact == sum(got.values())
    assert [side.total_n_late for side in told.sides] == [0] * len(frames)


# Types of keys beside those above: (type of left, values as SQL, type of right).
MORE_KEYS = {
    "date": ("date", "date'2024-02-29' + {}", "date"),
    "timestamp": ("timestamp", "timestamp'1969-12-31 23:59:59.999999' + make_interval(0,0,0,0,{})",
                  "timestamp"),
    "timestamp_ntz": ("timestamp_ntz", "timestamp_ntz'2024-01-01' + make_interval(0,0,0,{})",
                      "timestamp_ntz"),
    "boolean": ("boolean", "{} % 2 = 0", "boolean"),
    "byte and short": ("tinyint", "{} - 3", "smallint"),
    "decimals": ("decimal(10,2)", "{} / 2", "decimal(12,3)"),
    "int and decimal": ("int", "{}", "decimal(5,1)"),
    "float and double": ("float", "if({0} = 1, -0.0, {0} - 1.5)", "double"),
    "bigint and double": ("bigint", "{}", "double"),
    "binary": ("binary", "cast(cast({} as string) as binary)", "binary"),
    "day-time interval": ("interval day to second", "make_dt_interval(0, {})",
                          "interval day to second"),
}  # fmt: skip


def test_keys_of_all_types_in_batch(spark):
    """Against Spark's join of the same tables; every type in one job."""
    n = 60
    base = spark.range(n).selectExpr(
        "id", "timestamp'2024-01-01' + make_interval(0,0,0,0,0,0,(id * 7) % 40) ts",
        "if(id % 9 = 0, null, pmod(hash(id), 7)) k",
    )  # fmt: skip
    ours, theirs = [], []
    for name, (left_type, value, right_type) in MORE_KEYS.items():
        left, right = (
            base.selectExpr(
                f"if(k is null, null, cast(({value.format('k')}) as {kind})) key", f"ts ts{side}",
                f"id id{side}",
            )
            for side, kind in ((1, left_type), (2, right_type))
        )  # fmt: skip
        joined = window_join(left, right, on="key", time=("ts1", "ts2"), within="5 seconds")
        assert joined.schema["key"].dataType == left.schema["key"].dataType
        ours.append(joined.select(F.lit(name), F.col("key").cast("string"), "id1", "id2"))
        apart = "abs(unix_micros(ts1) - unix_micros(ts2)) < 5000000"
        both = left.join(right.withColumnRenamed("key", "key2"), F.expr(f"key = key2 and {apart}"))
        theirs.append(both.select(F.lit(name), F.col("key").cast("string"), "id1", "id2"))
    found = [_union(frames).collect() for frames in (ours, theirs)]
    assert multiset(found[0]) == multiset(found[1])
    assert Counter(row[0] for row in found[0]).keys() == MORE_KEYS.keys()


def _union(frames):
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.union(frame)
    return whole


TIMES = {
    "int": ("cast(t as int)", 3, "0 seconds"),
    "bigint": ("cast(t as bigint)", 3, 0),
    "double": ("t / 4", 0.75, 0.0),
    "date": ("date_add(date'2024-01-01', t)", "3 days", "0 seconds"),
    "timestamp_ntz": ("timestamp_ntz'2024-01-01' + make_interval(0,0,0,t)", "3 days", "1 hour"),
}


def test_time_columns_of_all_types_in_batch(spark):
    base = spark.range(40).selectExpr("id", "cast(id * 7 % 20 as int) t", "id % 3 k")
    joins = []
    for name, (expression, within, lateness) in TIMES.items():
        frame = base.selectExpr("id", "k", f"{expression} ts")
        joined = window_join(frame, frame, on="k", time="ts", within=within, lateness=lateness)
        joins.append(joined.select(F.lit(name), "id_left", "id_right"))
    found = defaultdict(Counter)
    for name, left, right in _union(joins).collect():
        found[name][left, right] += 1
    ids = range(40)
    expected = Counter(
        (a, b) for a in ids for b in ids if a % 3 == b % 3 and abs(a * 7 % 20 - b * 7 % 20) < 3
    )
    assert found == dict.fromkeys(TIMES, expected)


# --- late rows ------------------------------------------------------------------------------------
def test_late_rows_are_those_of_the_rule_for_any_number_of_shards(spark, tmp_path):
    rng = np.random.default_rng(11)
    lateness, within = 2.0, 3.0
    tables = [[], []]
    for i in range(BATCHES):
        for s in range(2):
            seconds = seconds_of(rng, i, 12.0).tolist()
            seconds[3] = None
            table = pa.table({
                "k": pa.array(with_nulls(rng, rng.integers(0, 6, ROWS).tolist()), pa.int64()),
                "ts": times([NAN if v is None else v for v in seconds]),
                "id": pa.array(np.arange(ROWS) + 1000 * i, pa.int64()),
            })  # fmt: skip
            tables[s].append(table)
    accepted, expected_shed = [[], []], Counter()
    for s, side in enumerate(("left", "right")):
        high = -math.inf
        for table in tables[s]:
            rows = [(r["k"], r["ts"], r["id"]) for r in table.to_pylist()]
            seconds = [NAN if t is None else t.timestamp() - START_US / 1e6 for _, t, _ in rows]
            for (k, t, i), at in zip(rows, seconds):
                if t is None:
                    expected_shed[side, "null time", i] += 1
                elif k is None:
                    expected_shed[side, "null key", i] += 1
                elif at < high - lateness:
                    expected_shed[side, "late", i] += 1
                else:
                    accepted[s].append((k, at, i))
            high = max(high, np.nanmax(seconds))
    expected = Counter(
        (a[2], b[2])
        for a in accepted[0] for b in accepted[1] if a[0] == b[0] and abs(a[1] - b[1]) < within
    )  # fmt: skip
    frames = [
        stream_of(spark, write_batches(tmp_path / side, tables[s])) for s, side in enumerate("lr")
    ]
    queries = [
        run_to_memory(
            window_join(*frames, on="k", time="ts", within=f"{within} s", lateness=f"{lateness} s",
                        shards=shards, emit="both", name=f"late{shards}"),
            f"late{shards}", tmp_path / f"checkpoint{shards}",
        )
        for shards in (1, 3)
    ]  # fmt: skip
    for query, shards in zip(queries, (1, 3)):
        query.awaitTermination()
        rows = spark.table(f"late{shards}").collect()
        matches = Counter(
            (row["left"]["id"], row["right"]["id"]) for row in rows if row["kind"] == "match"
        )
        shed = Counter(
            (row["stream"], row["reason"], row[row["stream"]]["id"])
            for row in rows if row["kind"] == "shed"
        )  # fmt: skip
        assert matches == expected and sum(expected.values()) > 50
        assert shed == expected_shed
        assert {reason for _, reason, _ in shed} == {"late", "null key", "null time"}
        report = loss_report(query)
        for side in report.sides:
            kinds = Counter()
            for (stream, reason, _), count in shed.items():
                kinds[stream, reason] += count
            name = side.side
            assert side.total_n_late == kinds[name, "late"] > 3
            assert side.total_n_null == kinds[name, "null key"] + kinds[name, "null time"]
            assert side.total_n_in == BATCHES * ROWS


# --- payload and names ----------------------------------------------------------------------------
ODD = ["a.b", "back`tick", "with space", "größe", "packet", "shard", "key", "counts", "exact", "c0"]
PAYLOAD = {
    "flag": "id % 2 = 0",
    "tiny": "cast(id as tinyint)",
    "short": "cast(id as smallint)",
    "real": "if(id = 1, float('nan'), cast(id as float))",
    "price": "cast(id as decimal(38,18)) / 7",
    "raw": "cast(repeat('x', id) as binary)",
    "day": "date'1969-12-31' + cast(id as int)",
    "at": "timestamp'1969-12-31 23:59:59.999999'",
    "local": "timestamp_ntz'2024-03-31 02:30:00'",
    "span": "make_dt_interval(id, 1, 2, 3.5)",
    "doc": "parse_json(concat('{\"a\": [1, ', id, ']}'))",
    "parts": "transform(sequence(0, id), x -> if(x = 2, null, x))",
    "nested": "named_struct('a.b', id, 'l', array(named_struct('t', timestamp'2024-01-01')))",
    "lookup": "map(concat('k', id), named_struct('x', id, 'y', array(cast(id as string))))",
    "nothing": "cast(null as string)",
    "empty": "null",
    "folded": "concat('T', id) collate UTF8_LCASE",
}


def test_payload_of_all_types_under_odd_names(spark, tmp_path):
    """Through the state, too: partners come a micro-batch later."""
    odd = [f"concat('v', id) as `{name.replace('`', '``')}`" for name in ODD]
    typed = [f"if(id = 4, null, {value}) as {name}" for name, value in PAYLOAD.items()]
    left = spark.range(8).selectExpr("id", "timestamp'2024-01-01' ts", *typed, *odd).coalesce(1)
    right = left.selectExpr("id", "ts", "concat('r', id) as `a.b`", "id as `größe`").coalesce(1)
    nowhere = F.expr("id < 0")
    for name, frame, first in (("left", left, True), ("right", right, False)):
        for batch in range(2):
            part = frame if (batch == 0) == first else frame.where(nowhere)
            part.write.parquet(str(tmp_path / name / f"n={batch}"))
    streams = []
    for name, frame in (("left", left), ("right", right)):
        reader = spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1)
        streams.append(reader.parquet(str(tmp_path / name / "*")))
    joined = window_join(*streams, on="id", time="ts", within="1 s", memory="8 MB")
    renamed = {"a.b": "a.b_left", "größe": "größe_left", "ts": "ts_left"}
    kept = ["id", *(renamed.get(c, c) for c in left.columns if c != "id")]
    assert joined.columns == [*kept, "ts_right", "a.b_right", "größe_right"]
    assert [f.dataType for f in joined.schema.fields[: len(kept)]] == [
        f.dataType for f in streams[0].schema.fields
    ]
    run_to_memory(joined, "payload", tmp_path / "checkpoint").awaitTermination()
    found = spark.table("payload").toDF(*joined.columns)
    quoted = [F.col("`" + c.replace("`", "``") + "`") for c in found.columns]
    expected = left.collect()
    assert multiset(found.select(*quoted[: len(kept)]).collect()) == multiset(expected)
    assert multiset(found.select(quoted[0], *quoted[-2:]).collect()) == multiset(
        (i, f"r{i}", i) for i in range(8)
    )


def test_rows_of_one_time_may_come_in_any_order(spark):
    """As on a cluster: what is kept of rows that differ in a map or a variant alone is the same."""
    rows = spark.range(60, numPartitions=1)
    left, shuffled = (
        frame.coalesce(1).selectExpr(
            "1 k", "timestamp'2024-01-01' ts", "map('m', id - id % 2) pairs",
            "struct(parse_json(concat('[', id % 2, ']')) doc) deep",
        )
        for frame in (rows, rows.orderBy(F.hash("id")))
    )  # fmt: skip
    right = spark.range(4).selectExpr("1 k", "timestamp'2024-01-01 00:00:01' ts")
    joins = [
        window_join(frame, right, on="k", time="ts", within="5 s", max_rows=16, shards=1)
        .selectExpr("pairs", "to_json(deep) deep")
        for frame in (left, shuffled)
    ]  # fmt: skip
    first, second = (multiset(joined.collect()) for joined in joins)
    assert first == second and sum(first.values()) == 32


def names_of(left, right, **given):
    return window_join(left, right, **{"time": "ts", "within": "1 s", **given}).columns


def test_names_and_order_of_the_columns(spark):
    left = spark.createDataFrame([], "x int, k string, ts timestamp, j int, v int")
    right = spark.createDataFrame([], "v int, ts timestamp, k string, j2 int, X int")
    assert names_of(left, right, on="k") == [
        "k", "x_left", "ts_left", "j", "v_left", "v_right", "ts_right", "j2", "X_right",
    ]  # fmt: skip
    assert names_of(left, right, on=["k", ("j", "j2")], suffixes=("", "_r")) == [
        "k", "x", "ts", "j", "v", "v_r", "ts_r", "j2", "X_r",
    ]  # fmt: skip
    assert names_of(left, right, on=[("j", "j2")], columns=["v"]) == [
        "j", "v_left", "v_right", "j2",
    ]  # fmt: skip
    assert names_of(left, right, on="k", columns=[None, []]) == ["k", "x", "ts", "j", "v"]
    assert names_of(left, right, on="k", columns=[[], ["ts"]]) == ["k", "ts"]
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert names_of(left, right, on="k", columns=["x", "X"]) == ["k", "x", "X"]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    three = window_join([left, right, left], on="k", time="ts", within="1 s", columns=["v"])
    assert three.columns == ["k", "v_1", "v_2", "v_3"]
    shed = window_join([left, right, left], on="k", time="ts", within="1 s", emit="both")
    assert shed.columns == [
        "kind", "stream", "reason", "n_matched", "stream1", "stream2", "stream3",
    ]  # fmt: skip
    assert shed.schema["stream2"].dataType.names == right.columns


def test_columns_that_are_not_carried_are_not_read(spark, tmp_path):
    path = str(tmp_path / "table")
    spark.range(3).selectExpr(
        "id k", "timestamp'2024-01-01' ts", "id v", "id unused", "map(id, id) idle"
    ).write.parquet(path)
    table = spark.read.parquet(path)
    joined = window_join(table, table, on="k", time="ts", within="1 s", columns=["v"])
    plan = joined._jdf.queryExecution().executedPlan().toString()
    assert "v" in plan and "unused" not in plan and "idle" not in plan
    assert multiset(joined.collect()) == multiset((i, i, i) for i in range(3))
    # Nothing of the right stream at all; a key of text, kept to be compared.
    bare = window_join(table, table, on="k", time="ts", within="1 s", columns=[["v"], []])
    text = table.selectExpr("concat('k', k) t", "ts")
    also = window_join(text, text, on="t", time="ts", within="1 s", columns=[[], []])
    found = bare.selectExpr("k", "cast(v as string)").union(also.selectExpr("0", "t")).collect()
    expected = [(i, str(i)) for i in range(3)] + [(0, f"k{i}") for i in range(3)]
    assert multiset(found) == multiset(expected)


def test_another_time_zone_of_the_session(spark):
    frame = spark.range(5).selectExpr(
        "id k", "timestamp'2024-01-01T00:00:00Z' + make_dt_interval(cast(id as int)) ts",
        "timestamp_ntz'2024-01-01' n",
    )  # fmt: skip
    rows = multiset((r[0], r[1], r[2], r[1], r[2]) for r in frame.collect())
    spark.conf.set("spark.sql.session.timeZone", "America/Sao_Paulo")
    try:
        joined = window_join(frame, frame, on=["k", "ts"], time="ts", within="1 s")
        assert joined.columns == ["k", "ts", "n_left", "n_right"]
        found = joined.selectExpr("k", "ts", "n_left", "ts", "n_right").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert multiset(found) == rows


# --- what is shed, and what users do with a result ------------------------------------------------
def skewed(rng: np.random.Generator, n: int, batch: int, tag: str) -> pa.Table:
    return pa.table({
        "k": pa.array(np.minimum(rng.zipf(1.5, n), 40), pa.int64()),
        "ts": times(np.sort(rng.random(n)) * SECONDS + SECONDS * batch),
        tag: pa.array(np.arange(n) + n * batch, pa.int64()),
    })  # fmt: skip


@pytest.fixture(scope="module")
def skewed_streams(tmp_path_factory):
    """Directories of two streams, and all pairs that match within 5 seconds."""
    rng = np.random.default_rng(2)
    root = tmp_path_factory.mktemp("skewed")
    tables = {tag: [skewed(rng, 120, i, tag) for i in range(3)] for tag in ("l", "r")}
    wholes = [pa.concat_tables(tables[tag]).to_pylist() for tag in ("l", "r")]
    exact = {
        (a["l"], b["r"]) for a in wholes[0] for b in wholes[1]
        if a["k"] == b["k"] and abs(a["ts"] - b["ts"]) < dt.timedelta(seconds=5)
    }  # fmt: skip
    return [write_batches(root / tag, tables[tag]) for tag in ("l", "r")], exact


def test_both_matches_and_shed_rows_in_one_foreach_batch(spark, tmp_path, skewed_streams):
    """The frame is used three times in each micro-batch: the state must be the same each time."""
    directories, exact = skewed_streams
    frames = [stream_of(spark, directory) for directory in directories]
    joined = window_join(
        *frames, on="k", time="ts", within="5 s", max_rows=60, emit="both", name="both", seed=3
    )
    seen = []

    def take(frame, batch_id):
        rows = frame.collect()
        assert frame.count() == len(rows)
        assert multiset(frame.collect()) == multiset(rows)
        seen.append(rows)

    query = (
        joined.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = [row for batch in seen for row in batch]
    matches = [(row["left"]["l"], row["right"]["r"]) for row in rows if row["kind"] == "match"]
    assert len(set(matches)) == len(matches) and set(matches) < exact
    shed = [row for row in rows if row["kind"] == "shed"]
    report = loss_report(query)
    assert report.total_n_out == len(matches)
    assert report.total_n_exact == len(exact)
    assert report.total_recall == len(matches) / len(exact)
    for side in report.sides:
        reasons = Counter(row["reason"] for row in shed if row["stream"] == side.side)
        assert side.total_n_shed == sum(reasons.values())
        assert side.total_n_evicted == reasons["evicted"] > 0
        assert side.total_n_refused == sum(reasons.values()) - reasons["evicted"]
    # A shed row tells how many results it had as the held row: at most all it had.
    found = Counter(("left", left) for left, _ in matches)
    found += Counter(("right", right) for _, right in matches)
    for row in shed:
        name = row["stream"]
        mine = row[name]
        assert row["left" if name == "right" else "right"] is None
        assert 0 <= row["n_matched"] <= found[name, mine["l" if name == "left" else "r"]]

    # The same join that tells what was shed only: the same rows.
    only = window_join(
        *frames, on="k", time="ts", within="5 s", max_rows=60, emit="shed", name="shed", seed=3
    )
    run_to_memory(only, "shed_only", tmp_path / "other").awaitTermination()
    assert multiset(spark.table("shed_only").collect()) == multiset(row[1:] for row in shed)


def test_metrics_are_those_of_the_contract(spark, tmp_path, skewed_streams):
    directories, exact = skewed_streams
    frames = [stream_of(spark, directory) for directory in directories]
    joined = window_join(*frames, on="k", time="ts", within="5 s", max_rows=(30, 31), name="told")
    query = run_to_memory(joined, "told", tmp_path / "checkpoint")
    query.awaitTermination()
    told = [p["observedMetrics"]["joinweir_told"].asDict() for p in query.recentProgress]
    sided = ["n_in", "n_late", "n_null", "n_evicted", "n_refused", "n_expired", "n_shed"]
    counts = [f"{name}_{side}" for name in sided for side in ("left", "right")]
    counts += ["n_out", "n_exact"]
    fields = {*counts, *(f"total_{name}" for name in counts), "recall", "total_recall",
              "total_n_exact_error", "bytes_held", "budget", "budget_unit", "shards",
              "rows_held_left", "rows_held_right", "watermark_left", "watermark_right"}  # fmt: skip
    assert len(told) == 3
    running = Counter()
    for batch in told:
        assert set(batch) == fields
        for name in counts:
            running[name] += batch[name]
            assert batch[f"total_{name}"] == running[name]
        for side in ("left", "right"):
            gone = ("n_late", "n_null", "n_evicted", "n_refused", "n_expired")
            left = sum(batch[f"total_{name}_{side}"] for name in gone)
            assert batch[f"total_n_in_{side}"] == left + batch[f"rows_held_{side}"]
            assert batch[f"n_in_{side}"] == 120
        assert batch["rows_held_left"] <= 30 and batch["rows_held_right"] <= 31
        assert (batch["budget"], batch["budget_unit"], batch["shards"]) == (61, "rows", 2)
        assert batch["recall"] == batch["n_out"] / batch["n_exact"]
        assert batch["total_n_exact_error"] == 0 and batch["bytes_held"] > 0
    for side, directory in zip(("left", "right"), directories):
        latest = spark.read.parquet(str(directory)).selectExpr("max(unix_micros(ts))").first()[0]
        assert told[-1][f"watermark_{side}"] == latest
    assert told[-1]["total_n_exact"] == len(exact)
    assert told[-1]["total_n_out"] == spark.table("told").count()


def test_metrics_of_tables_come_by_an_observation(spark, skewed_streams):
    directories, exact = skewed_streams
    frames = [spark.read.parquet(str(directory)) for directory in directories]
    observation = Observation("loss")
    joined = window_join(*frames, on="k", time="ts", within="5 s", memory="64 MB", name=observation)
    rows = joined.collect()
    assert {(row["l"], row["r"]) for row in rows} == exact and len(rows) == len(exact)
    assert observation.get["total_n_out"] == len(exact)
    assert observation.get["budget"] == 64 << 20
    report = LossReport.from_row(observation.get)
    assert report.total_recall == pytest.approx(1, abs=0.5)  # of an estimate
    for accounting, told in (("off", None), ("exact", 1.0)):
        observation = Observation()
        window_join(
            *frames, on="k", time="ts", within="5 s", accounting=accounting, name=observation
        ).count()
        assert observation.get["total_recall"] == told
        assert observation.get["budget"] is None


def test_results_can_be_aggregated_and_joined_again(spark, tmp_path, skewed_streams):
    """Downstream of one join a watermark and windows, of another a second join."""
    directories, exact = skewed_streams
    left, right = (stream_of(spark, directory) for directory in directories)
    joined = window_join(left, right, on="k", time="ts", within="5 s", name="inner")
    windows = (
        joined.withWatermark("ts_left", "1 second")
        .groupBy(F.window("ts_left", "5 seconds"))
        .agg(F.count("*").alias("n"))
        .select(F.col("window.start").alias("start"), "n")
    )
    third = stream_of(spark, directories[0]).withColumnRenamed("l", "l3")
    # Results come as late as the window of their join is long.
    again = window_join(
        joined, third, on="k", time=("ts_left", "ts"), within="0.5 s", lateness=("5 s", "0 s"),
        columns=["l", "r", "l3"], name="outer",
    )  # fmt: skip
    queries = [
        run_to_memory(windows, "windows", tmp_path / "a"),
        run_to_memory(again, "again", tmp_path / "b"),
    ]
    for query in queries:
        query.awaitTermination()

    rows = [spark.read.parquet(str(directory)).collect() for directory in directories]
    at = {row["l"]: row["ts"] for row in rows[0]}
    key = {row["l"]: row["k"] for row in rows[0]}
    counted = Counter(int((at[a].timestamp() * 1e6 - START_US) // 5e6) for a, _ in exact)
    start = dt.datetime.fromtimestamp(START_US / 1e6)
    found = {
        int((row["start"] - start).total_seconds() // 5): row["n"]
        for row in spark.table("windows").collect()
    }
    assert len(found) >= 4  # the last windows are still open
    assert found.items() <= counted.items()
    by_key = defaultdict(list)
    for a in at:
        by_key[key[a]].append(a)
    expected = Counter(
        (key[a], a, b, c) for a, b in exact for c in by_key[key[a]]
        if abs(at[a] - at[c]) < dt.timedelta(seconds=0.5)
    )  # fmt: skip
    assert multiset(spark.table("again").collect()) == multiset(expected.elements())
    told = queries[1].lastProgress["observedMetrics"]
    assert set(told) == {"joinweir_inner", "joinweir_outer"}
    assert loss_report(queries[1], "inner").total_n_out == len(exact)
    assert loss_report(queries[1], "outer").total_n_out == sum(expected.values())


# --- what is known beforehand --------------------------------------------------------------------
class Profile:
    """What `known=` reads of a stream's profile."""

    key_columns = ("k",)
    model_a, model_b, rate = (0.4, 0.2, 0.1), 0.3, 1.0

    def __init__(self, keys):
        found = jw.locality.popularity(keys)
        self.keys, self.counts = found.keys.tolist(), tuple(found.counts.tolist())
        self.n_rows = len(keys) + 17  # some rows are of keys that are not listed

    def key_table(self):
        return pa.table({"k": self.keys, "count": self.counts})


class Found:
    def __init__(self, *profiles):
        self.profiles = profiles


@pytest.mark.parametrize("policy", ["prob", "lba:h=3,warmup=400", "elba:h=3,warmup=400"])
@pytest.mark.parametrize("kind", ["text", "number"])
def test_what_is_known_is_known_as_to_the_simulator(spark, policy, kind):
    """Text keys are hashed by Spark, also those of the profile."""
    rng = np.random.default_rng(3)
    tables = []
    for side in range(2):
        key = np.minimum(rng.geometric(0.15, 300), 15)
        keys = [f"key {n}" for n in key] if kind == "text" else key.tolist()
        tables.append(pa.table({"k": keys, "ts": 2 * np.arange(300) + side, "id": np.arange(300)}))
    known = Found(*(Profile(table["k"].to_pylist()[:100]) for table in tables))
    options = {"on": "k", "time": "ts", "within": 60, "max_rows": 12, "policy": policy}
    frames = [spark.createDataFrame(table) for table in tables]
    joined = window_join(*frames, shards=1, known=known, **options).collect()
    # As on Spark, where rows may come late, a row goes once the other stream has passed its end.
    result = jw.simulate(*tables, known=known, lateness=0, **options)
    assert sorted((row["id_left"], row["id_right"]) for row in joined) == sorted(
        zip(*(column.tolist() for column in result.pairs), strict=True)
    )
    unknowing = jw.simulate(*tables, lateness=0, **options)
    assert result.n_out != unknowing.n_out  # it does make a difference


def test_known_is_refused_where_it_is_of_no_use(spark):
    frame = spark.createDataFrame(pa.table({"k": [1], "ts": [1]}))
    known = Found(Profile([1]), Profile([1]))
    options = {"on": "k", "time": "ts", "within": 60, "max_rows": 12, "known": known}
    with pytest.raises(jw.JoinweirError, match="policy 'fifo' has no use for known="):
        window_join(frame, frame, policy="fifo", **options)
    with pytest.raises(jw.JoinweirError, match="each of the 2 streams; it has 1"):
        window_join(frame, frame, policy="prob", **(options | {"known": Found(Profile([1]))}))
