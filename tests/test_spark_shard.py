"""Shards of a join on Spark without Spark: exact, deterministic, and hard to kill.

`shard_driver` runs them in this process. Thresholds are made tiny where snapshots, trickling,
merging and values of several parts are to happen to a few hundred rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joinweir as jw
from joinweir import layout as L
from joinweir.spark import shard as S
from joinweir.spark import storage
from joinweir.spark.packets import shard_of
from joinweir.spark.spec import shard_ids
from shard_driver import (
    COLUMNS,
    Driver,
    check_identity,
    cut,
    cut_by_time,
    make_spec,
    random_rows,
    rows_of,
    truth,
)

POLICIES = [
    *(name for name in jw.policy_names() if name != "full"),
    "gdj:method=2",
    "gdj:initial_rank=auto",
    "prob:statistics=window",
    "prob:statistics=memory",
    "lba:h=4,warmup=60,refit=40",
    "elba:h=4,warmup=60,refit=40",
]
TINY = {
    "LEAST_SNAPSHOT": 1,
    "SNAPSHOT_BYTES": 6000,
    "PART_BYTES": 1500,
    "LOG_BYTES": 450,
    "REPLAY_BYTES": 150,
    "REPLAY_ROWS": 1,
    "SMALL_BYTES": 4096,
    "MOST_SMALL": 3,
    "PIECE": 16,
    "FORGOTTEN": 2,
}


@pytest.fixture
def tiny(monkeypatch):
    """Thresholds so small that everything happens to a few hundred rows."""
    for name, value in TINY.items():
        monkeypatch.setattr(S, name, value)
    digest = S.code_digest
    digest.cache_clear()
    yield
    digest.cache_clear()


def streams_in_batches(rng, k=2, n=200, n_batches=6, **rows):
    """Micro-batches of k random streams."""
    cuts = [cut(rng, random_rows(rng, n=n, **rows), n_batches) for _ in range(k)]
    return [list(tables) for tables in zip(*cuts, strict=True)]


def run_all(driver, batches, tasks=1, rng=None):
    """All results and shed rows, and what the last micro-batch brought; counts are checked."""
    matches, shed, sums = [], [], {}
    for tables in batches:
        happened = driver.batch(tables, tasks=tasks, rng=rng)
        check_identity(driver, happened, sums)
        matches += happened.matches
        shed += happened.shed
    return sorted(matches), sorted(shed), happened


def truth_of(spec, batches):
    return truth(batches, lifetimes=spec.lifetimes, lateness=spec.lateness, landmark=spec.landmark)


def aside(exact):
    """Late rows and rows with a null, as `emit="shed"` tells them."""
    told = (("late", exact.late), ("null key", exact.null_key), ("null time", exact.null_time))
    return sorted(
        (s, reason, 0, number)
        for reason, found in told
        for s, numbers in enumerate(found)
        for number in numbers
    )


# --- exact when there is memory enough ------------------------------------------------------------
WINDOWS = {
    "one": lambda k: {"within": 15},
    "unequal": lambda k: {"within": (7, 30, 11)[:k]},
    "closed": lambda k: {"within": 15, "closed": "both"},
    "landmark": lambda k: {"landmark": (40, 3)},
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_with_memory_enough_the_join_is_exact(tmp_path, k, shards, window):
    for i, (lateness, policy) in enumerate(itertools.product((0, 6), ("full", "gdj"))):
        rng = np.random.default_rng([k, shards, i])
        batches = streams_in_batches(rng, k, n=240 if k == 2 else 110, disorder=9)
        spec = make_spec(
            k, lateness=lateness, shards=shards, emit="both", policy=policy,
            budget=100_000 if policy == "gdj" else None, **WINDOWS[window](k),
        )  # fmt: skip
        exact = truth_of(spec, batches)
        driver = Driver(spec, tmp_path / str(i))
        matches, shed, last = run_all(driver, batches, tasks=1 + i % 3, rng=rng)
        assert matches == exact.matches
        assert len(matches) > 100
        assert shed == aside(exact)
        assert last.total("total_n_exact") == last.total("total_n_out") == len(matches)
        late = [last.total(f"total_n_late_{side}") for side in spec.sides]
        assert late == [len(numbers) for numbers in exact.late]
        assert sum(late) > 0 or lateness


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    k=st.sampled_from([2, 2, 3]),
    shards=st.sampled_from([1, 2, 5]),
    lateness=st.integers(0, 12),
    within=st.integers(1, 40),
    n_batches=st.integers(1, 9),
    tasks=st.integers(1, 4),
)
def test_neither_shards_nor_the_order_of_packets_decide_what_is_late(
    tmp_path_factory, seed, k, shards, lateness, within, n_batches, tasks
):
    rng = np.random.default_rng(seed)
    batches = streams_in_batches(rng, k, n=60, n_batches=n_batches, ticks=90, disorder=15)
    spec = make_spec(k, lateness=lateness, shards=shards, within=within, emit="both", policy="full")
    exact = truth_of(spec, batches)
    driver = Driver(spec, tmp_path_factory.mktemp("late"))
    matches, shed, _ = run_all(driver, batches, tasks=tasks, rng=rng)
    assert shed == aside(exact)
    assert matches == exact.matches


def test_columns_that_may_not_be_null_and_no_columns_at_all(tmp_path):
    """Rows of segments and of the running micro-batch once had schemas that Arrow would not mix."""
    whole = [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())]
    spec = make_spec(columns=(whole, COLUMNS), within=30)
    rng = np.random.default_rng(1)
    batches = streams_in_batches(rng, n_batches=5, disorder=5)
    matches, _, _ = run_all(Driver(spec, tmp_path), batches)
    assert matches == truth_of(spec, batches).matches


def test_rows_without_columns_are_counted(tmp_path):
    spec = dataclasses.replace(make_spec(columns=((), ())), output=())
    driver = Driver(spec, tmp_path)
    driver.read = lambda packets, happened: None
    for start in (0, 10, 20):
        now = driver.batch([rows_of([start, start + 3], [1, 2]), rows_of([start + 1], [1])])
        check_identity(driver, now)
    assert now.total("total_n_out") == now.total("total_n_exact") == 8


# --- with little memory: the simulator -----------------------------------------------------------
def sorted_streams(rng, k, n=400, ticks=250):
    """Streams in order of (ts, id), without nulls and twins: their order is given."""
    tables = []
    for _ in range(k):
        rows = random_rows(rng, n=n, ticks=ticks, nulls=0, twins=0)
        by = np.lexsort((rows["id"].to_numpy(), rows["ts"].to_numpy()))
        tables.append(rows.take(by))
    return tables


def simulated(spec, tables, allocation):
    """`jw.simulate` on each shard's rows: results, shed rows, and the outcome of every shard."""
    matches, shed, outcomes = [], [], []
    for i in range(spec.shards):
        mine = [
            table.filter(pa.array(shard_of(table["key"].to_numpy().copy(), spec.shards) == i))
            for table in tables
        ]
        share = tuple(total // spec.shards + (i < total % spec.shards) for total in spec.budget)
        result = jw.simulate(
            [table.to_pandas() for table in mine], on="key", time="ts",
            within=spec.lifetimes, lateness=spec.lateness, policy=spec.policy,
            max_rows=share if len(share) > 1 else share[0], allocation=allocation,
            accounting=spec.accounting, seed=spec.seed + i,
        )  # fmt: skip
        ids = [table["id"].to_numpy() for table in mine]
        matches += zip(*(ids[s][at].tolist() for s, at in enumerate(result.pairs)), strict=True)
        shed += [
            (int(s), L.REASONS[reason], int(matched), int(ids[s][row]))
            for s, row, reason, matched in zip(*result.shed, strict=True)
        ]
        outcomes.append(result)
    return sorted(matches), sorted(shed), outcomes


@pytest.mark.parametrize("policy", POLICIES)
def test_with_little_memory_a_shard_does_what_the_simulator_does(tmp_path, policy):
    """Over any cut into micro-batches that keeps the order of time, and any order of packets.

    `age` learns from the input: the simulator from all of it, a shard from its first micro-batch.
    So it is compared with all rows in one; what it learned must survive, which other tests show.
    """
    cases = itertools.product(("even", "unified", None), (1, 2), (2, 3))
    for i, (allocation, shards, k) in enumerate(cases):
        if k == 3 and shards == 2:
            continue
        rng = np.random.default_rng([i, k])
        tables = sorted_streams(rng, k, n=400 if k == 2 else 120)
        budget = 13 * k * shards if allocation else (20, 7, 11)[:k]
        spec = make_spec(
            k, within=40, lateness=3, shards=shards, policy=policy, budget=budget,
            allocation=allocation or "even", emit="both", seed=5,
        )  # fmt: skip
        batches = cut_by_time(rng, tables, 1 if policy == "age" else 5)
        driver = Driver(spec, tmp_path / str(i))
        matches, shed, last = run_all(driver, batches, tasks=2, rng=rng)
        expected, expected_shed, outcomes = simulated(spec, tables, allocation)
        assert matches == expected
        assert shed == expected_shed
        assert len(shed) > 50
        for now, result in zip(last.shards, outcomes, strict=True):
            assert now["total_n_out"] == result.n_out
            assert now["total_n_exact"] == result.n_exact
            for name in ("n_in", "n_evicted", "n_refused", "n_expired"):
                counted = [now[f"total_{name}_{side}"] for side in spec.sides]
                assert counted == list(getattr(result, name)), name
            assert [now[f"rows_held_{side}"] for side in spec.sides] == list(result.rows_held)


def test_sketches_are_those_of_the_simulator(tmp_path):
    rng = np.random.default_rng(3)
    tables = sorted_streams(rng, 2)
    spec = make_spec(within=40, lateness=3, policy="lru", budget=60, accounting="sketch")
    _, _, last = run_all(Driver(spec, tmp_path), cut_by_time(rng, tables, 4))
    _, _, (result,) = simulated(spec, tables, "even")
    assert last.of_shard(0)["total_n_exact"] == pytest.approx(result.n_exact, abs=1e-9)
    error = last.of_shard(0)["total_n_exact_variance"] ** 0.5
    assert error == pytest.approx(result.n_exact_error, abs=1e-9)


@pytest.mark.parametrize("unit", ["rows", "bytes"])
def test_what_is_emitted_does_not_change_what_is_done(tmp_path, unit):
    rng = np.random.default_rng(4)
    batches = streams_in_batches(rng, n=300, disorder=8)
    found = {}
    for emit in ("matches", "shed", "both"):
        spec = make_spec(
            within=40, lateness=4, shards=2, emit=emit, policy="prob",
            budget=30 if unit == "rows" else 60_000, unit=unit,
        )  # fmt: skip
        matches, shed, last = run_all(Driver(spec, tmp_path / emit), batches, tasks=2)
        found[emit] = (matches, shed, last.shards)
    assert found["matches"][2] == found["shed"][2] == found["both"][2]
    assert found["matches"][0] == found["both"][0] != []
    assert found["shed"][1] == found["both"][1] != []
    assert found["matches"][1] == found["shed"][0] == []
    counts = found["both"][2]
    for s, side in enumerate(("left", "right")):
        for reason, name in (("evicted", "n_evicted"), ("not admitted", "n_refused")):
            told = [row for row in found["both"][1] if row[:2] == (s, reason)]
            assert len(told) == sum(shard[f"total_{name}_{side}"] for shard in counts)


# --- survival -------------------------------------------------------------------------------------
SURVIVORS = {
    "full": {"policy": "full"},
    "gdj": {"policy": "gdj", "budget": 60},
    "rand, unified": {"policy": "rand", "budget": 60, "allocation": "unified"},
    "auto": {"policy": "gdj:initial_rank=auto", "budget": (40, 25)},
    "age": {"policy": "age:training=1", "budget": 60},
    "rates": {"policy": "lru", "budget": 60, "allocation": "rates"},
    "window": {"policy": "prob:statistics=window", "budget": 60, "accounting": "off"},
    "bytes": {"policy": "life", "budget": 120_000, "unit": "bytes"},
    "sketch": {"policy": "prob", "budget": 90_000, "unit": "bytes", "accounting": "sketch"},
    "three": {"policy": "lfu", "budget": 60, "k": 3, "accounting": "off"},
}


def survivor(name, tmp_path, **more):
    """A join and its micro-batches."""
    given = {"within": 60, "lateness": 4, "shards": 2, "emit": "both", "seed": 3} | more
    spec = make_spec(**given | SURVIVORS[name])
    rng = np.random.default_rng(len(name))
    k = spec.streams
    batches = streams_in_batches(
        rng, k, n=500 if k == 2 else 200, n_batches=14, ticks=400, disorder=8, text=20
    )
    return Driver(spec, tmp_path), batches


def head_of(driver, i=0):
    return S._read_head(driver.heads[i])


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", SURVIVORS)
def test_nothing_changes_when_working_files_are_lost(tmp_path, name):
    """At any time, be it that all is replayed from the first row or from a snapshot."""
    kept, batches = survivor(name, tmp_path / "kept")
    other, _ = survivor(name, tmp_path / "other")
    often, _ = survivor(name, tmp_path / "often")
    rng = np.random.default_rng(7)
    seen = {"snapshot": 0, "pending": 0, "replayed": 0, "restored": 0, "several parts": 0}
    for tables in batches:
        expected = kept.batch(tables, tasks=2, rng=rng).key()
        if rng.random() < 0.4:
            other.lose_files()
        assert other.batch(tables, tasks=2, rng=rng).key() == expected
        assert often.lose_files().batch(tables, tasks=2, rng=rng).key() == expected
        head = head_of(kept)
        seen["snapshot"] += head["snapshot_version"] > 0
        seen["pending"] += head["pending"] is not None
        seen["several parts"] += any(g[4] > 1 for side in head["segments"] for g in side)
        seen["replayed"] += kept.last[0].replayed_now > 0
        seen["restored"] += other.last[0].replayed_now > kept.last[0].replayed_now
    assert seen["replayed"] > 0
    if name != "auto":  # its ghosts make snapshots large
        assert seen["snapshot"] > 0
    if name == "full":
        assert min(seen.values()) > 0, seen
    for driver in (kept, other, often):
        check_kept(driver)


def check_kept(driver):
    """Durable values are those that the head knows, and no others."""
    for i, kv in enumerate(driver.kvs):
        head = head_of(driver, i)
        wanted = {
            f"p{uid}.{part}"
            for side in head["segments"]
            for uid, _, _, _, parts in side
            for part in range(parts)
        }
        wanted |= {f"s{head['snapshot_version']}.{part}" for part in range(head["snapshot_parts"])}
        if head["pending"]:
            pending = head["pending"]
            wanted |= {f"s{pending['version']}.{part}" for part in range(pending["done"])}
        for version in range(head["first_log"], head["version"] + 1):
            parts = head["log_parts"].get(str(version), 1)
            wanted |= {f"l{version}.{part}" for part in range(parts)}
        assert set(kv) == wanted


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", ["gdj", "auto", "age", "bytes"])
def test_a_micro_batch_may_run_twice_or_die_half_way(tmp_path, name):
    """As when foreachBatch uses its frame twice, a task fails, or two attempts race."""
    kept, batches = survivor(name, tmp_path / "kept")
    driver, _ = survivor(name, tmp_path / "driver")
    rng = np.random.default_rng(8)
    for b, tables in enumerate(batches):
        expected = kept.batch(tables, tasks=2, rng=rng).key()
        twice = driver.copy()
        assert twice.batch(tables, tasks=3, rng=rng).key() == expected
        if b + 1 < len(batches):  # an attempt that read other rows leaves other working files
            driver.copy().batch(batches[b + 1], rng=rng)
        attempt = driver.copy()
        for i, packets in enumerate(attempt.packets(tables, rng=rng)):
            half = S.Shard(attempt.spec, i, attempt.heads[i], attempt.kvs[i], attempt.root)
            running = half.run(iter(packets))
            for _ in range(int(rng.integers(0, 4))):
                next(running, None)
            running.close()
        assert driver.batch(tables, tasks=1, rng=rng).key() == expected
    check_kept(driver)


@pytest.mark.usefixtures("tiny")
def test_a_working_file_that_is_not_whole_is_not_used(tmp_path):
    kept, batches = survivor("gdj", tmp_path / "kept")
    driver, _ = survivor("gdj", tmp_path / "driver")
    rng = np.random.default_rng(9)
    for tables in batches:
        for path in Path(driver.root).rglob("*"):
            if path.is_file() and rng.random() < 0.5:
                whole = path.read_bytes()
                cases = [
                    b"",
                    whole[:9],
                    whole[: len(whole) // 2],
                    whole[:-1],
                    whole[:16] + b"{" * 90,
                ]
                path.write_bytes(cases[int(rng.integers(len(cases)))])
        assert driver.batch(tables).key() == kept.batch(tables).key()


def test_files_that_no_version_needs_are_removed(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(storage, "KEPT_SECONDS", -1.0)
    driver, batches = survivor("gdj", tmp_path)
    for tables in batches:
        driver.batch(tables)
        for i, shard in enumerate(driver.last):
            files = {path.name for path in shard.folder.path.iterdir()}
            head = head_of(driver, i)
            assert set(shard._files()) <= files <= set(shard._files()) | set(head["files_before"])


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", ["gdj", "bytes"])
def test_damaged_values_are_found_and_never_give_a_wrong_result(tmp_path, name):
    driver, batches = survivor(name, tmp_path, shards=1)
    rng = np.random.default_rng(10)
    found = dict.fromkeys("slp", 0)
    for b, tables in enumerate(batches[:-1]):
        driver.batch(tables)
        if b not in (5, 11):
            continue
        expected = driver.copy().batch(batches[b + 1]).key()
        keys = [
            key for kind in "slp"
            for key in rng.permutation([key for key in driver.kvs[0] if key[0] == kind])[:4]
        ]  # fmt: skip
        for key in keys:
            for how in ("first", "checksum", "length", "middle", "last", "shorter", "gone"):
                hurt = driver.copy().lose_files()
                value = bytearray(hurt.kvs[0][key])
                at = {"first": 0, "checksum": 5, "length": 9, "middle": len(value) // 2}
                if how == "gone":
                    hurt.kvs[0].delete(key)
                else:
                    value[at.get(how, len(value) - 1)] ^= 1 << int(rng.integers(8))
                    hurt.kvs[0][key] = bytes(value[:-1] if how == "shorter" else value)
                try:
                    assert hurt.batch(batches[b + 1]).key() == expected  # it was not needed
                except jw.StateError as error:
                    assert "\n" not in str(error) and "checkpoint" in str(error), error
                    found[key[0]] += 1
                except AssertionError as error:  # a value that is gone may be forgotten once more
                    assert how == "gone" and "forgotten twice" in str(error)
    assert min(found.values()) > 3, found


@pytest.mark.usefixtures("tiny")
def test_a_damaged_head_is_found(tmp_path):
    driver, batches = survivor("gdj", tmp_path, shards=1)
    driver.batch(batches[0])
    whole = driver.heads[0]
    for at in [*range(16), *range(16, len(whole), 37), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 4
        driver.heads[0] = bytes(damaged)
        with pytest.raises(jw.StateError, match="the head has"):
            driver.batch(batches[1])
    for short in (b"", whole[:15], whole[:-1]):
        driver.heads[0] = short
        with pytest.raises(jw.StateError, match="the head has"):
            driver.batch(batches[1])


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    name=st.sampled_from(sorted(SURVIVORS)),
    sizes=st.fixed_dictionaries(
        {
            "LEAST_SNAPSHOT": st.sampled_from([1, 5000, 1 << 18]),
            "SNAPSHOT_BYTES": st.sampled_from([1, 3000, 1 << 23]),
            "PART_BYTES": st.sampled_from([700, 5000, 1 << 22]),
            "LOG_BYTES": st.sampled_from([21, 400]),
            "REPLAY_BYTES": st.sampled_from([0, 30, 800, 100_000]),
            "REPLAY_ROWS": st.sampled_from([0, 1000]),
            "SMALL_BYTES": st.sampled_from([0, 500, 20_000, 1 << 22]),
            "MOST_SMALL": st.integers(2, 9),
            "PIECE": st.sampled_from([1, 40, 1 << 17]),
            "FORGOTTEN": st.sampled_from([2, 64]),
        }
    ),
)
def test_thresholds_decide_nothing_but_costs(tmp_path_factory, seed, name, sizes):
    folder = tmp_path_factory.mktemp("sizes")
    rng = np.random.default_rng(seed)
    plain, batches = survivor(name, folder / "plain", shards=1)
    driver, _ = survivor(name, folder / "tiny", shards=1)
    batches = batches[:9]
    expected = [plain.batch(tables).key()[:2] for tables in batches]
    with pytest.MonkeyPatch.context() as patch:
        for threshold, value in sizes.items():
            patch.setattr(S, threshold, value)
        for tables, wanted in zip(batches, expected, strict=True):
            if rng.random() < 0.3:
                driver.lose_files()
            now = driver.batch(tables, tasks=2, rng=rng)
            check_identity(driver, now)
            assert now.key()[:2] == wanted
        check_kept(driver)


# --- a restart with other settings ----------------------------------------------------------------
LARGE = {"budget": (200_000,)}
CHANGES = {
    "policy": ({"policy": "gdj", **LARGE}, {"policy": "lru"}),
    "to a policy that learns": ({"policy": "lru", **LARGE}, {"policy": "age"}),
    "to one that tunes itself": ({"policy": "age", **LARGE}, {"policy": "gdj:initial_rank=auto"}),
    "to one with window statistics": (
        {"policy": "fifo", "accounting": "off", **LARGE}, {"policy": "prob:statistics=window"},
    ),
    "more rows": ({"policy": "gdj", "budget": 40}, {"budget": (200,)}),
    "fewer rows": ({"policy": "gdj", "budget": 200}, {"budget": (40,)}),
    "fewer rows, refusing": (
        {"policy": "gdj", "budget": 200}, {"policy": "prob:competing=True", "budget": (40,)},
    ),
    "bounded": ({"policy": "full"}, {"policy": "prob", "budget": (50,)}),
    "unbounded": ({"policy": "prob", "budget": 50}, {"policy": "full", "budget": None}),
    "rows to bytes": ({"policy": "gdj", **LARGE}, {"unit": "bytes", "budget": (2_000_000,)}),
    "rows to few bytes": (
        {"policy": "life", "budget": 90, "accounting": "off"},
        {"unit": "bytes", "budget": (40_000,)},
    ),
    "bytes to rows": ({"policy": "gdj", "unit": "bytes", "budget": 2_000_000}, {"unit": "rows"}),
    "more bytes": ({"policy": "lru", "unit": "bytes", "budget": 100_000}, {"budget": (190_000,)}),
    "fewer bytes": ({"policy": "lru", "unit": "bytes", "budget": 190_000}, {"budget": (100_000,)}),
    "exact to sketch": ({"policy": "gdj", **LARGE}, {"accounting": "sketch"}),
    "sketch to exact": (
        {"policy": "gdj", "accounting": "sketch", **LARGE}, {"accounting": "exact"},
    ),
    "exact to off": ({"policy": "gdj", **LARGE}, {"accounting": "off"}),
    "off to exact": ({"policy": "gdj", "accounting": "off", **LARGE}, {"accounting": "exact"}),
    "less lateness": ({"policy": "gdj", "lateness": 9, **LARGE}, {"lateness": (2, 0)}),
    "more lateness": ({"policy": "gdj", "lateness": 2, **LARGE}, {"lateness": (9, 5)}),
    "one pool": ({"policy": "gdj", "budget": 90}, {"allocation": "unified"}),
    "by rates": ({"policy": "gdj", "budget": 90}, {"allocation": "rates"}),
    "by rates, learning": (
        {"policy": "gdj", "budget": 90}, {"allocation": "rates", "policy": "age"},
    ),
    "no more by rates": (
        {"policy": "gdj", "budget": 90, "allocation": "rates"}, {"allocation": "even"},
    ),
    "a budget a stream": ({"policy": "gdj", "budget": 90}, {"budget": (30, 60)}),
    "seed": ({"policy": "rand", "budget": 90}, {"seed": 99}),
    "emit": ({"policy": "gdj", "budget": 90, "emit": "matches"}, {"emit": "both"}),
}  # fmt: skip
NO_ROWS = rows_of([None, 5], [1, None])  # a packet comes, and no row of it is joined


def changed(spec, changes):
    policy = changes.get("policy", spec.policy)
    module = f"joinweir.policies.{policy.partition(':')[0]}"
    return changes | {"policy": policy, "policy_module": module}


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("lost", [False, True], ids=["files kept", "files lost"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_restart_with_other_settings_goes_on_with_the_rows(tmp_path, name, lost):
    first, changes = CHANGES[name]
    spec = make_spec(**{"within": 60, "lateness": 4, "shards": 2, "emit": "both"} | first)
    rng = np.random.default_rng(11)
    batches = streams_in_batches(rng, n=300, n_batches=9, ticks=300, disorder=7)
    driver = Driver(spec, tmp_path)
    sums, matches, shed, now = {}, [], [], None
    for b, tables in enumerate(batches):
        if b == 5:
            before = now
            if lost:
                driver.lose_files()
            driver = driver.with_spec(**changed(spec, changes))
            happened = driver.batch([NO_ROWS, NO_ROWS])
            shed += happened.shed
            check_identity(driver, happened, sums)
            check_held(driver.spec, before, happened)
        now = driver.batch(tables, tasks=2, rng=rng)
        check_identity(driver, now, sums)
        matches += now.matches
        shed += now.shed
        check_budget(driver, now)
    after = driver.spec
    exact = truth(
        batches,
        lifetimes=spec.lifetimes,
        lateness=[spec.lateness] * 5 + [after.lateness] * (len(batches) - 5),
    )
    assert not set(matches) - set(exact.matches)
    ample = all(s.budget is None or sum(s.budget) >= 180_000 for s in (spec, after))
    if ample and name != "more lateness":  # rows had left whose partners may come now
        assert sorted(matches) == exact.matches
    if name != "more lateness" and spec.accounting == after.accounting == "exact":
        assert now.total("total_n_exact") == len(exact.matches)
    if name == "off to exact":  # once 3220 results of 1491
        assert now.of_shard(0)["total_n_exact"] is None
    if after.accounting == "exact":
        assert now.total("n_exact") >= now.total("n_out")
    if spec.emit == "both":
        n_evicted = sum(now.total(f"total_n_evicted_{side}") for side in spec.sides)
        assert n_evicted == sum(row[1] == "evicted" for row in shed)


def check_held(spec, before, now):
    """After a restart without new rows: rows stay as far as the budget allows."""
    for was, shard in zip(before.shards, now.shards, strict=True):
        held = sum(was[f"rows_held_{side}"] for side in spec.sides)
        kept = sum(shard[f"rows_held_{side}"] for side in spec.sides)
        lost = sum(shard[f"n_evicted_{side}"] + shard[f"n_expired_{side}"] for side in spec.sides)
        assert kept + lost == held
        if spec.budget is None or sum(spec.budget) >= 180_000:
            assert not any(shard[f"n_evicted_{side}"] for side in spec.sides)
        assert kept > 0


def check_budget(driver, now):
    spec = driver.spec
    for i, shard in enumerate(now.shards):
        if spec.budget is None:
            continue
        share = sum(total // spec.shards + (i < total % spec.shards) for total in spec.budget)
        if spec.unit == "rows":
            assert sum(shard[f"rows_held_{side}"] for side in spec.sides) <= share
        else:
            assert shard["bytes_held"] <= share


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "policy", ["fifo", "life", "prob", "prob:statistics=window", "prob:statistics=memory"]
)
@pytest.mark.parametrize("k", [2, 3])
def test_what_a_restart_knows_is_all_that_these_policies_rank_by(tmp_path, policy, k):
    """Rebuilt under another seed they go on as if nothing had happened, down to `n_matched`."""
    spec = make_spec(k, within=60, lateness=4, emit="both", policy=policy, budget=30 * k, shards=1)
    rng = np.random.default_rng(12)
    batches = streams_in_batches(rng, k, n=300 if k == 2 else 150, n_batches=8, ticks=250)
    whole, restarted = Driver(spec, tmp_path / "whole"), Driver(spec, tmp_path / "restarted")
    for b, tables in enumerate(batches):
        if b in (3, 6):
            restarted = restarted.with_spec(seed=b)
        assert restarted.batch(tables).key() == whole.batch(tables).key()


def test_results_of_a_rebuilt_policy_are_those_of_its_state_rebuilt(tmp_path):
    """The shard adds nothing of its own: the same rows in a `JoinState` that is rebuilt."""
    from joinweir.state import JoinConfig, JoinState, make_batch

    spec = make_spec(within=40, lateness=3, policy="lru", budget=26, emit="both")
    rng = np.random.default_rng(13)
    tables = sorted_streams(rng, 2, n=300)
    batches = cut_by_time(rng, tables, 6)
    config = JoinConfig(
        jw.policies.read_policy("lru"), (40, 40), (13, 13), ordered=False, lateness=(3, 3)
    )
    state = JoinState(config)
    driver = Driver(spec, tmp_path)
    for b, now in enumerate(batches):
        if b == 3:
            driver = driver.with_spec(**changed(spec, {"policy": "gdj", "budget": (16,)}))
            config = dataclasses.replace(
                config, policy=jw.policies.read_policy("gdj"), capacity=(8, 8)
            )
            state, lost = state.rebuilt(config)
            expected_shed = [(int(s), "evicted", int(n), int(row)) for s, row, _, n in lost]
            assert len(expected_shed) > 3
        else:
            expected_shed = []
        ts = np.concatenate([table["ts"].to_numpy() for table in now])
        key = np.concatenate([table["key"].to_numpy() for table in now])
        row = np.concatenate([table["id"].to_numpy() for table in now])
        side = np.repeat([0, 1], [table.num_rows for table in now])
        by = np.lexsort((row, side, ts))
        outcome = state.process(
            make_batch(config, ts=ts[by], side=side[by], key=key[by], row=row[by]), shed=True
        )
        expected_shed += [(int(s), L.REASONS[r], int(n), int(row)) for s, row, r, n in outcome.shed]
        happened = driver.batch(now)
        assert sorted(happened.matches) == sorted(map(tuple, outcome.results.tolist()))
        assert sorted(happened.shed) == sorted(expected_shed)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("policy", ["age:training=1", "gdj:initial_rank=auto", "rand"])
def test_what_happens_after_a_restart_survives_too(tmp_path, policy):
    """What `age` learned after a restart was once missing from the replay."""
    spec = make_spec(within=60, lateness=4, emit="both", policy="lru", budget=80, shards=2)
    rng = np.random.default_rng(14)
    batches = streams_in_batches(rng, n=400, n_batches=10, ticks=300, disorder=6)
    kept, other = Driver(spec, tmp_path / "kept"), Driver(spec, tmp_path / "other")
    for b, tables in enumerate(batches):
        if b == 4:
            kept, other = (d.with_spec(**changed(spec, {"policy": policy})) for d in (kept, other))
        assert other.lose_files().batch(tables).key() == kept.batch(tables).key()
        check_kept(other)
    if policy.startswith("age"):
        assert kept.last[0].join.policy_state.keep.max() > 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"on": [["other"], ["key"]]}, r"with on = \[\['key'\], \['key'\]\], this one has"),
        ({"key types": ["string"]}, r"key types = \['bigint'\]"),
        ({"time": ["ts", "when"]}, r"time = \['ts', 'ts'\]"),
        ({"within": [20, 21]}, r"within = \[20, 20\]"),
        ({"shards": 3}, "shards = 2"),
    ],
)
def test_another_join_is_refused(tmp_path, changes, says):
    driver = Driver(make_spec(shards=2), tmp_path)
    driver.batch([rows_of([1, 2], [1, 2]), rows_of([1], [1])])
    driver = driver.with_spec(identity=driver.spec.identity | changes)
    with pytest.raises(jw.StateError, match=says) as caught:
        driver.batch([rows_of([3], [1]), rows_of([3], [1])])
    assert "\n" not in str(caught.value) and "checkpointLocation" in str(caught.value)


MORE = pa.field("more", pa.list_(pa.int64()))


@pytest.mark.parametrize(
    "columns",
    {
        "removed": COLUMNS[:3],
        "another type": (*COLUMNS[:3], pa.field("text", pa.binary())),
        "renamed": (*COLUMNS[:3], pa.field("words", pa.string())),
        "in front": (MORE, *COLUMNS),
        "not null": (*COLUMNS, pa.field("more", pa.int64(), nullable=False)),
    }.items(),
    ids=lambda item: item[0],
)
def test_columns_that_rows_do_not_have_are_refused(tmp_path, columns):
    driver = Driver(make_spec(), tmp_path)
    driver.batch([rows_of([1, 2], [1, 2]), rows_of([1], [1])])
    driver.spec = make_spec(columns=(COLUMNS, columns[1]))
    with pytest.raises(jw.StateError, match="the checkpoint holds right rows with columns"):
        driver.packets = lambda *_, **__: [[b""]]
        driver.batch([])


def test_rows_that_carry_their_keys_otherwise_are_refused(tmp_path):
    """A key column in front of the others that moves behind them would be read as another one."""
    driver = Driver(make_spec(), tmp_path)
    driver.batch([rows_of([1, 2], [1, 2]), rows_of([1], [1])])
    driver.spec = dataclasses.replace(driver.spec, hidden=(1, 0))
    with pytest.raises(jw.StateError, match="key columns are carried otherwise"):
        driver.batch([rows_of([3], [1]), rows_of([3], [1])])


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("lost", [False, True], ids=["files kept", "files lost"])
def test_columns_that_were_added_are_null_in_old_rows(tmp_path, lost):
    rng = np.random.default_rng(15)
    batches = streams_in_batches(rng, n=150, n_batches=6, ticks=100)
    driver = Driver(make_spec(within=40), tmp_path)
    new, old = set(), set()
    for b, tables in enumerate(batches):
        if b == 3:
            driver.spec = make_spec(within=40, columns=((*COLUMNS, MORE), COLUMNS))
            if lost:
                driver.lose_files()
        if b >= 3:
            more = pa.array([[i] for i in range(tables[0].num_rows)], MORE.type)
            tables[0] = tables[0].append_column("more", more)
            new |= set(tables[0]["id"].to_pylist())
        else:
            old |= set(tables[0]["id"].to_pylist())
        for row in driver.batch(tables).rows:
            if b >= 3 and row["left.id"] in old ^ new:
                assert (row["left.more"] is None) == (row["left.id"] in old)


# --- other code, other layout ---------------------------------------------------------------------
def other_code(monkeypatch):
    monkeypatch.setattr(S, "code_digest", lambda policy: "another")


def other_layout(monkeypatch):
    monkeypatch.setattr(L, "LAYOUT_VERSION", L.LAYOUT_VERSION + 1)


@pytest.mark.parametrize("change", [other_code, other_layout])
@pytest.mark.parametrize("lost", [False, True], ids=["files kept", "files lost"])
@pytest.mark.parametrize(
    "name", ["full", "gdj", "ample", "age", "rates", "auto", "bytes", "sketch", "three"]
)
def test_an_upgrade_goes_on_with_the_rows(tmp_path, tiny, monkeypatch, name, lost, change):
    more = {}
    if name == "ample":
        name, more = "full", {"policy": "gdj", "budget": 100_000}
    driver, batches = survivor(name, tmp_path)
    if more:
        driver = Driver(make_spec(within=60, lateness=4, shards=2, emit="both", **more), tmp_path)
    spec = driver.spec
    exact = truth_of(spec, batches)
    sums, matches, held, made_anew = {}, [], None, []
    from_payload = S.Shard._from_payload
    monkeypatch.setattr(
        S.Shard, "_from_payload", lambda *given: made_anew.append(1) or from_payload(*given)
    )
    for b, tables in enumerate(batches):
        if b == 8:
            assert sum(held) > 20
            if lost:
                driver.lose_files()
            change(monkeypatch)
        now = driver.batch(tables, tasks=2)
        check_identity(driver, now, sums)
        check_budget(driver, now)
        matches += now.matches
        held = [now.total(f"rows_held_{side}") for side in spec.sides]
        if b > 8 and lost:
            driver.lose_files()
    assert not set(matches) - set(exact.matches)
    assert len(matches) == now.total("total_n_out")
    if name == "full":
        assert sorted(matches) == exact.matches
        assert now.total("total_n_exact") == len(exact.matches)
    assert made_anew or (change is other_code) != lost
    check_kept(driver)


def test_an_upgrade_and_other_settings_at_once(tmp_path, tiny, monkeypatch):
    _, batches = survivor("full", tmp_path)
    spec = make_spec(within=60, lateness=4, policy="lru", budget=2000, emit="both")
    driver = Driver(spec, tmp_path)
    exact = truth_of(spec, batches)
    matches, sums = [], {}
    for b, tables in enumerate(batches):
        if b == 7:
            other_code(monkeypatch)
            changes = {"unit": "bytes", "budget": (2_000_000,), "policy": "gdj"}
            driver = driver.lose_files().with_spec(**changed(driver.spec, changes))
        now = driver.batch(tables)
        check_identity(driver, now, sums)
        matches += now.matches
    assert sorted(matches) == exact.matches
    check_kept(driver)


# --- memory and cost ------------------------------------------------------------------------------
def steady_rows(start, n, keys=2000, text=40, step=10):
    """n rows from time `start` on, one every `step` ticks, of keys that look random."""
    ts = start + step * np.arange(n)
    number = ts // step
    return rows_of(ts, number * 7919 % keys, number, ["x" * text] * n)


def real_bytes(shard):
    """What the engine's arrays and the segments take, dead rows and unused room included."""
    payload = sum(g.nbytes + g.slots.nbytes for side in shard.segments for g in side)
    return shard.join.bytes_of_state(), payload


@pytest.mark.parametrize(
    ("accounting", "texts", "slack"),
    [
        # What it exceeds the budget by is measured, not derived; here up to 1.5 % (gdj).
        ("off", (10,), 1.03),
        ("sketch", (10,), 1.03),
        ("sketch", (200,), 1.03),
        # Up to 29 %: arrays do not shrink; made for many small rows, they stay when large come.
        ("sketch", (10, 60, 300), 1.35),
        # The log of the window's arrivals alone takes 4 MB; with less, nothing else could be held.
        ("exact", (10,), 1.35),
    ],
)
@pytest.mark.parametrize("policy", ["fifo", "gdj", "prob", "gdj:initial_rank=auto"])
def test_a_budget_in_bytes_covers_what_is_really_there(tmp_path, policy, accounting, texts, slack):
    """Engine and payload, dead rows and unused room included."""
    budget = (6 if accounting == "exact" else 3) << 20
    spec = make_spec(
        within=100_000, policy=policy, budget=budget, unit="bytes", accounting=accounting
    )
    driver = Driver(spec, tmp_path)
    for i in range(9):
        text = texts[i % len(texts)]
        tables = [steady_rows(20_000 * i + s, 2000, 20_000, text) for s in (0, 1)]
        now = driver.batch(tables)
        engine, payload = real_bytes(driver.last[0])
        assert now.of_shard(0)["bytes_held"] <= budget
        assert engine + payload <= slack * budget
    assert now.of_shard(0)["bytes_held"] > 0.8 * budget
    assert sum(now.total(f"total_n_evicted_{side}") for side in spec.sides) > 2000


@pytest.mark.parametrize("unit", ["rows", "bytes"])
def test_dead_payload_is_bounded(tmp_path, unit):
    """Rows of any age are evicted, so every segment has some dead ones."""
    spec = make_spec(
        within=10**9, policy="rand", accounting="off", unit=unit,
        budget=3000 if unit == "rows" else 1_200_000,
    )  # fmt: skip
    driver = Driver(spec, tmp_path)
    most = 0.0
    for i in range(40):
        now = driver.batch([steady_rows(6000 * i + s, 600) for s in (0, 1)])
        for s, side in enumerate(spec.sides):
            stored = sum(g.n for g in driver.last[0].segments[s])
            most = max(most, stored - S.SLACK * now.total(f"rows_held_{side}"))
    assert most <= 64
    assert len(driver.kvs[0]) < 60


@pytest.mark.parametrize("n_held", [10_000, 60_000])
def test_small_micro_batches_store_little_however_much_is_held(tmp_path, n_held):
    """Bytes put into the state store follow the rows that come, not those that are held."""
    spec = make_spec(within=10 * n_held, policy="gdj", budget=4 * n_held)
    driver = Driver(spec, tmp_path)
    driver.batch([steady_rows(s, n_held, keys=n_held) for s in (0, 1)])
    start, n = 10 * n_held, 100
    written = []
    for i in range(60):
        now = driver.batch([steady_rows(start + 10 * n * i + s, n, n_held) for s in (0, 1)])
        written.append(now.written)
    assert now.total("rows_held_left") > 0.98 * n_held
    came = 2 * n * (21 + 16 + 8 * 3 + 45)  # log, time and key, columns
    assert np.mean(written) < came  # snapshots and merged segments included
    assert np.median(written) < came / 2
    assert len(driver.heads[0]) < 4000


def test_few_logs_are_replayed_however_small_they_are(tmp_path):
    """Each costs a call and a millisecond; by rows alone, hundreds of them would be due."""
    n_held = 50_000
    driver = Driver(make_spec(within=10 * n_held, policy="fifo", budget=4 * n_held), tmp_path)
    driver.batch([steady_rows(s, n_held, keys=n_held) for s in (0, 1)])
    most = 0
    for i in range(60):
        driver.batch([steady_rows(10 * (n_held + i) + s, 1, n_held) for s in (0, 1)])
        most = max(most, driver.last[0].replayed_now // S.REPLAY_ROWS)
    assert 0 < most < 12


def test_rows_of_small_micro_batches_are_written_a_few_times_only(tmp_path, monkeypatch):
    """Once a tier: with all small segments in one, this would be a dozen times and more."""
    monkeypatch.setattr(S, "SMALL_BYTES", 1 << 19)
    driver = Driver(make_spec(within=10**9, policy="full", accounting="off"), tmp_path)
    n = 20
    for i in range(250):
        driver.batch([steady_rows(10 * n * i + s, n, 10**6, text=100) for s in (0, 1)])
    shard = driver.last[0]
    live = sum(len(value) for key, value in driver.kvs[0].items() if key[0] == "p")
    logs = 250 * 1200
    assert driver.kvs[0].written < 8 * live + logs
    assert len(driver.heads[0]) < 4000
    assert max(len(side) for side in shard.segments) < S.TIERS * S.MOST_SMALL + 4


def test_shards_fall_into_partitions_of_their_own():
    assert shard_ids(1) == [0]
    for n in (2, 5, 32):
        assert len(set(shard_ids(n))) == n and shard_ids(n)[0] == 0


# --- what is known beforehand --------------------------------------------------------------------
def known_of(tables, rate=1.0):
    """`JoinSpec.known` as if these tables had come before, by a model that repeats the last row."""
    told = []
    for table in tables:
        keys = table["key"].drop_null().to_numpy()
        key, count = np.unique(keys, return_counts=True)
        told.append((keys.size, key.tolist(), count.tolist(), [0.5, 0.25], 0.25, rate))
    return tuple(told)


@pytest.mark.parametrize("policy", ["prob", "lba:h=2,warmup=60,refit=40", "elba:h=2,warmup=60"])
@pytest.mark.parametrize("allocation", ["even", "rates"])
def test_what_is_known_changes_decisions_and_survives_a_lost_worker(tmp_path, policy, allocation):
    rng = np.random.default_rng(11)
    tables = [random_rows(rng, n=300, nulls=0.0) for _ in range(2)]
    batches = list(zip(*(cut(rng, table, 4) for table in tables), strict=True))
    spec = make_spec(
        policy=policy, budget=12, emit="both", shards=2, lateness=1000, allocation=allocation
    )
    told = dataclasses.replace(spec, known=known_of(tables))
    plain, known, lossy = (
        Driver(s, tmp_path / name)
        for s, name in ((spec, "plain"), (told, "known"), (told, "lossy"))
    )
    happened = [[driver.batch(batch).key() for batch in batches] for driver in (plain, known)]
    assert happened[0] != happened[1]
    for batch, expected in zip(batches, happened[1], strict=True):
        assert lossy.batch(batch).key() == expected
        lossy.lose_files()
        # what later starts are told does not matter any more
        lossy = lossy.with_spec(known=known_of(tables[::-1], 7.0))


def test_each_shard_knows_its_own_keys_and_its_part_of_the_rest(tmp_path):
    spec = make_spec(policy="prob", budget=40, shards=3)
    keys = list(range(30))
    told = (330, keys, [10] * 30, [0.0, 0.0, 0.4], 0.6, 6.0)  # 30 rows are of keys not listed
    driver = Driver(dataclasses.replace(spec, known=(told, told)), tmp_path)
    driver.batch([rows_of([1], [key]) for key in (0, 1)])
    driver.batch([rows_of([2] * 30, keys) for _ in range(2)])
    for i in range(3):
        store = driver.last[i].join.store
        mine = [key for key in keys if shard_of(np.array([key]), 3)[0] == i]
        assert store.side["seen"][0] == 10 * len(mine) + 10 + len(mine) + (0 in mine)
        (kept,) = [json.loads(bytes(storage.get_part(driver.kvs[i], "known", 0)))[0]]
        assert kept[1] == mine
        assert kept[3] == pytest.approx([0.4 * 4 / 9, 0.4 * 4 / 9, 0.4 / 9])
        assert kept[4:] == [pytest.approx(0.6), pytest.approx(2.0)]
