"""`loss_report` and `LossListener`, on a stand-in for the join.

The stand-in is a stream of files with one row each, whose columns are a join's metrics; every
micro-batch takes one file and observes its values. So the tests say what Spark hands over.
"""

from __future__ import annotations

import dataclasses
import doctest
import json
import logging
import math
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import prometheus_client
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pyspark.sql import Observation, Row, SparkSession
from pyspark.sql import functions as F

import joinweir.spark.loss as loss
from joinweir.errors import JoinweirError
from joinweir.spark import LossListener, LossReport, SideLoss, loss_report

COUNTS = ("n_in", "n_shed", "n_evicted", "n_refused", "n_late", "n_null", "n_expired")
PAGE = Path(__file__).parent.parent / "docs" / "monitoring.md"
PATIENCE = 120  # seconds until a test gives up on an event; none is expected to take that long


# --- the stand-in ---------------------------------------------------------------------------------


def metrics(batch: int = 0, sides=("left", "right"), **changed) -> dict:
    """What a join would observe in its batch-th micro-batch; every batch takes in the same."""
    n = batch + 1
    row: dict = {}
    for i, side in enumerate(sides):
        of_batch = {"n_in": 100 + i, "n_evicted": 20, "n_refused": 3, "n_late": 2, "n_null": 1}
        of_batch |= {"n_shed": 23, "n_expired": 4}
        for name in COUNTS:
            row[f"{name}_{side}"] = of_batch[name]
            row[f"total_{name}_{side}"] = of_batch[name] * n
        row[f"rows_held_{side}"] = (100 + i - 23 - 2 - 1 - 4) * n
        row[f"watermark_{side}"] = 1_700_000_000_000_000 + batch
    row |= {"n_out": 60, "n_exact": 80.0, "recall": 0.75}
    row |= {"total_n_out": 60 * n, "total_n_exact": 80.0 * n, "total_recall": 0.75}
    row |= {"total_n_exact_error": 0.0, "bytes_held": 4096 * n}
    row |= {"budget": 1000, "budget_unit": "rows", "shards": 2}
    return row | changed


def spark_type(name: str) -> tuple[str, pa.DataType]:
    if name == "budget_unit":
        return "string", pa.string()
    if "recall" in name or "n_exact" in name:
        return "double", pa.float64()
    return "bigint", pa.int64()


def put(directory: Path, batch: int, row: dict) -> None:
    """Add the file of one micro-batch."""
    directory.mkdir(parents=True, exist_ok=True)
    schema = pa.schema({name: spark_type(name)[1] for name in row})
    unfinished = directory / f".{batch}"
    pq.write_table(pa.Table.from_pylist([row], schema=schema), unfinished)
    os.utime(unfinished, (1_700_000_000 + batch,) * 2)  # Spark takes the oldest file first
    unfinished.rename(directory / f"{batch}.parquet")


def fake_join(spark, directory: Path, columns, *observed: str):
    schema = ", ".join(f"`{name}` {spark_type(name)[0]}" for name in columns)
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))
    for name in observed:
        frame = frame.observe(name, *[F.first(column).alias(column) for column in columns])
    return frame


def start(frame, checkpoint: Path, name: str | None = None):
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return (writer.queryName(name) if name else writer).start()


def eventually(condition, what: str):
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)
    return result


def json_lines(path: Path) -> list[dict]:
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def scrape(port: int, accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        return answer.read().decode()


def same_record(one: dict, other: dict) -> bool:
    """Equal but for the rates, which Spark rounds to 0.1 in some forms of a progress."""
    rates = ("input_rows_per_second", "processed_rows_per_second")
    return one == other | {rate: pytest.approx(other[rate], abs=0.051) for rate in rates}


@pytest.fixture
def often_idle(spark):
    """Idle queries say so every 100 ms instead of every 10 s."""
    key = "spark.sql.streaming.noDataProgressEventInterval"
    before = spark.conf.get(key)
    spark.conf.set(key, "100")
    yield
    spark.conf.set(key, before)


@pytest.fixture
def listening(spark):
    """Adds listeners and takes them away again."""
    added = []

    def add(listener):
        spark.streams.addListener(listener)
        added.append(listener)
        return listener

    yield add
    for listener in added:
        spark.streams.removeListener(listener)
        listener.close()


class Progress(dict):
    """A progress as `StreamingQueryProgress` has it, without Spark."""

    def __init__(self, observed: dict, batch: int = 0, name: str | None = "q", run: str = "run-1"):
        super().__init__(
            id="query-1",
            runId=run,
            name=name,
            batchId=batch,
            timestamp=f"2026-01-02T03:04:{batch:02d}.567Z",
            batchDuration=1500,
            inputRowsPerSecond=10.0,
            processedRowsPerSecond=134.0,
            observedMetrics=observed,
        )


def event(*arguments, **options):
    return SimpleNamespace(progress=Progress(*arguments, **options))


def ended(run: str = "run-1"):
    return SimpleNamespace(id="query-1", runId=run, exception=None)


def query_of(*progresses):
    last = progresses[-1] if progresses else None
    return SimpleNamespace(lastProgress=last, recentProgress=list(progresses))


# --- reports, without Spark -----------------------------------------------------------------------


def connect_form(row: dict, as_text: bool = False) -> Row:
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in row]
    schema = {"type": "struct", "fields": fields}
    values = ["NaN" if isinstance(v, float) and math.isnan(v) else v for v in row.values()]
    return Row("values", "schema")(values, json.dumps(schema) if as_text else schema)


@pytest.mark.parametrize(
    "form",
    [
        dict,
        lambda row: Row(**row),
        connect_form,
        lambda row: connect_form(row, as_text=True),
        lambda row: connect_form(row).asDict(),
    ],
    ids=["dict", "Row", "Connect", "Connect, schema as text", "Connect, dict"],
)
@pytest.mark.parametrize(
    "sides", [("left", "right"), ("1", "2", "3"), tuple(map(str, range(1, 13)))]
)
def test_every_form_of_the_metrics_gives_the_same_report(form, sides):
    row = metrics(2, sides)
    report = LossReport.from_row(form(row), "x", progress=Progress({}, batch=2))
    assert [counts.side for counts in report.sides] == list(sides)
    for counts in report.sides:
        for field in dataclasses.fields(counts)[1:]:
            assert getattr(counts, field.name) == row[f"{field.name}_{counts.side}"], field.name
    for name, value in row.items():
        if not name.endswith(tuple(f"_{side}" for side in sides)):
            assert getattr(report, name) == value, name
    assert report.rows_held == sum(row[f"rows_held_{side}"] for side in sides)
    assert (report.query_id, report.run_id, report.query_name) == ("query-1", "run-1", "q")
    assert (report.batch_id, report.timestamp) == (2, "2026-01-02T03:04:02.567Z")
    assert (report.batch_seconds, report.processed_rows_per_second) == (1.5, 134.0)


def test_nan_and_infinity_become_none_in_every_form():
    row = metrics(recall=math.nan, total_recall="NaN", n_exact="Infinity", total_n_exact=-math.inf)
    report = LossReport.from_row(row)
    assert (report.recall, report.total_recall) == (None, None)
    assert (report.n_exact, report.total_n_exact) == (None, None)
    json.dumps(report.to_dict(), allow_nan=False)
    assert "nan" not in repr(report).lower()


def test_counts_beyond_the_precision_of_a_float_stay_exact():
    assert LossReport.from_row(metrics(total_n_out=2**53 + 1)).total_n_out == 2**53 + 1


def test_a_report_reads_at_a_glance():
    row = metrics(1, total_n_exact_error=2.0, n_shed_right=0)
    report = LossReport.from_row(row, "orders", progress=Progress({}, batch=1))
    # ± of recall: 0.75 * 2 / 160 = 0.9 %
    shown = "\n".join(
        [
            "join orders of query q, batch 1 at 2026-01-02T03:04:01.567Z",
            "            batch                       since start",
            "recall      75.0 %                      75.0 % ± 0.9",
            "results     60 of 80                    120 of 160 ± 2",
            "left in     100                         200",
            "  shed      23 (20 evicted, 3 refused)  46 (40 evicted, 6 refused)",
            "  late      2                           4",
            "  null key  1                           2",
            "right in    101                         202",
            "  shed      0                           46 (40 evicted, 6 refused)",
            "  late      2                           4",
            "  null key  1                           2",
            "memory      282 of 1,000 rows (28%)",
            "held        282 rows (left 140, right 142), 8.0 KB",
            "speed       batch of 1.50 s, 134 rows/s",
        ]
    )
    assert repr(report) == shown
    assert f"```\n{shown}\n```" in PAGE.read_text()


def test_without_accounting_the_report_says_so():
    off = dict.fromkeys(["n_exact", "recall", "total_n_exact", "total_recall"])
    text = repr(LossReport.from_row(metrics(**off, total_n_exact_error=None)))
    assert "not counted" in text
    assert text.splitlines()[0] == "join"
    assert "results     60 " in text


def test_memory_is_shown_in_the_units_of_the_budget():
    row = metrics(bytes_held=3 * 2**20, budget=4 * 2**20, budget_unit="bytes")
    assert "memory      3.0 MB of 4.0 MB (75%)" in repr(LossReport.from_row(row))
    assert "memory      no budget" in repr(LossReport.from_row(metrics(budget=None)))
    assert LossReport.from_row(metrics(budget=None)).used == 140 // 2 + 71


def test_a_small_loss_is_not_rounded_away():
    assert "> 99.9 %" in repr(LossReport.from_row(metrics(recall=0.99999)))
    assert "100.0 %" in repr(LossReport.from_row(metrics(recall=1.0)))


def test_html_shows_the_same_and_escapes_names():
    progress = Progress({}, name="<script>alert(1)</script>")
    row = metrics(budget_unit="<b>")
    page = LossReport.from_row(row, "a&b", progress=progress)._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page
    assert "join a&amp;b of query &lt;script&gt;" in page
    assert "23 (20 evicted, 3 refused)" in page
    assert page.startswith("<table>") and page.endswith("</table>")


def test_a_name_cannot_forge_lines_of_the_report():
    assert r"join 'a\nrecall 100 %'" in repr(LossReport.from_row(metrics(), "a\nrecall 100 %"))


def test_a_report_is_frozen_and_comparable():
    report = LossReport.from_row(metrics(), "x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.recall = 1.0
    assert report == LossReport.from_row(Row(**metrics()), "x")
    assert len({report, LossReport.from_row(metrics(), "x")}) == 1


def test_an_unknown_side_or_foreign_metrics_are_refused():
    with pytest.raises(JoinweirError, match="unknown side 'lft'; did you mean 'left'"):
        LossReport.from_row(metrics()).side("lft")
    assert LossReport.from_row(metrics(0, ("1", "2", "3"))).side(3).n_in == 102
    with pytest.raises(JoinweirError, match="not the metrics of a window join: no n_out in rows"):
        LossReport.from_row({"rows": 1})
    with pytest.raises(JoinweirError, match="a Row or a dict, not int"):
        LossReport.from_row(1)


def test_the_latest_progress_that_has_counts_is_reported():
    nulls = dict.fromkeys(metrics())  # what first() gives of a batch without rows
    query = query_of(
        Progress({"joinweir_x": Row(**metrics(0))}, 0),
        Progress({"joinweir_x": Row(**metrics(1))}, 1),
        Progress({"joinweir_x": Row(**nulls)}, 2),
        Progress({}, 3),
    )
    assert loss_report(query).batch_id == 1
    assert loss_report(query, "x") == loss_report(query, "joinweir_x") == loss_report(query)


def test_of_several_joins_one_must_be_named():
    other = {"mine": Row(a=1), "joinweir_enrich": Row(n_hit=3)}
    two = {"joinweir_a": Row(**metrics(n_out=1)), "joinweir_b": Row(**metrics(n_out=2))}
    query = query_of(Progress(two | other))
    with pytest.raises(JoinweirError, match=r"this query has 2 joins; say which with name=: a, b$"):
        loss_report(query)
    assert (loss_report(query, "a").n_out, loss_report(query, "b").n_out) == (1, 2)
    with pytest.raises(JoinweirError, match=r"unknown join 'c'.* choices: a, b"):
        loss_report(query, "c")


def test_a_join_may_be_named_like_the_prefix():
    query = query_of(Progress({"joinweir_joinweir_x": Row(**metrics())}))
    assert loss_report(query).name == "joinweir_x"
    assert loss_report(query, "joinweir_x").name == "joinweir_x"


@pytest.mark.parametrize(
    "query", [query_of(), query_of(Progress({})), query_of(Progress({}), None)]
)
def test_before_the_first_report_the_error_says_to_wait(query):
    query.recentProgress = [p for p in query.recentProgress if p is not None]
    for name in (None, "x"):
        with pytest.raises(JoinweirError, match=r"no loss report; wait for its first micro-batch"):
            loss_report(query, name)


def test_what_is_not_a_query_is_refused():
    with pytest.raises(JoinweirError, match=r"not int; for a batch join use LossReport.from_row"):
        loss_report(1)


def test_the_examples_in_docstrings_run():
    assert doctest.testmod(loss).failed == 0


# --- listeners, without Spark ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nowhere to report to; give path=, prometheus_port= or registry="),
        ({"format": "jsonl", "prometheus_port": 0}, "path=, which is missing"),
        ({"path": "loss.csv"}, "cannot tell the format of 'loss.csv'"),
        ({"path": "loss.jsonl", "format": "parqet"}, "did you mean 'parquet'"),
        ({"path": "s3://bucket/loss.jsonl"}, "local files only"),
        ({"path": "missing/loss.jsonl"}, "cannot write 'missing/loss.jsonl': No such file"),
        ({"path": "file/loss.parquet"}, "cannot write 'file/loss.parquet': Not a directory"),
        ({"path": "x.parquet", "records_per_file": 0}, "records_per_file must be"),
        ({"prometheus_port": 70_000}, "cannot serve Prometheus on port 70000"),
    ],
)
def test_bad_options_are_refused_at_once(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(JoinweirError, match=message.replace("(", r"\(")) as caught:
        LossListener(**options)
    assert "\n" not in str(caught.value)


def test_json_lines_have_one_record_a_join_and_batch(tmp_path):
    path = tmp_path / "loss.jsonl"
    three = metrics(0, ("1", "2", "3"), recall=math.nan)
    with LossListener(path) as listener:
        listener.onQueryProgress(
            event({"joinweir_a": Row(**metrics()), "joinweir_b": Row(**three)})
        )
        listener.onQueryProgress(event({}, 1))
        listener.onQueryProgress(
            event({"joinweir_a": connect_form(metrics(1)), "other": Row(n=1)}, 2)
        )
    records = json_lines(path)
    assert [(r["query_id"], r["run_id"], r["batch_id"], r["join"]) for r in records] == [
        ("query-1", "run-1", 0, "a"),
        ("query-1", "run-1", 0, "b"),
        ("query-1", "run-1", 2, "a"),
    ]
    assert records[1]["recall"] is None
    assert [side["side"] for side in records[1]["sides"]] == ["1", "2", "3"]
    assert records[2]["sides"][1]["total_n_shed"] == 46
    assert records[0] == LossReport.from_row(metrics(), "a", progress=Progress({})).to_dict()
    assert list(records[0]) == loss.SCHEMA.names


def test_json_lines_are_appended_after_a_torn_line_and_a_rotation(tmp_path):
    path = tmp_path / "loss.jsonl"
    path.write_bytes(b'{"batch_id":0}\n{"batch_')
    with LossListener(path) as listener:
        listener.onQueryProgress(event({"joinweir_a": metrics()}, 1))
        first, torn, second = path.read_text().splitlines()
        assert (first, torn, json.loads(second)["batch_id"]) == ('{"batch_id":0}', '{"batch_', 1)
        path.rename(tmp_path / "loss.1.jsonl")
        listener.onQueryProgress(event({"joinweir_a": metrics()}, 2))
    assert [record["batch_id"] for record in json_lines(path)] == [2]


def test_a_rerun_batch_is_written_again_and_the_later_record_wins(tmp_path):
    path = tmp_path / "loss.jsonl"
    for run, n_out in (("run-1", 5), ("run-2", 6)):
        with LossListener(path) as listener:
            listener.onQueryProgress(event({"joinweir_a": metrics(n_out=n_out)}, 7, run=run))
    latest = {(r["query_id"], r["join"], r["batch_id"]): r for r in json_lines(path)}
    assert [record["n_out"] for record in latest.values()] == [6]


def test_only_the_named_joins_are_kept(tmp_path):
    observed = {f"joinweir_{name}": metrics() for name in "abc"}
    for names, kept in (("a", "a"), (["joinweir_b", "c"], "bc"), ([], "")):
        path = tmp_path / f"kept{kept}.jsonl"
        with LossListener(path, names=names) as listener:
            listener.onQueryProgress(event(observed))
        assert "".join(record["join"] for record in json_lines(path)) == kept


def parquet_batches(path: Path) -> list[int]:
    return ds.dataset(path).to_table().column("batch_id").to_pylist()


def test_parquet_is_written_in_whole_files_with_one_schema(tmp_path):
    path = tmp_path / "deep" / "loss.parquet"
    with LossListener(path, records_per_file=2) as listener:
        for batch, sides in enumerate([("left", "right"), ("1", "2", "3"), ("left", "right")]):
            listener.onQueryProgress(event({"joinweir_a": metrics(batch, sides)}, batch))
        (path / ".unfinished.parquet").write_bytes(b"PAR1 killed in the middle")
        assert parquet_batches(path) == [0, 1]
        listener.onQueryTerminated(ended())
        assert parquet_batches(path) == [0, 1, 2]
        listener.onQueryProgress(event({"joinweir_a": metrics(n_exact=None)}, 3))
        assert parquet_batches(path) == [0, 1, 2]
    table = ds.dataset(path).to_table()
    assert table.schema.equals(loss.SCHEMA)
    assert table.column("batch_id").to_pylist() == [0, 1, 2, 3]
    assert table.column("n_exact").to_pylist() == [80.0, 80.0, 80.0, None]
    assert str(table.column("timestamp")[1]) == "2026-01-02 03:04:01.567000+00:00"
    assert table.column("sides")[1].as_py()[2]["total_n_in"] == 204


def test_a_parquet_record_does_not_wait_for_ever(tmp_path, monkeypatch):
    path = tmp_path / "loss.parquet"
    monkeypatch.setattr(loss, "FLUSH_SECONDS", 0.0)
    with LossListener(path) as listener:
        listener.onQueryProgress(event({"joinweir_a": metrics()}))
        time.sleep(0.01)
        listener.onQueryIdle(ended())
        assert parquet_batches(path) == [0]


def test_what_waits_is_written_when_the_process_ends(tmp_path):
    code = (
        "import test_spark_loss as t, sys\n"
        "listener = t.LossListener(sys.argv[1])\n"
        "listener.onQueryProgress(t.event({'joinweir_a': t.metrics()}, 4))\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.parquet")], check=True, env=here()
    )
    assert parquet_batches(tmp_path / "x.parquet") == [4]


def here() -> dict[str, str]:
    """The environment in which a subprocess finds this module and joinweir."""
    paths = [str(Path(__file__).parent), *filter(None, sys.path)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def test_failures_are_logged_once_and_go_no_further(tmp_path, caplog):
    path = tmp_path / "loss.jsonl"
    with LossListener(path, prometheus_port=0) as listener, caplog.at_level(logging.INFO):
        path.unlink()
        path.mkdir()
        for batch in range(3):
            listener.onQueryProgress(event({"joinweir_a": metrics()}, batch))
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "could not write; the query goes on" in caplog.text
        assert "joinweir_recall{" in scrape(listener.port)  # the other way out still works
        listener.onQueryProgress(event({"joinweir_a": "no row"}, 3))
        listener.onQueryProgress(SimpleNamespace(progress=None))
        assert "could not read a query's progress" in caplog.text
        assert len(caplog.records) == 2
        path.rmdir()
        listener.onQueryProgress(event({"joinweir_a": metrics()}, 4))
    assert [record["batch_id"] for record in json_lines(path)] == [4]


def test_a_full_disk_does_not_fill_the_memory(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "loss.parquet"
    with LossListener(path, records_per_file=2) as listener:
        with monkeypatch.context() as broken:
            broken.setattr(pq, "write_table", full)
            for batch in range(50):
                listener.onQueryProgress(event({"joinweir_a": metrics()}, batch))
        assert list(path.iterdir()) == []
    assert parquet_batches(path) == list(range(30, 50))


# --- Prometheus -----------------------------------------------------------------------------------


def samples(text: str) -> dict[tuple, float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_scrapes_the_latest_counts_over_http():
    with LossListener(prometheus_port=0) as listener:
        assert listener.port > 0
        for batch in (0, 1):
            observed = {"joinweir_a": metrics(batch), "joinweir_b": metrics(batch, recall=None)}
            listener.onQueryProgress(event(observed, batch))
        plain = scrape(listener.port)
        got = samples(scrape(listener.port, "application/openmetrics-text; version=1.0.0"))
        listener.onQueryIdle(ended())
    a = (("join", "a"), ("query", "q"))
    left, right = ("side", "left"), ("side", "right")
    expected = {
        ("joinweir_recall", *a): 0.75,
        ("joinweir_total_recall", *a): 0.75,
        ("joinweir_results_total", *a): 120,
        ("joinweir_exact_results_total", *a): 160,
        ("joinweir_exact_results_error", *a): 0,
        ("joinweir_bytes_held", *a): 8192,
        ("joinweir_budget", *a, ("unit", "rows")): 1000,
        ("joinweir_batch_seconds", *a): 1.5,
    }
    for side, n_in, held in ((left, 200, 140), (right, 202, 142)):
        expected |= {
            ("joinweir_rows_held", *a, side): held,
            ("joinweir_rows_in_total", *a, side): n_in,
            ("joinweir_rows_late_total", *a, side): 4,
            ("joinweir_rows_null_total", *a, side): 2,
            ("joinweir_rows_shed_total", *a, ("reason", "evicted"), side): 40,
            ("joinweir_rows_shed_total", *a, ("reason", "refused"), side): 6,
        }
    expected = {(name, *sorted(labels)): value for (name, *labels), value in expected.items()}
    assert {key: value for key, value in got.items() if ("join", "a") in key} == expected
    # A recall that is not known is left out, not shown as NaN or 0.
    b = {key[0] for key in got if ("join", "b") in key}
    assert b == {key[0] for key in expected} - {"joinweir_recall"}
    assert 'joinweir_recall{join="a",query="q"} 0.75' in plain.replace(
        'query="q",join="a"', 'join="a",query="q"'
    )


def test_metrics_of_an_ended_query_are_gone_but_not_those_of_its_next_run():
    registry = prometheus_client.CollectorRegistry()
    with LossListener(registry=registry) as listener:
        assert listener.port is None

        def shown() -> set[str]:
            return {s.labels["join"] for family in registry.collect() for s in family.samples}

        listener.onQueryProgress(event({"joinweir_a": metrics()}, run="run-1"))
        listener.onQueryProgress(event({"joinweir_b": metrics()}, run="run-1"))
        listener.onQueryProgress(event({"joinweir_a": metrics(1)}, 1, run="run-2"))
        listener.onQueryTerminated(ended("run-1"))
        assert shown() == {"a"}
        listener.onQueryTerminated(ended("run-2"))
        assert shown() == set()
    assert list(registry.collect()) == []


def test_an_unnamed_query_is_labelled_by_its_id():
    registry = prometheus_client.CollectorRegistry()
    with LossListener(registry=registry) as listener:
        listener.onQueryProgress(event({"joinweir_a": metrics()}, name=None))
        labels = {"query": "query-1", "join": "a"}
        assert registry.get_sample_value("joinweir_recall", labels) == 0.75


def test_hostile_names_are_escaped_for_prometheus():
    name = 'a"} 1\njoinweir_recall{x="'
    with LossListener(prometheus_port=0) as listener:
        listener.onQueryProgress(event({"joinweir_a": metrics()}, name=name))
        got = samples(scrape(listener.port, "application/openmetrics-text; version=1.0.0"))
    assert {dict(key[1:])["query"] for key in got} == {name}


def test_a_registry_takes_one_listener_and_a_port_one_server():
    registry = prometheus_client.CollectorRegistry()
    with LossListener(registry=registry, prometheus_port=0) as listener:
        with pytest.raises(JoinweirError, match="has joinweir's metrics already"):
            LossListener(registry=registry)
        with pytest.raises(JoinweirError, match="cannot serve Prometheus on port"):
            LossListener(prometheus_port=listener.port)
        port = listener.port
    listener.close()  # twice is fine
    with LossListener(registry=registry, prometheus_port=port) as listener:
        assert "joinweir_recall" in scrape(port)


def test_the_page_lists_every_metric_with_its_labels():
    with LossListener(prometheus_port=0) as listener:
        listener.onQueryProgress(event({"joinweir_a": metrics()}))
        got = samples(scrape(listener.port, "application/openmetrics-text; version=1.0.0"))
    page = re.findall(r"^\| `(joinweir_\w+)` \| ([\w, ]*) \|", PAGE.read_text(), flags=re.M)
    listed = {(name, *sorted(filter(None, labels.split(", ")))) for name, labels in page}
    common = {"query", "join"}
    assert listed == {(key[0], *sorted({label for label, _ in key[1:]} - common)) for key in got}


def test_the_page_lists_every_field_of_a_record():
    text = PAGE.read_text()
    fields = [*loss.SCHEMA.names, *(field.name for field in dataclasses.fields(SideLoss))]
    missing = [
        name
        for name in fields
        if f"`{name}`" not in text and f"`{name.removeprefix('total_')}`" not in text
    ]
    assert missing == []


def test_the_server_listens_on_loopback_only():
    with LossListener(prometheus_port=0) as listener:
        assert listener._scraped.server.server_address == ("127.0.0.1", listener.port)


def test_without_prometheus_client_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(JoinweirError, match=r"pip install 'joinweir\[prometheus\]'"):
        LossListener(prometheus_port=0)
    LossListener(tmp_path / "loss.jsonl").close()


def test_events_from_several_threads_leave_whole_lines(tmp_path):
    path = tmp_path / "loss.jsonl"
    with LossListener(path, prometheus_port=0) as listener:

        def run(which: int) -> None:
            for batch in range(50):
                listener.onQueryProgress(event({f"joinweir_{which}": metrics(batch)}, batch))

        threads = [threading.Thread(target=run, args=(which,)) for which in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = json_lines(path)
    assert sorted((r["join"], r["batch_id"]) for r in records) == [
        (str(which), batch) for which in range(4) for batch in range(50)
    ]


# --- on Spark -------------------------------------------------------------------------------------


def test_a_classic_query_is_reported_while_idle_and_when_stopped(spark, tmp_path, often_idle):
    data = tmp_path / "data"
    for batch in range(2):
        put(data, batch, metrics(batch))
    query = start(fake_join(spark, data, metrics(), "joinweir_x"), tmp_path / "checkpoint", "named")
    try:
        query.processAllAvailable()
        eventually(lambda: not query.lastProgress["observedMetrics"], "a progress without counts")
        report = loss_report(query)
        assert (report.name, report.query_name, report.batch_id) == ("x", "named", 1)
        assert (report.query_id, report.run_id) == (query.id, query.runId)
        expected = LossReport.from_row(metrics(1), "x")
        assert (report.sides, report.total_recall) == (expected.sides, expected.total_recall)
        assert report.batch_seconds > 0
        assert report.processed_rows_per_second > 0
    finally:
        query.stop()
    assert loss_report(query) == report


def test_a_query_that_has_seen_nothing_has_no_report(spark, tmp_path, often_idle):
    (tmp_path / "data").mkdir()
    query = start(fake_join(spark, tmp_path / "data", metrics(), "joinweir_x"), tmp_path / "c")
    try:
        eventually(lambda: query.lastProgress, "a progress")
        with pytest.raises(JoinweirError, match="no loss report; wait"):
            loss_report(query)
    finally:
        query.stop()


def test_two_joins_in_one_classic_query(spark, tmp_path, listening):
    put(tmp_path / "data", 0, metrics())
    listener = listening(LossListener(tmp_path / "loss.jsonl"))
    frame = fake_join(spark, tmp_path / "data", metrics(), "joinweir_a", "mine", "joinweir_b")
    query = start(frame, tmp_path / "checkpoint")
    try:
        query.processAllAvailable()
        with pytest.raises(JoinweirError, match="say which with name=: a, b"):
            loss_report(query)
        assert loss_report(query, "b").name == "b"
        records = eventually(lambda: json_lines(tmp_path / "loss.jsonl"), "a record")
    finally:
        query.stop()
    assert [(r["join"], r["query_name"]) for r in records] == [("a", None), ("b", None)]
    assert same_record(records[1], loss_report(query, "b").to_dict())
    assert listener.port is None


@pytest.mark.parametrize(
    "changed",
    [
        {"n_exact": None, "recall": None, "total_n_exact": None, "total_recall": None},
        {"recall": math.nan, "total_n_exact_error": math.inf, "budget": None},
    ],
    ids=["no accounting", "NaN"],
)
def test_nulls_and_nans_of_a_join_of_three_pass_through_spark(spark, tmp_path, listening, changed):
    row = metrics(0, ("1", "2", "3"), **changed)
    put(tmp_path / "data", 0, row)
    listening(LossListener(tmp_path / "loss.jsonl"))
    query = start(fake_join(spark, tmp_path / "data", row, "joinweir_x"), tmp_path / "checkpoint")
    try:
        query.processAllAvailable()
        (record,) = eventually(lambda: json_lines(tmp_path / "loss.jsonl"), "a record")
        assert same_record(record, loss_report(query).to_dict())
    finally:
        query.stop()
    assert all(record[name] is None for name in changed)
    assert [side["n_in"] for side in record["sides"]] == [100, 101, 102]


def test_a_failing_listener_does_not_stop_the_query(spark, tmp_path, listening, caplog):
    path = tmp_path / "loss.jsonl"
    listening(LossListener(path))
    path.unlink()
    path.mkdir()
    for batch in range(2):
        put(tmp_path / "data", batch, metrics(batch))
    query = start(fake_join(spark, tmp_path / "data", metrics(), "joinweir_x"), tmp_path / "c")
    try:
        query.processAllAvailable()
        eventually(lambda: "could not write" in caplog.text, "the complaint")
        assert query.isActive
        assert loss_report(query).batch_id == 1
    finally:
        query.stop()


def test_a_batch_join_is_reported_by_its_observation(spark):
    observation = Observation("joinweir_x")
    row = metrics(budget=None)
    schema = ", ".join(f"{name} {spark_type(name)[0]}" for name in row)
    frame = spark.createDataFrame([tuple(row.values())], schema)
    frame.observe(observation, *[F.first(column).alias(column) for column in row]).collect()
    assert LossReport.from_row(observation.get, "x") == LossReport.from_row(row, "x")
    with pytest.raises(JoinweirError, match=r"not DataFrame; for a batch join use"):
        loss_report(frame)


def listen_and_restart(spark, place: Path) -> dict:
    """Two runs of one query under a listener of each kind; what came out, for any kind of Spark."""
    lines = LossListener(place / "loss.jsonl", prometheus_port=0)
    files = LossListener(place / "loss.parquet")
    for listener in (lines, files):
        spark.streams.addListener(listener)
    came = {"scrapes": [], "reports": []}
    for run in range(2):
        for batch in (2 * run, 2 * run + 1):
            put(place / "data", batch, metrics(batch, n_exact=None, recall=math.nan))
        frame = fake_join(spark, place / "data", metrics(), "joinweir_x")
        query = start(frame, place / "checkpoint", "the query")
        query.processAllAvailable()
        count = 2 * run + 2
        eventually(lambda n=count: len(json_lines(place / "loss.jsonl")) == n, "the records")
        came["scrapes"].append(scrape(lines.port))
        report = loss_report(query)
        came["reports"].append(report.to_dict())
        came["text"] = [repr(report), report._repr_html_()]
        query.stop()
        # Emptied by the end of the query, of which the listener is told some time later.
        eventually(lambda: "{" not in scrape(lines.port), "the end of the query")
        eventually(lambda n=run + 1: len([*(place / "loss.parquet").iterdir()]) == n, "its file")
    for listener in (lines, files):
        spark.streams.removeListener(listener)
        listener.close()
    return came


def check_restarted(came: dict, place: Path) -> None:
    records = json_lines(place / "loss.jsonl")
    assert [record["batch_id"] for record in records] == [0, 1, 2, 3]
    assert len({record["query_id"] for record in records}) == 1
    assert len({record["run_id"] for record in records}) == 2
    assert all(map(same_record, [records[1], records[3]], came["reports"]))
    for batch, record in enumerate(records):
        expected = metrics(batch)
        assert (record["query_name"], record["join"]) == ("the query", "x")
        assert (record["n_exact"], record["recall"], record["total_recall"]) == (None, None, 0.75)
        for side in record["sides"]:
            for name in COUNTS:
                assert side[f"total_{name}"] == expected[f"total_{name}_{side['side']}"]
    table = ds.dataset(place / "loss.parquet").to_table().sort_by("batch_id")
    stamps = [stamp.isoformat(timespec="milliseconds") for stamp in table["timestamp"].to_pylist()]
    assert [stamp.replace("+00:00", "Z") for stamp in stamps] == [r["timestamp"] for r in records]
    for name in set(table.column_names) - {"timestamp"}:
        assert table[name].to_pylist() == [record[name] for record in records], name
    for run, text in enumerate(came["scrapes"]):
        total = 60.0 * (2 * run + 2)
        assert f'joinweir_results_total{{join="x",query="the query"}} {total}' in text.replace(
            'query="the query",join="x"', 'join="x",query="the query"'
        )
        assert "joinweir_recall{" not in text
    assert came["text"][0].startswith("join x of query the query, batch 3 at ")


def test_listeners_on_classic_spark(spark, tmp_path):
    check_restarted(listen_and_restart(spark, tmp_path), tmp_path)


def on_connect(place: str) -> None:
    """Runs in a process of its own: one process has either classic Spark or Connect."""
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        came = listen_and_restart(spark, Path(place))
        came["session"] = type(spark).__module__
    finally:
        spark.stop()
    Path(place, "came.json").write_text(json.dumps(came))


def test_listeners_on_spark_connect(tmp_path):
    code = "import sys, test_spark_loss; test_spark_loss.on_connect(sys.argv[1])"
    # Not the classic session's settings, which PySpark passes on by the environment; and with
    # SPARK_TESTING the server takes a free port, since other tests may have 15002.
    own = ("PYSPARK_GATEWAY", "SPARK_")
    environment = {k: v for k, v in here().items() if not k.startswith(own)}
    environment["SPARK_TESTING"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    came = json.loads((tmp_path / "came.json").read_text())
    assert came["session"] == "pyspark.sql.connect.session"
    check_restarted(came, tmp_path)
