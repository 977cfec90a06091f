"""`joinweir run`: the command in processes of its own, and the pieces of its view."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

pytest.importorskip("pyspark")

from joinweir.errors import JoinweirError
from joinweir.job import read_job
from joinweir.spark import running
from joinweir.spark.loss import LossReport

REPOSITORY = Path(__file__).resolve().parent.parent
START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
WITHIN = 60


@pytest.fixture
def start() -> Iterator:
    """Start `joinweir run`; every process is ended with the test."""
    started: list[subprocess.Popen] = []

    def call(job: Path, *options: str, stdout: int = subprocess.PIPE) -> subprocess.Popen:
        path = os.pathsep.join([str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-m", "joinweir", "run", str(job), *options],
            env=os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def write_rows(folder: Path, side: str, files: range) -> list[tuple[int, int, str]]:
    """JSON files, 100 rows each, a row a second."""
    (folder / side).mkdir(exist_ok=True)
    rows = []
    for file in files:
        dice = random.Random(f"{side} {file}")
        own = [(dice.randrange(20), 100 * file + i, f"{side}{file}-{i}") for i in range(100)]
        lines = (
            json.dumps({"k": k, "ts": (START + dt.timedelta(seconds=t)).isoformat(), "name": name})
            for k, t, name in own
        )
        (folder / side / f"{file:03}.json").write_text("\n".join(lines))
        rows += own
    return rows


def job_file(folder: Path, **changes: str) -> Path:
    parts = {"join": 'within = "60 seconds"\nmax_rows = 100_000', "options": "", "query": ""}
    parts |= changes
    sources = "".join(
        f"""
[source.{side}]
format = "json"
path = "{side}"
schema = "k bigint, ts timestamp, name string"
max_files_per_batch = 2
{parts["options"]}
"""
        for side in ("left", "right")
    )
    file = folder / "job.toml"
    file.write_text(f"""{sources}
[join]
on = "k"
time = "ts"
lateness = "1 day"
{parts["join"]}
[sink]
format = "parquet"
path = "out"
[query]
checkpoint = "checkpoint"
{parts["query"]}
[spark]
master = "local[2]"
""")
    return file


def written(out: Path) -> Counter:
    """The rows of all files; only for queries whose batches all ended or left nothing."""
    files: set[str] = set()
    for log in (out / "_spark_metadata").glob("[0-9]*"):
        entries = map(json.loads, log.read_text().splitlines()[1:])
        files |= {entry["path"].removeprefix("file://") for entry in entries}
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return Counter((row["name_left"], row["name_right"]) for row in rows)


def brute_force(left: list, right: list) -> Counter:
    return Counter(
        (one, other)
        for lkey, lt, one in left
        for rkey, rt, other in right
        if lkey == rkey and abs(lt - rt) < WITHIN
    )


def log_of(line: str) -> Path:
    return Path(re.search(r"\(Spark's log: (.*)\)", line)[1])


def test_a_job_is_stopped_by_ctrl_c_and_goes_on_to_the_exact_join(start, tmp_path):
    rows = {side: write_rows(tmp_path, side, range(6)) for side in ("left", "right")}
    job = job_file(tmp_path)
    process = start(job, "--json")
    event = json.loads(process.stdout.readline())
    assert event["event"] == "batch"
    assert {"recall", "bytes_held", "budget", "rows_in", "batch_seconds"} <= event.keys()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (130, "")
    summary = json.loads(out.splitlines()[-1])
    assert (summary["event"], summary["stopped_by"]) == ("summary", "SIGINT")
    for side, own in rows.items():
        own += write_rows(tmp_path, side, range(6, 8))

    process = start(job, "--once")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    exact = brute_force(rows["left"], rows["right"])
    assert written(tmp_path / "out") == exact
    last = out.splitlines()[-1]
    assert last.startswith("job: done after ")
    told = f"1,600 rows in, {exact.total():,} results, recall 100.0%, 0 shed, 0 late, 0 null"
    assert last.endswith(told)

    # The state of another window is refused, in one line that names the log.
    for side in rows:
        write_rows(tmp_path, side, range(8, 9))
    process = start(job_file(tmp_path, join='within = "61 seconds"'), "--once")
    _, err = process.communicate()
    (line,) = err.splitlines()
    assert (process.returncode, line[:28]) == (1, "joinweir: the query failed: ")
    assert "within" in line
    log_of(line).unlink()


def test_a_query_that_fails_is_one_line_and_code_1(start, tmp_path):
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "a.json").write_text("{this is no JSON\n")
    process = start(job_file(tmp_path, options='options.mode = "FAILFAST"'), "--once", "--json")
    _, err = process.communicate()
    assert process.returncode == 1
    (line,) = err.splitlines()
    assert line.startswith("joinweir: the query failed: ")
    assert "FAILFAST" in log_of(line).read_text()
    log_of(line).unlink()


def test_on_a_terminal_the_example_shows_a_live_view(start):
    ours, theirs = pty.openpty()
    os.set_blocking(ours, True)
    process = start(REPOSITORY / "examples" / "job.toml", stdout=theirs)
    os.close(theirs)
    shown = ""
    recall = re.compile(r"recall[^%]*\d%")
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        # Of the console sink; and the view of what was lost, which Spark tells a little later.
        while not (re.search(r"batch \d+: first 5 results", shown) and recall.search(shown)):
            shown += os.read(ours, 65536).decode(errors="replace")
        process.send_signal(signal.SIGTERM)
        while True:
            shown += os.read(ours, 65536).decode(errors="replace")
    assert process.wait() == 0, shown + process.stderr.read()
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    for part in ("job · gdj · within 10 seconds", "rows in", "results", "held", "1,000 rows"):
        assert part in text
    assert re.search(r"recall +[\d.]+% +[▁▂▃▄▅▆▇█]+ +total [\d.]+%", text)
    assert "stopped by SIGTERM" in text
    assert process.stderr.read() == ""


# --- pieces, without Spark running -------------------------------------------------------------
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            'path = "out"',
            'path = "out"\npartition_by = "nmae"',
            "partition_by 'nmae'; did",
        ),
        (
            'format = "parquet"\npath = "out"',
            'format = "kafka"\nbootstrap_servers = "h:1"\ntopic = "t"\nkey = ["k", "nmae"]',
            "key 'nmae'; did you mean 'name'",
        ),
    ],
)
def test_columns_of_the_sink_must_be_in_the_result(tmp_path, old, new, told):
    for side in ("left", "right"):
        write_rows(tmp_path, side, range(1))
    job = job_file(tmp_path)
    job.write_text(job.read_text().replace(old, new))
    result = types.SimpleNamespace(columns=["k", "name"])
    with pytest.raises(JoinweirError, match=told):
        running.start_query(read_job(job, {}), result)


def test_the_panel_shows_budget_loss_and_recall():
    row = {
        "n_in_left": 60, "n_in_right": 40, "n_shed_left": 3, "total_n_shed_left": 5,
        "n_late_right": 2, "total_n_late_right": 7, "n_out": 50, "total_n_out": 1234,
        "recall": 0.5, "total_recall": 0.625, "total_n_exact": 2000.0, "total_n_exact_error": 32.0,
        "rows_held_left": 10, "rows_held_right": 20, "bytes_held": 3 * 1024**2,
        "budget": 4 * 1024**2, "budget_unit": "bytes",
    }  # fmt: skip
    progress = {"batchId": 7, "numInputRows": 100, "durationMs": {"triggerExecution": 500}}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(running.live_table(progress, LossReport.from_row(row, "joinweir_x"), [0.5, 1]))
    text = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert text[0] == "batch 7 0.50 s"
    assert text[1] == "rows in 200/s 100 in the batch"
    assert text[2] == "results 100/s 1,234 in total"
    assert text[3] == "recall 50.0% ▅█ total 62.5% ± 1.0%"
    assert text[4].endswith("75% of 4.0 MB (30 rows, 3.0 MB)")
    assert text[5:] == ["shed 3 5 in total", "late 2 7 in total", "null 0 0 in total"]


def test_the_console_gets_a_few_rows_of_a_partition_that_is_read_to_its_end():
    batches = [pa.RecordBatch.from_pydict({"x": list(range(i, i + 3))}) for i in (0, 3, 6)]
    rest = iter(batches)
    kept = pa.Table.from_batches(running.first_rows(4)(rest))
    assert kept["x"].to_pylist() == [0, 1, 2, 3]
    assert next(rest, None) is None


def test_sparkline_goes_from_nothing_to_all():
    assert running.sparkline([0, 1 / 7, 1, 1.2, -1]) == "▁▂██▁"


STREAM_FAILED = "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: "


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            f"{STREAM_FAILED}Topic gone SQLSTATE: XXKST\n=== Streaming Query ===\nplan",
            "Topic gone",
        ),
        (
            f"{STREAM_FAILED}Job aborted\norg.apache.spark.SparkException: x\n"
            "Traceback (most recent call last):\n  File 'a'\nValueError: first\n\n"
            "Traceback (most recent call last):\n  File 'b'\n"
            "joinweir.errors.StateError: the state is of within=60; start anew\n\n"
            "\tat org.apache.spark.x\njava.lang.IllegalStateException: y",
            "the state is of within=60; start anew",
        ),
        ("Traceback (most recent call last):\n  File 'a'\nKeyError: 'k'", "KeyError: 'k'"),
    ],
)
def test_the_error_of_a_query_becomes_one_line(text, told):
    assert running.what_failed(text) == told


class Query:
    """Progress as a query gives it."""

    def __init__(self, *batches: int, idle: int | None = None) -> None:
        self.recentProgress = [{"batchId": b, "durationMs": {"addBatch": 1}} for b in batches]
        if idle is not None:
            self.recentProgress.append({"batchId": idle, "durationMs": {"latestOffset": 1}})

    @property
    def lastProgress(self):
        return self.recentProgress[-1] if self.recentProgress else None


@pytest.mark.parametrize(
    ("query", "seen", "batches"),
    [
        (Query(), None, []),
        (Query(5), None, [5]),
        (Query(5, 6), 5, [6]),
        (Query(5, 6, 7, 8), 5, [6, 7, 8]),
        (Query(5, 6), 6, []),
        (Query(5, 6, idle=7), 6, []),
        (Query(5, 6, 7, idle=8), 6, [7]),
    ],
)
def test_every_batch_is_shown_once(query, seen, batches):
    assert [progress["batchId"] for progress in running._since(query, seen)] == batches


def test_settings_of_the_session(tmp_path):
    write_rows(tmp_path, "left", range(1))
    write_rows(tmp_path, "right", range(1))
    settings = running.session_settings(read_job(job_file(tmp_path), {}))
    assert settings["spark.sql.shuffle.partitions"] == "2"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert "spark.jars.packages" not in settings
    text = job_file(tmp_path).read_text()
    text = text.replace('format = "parquet"\npath = "out"',
                        'format = "kafka"\nbootstrap_servers = "h:1"\ntopic = "t"')  # fmt: skip
    text = text.replace('"local[2]"', '"local[2]"\nconf."spark.ui.enabled" = true')
    text = text.replace("[join]", "[join]\nshards = 5")
    (tmp_path / "job.toml").write_text(text)
    settings = running.session_settings(read_job(tmp_path / "job.toml", {}))
    assert settings["spark.sql.shuffle.partitions"] == "5"
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.jars.packages"].startswith("org.apache.spark:spark-sql-kafka-0-10")
    (tmp_path / "a.jar").touch()
    job = read_job(tmp_path / "job.toml", {"JOINWEIR_JARS": str(tmp_path)})
    settings = running.session_settings(job)
    assert settings["spark.jars"] == str(tmp_path / "a.jar")
    assert "spark.jars.packages" not in settings
