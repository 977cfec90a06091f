"""Shards of a join on Spark without Spark: exact, deterministic, and hard to kill.

`shard_driver` runs them in this process. Thresholds are made tiny where snapshots, trickling,
merging and values of several parts are to happen to a few hundred rows.
"""

from __future__ import annotations

import dataclasses
import itertools
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
]
TINY = {
    "LEAST_SNAPSHOT": 1,
    "SNAPSHOT_BYTES": 6000,
    "PART_BYTES": 1500,
    "LOG_BYTES": 450,
    "REPLAY_BYTES": 150,
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
    S.code_digest.cache_clear()
    yield
    S.code_digest.cache_clear()


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
    "age": {"policy": "age", "budget": 60},
    "rates": {"policy": "lru", "budget": 60, "allocation": "rates"},
    "window": {"policy": "prob:statistics=window", "budget": 60, "accounting": "off"},
    "bytes": {"policy": "life", "budget": 50_000, "unit": "bytes"},
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


def test_shards_fall_into_partitions_of_their_own():
    assert shard_ids(1) == [0]
    for n in (2, 5, 32):
        assert len(set(shard_ids(n))) == n and shard_ids(n)[0] == 0
