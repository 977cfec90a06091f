"""`joinweir optimum`, the optimum in `joinweir simulate`, and `joinweir bench optimum`."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import joinweir as jw
from joinweir import bench, cli

JOIN = ("--on", "k", "--time", "t", "--within", "4")


@pytest.fixture
def run(capsys):
    """Run a command in this process; returns (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(a) for a in arguments])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> tuple[str, ...]:
    """The worked example of ojewole2006 as files."""
    folder = tmp_path_factory.mktemp("example")
    sides = {
        "left": {"k": [1, 9, 1, 3, 4, 2], "imp": [1, 20, 1, 5, 5, 1]},
        "right": {"k": [3, 1, 1, 1, 9, 1], "imp": [5, 1, 1, 1, 20, 1]},
    }
    for name, columns in sides.items():
        pq.write_table(pa.table({**columns, "t": range(6)}), folder / f"{name}.parquet")
    return ("--left", str(folder / "left.parquet"), "--right", str(folder / "right.parquet"), *JOIN)


@pytest.fixture(scope="module")
def zipf(tmp_path_factory) -> tuple[tuple[str, ...], tuple[dict, dict]]:
    folder = tmp_path_factory.mktemp("zipf")
    pair = jw.streams.zipf_pair(1000, domain=40, seed=5)
    for name, stream in zip(("left", "right"), pair, strict=True):
        pq.write_table(pa.table(stream), folder / f"{name}.parquet")
    files = ("--left", folder / "left.parquet", "--right", folder / "right.parquet")
    join = ("--on", "key", "--time", "ts", "--within", "50", "--max-rows", "20")
    return (*map(str, files), *join), pair


def test_optimum_prints_value_bound_solver_time_and_memory(run, example):
    code, out, err = run(
        "optimum", *example, "--max-rows", 4, "--importance", "imp", "--order", "evict_first"
    )
    assert (code, err) == (0, "")
    assert "Exact join: 9 results, importance 32" in out
    assert "Memory: 2, 2 rows" in out
    assert "Optimum: 7 results, importance 30" in out
    assert " MB; " in out


def test_optimum_writes_the_rows_to_hold(run, example, tmp_path):
    file = tmp_path / "held.parquet"
    code, out, _ = run("optimum", *example, "--max-rows", 4, "-o", file)
    assert code == 0
    held = pq.read_table(file)
    assert held.column_names == ["stream", "row", "since", "until", "n_out"]
    assert f"{held.num_rows} rows to hold" in out
    assert sum(held["n_out"].to_pylist()) == 8


def test_optimum_as_json(run, example):
    code, out, _ = run(
        "optimum", *example, "--max-rows", "2,2", "--importance", "imp=imp", "--objective",
        "count", "--method", "odja", "--order", "evict_first", "--json",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0
    assert (found["value"], found["importance"], found["upper_bound"]) == (8, 12, 8)
    assert found["solver"] == ["odja", "odja"]
    assert found["memory_mb"] > 0


def test_optimum_tells_how_far_off_a_bound_may_be(run, zipf):
    arguments, pair = zipf
    best = jw.optimum.solve(*pair, on="key", time="ts", within=50, max_rows=20)
    for method in ("bound", "pieces"):
        extra = ("--piece-gaps", 200) if method == "pieces" else ()
        _, out, _ = run("optimum", *arguments, "--method", method, *extra, "--json")
        found = json.loads(out)
        assert found["value"] <= best.value <= found["upper_bound"]
        assert found["gap"] > 0
        _, out, _ = run("optimum", *arguments, "--method", method, *extra)
        assert "No policy gets more than" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-rows", 1), "must be at least 2"),
        (("--max-rows", 4, "--importance", "worth"), "'worth'"),
        (("--max-rows", 4, "--objective", "importance"), "needs importance="),
        (("--max-rows", 4, "--method", "simplex"), "invalid choice: 'simplex'"),
        (("--max-rows", 4, "-o", "/nowhere/held.parquet"), "there is no directory"),
    ],
)
def test_bad_options_of_optimum_are_refused_with_one_line(run, example, arguments, said):
    code, out, err = run("optimum", *example, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_simulate_shows_each_policys_share_of_the_optimum(run, zipf):
    arguments, pair = zipf
    policies = ("--policy", "fifo", "--policy", "optimum", "--policy", "prob")
    code, out, _ = run("simulate", *arguments, *policies)
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line[:8].split()[:1] != []]
    table = {row[0]: row for row in rows if row[0] in ("fifo", "prob", "optimum")}
    best = jw.optimum.solve(*pair, on="key", time="ts", within=50, max_rows=20)
    assert table["optimum"][1] == f"{best.n_out:,}"
    assert table["optimum"][-1] == "100.0%"
    _, out, _ = run("simulate", *arguments, *policies, "--json")
    found = json.loads(out)
    assert found["optimum"]["value"] == best.value
    for policy in found["policies"]:
        assert policy["share_of_optimum"] == policy["n_out"] / best.value
        assert table[policy["policy"]][-1] == f"{policy['share_of_optimum']:.1%}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "optimum"), "name another one too"),
        (("--policy", "optimum", "--policy", "fifo", "--lateness", "3"), "without --lateness"),
    ],
)
def test_simulate_says_where_the_optimum_does_not_go(run, zipf, arguments, said):
    code, out, err = run("simulate", *zipf[0], *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_bench_optimum_measures_each_way_and_they_agree(run):
    arguments = ("--case", "200,10,3,20", "--way", "odja", "paths", "bound", "--json")
    code, out, _ = run("bench", "optimum", *arguments)
    assert code == 0
    odja, paths, bound = json.loads(out)["cases"]
    assert odja["value"] == paths["value"] == paths["upper_bound"]
    assert bound["value"] <= paths["value"] <= bound["upper_bound"]
    assert all(case["seconds"] > 0 and case["memory_mb"] >= 0 for case in (odja, paths, bound))


def test_bench_optimum_says_which_way_cannot(run, monkeypatch):
    def refused(cases, ways, progress):
        progress("paths", 0.0)
        return [
            {"n": 1, "window": 2, "slots": 3, "domain": 4, "skew": [1, 0], "way": way, **more}
            for way, more in (
                ("odja", {"refused": "too many sets"}),
                (
                    "paths",
                    {"seconds": 1.5, "cpu_seconds": 1.4, "memory_mb": 7, "value": 30, "gap": 0},
                ),
            )
        ]

    monkeypatch.setattr(bench, "measure_optimum", refused)
    code, out, _ = run("bench", "optimum", "--quick")
    assert code == 0
    assert "- too many sets" in out
    assert "1.50" in out


def test_bench_optimum_covers_the_papers_grid():
    cases = bench.optimum_cases()
    assert {case.n for case in cases} >= {800, 5600, 56_000}
    assert {case.window for case in cases} >= {10, 100, 400, 800, 2000}
    assert any(case.slots == case.window - 1 for case in cases)
    left, right = bench.optimum_streams(cases[0], 1)
    assert (left["importance"] == np.rint(left["importance"])).all()
    assert len(right["key"]) == cases[0].n


def test_a_case_of_bench_optimum_takes_four_numbers(run):
    code, _, err = run("bench", "optimum", "--case", "1,2")
    assert code == 2
    assert "N,W,SLOTS,DOMAIN" in err
