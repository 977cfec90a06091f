"""What `window_join` refuses or warns of, when it is called."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Observation

import joinweir as jw
from joinweir.errors import JoinweirError
from joinweir.spark import window_join
from spark_session import worker_environment

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.fixture(scope="module")
def frames(spark):
    left = spark.range(3).selectExpr(
        "id k", "timestamp'2024-01-01' ts", "'a' name", "array(id) parts", "struct(id) deep",
        "map(id, id) pairs", "parse_json('1') doc", "'x' collate UTF8_LCASE folded",
        "make_ym_interval(1) months", "make_interval(1) calendar", "cast(id as decimal(38,0)) wide",
        "cast(id as decimal(38,18)) fine", "timestamp_ntz'2024-01-01' local",
    )  # fmt: skip
    return left, left.select("k", "ts", "name")


GOOD = {"on": "k", "time": "ts", "within": "1 minute"}
BARE = ("k", "ts", "name")

# Arguments that differ from GOOD, and what the message must say: the culprit and the fix.
REFUSED = {
    "key column missing": ({"on": "key"}, ["column of the left stream", "'key'", "k"]),
    "key of one side missing": ({"on": ("k", "symbol")}, ["right", "'symbol'"]),
    "time column missing": ({"time": "when"}, ["'when'"]),
    "too many in a pair": ({"on": [("k", "k", "k")]}, ["3 values for 2 streams"]),
    "no key": ({"on": []}, ["on must be"]),
    "key not a name": ({"on": [1]}, ["on must name columns"]),
    "incompatible keys": ({"on": ("k", "name")}, ["bigint", "string", "cast"]),
    "date and timestamp": ({"on": ("ts", "k")}, ["timestamp", "bigint", "cast"]),
    "array key": ({"on": "parts"}, ["'parts'", "array<bigint>", "parts instead"]),
    "struct key": ({"on": "deep"}, ["'deep'", "struct<"]),
    "map key": ({"on": "pairs"}, ["'pairs'", "map<"]),
    "variant key": ({"on": "doc"}, ["'doc'", "variant"]),
    "collated key": ({"on": "folded"}, ["'folded'", "UTF8_LCASE", "cast"]),
    "decimals too wide": ({"on": ("wide", "fine")}, ["'wide'", "'fine'", "56 digits", "cast"]),
    "month interval": ({"columns": ["months"]}, ["'months'", "left", "year to month"]),
    "calendar interval": ({"columns": ["calendar"]}, ["'calendar'", "columns="]),
    "all columns": ({"columns": None}, ["'months'", "columns="]),
    "time is text": ({"time": "name"}, ["'name'", "string", "timestamp"]),
    "kinds of time": ({"time": ("ts", "k")}, ["different kinds", "cast one"]),
    "zoned and not": ({"time": ("ts", "local")}, ["different kinds", "timestamp_ntz"]),
    "within unreadable": ({"within": "10 parsecs"}, ["'10 parsecs'", "10 minutes"]),
    "within nothing": ({"within": 0}, ["within", "0"]),
    "within for three": ({"within": ("1 s", "2 s", "3 s")}, ["3 values for 2 streams"]),
    "window of rows": ({"within": jw.rows(10)}, ["window of rows", "duration"]),
    "lateness unreadable": ({"lateness": "soon"}, ["'soon'"]),
    "closed": ({"closed": "right"}, ["'right'", "both"]),
    "memory and rows": ({"memory": "1 MB", "max_rows": 5}, ["max_rows or memory, not both"]),
    "memory unreadable": ({"memory": "much"}, ["'much'", "256 MB"]),
    "no rows": ({"max_rows": 0}, ["max_rows", "0"]),
    "allocation": ({"max_rows": 9, "allocation": "fair"}, ["'fair'", "unified"]),
    "allocation of nothing": ({"allocation": "even"}, ["allocation", "max_rows or memory"]),
    "policy": ({"policy": "gdk"}, ["gdk", "gdj"]),
    "policy of the future": ({"policy": "opt", "max_rows": 9}, ["opt"]),
    "policy by importance": ({"policy": "dgl", "max_rows": 9}, ["importance", "jw.simulate"]),
    "accounting": ({"accounting": "roughly"}, ["roughly", "sketch"]),
    "sketch of landmarks": (
        {"accounting": "sketch", "within": jw.landmark("1 day")}, ["sketch", "sliding"],
    ),
    "emit": ({"emit": "all"}, ["'all'", "matches"]),
    "shards": ({"shards": 0}, ["shards", "0"]),
    "too many shards": ({"shards": 5000}, ["4096"]),
    "columns unknown": ({"columns": ["k", "nam"]}, ["'nam'", "name"]),
    "columns is a text": ({"columns": "name"}, ["list of names", "'name'"]),
    "columns of a stream are a text": ({"columns": ["k", ["k"]]}, ["list of names", "'k'"]),
    "columns for three": ({"columns": [["k"], ["k"], ["k"]]}, ["3 lists for 2 streams"]),
    "suffixes": ({"suffixes": ("_a",)}, ["suffixes", "2 texts"]),
    "suffixes that change nothing": ({"suffixes": ("", "")}, ["'ts'", "suffixes"]),
    "name": ({"name": ""}, ["name"]),
    "seed": ({"seed": "x"}, ["seed"]),
}  # fmt: skip


@pytest.mark.parametrize("arguments, said", REFUSED.values(), ids=REFUSED)
def test_refused_when_called(frames, arguments, said):
    left = frames[0]
    given = {"columns": list(BARE), **GOOD, **arguments}
    with pytest.raises(JoinweirError) as caught:
        window_join(left, left, **given)
    message = str(caught.value)
    assert "\n" not in message
    for words in said:
        assert words in message


def test_what_is_joined_is_checked(spark, frames):
    left, right = frames
    for given in ((left,), ([left],), ([right] * 17,), (left, "right"), ("left", right)):
        with pytest.raises(JoinweirError, match="DataFrame"):
            window_join(*given, **GOOD)
    with pytest.raises(JoinweirError, match=r"sketch.*two streams"):
        window_join([right] * 3, **GOOD, accounting="sketch")
    twice = right.select("k", "ts", "name", "name")
    with pytest.raises(JoinweirError, match="two columns named 'name'; rename"):
        window_join(twice, right, **GOOD)


def test_streams_and_tables_do_not_mix(spark, frames):
    stream = spark.readStream.format("rate").load().selectExpr("value k", "timestamp ts")
    with pytest.raises(JoinweirError, match=r"left is streaming, right is batch.*Spark's own join"):
        window_join(stream, frames[1], **GOOD)
    with pytest.raises(JoinweirError, match="Observation takes no streams"):
        window_join(stream, stream, **GOOD, name=Observation("x"))


@pytest.fixture
def setting(spark):
    """Change a setting of the session for a test."""
    before = {}

    def change(name, value):
        before.setdefault(name, spark.conf.get(name))
        spark.conf.set(name, value)

    yield change
    for name, value in before.items():
        spark.conf.set(name, value)


def test_another_state_store_is_refused_with_the_setting(frames, setting):
    right = frames[1]
    hdfs = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    setting(PROVIDER, hdfs)
    with pytest.raises(JoinweirError, match=f"set {PROVIDER} to .*RocksDBStateStoreProvider"):
        window_join(right, right, **GOOD)


def test_many_partitions_are_warned_of_with_the_fix(spark, frames, setting):
    stream = spark.readStream.format("rate").load().selectExpr("value k", "timestamp ts")
    setting(PARTITIONS, "200")
    with pytest.warns(UserWarning, match=f"{PARTITIONS} is 200.*set {PARTITIONS} to 32") as caught:
        window_join(stream, stream, **GOOD)
    assert caught[0].filename == __file__  # it points to the call
    setting(PARTITIONS, "2")
    with pytest.warns(UserWarning, match=f"8 shards share 2 partitions; set {PARTITIONS} to 8"):
        window_join(stream, stream, **GOOD, shards=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        window_join(stream, stream, **GOOD)
        setting(PARTITIONS, "200")  # tables have no state that would last
        window_join(frames[1], frames[1], **GOOD)


def test_nothing_is_set_or_started(spark, frames):
    before = spark.conf.getAll
    window_join(frames[1], frames[1], **GOOD)
    assert spark.conf.getAll == before
    assert not spark.streams.active


WITHOUT_JOINWEIR = """
import os, sys
from pathlib import Path
from spark_session import small_session, worker_environment
import spark_session
from joinweir.spark import window_join
from spark_session import worker_environment

# Workers find a sitecustomize.py that hides joinweir; this process has it already.
hidden = {"PYTHONPATH": os.pathsep.join([sys.argv[1], worker_environment()["PYTHONPATH"]])}
spark_session.worker_environment = lambda: worker_environment() | hidden
spark = small_session(Path(sys.argv[1]))
frame = spark.range(3).selectExpr("id k", "timestamp'2024-01-01' ts")
try:
    window_join(frame, frame, on="k", time="ts", within="1 s").collect()
except Exception as error:
    print("said:", " ".join(str(error).split()))
spark.stop()
"""


def test_a_worker_without_joinweir_says_how_to_ship_it(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['joinweir'] = None\n")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JOINWEIR, str(tmp_path)],
        env=os.environ | worker_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.partition("said:")[2]
    assert "a Spark worker cannot import joinweir" in said
    assert "PYSPARK_PYTHON" in said and "spark.archives" in said
