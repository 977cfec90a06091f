"""The benchmarks on Spark and the demo: what they measure and say, not how fast this machine is.

Each run is a process with a session of its own, so there are few of them, and small.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinweir import cli
from joinweir.errors import JoinweirError
from joinweir.spark import benchmark as B
from joinweir.spark import demo

ROWS, WINDOW, BATCHES = 2000, 2000, 4


def run_json(*arguments: object) -> tuple[int, dict]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = cli.main([*map(str, arguments), "--json"])
    return code, json.loads(out.getvalue())


# --- data ----------------------------------------------------------------------------------------
def brute_force(load: B.Workload, folder) -> list[int]:
    """Results of each micro-batch, from the files alone."""
    key, ts = {}, {}
    for side in ("left", "right"):
        files = sorted((folder / side).iterdir())
        assert len(files) == load.batches
        table = pa.concat_tables([pq.read_table(file) for file in files])
        key[side] = table["key"].to_numpy()
        ts[side] = table["ts"].cast("int64").to_numpy()
    near = abs(ts["left"][:, None] - ts["right"][None, :]) < load.within_us
    left, right = np.nonzero((key["left"][:, None] == key["right"][None, :]) & near)
    batch = np.maximum(left, right) // (load.rows_per_batch // 2)
    return np.bincount(batch, minlength=load.batches).tolist()


def test_the_workload_has_the_results_and_the_payload_that_it_says(tmp_path) -> None:
    load = B.Workload(3000, 4, window_rows=2000, payload=70)
    load.write(tmp_path)
    found = brute_force(load, tmp_path)
    assert np.mean(found[1:]) / load.rows_per_batch == pytest.approx(7, rel=0.05)
    table = pq.read_table(tmp_path / "left" / "00001.parquet")
    assert {len(text) for text in table["payload"].to_pylist()} == {70}
    assert table.num_rows == 1500


def test_the_window_is_full_before_anything_counts() -> None:
    assert B.steady_workload(200_000, None, 200_000).warm == 2
    assert B.steady_workload(100_000, None, 1_000_000).warm == 11
    with pytest.raises(JoinweirError, match="give --batches 12 or more"):
        B.steady_workload(100_000, 11, 1_000_000)
    with pytest.raises(JoinweirError, match="2 rows or more"):
        B.steady_workload(1)


# --- figures -------------------------------------------------------------------------------------
def made_run(arm: B.Arm, seconds: float, results=(5, 5, 5), **more) -> B.Run:
    batches = [
        {"batch": i, "rows": 100, "results": n, "seconds": seconds, "ms": {"addBatch": 7}}
        for i, n in enumerate(results)
    ]
    run = B.Run(arm.name, B._is_exact(arm), 2, True, batches, **more)
    run._measure(warm=1)
    return run


def test_ratios_are_to_the_best_and_to_the_default_of_sparks_joins() -> None:
    load = B.Workload(100, 3, window_rows=50, warm=1)
    own = B.joinweir_arm("window_join, unbounded")
    runs = [made_run(arm, s) for arm, s in zip([*B.SPARK_ARMS, own], (8.0, 4.0, 2.0, 1.0))]
    found = B._compared(load, runs, [])
    assert found["best_spark"] == B.SPARK_ARMS[2].name
    assert [r["ratio_to_best_spark"] for r in found["runs"]] == [0.25, 0.5, 1, 2]
    assert [r["ratio_to_rocksdb"] for r in found["runs"]] == [1, 2, 4, 8]
    assert found["runs"][3]["rows_per_second"] == 100
    assert found["runs"][0]["breakdown"] == {"addBatch": 7}


def test_another_number_of_results_in_any_micro_batch_is_seen() -> None:
    load = B.Workload(100, 3, window_rows=50, warm=1)
    spark = made_run(B.SPARK_ARMS[0], 2.0, results=(5, 5))
    same = made_run(B.joinweir_arm("a"), 1.0, results=(5, 5, 9))
    other = made_run(B.joinweir_arm("b"), 1.0, results=(5, 6, 9))
    bounded = made_run(B.joinweir_arm("c", max_rows=5), 1.0, results=(1, 1, 1))
    found = B._compared(load, [spark, same, other, bounded], [])
    assert [r["equal"] for r in found["runs"]] == [None, True, False, None]
    assert not found["equal"]
    assert "NO" in B.comparison_sheet(found).rows[2]


def test_a_run_that_measured_nothing_has_a_lower_bound() -> None:
    load = B.Workload(100, 3, window_rows=50, warm=1)
    run = made_run(B.SPARK_ARMS[0], 2.0, results=(5,), stopped="time limit", lower_bound=61.0)
    sheet = B.comparison_sheet(B._compared(load, [run], []))
    assert sheet.rows[0][2] == "> 61 s"
    assert any("time limit after 1 micro-batches, 0 of which" in note for note in sheet.notes)


def test_the_fastest_variant_counts_and_hopeless_ones_are_cut_short() -> None:
    taken = {(2, True): 4.0, (1, True): 3.0, (4, True): 9.0, (1, False): 2.0}
    patience = []

    class Host:
        cores = 2

        def run(self, arm, load, folder, partitions, changelog, limit):
            patience.append(limit)
            run = made_run(arm, taken[partitions, changelog])
            return replace(run, partitions=partitions, changelog=changelog)

    load, told = B.Workload(100, 3, window_rows=50, warm=1), []
    best, *others = B._best_variant(Host(), B.SPARK_ARMS[0], load, None, (2, 1, 4), told.append)
    assert (best.partitions, best.changelog, best.seconds) == (1, False, 2.0)
    assert [run.seconds for run in others] == [3.0, 4.0, 9.0]
    # Three micro-batches took 12 s, then 9 s; a quarter more is allowed, and 5 s.
    assert patience == [None, 20.0, 16.25, 16.25]
    assert told[-1] == "Spark, RocksDB, 1 partitions, no changelog"
    own = B._best_variant(Host(), B.joinweir_arm("own"), load, None, (1, 2, 4), told.append)
    assert [run.partitions for run in own] == [2]


def test_growth_of_memory_is_per_minute() -> None:
    assert B._slope([(0, 5), (30, 6), (60, 7), (90, 8)]) == pytest.approx(2)
    assert B._slope([(0, 5), (1, 5)]) is None


def test_the_memory_of_this_processs_children_is_seen() -> None:
    assert B._resident(B.os.getpid())[0] > 10_000_000
    assert B.resident_memory(pid=2**30)["workers"] == 0


# --- runs ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def compared() -> dict:
    arguments = ("--rows-per-batch", ROWS, "--window-rows", WINDOW, "--batches", BATCHES)
    with pytest.MonkeyPatch.context() as patch:
        # One of Spark's three, and two of joinweir's: the others differ in settings only.
        patch.setattr(B, "SPARK_ARMS", [replace(B.SPARK_ARMS[1], tune=("partitions",))])
        patch.setattr(B.compare_joins, "__kwdefaults__",
                      B.compare_joins.__kwdefaults__ | {"spark_arms": B.SPARK_ARMS})  # fmt: skip
        patch.setattr(B, "joinweir_arms", lambda load, arms=B.joinweir_arms: arms(load)[::2])
        code, found = run_json("bench", "spark", *arguments, "--partitions", 2, "--heap", "1g")
    assert code == 0
    return found["found"][0]


def test_every_micro_batch_has_as_many_results_as_a_brute_force_join(compared, tmp_path) -> None:
    told = {k: v for k, v in compared["workload"].items() if k not in ("keys", "within_seconds")}
    load = B.Workload(**told)
    load.write(tmp_path)
    expected = brute_force(load, tmp_path)
    exact = [run for run in compared["runs"] if run["exact"]]
    assert len(exact) == 2
    for run in exact:
        assert [b["results"] for b in run["batches"]] == expected
    assert compared["equal"]
    assert [run["equal"] for run in compared["runs"]] == [None, True, None]


def test_each_arm_has_its_figures(compared) -> None:
    spark, unbounded, bounded = compared["runs"]
    assert spark["arm"] == "Spark, RocksDB, format 4" and spark["recall"] is None
    assert spark["ratio_to_best_spark"] == 1
    assert unbounded["recall"] == 1 and 0 < bounded["recall"] < 1
    for run in compared["runs"]:
        assert run["counted"] == BATCHES - compared["workload"]["warm"]
        assert run["rows_per_second"] == pytest.approx(ROWS / run["seconds"])
        assert run["memory"]["jvm"] > 100_000_000
        assert run["breakdown"]["triggerExecution"] == pytest.approx(1000 * run["seconds"])
    for run in (unbounded, bounded):
        assert run["memory"]["workers"] >= 2 and run["memory"]["python"] > 50_000_000
        assert run["cpu_seconds"]["jvm"] > 0 and run["cpu_seconds"]["python"] > 0
        assert all(b["n_out"] == b["results"] for b in run["batches"])
    assert all(b["rows_held"] <= WINDOW // 10 for b in bounded["batches"])


def test_the_comparison_prints_as_tables(compared) -> None:
    for sheet in (B.comparison_sheet(compared), B.breakdown_sheet(compared)):
        assert {len(row) for row in sheet.rows} == {len(sheet.columns)}
        assert sheet.markdown().count("\n|") == len(sheet.rows) + 2


def test_the_command_fails_if_exact_joins_differ(compared, capsys) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(B, "compare_joins", lambda *_, **__: [compared | {"equal": False}])
        assert cli.main(["bench", "spark", "--markdown"]) == 1
    out, err = capsys.readouterr()
    assert "| window_join, unbounded |" in out and "differ" in err


def test_a_failing_run_is_reported_in_one_line() -> None:
    with pytest.raises(JoinweirError, match=r"^the test failed: KeyError: 'nothing'$"):
        list(B.beside("nothing", {"settings": {}}, 100, "the test"))
    told = "Traceback\n  line 1\njoinweir.errors.JoinweirError: no column 'x'\n"
    assert B._reason(told) == "no column 'x'"


def test_a_run_that_says_nothing_ends_after_its_limit() -> None:
    with pytest.raises(JoinweirError, match="the test failed: no reason given"):
        list(B.beside("query", {"settings": {}}, 0.05, "the test"))


def test_a_soak_keeps_to_the_budget_and_writes_its_figures(tmp_path) -> None:
    page, file = tmp_path / "soak.html", tmp_path / "soak.json"
    arguments = ("--minutes", 0.05, "--memory", "2 MB", "--need", "4 MB", "--rows-per-batch", 4000)
    code, found = run_json("bench", "soak", *arguments, "--html", page, "-o", file)
    assert code == 0 and found["exceeded"] == 0
    assert all(0 < b["bytes_held"] <= found["parameters"]["memory"] for b in found["batches"])
    assert found["summary"]["python"]["max"] > 50_000_000
    assert json.loads(file.read_text())["batches"] == found["batches"]
    assert page.read_text().count('<div class="chart">') == 4
    # The same figures, had the budget been smaller: the command fails.
    found["exceeded"] = 1
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(B, "soak", lambda **_: found)
        assert cli.main(["bench", "soak"]) == 1
    assert "EXCEEDED" in out.getvalue()


def test_the_demo_runs_three_joins_on_spark(tmp_path) -> None:
    page = tmp_path / "demo.html"
    code, found = run_json("demo", "--rows", 1200, "--html", page)
    assert code == 0
    exact, *bounded = found["joins"]
    assert exact["name"] == demo.EXACT and exact["recall"] == 1
    assert [join["policy"] for join in bounded] == list(demo.POLICIES)
    for join in bounded:
        assert 0 < join["recall"] < 1 and join["rows_held"] <= found["max_rows"]
        # Spark's join is the oracle of what window_join counts as exact.
        assert sum(b["n_exact"] for b in join["batches"]) == exact["n_out"] == found["n_exact"]
    html = page.read_text()
    assert html.count('<div class="chart">') == 4
    tags = re.sub(r"(<script[^>]*>).*?</script>", r"\1", html, flags=re.DOTALL)
    assert not re.search(r"\b(src|href|url\(|@import)\b", tags)


def test_the_demo_ends_with_what_was_shown_and_where_to_go(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    batch = {"batch": 0, "rows": 10, "results": 4, "seconds": 1.0, "recall": 0.5}
    joins = [
        {"name": name, "policy": policy, "n_out": 4, "recall": recall, "rows_per_second": 10.0,
         "rows_held": 3, "bytes_held": 500, "n_shed": 2, "batches": [batch]}
        for name, policy, recall in (("exact", None, 1.0), ("a", "gdj", 0.5), ("b", "fifo", 0.25))
    ]  # fmt: skip
    found = {"rows": 5, "batches": 1, "within_seconds": 2.0, "window_rows": 4, "max_rows": 3,
             "n_exact": 4, "joins": joins}  # fmt: skip
    monkeypatch.setattr(demo, "tour", lambda rows, progress: found)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.main(["demo"]) == 0
    text = " ".join(out.getvalue().split())
    assert "policy gdj returned 50% of the exact join's results and fifo 25%" in text
    assert cli.DEMO_PAGE in text and (tmp_path / cli.DEMO_PAGE).exists()
    assert "joinweir simulate --help" in text
