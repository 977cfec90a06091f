"""The command line: what each command prints, and how bad input ends."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import joinweir as jw
from joinweir import bench, cli, report, streams
from joinweir.policies import definition, policy_names


@pytest.fixture
def run(capsys):
    """Run a command in this process; returns (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(a) for a in arguments])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def run_json(run):
    def call(*arguments: object):
        code, out, err = run(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """left.parquet and right.parquet, with columns of many types, and files that are not."""
    folder = tmp_path_factory.mktemp("streams")
    for name, stream in zip(("left", "right"), streams.zipf_pair(2000, domain=50, seed=3)):
        columns = {
            **stream,
            "text": [f"k{key}" for key in stream["key"]],
            "when": pa.array(stream["ts"] * 1_000_000, pa.timestamp("us")),
            "lists": [[int(key)] for key in stream["key"]],
            "half": stream["key"] % 2,
            f"{name}_key": stream["key"],
            f"{name}_ts": stream["ts"],
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    (folder / "text.parquet").write_text("this is no Parquet file")
    (folder / "nothing").mkdir()
    return folder


def options(files: Path, **changes: object) -> list[object]:
    """Arguments of `simulate`; None leaves an option out, a list repeats it."""
    chosen: dict[str, object] = {
        "left": files / "left.parquet",
        "right": files / "right.parquet",
        "on": "key",
        "time": "ts",
        "within": 100,
        "max-rows": 20,
        "policy": "fifo",
    }
    chosen |= {name.replace("_", "-"): value for name, value in changes.items()}
    arguments: list[object] = ["simulate"]
    for name, value in chosen.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                arguments.append(f"--{name}={each}")
    return arguments


def assert_refused(outcome: tuple[int, str, str], *told: str) -> None:
    code, out, err = outcome
    assert code == 2
    assert out == ""
    assert err.startswith("joinweir: ") and err.endswith("\n") and err.count("\n") == 1, err
    for text in told:
        assert text in err


# --- in general --------------------------------------------------------------------------------
def test_version_is_the_packages(run) -> None:
    assert run("--version") == (0, f"joinweir {jw.__version__}\n", "")


def test_help_of_every_command_ends_well(run) -> None:
    for command in (
        *(["demo"], ["policies"], ["simulate"], ["generate"], ["bench"], ["bench", "engine"]),
        *(["bench", "recall"], ["bench", "spark"], ["bench", "soak"], ["bench", "optimum"]),
        ["optimum"],
        *(["generate", kind] for kind in streams.GENERATORS),
    ):
        code, out, err = run(*command, "--help")
        assert (code, err) == (0, "")
        assert "usage: joinweir" in out


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "joinweir", "policies", "nope"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert_refused((done.returncode, done.stdout, done.stderr), "nope")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], ["COMMAND"]),
        (["nope"], ["'nope'", "simulate"]),
        (["policies", "--nope"], ["--nope"]),
        (["policies", "--js"], ["--js"]),
        (["bench"], ["WHAT"]),
    ],
)
def test_an_unknown_command_or_option_is_refused(run, arguments, told) -> None:
    assert_refused(run(*arguments), *told)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts Python, also if a shell had it ignored for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_with_130_and_one_line(run, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(bench, "_apart", interrupted)
    arguments = ("bench", "engine", "--policy", "fifo", "--rows", 50)
    assert run(*arguments) == (130, "", "joinweir: interrupted\n")


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("compiler_fails", [True, False])
def test_ctrl_c_that_falls_into_the_compiler_counts(run, monkeypatch, compiler_fails) -> None:
    def compiling(*_: object, **__: object) -> None:
        @ctypes.CFUNCTYPE(None)
        def callback() -> None:
            signal.raise_signal(signal.SIGINT)

        callback()  # the exception is dropped here
        if compiler_fails:
            raise RuntimeError("no compiled object yet")
        time.sleep(10)

    monkeypatch.setattr(bench, "_apart", compiling)
    arguments = ("bench", "engine", "--policy", "fifo", "--rows", 50)
    assert run(*arguments) == (130, "", "joinweir: interrupted\n")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "joinweir", "policies", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    program.stdout.close()
    assert program.stderr.read() == b""
    assert program.wait() == 0


# --- policies ----------------------------------------------------------------------------------
def test_policies_lists_the_registry(run, run_json) -> None:
    found = run_json("policies")["policies"]
    assert [p["name"] for p in found] == policy_names()
    for p in found:
        declared = definition(p["name"])
        assert (p["summary"], p["cost"], p["paper"]) == (
            *(declared.summary, declared.cost, declared.paper),
        )
        assert "competing" in [q["name"] for q in p["parameters"]]
    _, out, _ = run("policies")
    assert all(name in out for name in policy_names())


def test_one_policy_is_explained_with_its_parameters(run, run_json) -> None:
    found = run_json("policies", "gdj")
    assert found["text"].startswith(definition("gdj").summary)
    parameters = {q["name"]: q for q in found["parameters"]}
    assert parameters["method"]["default"] == 1
    assert all(q["meaning"] for q in parameters.values())
    _, out, _ = run("policies", "gdj")
    assert "initial_rank" in out and "0.25" in out


def test_an_unknown_policy_to_explain_is_refused_with_the_choices(run) -> None:
    assert_refused(run("policies", "gjd"), "'gjd'", "did you mean 'gdj'?", "fifo")


# --- generate ----------------------------------------------------------------------------------
def test_generate_list_has_every_kind(run, run_json) -> None:
    kinds = run_json("generate", "--list")["kinds"]
    assert [k["name"] for k in kinds] == list(streams.GENERATORS)
    assert kinds[0]["options"]["domain"] == 100
    _, out, _ = run("generate", "--list")
    assert all(kind in out for kind in streams.GENERATORS)


def test_a_stream_is_written_with_the_chosen_options(run, tmp_path) -> None:
    file = tmp_path / "x.parquet"
    code, out, _ = run("generate", "zipf", "--rows", "1e2", "--domain", 5, "--seed", 7, "-o", file)
    assert code == 0
    assert str(file) in out and "100 rows" in out
    written, expected = pq.read_table(file), streams.zipf(100, domain=5, seed=7)
    assert written.column_names == list(expected)
    assert all(written[name].to_numpy().tolist() == expected[name].tolist() for name in expected)


def test_a_pair_is_written_as_two_files_and_both_are_named(run, tmp_path) -> None:
    code, out, _ = run(
        *("generate", "zipf_pair", "--rows", "10,20", "--skew", "0.5,1", "-o"),
        tmp_path / "x.parquet",
    )
    assert code == 0
    expected = streams.zipf_pair((10, 20), skew=(0.5, 1.0))
    for side, stream in zip(("left", "right"), expected):
        file = tmp_path / f"x_{side}.parquet"
        assert str(file) in out
        assert pq.read_table(file)["key"].to_pylist() == stream["key"].tolist()
    assert not (tmp_path / "x.parquet").exists()


def test_flags_and_sequences_are_options_too(run_json, tmp_path) -> None:
    told = run_json(
        *("generate", "copy_pair", "--rows", 50, "--shared", "--lags", 2, "--weights", "0.5,0.5"),
        *("-o", tmp_path / "c.parquet"),
    )
    assert told["options"] == {"shared": True, "lags": 2, "weights": [0.5, 0.5]}
    assert [f["rows"] for f in told["files"]] == [50, 50]
    left, _ = streams.copy_pair(50, shared=True, lags=2, weights=[0.5, 0.5])
    assert pq.read_table(told["files"][0]["file"])["key"].to_pylist() == left["key"].tolist()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], ["zipf_pair"]),
        (["zpf"], ["'zpf'", "zipf"]),
        (["zipf", "-o", "x.parquet"], ["--rows"]),
        (["zipf", "--rows", "5"], ["--output"]),
        (["zipf", "--rows", "1.5", "-o", "x.parquet"], ["--rows", "'1.5'"]),
        (["zipf", "--rows", "-5", "-o", "x.parquet"], ["n must be", "-5"]),
        (["zipf", "--rows", "many", "-o", "x.parquet"], ["--rows", "'many'"]),
        (["zipf", "--rows", "5", "--domain", "0", "-o", "x.parquet"], ["domain", "got 0"]),
        (["zipf", "--rows", "5", "--skew", "steep", "-o", "x.parquet"], ["--skew", "'steep'"]),
        (["zipf", "--rows", "5", "--skew", "nan", "-o", "x.parquet"], ["skew", "nan"]),
        (["zipf", "--rows", "5", "--arrivals", "late", "-o", "x.parquet"], ["'late'", "poisson"]),
        (["zipf", "--rows", "5", "--lags", "5", "-o", "x.parquet"], ["--lags"]),
        (["interval_locality", "--rows", "5", "-o", "x.parquet"], ["--master-rows"]),
        (["zipf", "--rows", "5", "-o", "no/such/x.parquet"], ["no/such"]),
    ],
)
def test_bad_options_of_generate_are_refused(run, tmp_path, monkeypatch, arguments, told) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run("generate", *arguments), *told)
    assert list(tmp_path.iterdir()) == []


# --- simulate ----------------------------------------------------------------------------------
def simulated(files: Path, policy: str, **changes: object) -> jw.JoinResult:
    left, right = (pq.read_table(files / f"{side}.parquet") for side in ("left", "right"))
    arguments = {"on": "key", "time": "ts", "within": 100, "max_rows": 20} | changes
    return jw.simulate(left, right, policy=policy, **arguments)


def test_the_table_is_in_order_of_recall_with_the_exact_size(run, files) -> None:
    policies = ["fifo", "prob", "gdj"]
    code, out, err = run(*options(files, policy=policies))
    assert (code, err) == (0, "")
    results = {name: simulated(files, name) for name in policies}
    best_first = sorted(policies, key=lambda name: -results[name].recall)
    shown = [
        line.split() for line in out.splitlines() if line.split()[:1] and line.split()[0] in results
    ]
    assert [line[0] for line in shown] == best_first
    for name, *cells in shown:
        r = results[name]
        expected = [
            f"{r.n_out:,}",
            f"{r.recall:.1%}",
            f"{sum(r.n_evicted):,}",
            f"{sum(r.n_refused):,}",
            f"{sum(r.rows_held):,}",
        ]
        assert cells[:-1] == expected
        assert float(cells[-1]) >= 0
    assert f"Exact join: {results['fifo'].n_exact:,} results" in out


def test_json_has_the_counts_of_each_policy_best_first(run_json, files) -> None:
    told = run_json(*options(files, policy=["fifo", "prob"]))
    assert [p["policy"] for p in told["policies"]] == ["prob", "fifo"]
    for found in told["policies"]:
        seconds = found.pop("seconds")
        assert seconds > 0
        assert found == simulated(files, found["policy"]).to_dict()
    assert told["n_exact"] == simulated(files, "fifo").n_exact
    assert told["n_in"] == [2000, 2000]


@pytest.mark.parametrize(
    ("changes", "meant"),
    [
        ({"within": "50,100"}, {"within": (50, 100)}),
        ({"within": "rows:30"}, {"within": jw.rows(30)}),
        ({"within": "landmark:250"}, {"within": jw.landmark(250)}),
        ({"time": "when", "within": "1 minute"}, {"time": "when", "within": "1 minute"}),
        ({"time": "when", "within": "90"}, {"time": "when", "within": 90}),
        (
            {"time": "when", "within": "landmark:1 minute"},
            {"time": "when", "within": jw.landmark("1 minute")},
        ),
        ({"time": "left_ts=right_ts"}, {"time": ("left_ts", "right_ts")}),
        ({"on": "left_key=right_key"}, {"on": [("left_key", "right_key")]}),
        ({"on": "text,half"}, {"on": ["text", "half"]}),
        (
            {"on": ["left_key=right_key", "half"]},
            {"on": [("left_key", "right_key"), "half"]},
        ),
        ({"max_rows": "5,15"}, {"max_rows": (5, 15)}),
        ({"max_rows": None, "memory": "64 KB"}, {"max_rows": None, "memory": "64 KB"}),
        ({"allocation": "unified"}, {"allocation": "unified"}),
        ({"closed": "both"}, {"closed": "both"}),
        ({"lateness": "3"}, {"lateness": 3}),
        ({"accounting": "off"}, {"accounting": "off"}),
        ({"accounting": "sketch"}, {"accounting": "sketch"}),
        ({"order": "evict_first"}, {"order": "evict_first"}),
    ],
    ids=lambda changes: " ".join(f"{k}={v}" for k, v in changes.items()),
)
def test_options_mean_what_they_mean_in_simulate(run, run_json, files, changes, meant) -> None:
    (found,) = run_json(*options(files, **changes))["policies"]
    del found["seconds"]
    assert found == simulated(files, "fifo", **meant).to_dict()
    code, out, err = run(*options(files, **changes))
    assert (code, err) == (0, "")
    assert f"{found['n_out']:,}" in out


def test_results_are_written_as_row_numbers(run, files, tmp_path) -> None:
    file = tmp_path / "results.parquet"
    code, out, _ = run(*options(files), "-o", file)
    assert code == 0
    assert str(file) in out
    written = pq.read_table(file)
    assert written.column_names == ["left_row", "right_row"]
    for name, expected in zip(written.column_names, simulated(files, "fifo").pairs):
        assert np.array_equal(written[name].to_numpy(), expected)


def test_two_streams_given_by_stream_are_left_and_right(run_json, files) -> None:
    as_streams = {"left": None, "right": None}
    both = [files / "left.parquet", files / "right.parquet"]
    told = run_json(*options(files, stream=both, **as_streams))
    assert told["policies"][0]["n_out"] == simulated(files, "fifo").n_out


def test_three_streams_are_joined(run_json, files, tmp_path) -> None:
    three = [files / "left.parquet", files / "right.parquet", files / "left.parquet"]
    file = tmp_path / "results.parquet"
    told = run_json(
        *options(files, stream=three, left=None, right=None, within=20, max_rows=30), "-o", file
    )
    (found,) = told["policies"]
    assert len(told["n_in"]) == 3
    written = pq.read_table(file)
    assert written.column_names == ["stream1_row", "stream2_row", "stream3_row"]
    assert written.num_rows == found["n_out"] > 0


def test_a_directory_of_parquet_files_is_a_stream(run_json, files, tmp_path) -> None:
    whole = pq.read_table(files / "left.parquet")
    for i, start in enumerate((0, 700)):
        part = whole.slice(start, 700 if i == 0 else None)
        pq.write_table(part, tmp_path / f"part-{i}.parquet")
    told = run_json(*options(files, left=tmp_path))
    assert told["policies"][0]["n_out"] == simulated(files, "fifo").n_out


def test_every_policy_that_keeps_to_a_budget_is_compared_by_default() -> None:
    names = cli._default_policies()
    assert "full" not in names
    assert names == [name for name in policy_names() if definition(name).bounded]


def test_a_policy_that_cannot_do_the_join_is_left_out_by_default(
    run, run_json, files, monkeypatch
) -> None:
    timed = cli._timed

    def only_prob(tables, policy, *more):
        if policy.name != "prob":
            raise jw.JoinweirError(f"{policy} cannot")
        return timed(tables, policy, *more)

    monkeypatch.setattr(cli, "_timed", only_prob)
    monkeypatch.setattr(cli, "_default_policies", lambda: ["fifo", "prob"])
    told = run_json(*options(files, policy=None))
    assert [p["policy"] for p in told["policies"]] == ["prob"]
    assert told["skipped"] == {"fifo": "fifo cannot"}
    _, out, _ = run(*options(files, policy=None))
    assert "left out fifo: fifo cannot" in out
    assert_refused(run(*options(files, policy=["fifo", "prob"])), "fifo cannot")


def test_the_exact_join_alone_needs_no_budget(run_json, files) -> None:
    (found,) = run_json(*options(files, policy="full", max_rows=None))["policies"]
    assert found["recall"] == 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"policy": "fifi"}, ["policy 'fifi'", "did you mean 'fifo'", "gdj", "prob"]),
        ({"policy": "gdj:rank=1"}, ["parameter of gdj 'rank'", "initial_rank", "method"]),
        ({"policy": "gdj:method=7"}, ["gdj: method", "1, 2, 3", "7"]),
        ({"policy": "gdj:initial_rank=2"}, ["gdj: initial_rank", "2"]),
        ({"policy": "gdj:method"}, ["'gdj:method'", "name=value"]),
        ({"on": "kee"}, ["left.parquet", "'kee'", "did you mean 'key'", "choices: ts, key"]),
        ({"time": "tz"}, ["left.parquet", "'tz'", "choices: ts, key"]),
        ({"on": "key=right_ky"}, ["right.parquet", "'right_ky'", "choices: ts, key"]),
        ({"on": "key=key=key"}, ["--on key=key=key", "3 columns for 2 streams"]),
        ({"on": "key,"}, ["--on", "missing"]),
        ({"on": None}, ["--on"]),
        ({"time": None}, ["--time"]),
        ({"within": None}, ["--within"]),
        ({"left": None}, ["--left"]),
        ({"stream": "x.parquet"}, ["--stream"]),
        ({"stream": "x.parquet", "left": None, "right": None}, ["--stream twice"]),
        ({"max_rows": "0"}, ["max_rows", "not 0"]),
        ({"max_rows": "-5"}, ["max_rows", "not -5"]),
        ({"max_rows": "2.5"}, ["--max-rows", "'2.5'"]),
        ({"max_rows": "few"}, ["--max-rows", "'few'"]),
        ({"max_rows": "1e30"}, ["--max-rows", "'1e30'", "too large"]),
        ({"max_rows": "1"}, ["max_rows=1", "at least 2"]),
        ({"max_rows": "5,5,5"}, ["max_rows", "3 values for 2 streams"]),
        ({"max_rows": None}, ["--max-rows N or --memory SIZE"]),
        ({"memory": "1 MB"}, ["--memory", "--max-rows"]),
        ({"max_rows": None, "memory": "0"}, ["memory", "1 byte", "not 0"]),
        ({"max_rows": None, "memory": "-1 MB"}, ["'-1 MB'", "256 MB"]),
        ({"max_rows": None, "memory": "0.5"}, ["memory"]),
        ({"max_rows": None, "memory": "64 XB"}, ["'64 XB'", "256 MB"]),
        ({"max_rows": None, "memory": "100"}, ["memory='100'", "at least"]),
        ({"within": "0"}, ["within", "not 0"]),
        ({"within": "-5"}, ["within", "not -5"]),
        ({"within": "1.5"}, ["within", "not 1.5"]),
        ({"within": "long"}, ["within='long'"]),
        ({"within": "nan"}, ["within", "'nan'"]),
        ({"within": "10 minutes"}, ["'10 minutes'", "plain numbers"]),
        ({"within": "10 parsecs", "time": "when"}, ["'10 parsecs'", "10 minutes"]),
        ({"within": "1,2,3"}, ["within", "3 values for 2 streams"]),
        ({"within": "rows:0"}, ["--within rows:0"]),
        ({"within": "rows:2.5"}, ["--within rows:2.5"]),
        ({"within": "years:3"}, ["'years'", "rows:N", "landmark:LENGTH"]),
        ({"within": "landmark:0"}, ["landmark(0)"]),
        ({"time": "text"}, ["time column 'text'", "string", "timestamp"]),
        ({"time": "ts=when"}, ["'ts'", "'when'", "different kinds"]),
        ({"on": "lists"}, ["'lists'", "list"]),
        ({"on": "key=text"}, ["'key' is int64", "'text' is string"]),
        ({"lateness": "-1"}, ["lateness", "-1"]),
        ({"lateness": "soon"}, ["lateness='soon'"]),
        ({"allocation": "fair"}, ["--allocation", "'fair'", "unified"]),
        ({"order": "random"}, ["--order", "'random'", "probe_first"]),
        ({"closed": "right"}, ["--closed", "'right'", "both"]),
        ({"accounting": "guess"}, ["--accounting", "'guess'", "sketch"]),
        ({"seed": "x"}, ["--seed", "'x'"]),
        ({"left": "absent.parquet"}, ["absent.parquet: no such file"]),
        ({"policy": ["fifo", "prob"], "output": "x.parquet"}, ["x.parquet", "single --policy"]),
        ({"output": "no/such/x.parquet"}, ["no/such/x.parquet"]),
    ],
    ids=lambda changes: (
        " ".join(f"{k}={v}" for k, v in changes.items()) if isinstance(changes, dict) else ""
    ),
)
def test_bad_input_of_simulate_is_refused(run, files, changes, told) -> None:
    assert_refused(run(*options(files, **changes)), *told)


def test_a_file_that_is_not_parquet_is_refused(run, files) -> None:
    file = files / "text.parquet"
    assert_refused(run(*options(files, right=file)), str(file), "not readable as Parquet")


def test_a_directory_without_parquet_files_is_refused(run, files) -> None:
    assert_refused(run(*options(files, left=files / "nothing")), "nothing", "without Parquet")


def test_an_output_that_is_a_directory_is_refused(run, files) -> None:
    assert_refused(run(*options(files, output=files)), str(files), "directory")


# --- bench -------------------------------------------------------------------------------------
BENCH = ("bench", "engine", "--policy", "fifo", "--rows", 50, 200, "--arrivals", 600)


def test_bench_shows_a_row_for_each_figure_and_the_growth(run) -> None:
    code, out, err = run(*BENCH, "--pairs-up-to", 50)
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["fifo"], ["full"])]
    assert [row[:3] for row in rows[:6]] == [
        ["full", "50", "counted"],
        ["full", "50", "written"],
        ["fifo", "50", "counted"],
        ["fifo", "50", "written"],
        ["full", "200", "counted"],
        ["fifo", "200", "counted"],
    ]
    assert [row[:3] for row in rows[6:]] == [["full", "50", "200"], ["fifo", "50", "200"]]


def test_bench_as_json_has_machine_parameters_and_rows(run_json) -> None:
    told = run_json(*BENCH)
    assert {"cores", "python", "numba"} <= set(told["machine"])
    assert told["parameters"]["rows"] == [50, 200]
    assert len(told["rows"]) == 8
    assert set(told["growth"]) == {"full", "fifo"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--policy", "lifo"], ["'lifo'", "fifo"]),
        (["--rows", "1"], ["rows must be at least 2"]),
        (["--rows", "2.5"], ["--rows", "'2.5'"]),
        (["--arrivals", "0"], ["arrivals"]),
    ],
)
def test_bad_options_of_bench_are_refused(run, arguments, told) -> None:
    assert_refused(run("bench", "engine", *arguments), *told)


# --- demo --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def demo() -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.main(["demo", "--no-spark"]) == 0
    return out.getvalue()


def test_the_demo_says_what_is_joined_and_what_to_do_next(demo) -> None:
    assert "same key" in demo
    text = " ".join(demo.split())
    assert "remember 2,000 rows" in text and "memory for 200, or 10%" in text
    assert "Which to choose" in demo
    assert "joinweir simulate --help" in demo


def test_the_demo_shows_each_policy_in_both_situations_best_first(demo) -> None:
    first, second = demo.split("\n2. ")
    assert _policies_shown(first) == ["full", "prob", "gdj", "rand", "fifo"]
    assert _policies_shown(second)[:3] == ["full", "gdj", "fifo"]


def test_the_demo_says_what_was_lost_and_why(demo) -> None:
    text = " ".join(demo.split())
    assert "prob forgot" in text and "of the results: it counts keys" in text


def test_the_demos_table_has_what_its_heading_says(demo) -> None:
    heading, _, full, *_ = demo[demo.index("policy   recall") :].splitlines()
    assert heading.split() == ["policy", "recall", "results", "rows", "held", "rows", "shed"]
    assert full.split()[-2:] == ["2,000", "0"]


def _policies_shown(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if "█" in line or "░" in line]


def test_the_demo_as_json_has_the_same_policies(run_json, demo) -> None:
    told = run_json("demo", "--no-spark")
    first = told["situations"][0]
    assert [p["policy"] for p in first["policies"]] == _policies_shown(demo.split("\n2. ")[0])
    assert first["max_rows"] == 0.1 * first["rows_needed"]


def test_the_demos_page_has_tables_and_charts_and_needs_no_network(run, tmp_path) -> None:
    file = tmp_path / "demo.html"
    code, out, err = run("demo", "--no-spark", "--html", file)
    assert (code, err) == (0, "")
    assert str(file) in out
    page = file.read_text(encoding="utf-8")
    assert page.count("<table>") == len(cli.DEMO) == page.count('<div class="chart">')
    assert all(f"<code>{name}</code>" in page for name in cli.DEMO_POLICIES)
    assert "Plotly.newPlot" in page
    tags = re.sub(r"(<script[^>]*>).*?</script>", r"\1", page, flags=re.DOTALL)
    assert not re.search(r"\b(src|href|url\(|@import)\b", tags)


def test_a_page_without_plotly_says_how_to_get_it(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    assert_refused(run("demo", "--html", tmp_path / "x.html"), "plotly", "joinweir[report]")


def test_a_page_that_cannot_be_written_is_refused_before_the_work(
    run, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(report, "require_plotly", lambda: None)
    assert_refused(run("demo", "--html", tmp_path / "no" / "x.html"), "x.html")


def test_without_spark_the_demo_says_so_and_runs_in_process(run, monkeypatch) -> None:
    monkeypatch.setattr(cli, "_spark_missing", lambda: "there is no Java")
    monkeypatch.setattr(cli, "_demo_in_process", lambda options: print("in process"))
    code, out, err = run("demo")
    assert (code, out) == (0, "in process\n")
    assert err == "joinweir: without Spark, since there is no Java\n"
    assert_refused(run("bench", "spark"), "needs Spark", "there is no Java")
    assert_refused(run("bench", "soak"), "needs Spark", "there is no Java")


def test_it_is_seen_that_pyspark_or_java_is_missing(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "no Java" in cli._spark_missing()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    for version, fine in (("11.0.2", False), ("17.0.9", True), ("21", True)):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        assert (cli._spark_missing() is None) == fine
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'joinweir[spark]'" in cli._spark_missing()


# --- characterize ------------------------------------------------------------------------------
def test_characterize_says_the_verdict_first_and_then_the_measures(run, files):
    left, right = files / "left.parquet", files / "right.parquet"
    code, out, err = run(
        "characterize", left, right, "--key", "key", "--time", "ts", "--within", "50,100"
    )
    assert (code, err) == (0, "")
    assert out.startswith("left: some keys are far more frequent")
    assert out.index("prob") < out.index("measure") < out.index("if shuffled")


def test_characterize_saves_and_draws_what_it_prints(run_json, files, tmp_path):
    page, saved = tmp_path / "page.html", tmp_path / "saved.json"
    left = files / "left.parquet"
    found = run_json(
        "characterize", left, "--key", "text", "--key", "half", "--time", "when", "--html", page,
        "-o", saved, "--h", 5, "--top", 3,
    )  # fmt: skip
    assert json.loads(saved.read_text()) == found
    profile = found["profiles"][0]
    assert (profile["n_rows"], len(profile["keys"]), len(profile["model"]["a"])) == (2000, 3, 5)
    assert profile["rate"] == pytest.approx(1.0, rel=0.01)
    assert "Popularity" in page.read_text()


def test_characterize_reads_csv_and_json_like_parquet(run_json, files, tmp_path):
    table = pq.read_table(files / "left.parquet", columns=["key", "ts", "text"])
    rows = table.to_pylist()
    (tmp_path / "left.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = [",".join(map(str, row.values())) for row in rows]
    (tmp_path / "left.csv").write_text("\n".join(["key,ts,text", *lines]))
    pq.write_table(table, tmp_path / "left.parquet")
    asked = ("--key", "text", "--time", "ts")
    found = [
        run_json("characterize", tmp_path / f"left.{kind}", *asked)
        for kind in ("parquet", "csv", "jsonl")
    ]
    assert found[0] == found[1] == found[2]


def test_characterize_takes_two_streams_from_one_file(run_json, tmp_path):
    left, right = (
        pa.table(stream).append_column("stream", pa.array([name] * 500))
        for name, stream in zip(("buys", "sells"), streams.zipf_pair(500, domain=20, seed=3))
    )
    pq.write_table(pa.concat_tables([left, right]), tmp_path / "both.parquet")
    found = run_json(
        "characterize", tmp_path / "both.parquet", "--where", "stream=buys,sells", "--key", "key",
        "--time", "ts", "--within", 20,
    )  # fmt: skip
    assert [p["name"] for p in found["profiles"]] == ["buys", "sells"]
    expected = jw.characterize(left, right, key="key", time="ts", within=20)
    assert found["windows"][0]["n_pairs"] == expected.windows[0].n_pairs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["left.parquet", "--key", "nope"], "unknown column of"),
        (["nowhere.parquet", "--key", "key"], "no such file"),
        (["nothing", "--key", "key"], "without Parquet, CSV or JSON files"),
        (["text.parquet", "--key", "key"], "not readable as parquet"),
        (["left.parquet"] * 3 + ["--key", "key"], "one file or two"),
        (["left.parquet", "--key", "key=other"], "names 2 columns for 1 stream"),
        (["left.parquet", "--key", "key", "--h", "0"], "h must be an integer"),
        (["left.parquet", "--key", "key", "--within", "5"], "within goes with two streams"),
        (["left.parquet", "--key", "lists"], "nested keys"),
        (["left.parquet", "--key", "key", "--where", "half"], "COLUMN=VALUE"),
        (["left.parquet", "--key", "key", "--where", "half=7"], "at least 2 are needed"),
        (["left.parquet", "--key", "key", "--html", "no/where.html"], "no directory"),
        (["left.parquet", "--time", "ts"], "--key"),
    ],
)
def test_characterize_ends_with_one_line_on_bad_input(run, files, arguments, message, monkeypatch):
    monkeypatch.chdir(files)
    code, out, err = run("characterize", *arguments)
    assert (code, out) == (2, "")
    assert message in err and err.count("\n") == 1


def test_bench_characterize_measures_time_and_memory(run_json):
    found = run_json("bench", "characterize", "--rows", 2000, "--spark-rows", 0)
    one, two = found["rows"]
    assert (one["streams"], one["rows"], one["windows"]) == (1, 2000, 0)
    assert (two["streams"], two["rows"]) == (2, 2000) and two["windows"] > 0
    assert one["seconds"] > 0 and one["driver_bytes"] > 2**20


def test_bench_characterize_describes_real_streams(run, tmp_path):
    left, right = streams.zipf_pair(300, domain=20, seed=3)
    tables = [
        pa.table(
            {
                "key": stream["key"],
                "ts": pa.array(stream["ts"] * 1_000_000, pa.timestamp("us")),
                "stream": [name] * 300,
            }
        )
        for name, stream in (("sale", left), ("cancel", right))
    ]
    pq.write_table(pa.concat_tables(tables), tmp_path / "online_retail.parquet")
    code, out, err = run("bench", "characterize", "--data", tmp_path, "--markdown")
    assert code == 0 and "twitter_c52.parquet is not in" in err
    head, _, line = out.strip().splitlines()
    assert head.startswith("| streams |") and line.startswith("| online_retail sale × cancel | 300")
    (tmp_path / "online_retail.parquet").unlink()
    assert run("bench", "characterize", "--data", tmp_path)[0] == 2
    assert run("bench", "characterize", "--rows", 10)[0] == 2
