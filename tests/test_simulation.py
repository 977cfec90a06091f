"""`simulate`: examples worked by hand, every kind of input, window, budget and accounting."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
import re
from collections import Counter
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import joinweir as jw
import naive
from joinweir.layout import EVICTED, REFUSED
from joinweir.simulation import split_budget
from oracle import agree, as_tables, cases, compare, naive_arguments, random_streams

EVERY_POLICY = jw.policy_names()


def results(r) -> list[tuple[int, ...]]:
    """Row numbers of the results, sorted."""
    return sorted(zip(*(column.tolist() for column in r.pairs), strict=True))


def shed_rows(r) -> list[tuple[int, int, int]]:
    """(stream, row, reason) of shed rows, in order."""
    shed = r.shed
    return list(zip(shed.stream.tolist(), shed.row.tolist(), shed.reason.tolist(), strict=True))


def counts(r) -> dict:
    """Everything that a result says but its arrays."""
    return r.to_dict() | {"capacity": r.capacity}


def refuses(line: str, *arguments, **options) -> None:
    """`simulate` raises exactly this one line."""
    with pytest.raises(jw.JoinweirError, match=f"^{re.escape(line)}$"):
        jw.simulate(*arguments, **({"on": "k", "time": "ts", "within": 5} | options))


def stream(text: str) -> dict:
    """'a1 b2 -3' → keys a, b, null at times 1, 2, 3."""
    words = text.split()
    keys = [None if word[0] == "-" else word[0] for word in words]
    return {"k": pa.array(keys, pa.string()), "ts": np.array([int(w[1:]) for w in words], np.int64)}


def join(left: str, right: str, within, **options):
    """A join of two streams written as text."""
    return jw.simulate(stream(left), stream(right), on="k", time="ts", within=within, **options)


# --- examples worked by hand --------------------------------------------------------------------
def test_a_row_matches_those_less_than_a_window_away():
    # L0 at 0 lives at 0, 1, 2.
    r = join("a0", "a2 a3", 3)
    assert results(r) == [(0, 0)]
    assert results(join("a0", "a2 a3", 3, closed="both")) == [(0, 0), (0, 1)]
    # backwards in time just the same
    assert results(join("a2 a3", "a0", 3)) == [(0, 0)]
    assert results(join("a2 a3", "a0", 3, closed="both")) == [(0, 0), (1, 0)]


def test_every_stream_has_a_window_of_its_own():
    # L0 (ends at 1) is dead when R0 comes at 3; R0 (ends at 8) is alive when L1 comes at 4.
    r = join("a0 a4", "a3", (1, 5))
    assert results(r) == [(1, 0)]
    assert r.n_exact == 1


def test_the_oldest_row_is_evicted_and_its_results_are_lost():
    # max_rows=2: one a stream. b1 pushes out a0, so R0 = a2 finds nothing, R1 = b3 finds b1.
    r = join("a0 b1", "a2 b3", 10, max_rows=2, policy="fifo")
    assert results(r) == [(1, 1)]
    assert (r.n_out, r.n_exact, r.recall) == (1, 2, 0.5)
    assert shed_rows(r) == [(0, 0, EVICTED), (1, 0, EVICTED)]
    assert (r.n_in, r.n_evicted, r.n_refused) == ((2, 2), (1, 1), (0, 0))
    assert (r.n_expired, r.rows_held, r.capacity) == ((0, 0), (1, 1), (1, 1))
    assert r.n_shed == 2


def test_a_competing_newcomer_loses_against_a_more_frequent_key():
    # a has been seen on the right, b has not: PROB keeps a0 and does not admit b1.
    r = join("a0 b2", "a1 a3", 10, max_rows=(1, 9), policy="prob")
    assert results(r) == [(0, 0), (0, 1)]
    assert shed_rows(r) == [(0, 1, REFUSED)]
    r = join("a0 b2", "a1 a3", 10, max_rows=(1, 9), policy="prob:competing=false")
    assert results(r) == [(0, 0)]
    assert shed_rows(r) == [(0, 0, EVICTED)]


def test_in_one_pool_a_row_of_any_stream_gives_way():
    r = join("a0", "b1 a2 a3", 10, max_rows=2, allocation="unified", policy="fifo")
    assert results(r) == [(0, 1)]  # a2 matches a0, then pushes it out
    assert shed_rows(r) == [(0, 0, EVICTED), (1, 0, EVICTED)]


def test_rows_of_one_instant_in_the_three_orders():
    # One row each. a1 and a1 come together after a0 on the right.
    left, right = "a1", "a0 a1"
    options = {"within": 5, "max_rows": (1, 1), "policy": "fifo"}
    # One by one: L0 meets a0; R1 meets L0, then pushes a0 out.
    assert results(join(left, right, **options)) == [(0, 0), (0, 1)]
    # Together: L0 meets a0 before R1 pushes it out, and meets R1.
    assert results(join(left, right, order="simultaneous", **options)) == [(0, 0), (0, 1)]
    # Admitted first: R1 pushes a0 out before L0 probes; L0 and R1 still meet.
    assert results(join(left, right, order="evict_first", **options)) == [(0, 1)]


def test_equal_times_are_processed_left_before_right_and_in_row_order():
    # All at time 0, one place a stream: L0, L1, L2, then R0, R1. Only L2 is left when they come.
    r = join("a0 b0 a0", "a0 a0", 1, max_rows=2, policy="fifo")
    assert results(r) == [(2, 0), (2, 1)]
    assert shed_rows(r) == [(0, 0, EVICTED), (0, 1, EVICTED), (1, 0, EVICTED)]


def test_dead_rows_make_room_before_anybody_is_evicted():
    r = join("a0 a5", "a1 a6", 5, max_rows=2, policy="fifo")
    assert shed_rows(r) == []
    assert r.n_expired == (1, 1)
    assert results(r) == [(0, 0), (1, 0), (1, 1)]


def test_three_streams_join_in_one_window():
    # a0, a1, a2: all within 3. a0, a1, a3: a0 is dead at 3.
    parts = [stream("a0"), stream("a1"), stream("a2 a3")]
    r = jw.simulate(parts, on="k", time="ts", within=3)
    assert results(r) == [(0, 0, 0)]
    assert r.n_exact == 1
    assert results(jw.simulate(parts, on="k", time="ts", within=(4, 3, 3))) == [
        (0, 0, 0),
        (0, 0, 1),
    ]


def test_landmarks_begin_anew():
    # Landmarks at 0, 10, 20: L0 = a9 is forgotten when R1 comes at 10.
    r = join("a9", "a9 a10", jw.landmark(10))
    assert results(r) == [(0, 0)]
    # Landmarks at 5, 15: R1 at 10 is in the same window.
    r = join("a9", "a9 a10 a15", jw.landmark(10, origin=5))
    assert results(r) == [(0, 0), (0, 1)]


def test_count_windows_hold_the_last_rows_of_a_stream():
    # The last 2 rows on the left: a0 is forgotten when the third left row comes.
    r = join("a0 b1 b3", "a2 a4", jw.rows(2))
    assert results(r) == [(0, 0)]
    assert r.n_exact == 1


# --- inputs -------------------------------------------------------------------------------------
def random_tables(seed: int = 0, n: int = 300):
    rng = np.random.default_rng(seed)
    tables = []
    for _ in range(2):
        keys = [None if v == 5 else f"key {v}" for v in rng.integers(0, 30, n)]
        tables.append({"k": keys, "ts": np.sort(rng.integers(0, n, n)), "x": rng.random(n)})
    return tables


FORMS = {
    "dict": lambda t: t,
    "lists": lambda t: {name: list(values) for name, values in t.items()},
    "arrow": pa.table,
    "record batch": pa.RecordBatch.from_pydict,
    "chunks": lambda t: pa.concat_tables([pa.table(t).slice(0, 7), pa.table(t).slice(7)]),
    "dictionary": lambda t: pa.table(t | {"k": pa.array(t["k"]).dictionary_encode()}),
    "pandas": pd.DataFrame,
    "pandas category": lambda t: pd.DataFrame(t).astype({"k": "category"}),
    "polars": pl.DataFrame,
    "polars category": lambda t: pl.DataFrame(t).with_columns(pl.col("k").cast(pl.Categorical)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_table_gives_the_same_join(form):
    options = {"on": "k", "time": "ts", "within": 20, "max_rows": 30, "policy": "gdj"}
    plain, given = random_tables(), [FORMS[form](t) for t in random_tables()]
    expected, found = jw.simulate(*plain, **options), jw.simulate(*given, **options)
    mixed = jw.simulate(plain[0], given[1], **options)
    for r in (found, mixed):
        assert [column.tolist() for column in r.pairs] == [c.tolist() for c in expected.pairs]
        assert shed_rows(r) == shed_rows(expected)
        assert counts(r) == counts(expected)
    assert expected.n_null != (0, 0)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([1, 2, 3], [3, 1, 1], [(0, 1), (0, 2), (2, 0)]),
        (np.array([1, 2], np.int32), np.array([2, 1], np.int64), [(0, 1), (1, 0)]),
        (["x", "", "y"], ["", "y", "z"], [(1, 0), (2, 1)]),
        ([b"x", b""], [b"", b"y"], [(1, 0)]),
        ([0.5, np.nan, -0.0], [0.0, np.nan, 0.25], [(1, 1), (2, 0)]),
        ([1, 2, 3], [2.0, 2.5, 3.0], [(1, 0), (2, 2)]),
        ([True, False], [False, False], [(1, 0), (1, 1)]),
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), [dt.date(2024, 1, 2)] * 2, [(1, 0), (1, 1)]),
        ([1, None, 2], [None, 2, None], [(2, 1)]),
        ([None, None], [None, None], []),
    ],
)
def test_keys_of_every_type_match_where_they_are_equal(left, right, expected):
    left, right = ({"k": v, "ts": np.zeros(len(v), int)} for v in (left, right))
    r = jw.simulate(left, right, on="k", time="ts", within=1)
    assert results(r) == expected
    assert r.n_exact == len(expected)


def test_composite_keys_match_in_every_column_whatever_they_are_called():
    left = {"a": [1, 1, 2, None], "b": ["x", "y", "x", "x"], "ts": [0, 0, 0, 0]}
    right = {"c": [1, 2, 1], "b": ["y", "x", None], "time": [0, 0, 0]}
    r = jw.simulate(left, right, on=[("a", "c"), "b"], time=("ts", "time"), within=1)
    assert results(r) == [(1, 0), (2, 1)]
    assert r.n_null == (1, 1)


def test_null_keys_are_counted_and_take_no_room():
    r = join("-0 a1 -2", "-3 a4", 10, max_rows=2, policy="fifo")
    assert results(r) == [(1, 1)]
    assert (r.n_null, r.rows_held, r.n_shed) == ((2, 1), (1, 1), 0)


def test_incompatible_keys_are_refused():
    left, right = {"k": ["a"], "ts": [0]}, {"k": [1], "ts": [0]}
    refuses(
        "key columns have types that cannot be equal: left 'k' is string, right 'k' is int64; "
        "cast one",
        left,
        right,
    )


@pytest.mark.parametrize(
    ("times", "within"),
    [
        ([0, 599, 600], 600),
        ([0.0, 59.9, 60.0], 60.0),
        ([0.0, 59.9, 60.0], "60"),
        (pd.to_datetime([0, 599_999, 600_000], unit="ms"), "10 minutes"),
        (pd.to_datetime([0, 599_999, 600_000], unit="ms"), 600),
        (pd.to_datetime([0, 599_999, 600_000], unit="ms"), dt.timedelta(minutes=10)),
        (pd.to_datetime([0, 599_999, 600_000], unit="ms", utc=True), "10 minutes"),
        (pd.to_datetime([0, 5, 6], unit="h").tz_localize("Asia/Tokyo"), "6 hours"),
        (pa.array([0, 599, 600], pa.timestamp("s")), "10 minutes"),
        (pa.array([0, 6, 7], pa.date32()), "1 week"),
        ([dt.date(2024, 2, 28), dt.date(2024, 2, 29), dt.date(2024, 3, 1)], "2 days"),
        (pl.Series([dt.datetime(2024, 1, 1, 0, m) for m in (0, 9, 10)]), "10 minutes"),
    ],
)
def test_times_of_every_type_measure_the_window(times, within):
    """L0 comes first, R0 at the last moment at which it lives, R1 when it is dead."""
    column = pa.array(times) if not isinstance(times, pl.Series) else times.to_arrow()
    left, right = {"k": [1], "ts": column[:1]}, {"k": [1, 1], "ts": column[1:]}
    r = jw.simulate(left, right, on="k", time="ts", within=within)
    assert results(r) == [(0, 0)]
    closed = jw.simulate(left, right, on="k", time="ts", within=within, closed="both")
    assert results(closed) == [(0, 0), (0, 1)]


def test_times_of_different_zones_are_compared_as_instants():
    noon = pd.Timestamp("2024-06-01 12:00", tz="Europe/Berlin")
    left = pd.DataFrame({"k": [1], "ts": [noon]})
    right = pd.DataFrame({"k": [1, 1], "ts": [noon.tz_convert("UTC"), noon.tz_convert("UTC")]})
    right["ts"] += pd.to_timedelta([1, 2], "s")
    assert results(jw.simulate(left, right, on="k", time="ts", within="2 s")) == [(0, 0)]
    naive_left = left.assign(ts=left.ts.dt.tz_localize(None))
    refuses(
        "time columns are of different kinds (left 'ts', right 'ts'); cast one", naive_left, right
    )


def test_unusable_columns_are_refused():
    right = {"k": [1], "ts": [0]}
    refuses(
        "time column 'ts' of the left stream has 1 nulls; drop them",
        {"k": [1, 1], "ts": [0, None]},
        right,
    )
    refuses(
        "the left stream's columns differ in length: 'ts' has 1, 'k' has 2",
        {"k": [1, 2], "ts": [0]},
        right,
    )
    refuses(
        "time columns are of different kinds (left 'ts', right 'ts'); cast one",
        {"k": [1], "ts": [0.5]},
        right,
    )
    refuses(
        "unknown column of the left stream 'k'; choices: key, ts", {"key": [1], "ts": [0]}, right
    )


NOTHING = {"k": [], "ts": []}


@pytest.mark.parametrize("policy", EVERY_POLICY)
@pytest.mark.parametrize("budget", [{}, {"max_rows": 4}, {"memory": "1 MB"}])
def test_streams_without_rows_join_to_nothing(policy, budget):
    some = {"k": ["a", "b"], "ts": pd.to_datetime([0, 1], unit="s")}
    for left, right in ((NOTHING, some), (some, NOTHING), (NOTHING, NOTHING)):
        options = {"on": "k", "time": "ts", "policy": policy} | budget
        within = 5 if left is right else "5 s"
        r = jw.simulate(left, right, within=within, **options)
        assert (r.n_out, r.n_exact, r.recall, results(r), shed_rows(r)) == (0, 0, 1.0, [], [])
        assert r.n_in == (len(left["k"]), len(right["k"]))
        late = jw.simulate(left, right, within=within, lateness=1, **options)
        assert (late.n_out, late.n_late) == (0, (0, 0))


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_unsorted_input_is_taken_in_order_of_time(policy):
    rng = np.random.default_rng(4)
    tables = [
        {"k": rng.integers(0, 8, 80), "ts": np.sort(rng.integers(0, 60, 80))} for _ in range(2)
    ]
    # Rows of equal time keep their order, so the shuffle leaves them alone.
    orders = [np.lexsort((np.arange(80), rng.permutation(60)[t["ts"]])) for t in tables]
    shuffled = [{n: v[by] for n, v in t.items()} for t, by in zip(tables, orders, strict=True)]
    options = {"on": "k", "time": "ts", "within": 15, "max_rows": 14, "policy": policy}
    one, other = jw.simulate(*tables, **options), jw.simulate(*shuffled, **options)
    assert counts(one) == counts(other)
    renumbered = [by[c] for by, c in zip(orders, other.pairs, strict=True)]
    assert [c.tolist() for c in renumbered] == [c.tolist() for c in one.pairs]


def test_without_pairs_and_shed_only_counts_are_returned():
    options = {"on": "k", "time": "ts", "within": 20, "max_rows": 30}
    full = jw.simulate(*random_tables(), **options)
    bare = jw.simulate(*random_tables(), **options, pairs=False, shed=False)
    assert bare.pairs is None and bare.shed is None
    assert counts(bare) == counts(full)


# --- late rows ----------------------------------------------------------------------------------
def disordered_streams(rng: random.Random, k: int, n: int):
    """Rows in order of arrival, with times up to 15 behind; some keys null."""
    streams = []
    for _ in range(k):
        t, rows = 0, []
        for _ in range(n):
            t += rng.randrange(3)
            key = None if rng.random() < 0.05 else rng.randrange(4)
            rows.append((t - rng.randrange(rng.choice([1, 6, 15])), key))
        streams.append(rows)
    return streams


def accepted_rows(streams, lateness):
    """Per stream: which rows have a key and are not late, and how many are late."""
    accepted, n_late = [], []
    for rows, slack in zip(streams, lateness, strict=True):
        latest, taken, late = None, [], 0
        for row, (ts, key) in enumerate(rows):
            if latest is not None and ts < latest - slack:
                late += key is not None
            elif key is not None:
                taken.append(row)
            latest = ts if latest is None else max(latest, ts)
        accepted.append(taken)
        n_late.append(late)
    return accepted, n_late


def brute_force(streams, accepted, lifetimes):
    found = []
    for combo in itertools.product(*accepted):
        rows = [streams[s][row] for s, row in enumerate(combo)]
        ends = [ts + life for (ts, _), life in zip(rows, lifetimes, strict=True)]
        if len({key for _, key in rows}) == 1 and max(ts for ts, _ in rows) < min(ends):
            found.append(combo)
    return sorted(found)


@pytest.mark.parametrize(("k", "n"), [(2, 40), (3, 18)])
def test_the_unbounded_join_of_late_streams_is_the_exact_join_of_accepted_rows(k, n):
    n_late_in_all = 0
    for seed in range(40):
        rng = random.Random(seed)
        streams = disordered_streams(rng, k, n)
        lateness = tuple(rng.randrange(9) for _ in range(k))
        within = tuple(rng.randrange(1, 15) for _ in range(k))
        accepted, n_late = accepted_rows(streams, lateness)
        expected = brute_force(streams, accepted, within)
        n_late_in_all += sum(n_late)
        for options in ({"policy": "full"}, {"policy": "gdj", "max_rows": 10 * n * k}):
            r = jw.simulate(
                as_tables(streams), on="key", time="ts", within=within, lateness=lateness, **options
            )
            assert results(r) == expected
            assert r.n_exact == len(expected)
            assert list(r.n_late) == n_late
    assert n_late_in_all > 200


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_every_policy_keeps_the_laws_with_late_rows(policy):
    for seed, k in itertools.product(range(8), (2, 3)):
        rng = random.Random(seed)
        streams = disordered_streams(rng, k, 60 // k)
        lateness, within = (6,) * k, tuple(rng.randrange(4, 15) for _ in range(k))
        accepted, n_late = accepted_rows(streams, lateness)
        exact = brute_force(streams, accepted, within)
        for allocation in (None, "unified"):
            r = jw.simulate(
                as_tables(streams), on="key", time="ts", within=within, lateness=lateness,
                max_rows=4 * k, allocation=allocation, policy=policy,
            )  # fmt: skip
            found = results(r)
            assert set(found) <= set(exact)
            assert len(found) == len(set(found)) == r.n_out
            assert (r.n_exact, list(r.n_late)) == (len(exact), n_late)
            gone = (r.n_null, r.n_late, r.n_evicted, r.n_refused, r.n_expired, r.rows_held)
            assert tuple(map(sum, zip(*gone, strict=True))) == r.n_in
            if policy != "full":
                assert sum(r.rows_held) <= 4 * k


def test_lateness_by_hand():
    # Left: 10, then 4 (6 behind: late by lateness 5), then 5 (5 behind: not late).
    left = {"k": ["a", "b", "c"], "ts": [10, 4, 5]}
    right = {"k": ["a", "b", "c"], "ts": [9, 5, 6]}
    r = jw.simulate(left, right, on="k", time="ts", within=3, lateness=5)
    assert (r.n_late, results(r)) == ((1, 0), [(0, 0), (2, 2)])
    # Without it rows are sorted, and nothing is late.
    r = jw.simulate(left, right, on="k", time="ts", within=3)
    assert (r.n_late, results(r)) == ((0, 0), [(0, 0), (1, 1), (2, 2)])


# --- windows against the oracle -----------------------------------------------------------------
WINDOWED = ["fifo", "lru", "lfu", "prob", "life", "rand", "gdj", "gdj:method=2",
            "prob:statistics=window", "life:statistics=memory"]  # fmt: skip


@pytest.mark.parametrize("policy", WINDOWED)
def test_landmark_windows_agree_with_the_oracle(policy):
    params = jw.policies.read_policy(policy)
    for rng in cases(11, 8):
        streams = random_streams(rng)
        every, origin = rng.randrange(3, 20), rng.randrange(5)
        ends = [
            [(ts - origin) // every * every + every + origin for ts, _ in rows] for rows in streams
        ]
        capacity = [rng.randrange(1, 9) for _ in streams]
        unified = rng.random() < 0.3
        r = jw.simulate(
            as_tables(streams), on="key", time="ts", within=jw.landmark(every, origin),
            policy=params, max_rows=sum(capacity) if unified else tuple(capacity),
            allocation="unified" if unified else None,
        )  # fmt: skip
        expected = naive.window_join(
            streams, ends=ends, lifetimes=[0, 0], unified=unified,
            capacity=sum(capacity) if unified else capacity, **naive_arguments(params),
        )  # fmt: skip
        compare(r, expected)


@pytest.mark.parametrize("policy", WINDOWED)
@pytest.mark.parametrize("k", [2, 3])
def test_count_windows_agree_with_the_oracle(policy, k):
    params = jw.policies.read_policy(policy)
    for rng in cases(12, 6):
        streams = random_streams(rng, k=k, n=60 if k == 2 else 24)
        n_rows, capacity = rng.randrange(1, 15), [rng.randrange(1, 9) for _ in range(k)]
        r = jw.simulate(
            as_tables(streams), on="key", time="ts", within=jw.rows(n_rows),
            max_rows=tuple(capacity), policy=params,
        )  # fmt: skip
        compare(
            r, naive.count_window_join(streams, [n_rows] * k, capacity, **naive_arguments(params))
        )


@pytest.mark.parametrize("policy", ["fifo", "prob", "gdj"])
def test_closed_and_unequal_windows_agree_with_the_oracle(policy):
    for rng in cases(13, 10):
        within = (rng.randrange(0, 12), rng.randrange(0, 12))
        agree(random_streams(rng), within=within, capacity=[4, 5], policy=policy, closed="both")


def test_statistics_of_the_whole_input_agree_with_the_oracle():
    for rng in cases(14, 10):
        agree(random_streams(rng), within=20, capacity=[4, 5], policy="prob:statistics=oracle")
    # PROB that knows the future: a will come on the right, b never; history does not know.
    known = join("b0 a1", "a2", 10, max_rows=(1, 1), policy="prob:statistics=oracle")
    assert results(known) == [(1, 0)]


# --- budgets ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("total", "allocation", "rates", "parts"),
    [
        (10, "even", [1, 5], [5, 5]),
        (11, "even", [1, 5], [6, 5]),
        (10, "even", [1, 1, 1], [4, 3, 3]),
        (12, "rates", [1, 2], [4, 8]),
        (10, "rates", [9, 1], [9, 1]),
        (10, "rates", [1, 1, 1], [4, 3, 3]),
        (7, "rates", [2, 1], [5, 2]),
        (10, "rates", [1000, 1], [9, 1]),  # nobody is left with nothing
        (3, "rates", [1000, 1, 1], [1, 1, 1]),
        (10, "rates", [0, 0], [5, 5]),
        (10, "unified", [3, 1], [10]),
    ],
)
def test_a_budget_is_split_without_a_rest(total, allocation, rates, parts):
    assert split_budget(total, allocation, np.array(rates)) == parts


def test_allocations_reach_the_join():
    left = {"k": np.arange(30) % 3, "ts": np.arange(30)}
    right = {"k": np.arange(10) % 3, "ts": np.arange(0, 30, 3)}

    def capacity(**options):
        return jw.simulate(
            left, right, on="k", time="ts", within=9, policy="fifo", **options
        ).capacity

    assert capacity(max_rows=9) == (5, 4)
    assert capacity(max_rows=8, allocation="rates") == (6, 2)
    assert capacity(max_rows=8, allocation="unified") == (8,)
    assert capacity(max_rows=(2, 7)) == capacity(max_rows=[2, 7]) == (2, 7)
    assert capacity() is None


def test_no_budget_is_the_exact_join_with_every_policy():
    exact = results(join("a0 a1 b2 a3", "a1 b1 a2 a9", 4))
    for policy in EVERY_POLICY:
        r = join("a0 a1 b2 a3", "a1 b1 a2 a9", 4, policy=policy)
        assert results(r) == exact
        assert r.n_exact == len(exact)


def wide_tables(n: int = 6000, seed: int = 0):
    rng = np.random.default_rng(seed)
    return [
        {"k": rng.integers(0, 400, n), "ts": np.arange(n), "x": rng.random(n), "y": rng.random(n)}
        for _ in range(2)
    ]


@pytest.mark.parametrize("policy", [name for name in EVERY_POLICY if name != "full"])
@pytest.mark.parametrize("allocation", [None, "unified"])
def test_memory_covers_rows_index_policy_and_accounting(policy, allocation):
    memory = 2**19
    r = jw.simulate(
        *wide_tables(), on="k", time="ts", within=3000, memory=memory, policy=policy,
        allocation=allocation, pairs=False, shed=False,
    )  # fmt: skip
    assert r.bytes_held <= r.max_bytes <= memory
    assert r.n_evicted != (0, 0) or r.n_refused != (0, 0)
    # A row has 32 bytes of columns; the index and the policy take more, but less than 1 KB.
    assert memory / 1000 < sum(r.rows_held) < memory / 100
    assert r.n_exact_error > 0  # the default is the sketch


def test_memory_per_stream_and_as_text():
    options = {"on": "k", "time": "ts", "within": 3000, "policy": "fifo", "pairs": False}
    r = jw.simulate(*wide_tables(), memory=("512 KB", 2**18), **options)
    assert r.max_bytes == 2**19 + 2**18
    assert r.rows_held[0] > 2 * r.rows_held[1] > 0
    whole = jw.simulate(*wide_tables(), memory="0.5 MB", **options)
    assert whole.max_bytes == 2**19
    assert abs(whole.rows_held[0] - whole.rows_held[1]) <= 1
    more = jw.simulate(*wide_tables(), memory="1 MB", **options)
    assert sum(more.rows_held) > 1.9 * sum(whole.rows_held)


def test_exact_accounting_takes_its_room_from_the_budget():
    options = {"on": "k", "time": "ts", "within": 500, "policy": "fifo", "memory": "256 KB"}
    off = jw.simulate(*wide_tables(), accounting="off", **options)
    exact = jw.simulate(*wide_tables(), accounting="exact", **options)
    unlimited = jw.simulate(*wide_tables(), on="k", time="ts", within=500)
    assert exact.bytes_held <= exact.max_bytes <= 2**18
    assert 0 < sum(exact.rows_held) < sum(off.rows_held)
    assert (exact.n_exact, exact.n_exact_error) == (unlimited.n_exact, 0)
    assert (off.n_exact, off.recall) == (None, None)


def test_too_small_a_budget_is_refused_and_the_least_is_told():
    left = {"k": [1], "ts": [0]}
    refuses(
        "max_rows=1 leaves no room for a row of every stream; it must be at least 2 rows",
        left, left, max_rows=1,
    )  # fmt: skip
    for policy, budget in itertools.product(["fifo", "prob"], ["even", "unified"]):
        options = {"on": "k", "time": "ts", "within": 5, "policy": policy, "allocation": budget}
        with pytest.raises(jw.JoinweirError, match="leaves no room for a row of every") as caught:
            jw.simulate(left, left, memory=50, accounting="off", **options)
        least = int(re.search(r"at least ([\d,]+) bytes$", str(caught.value))[1].replace(",", ""))
        r = jw.simulate(left, left, memory=least, accounting="off", **options)
        assert sum(r.rows_held) == (2 if budget == "even" else 1)
        with pytest.raises(jw.JoinweirError, match="leaves no room"):
            jw.simulate(left, left, memory=least - 4, accounting="off", **options)
    with pytest.raises(jw.JoinweirError, match=r"at least [\d,]+ bytes a stream$"):
        jw.simulate(left, left, memory=(50, 5000), accounting="off", on="k", time="ts", within=5)
    with pytest.raises(jw.JoinweirError, match=r"for the sketch; or use accounting='off'\)$"):
        jw.simulate(left, left, memory=5000, on="k", time="ts", within=5)


@pytest.mark.parametrize(
    ("options", "start", "end"),
    [
        ({"accounting": "exact"}, "accounting='exact' notes all", "use accounting='sketch'"),
        ({"within": jw.rows(4000)}, "accounting='exact' notes all", "use accounting='off'"),
        ({"within": jw.landmark(4000)}, "accounting='exact' notes all", "use accounting='off'"),
        ({"policy": "prob:statistics=window"}, "statistics='window' notes", "use other statistics"),
    ],
)
def test_a_log_that_would_fill_the_memory_is_refused(options, start, end):
    """It would leave no room for rows, and then exceed the budget."""
    with pytest.raises(jw.JoinweirError, match=f"^{start} .*{end}$"):
        jw.simulate(
            *wide_tables(), **({"on": "k", "time": "ts", "within": 4000, "memory": 2**18} | options)
        )


# --- accounting by sketch -----------------------------------------------------------------------
def zipf_keys(rng, n: int, domain: int, skew: float):
    weights = 1 / np.arange(1, domain + 1) ** skew
    return rng.choice(domain, n, p=weights / weights.sum())


def sketched(tables, within):
    options = {"on": "k", "time": "ts", "within": within, "policy": "fifo", "max_rows": 90}
    options |= {"pairs": False, "shed": False}
    return jw.simulate(tables, accounting="sketch", **options)


def exact_size(tables, within):
    return jw.simulate(tables, on="k", time="ts", within=within, policy="full", pairs=False).n_exact


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("skew", [0.0, 1.0])
@pytest.mark.parametrize("within", [20, 32, 100, 700])
def test_the_sketch_is_within_four_of_its_own_standard_errors(k, skew, within):
    """8 estimators: beyond 4 standard errors lies 1 in 200 (Student's t, 7 degrees).

    A window of up to 32 ticks has a pane a tick. In a longer one, the pane that the window's edge
    cuts counts in proportion, and the error says what that may have cost.
    """
    for seed in range(3):
        rng = np.random.default_rng([seed, k, within])
        tables = [{"k": zipf_keys(rng, 3000, 300, skew), "ts": np.arange(3000)} for _ in range(k)]
        r, exact = sketched(tables, within), exact_size(tables, within)
        assert 0 < r.n_exact_error < 0.1 * exact
        assert abs(r.n_exact - exact) < 4 * r.n_exact_error
        assert r.recall == r.n_out / r.n_exact


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("skew", [0.0, 1.0])
@pytest.mark.parametrize(("within", "slack"), [(30, 0.0), (640, 0.01)])
def test_the_sketch_is_unbiased_over_hash_functions(k, skew, within, slack):
    """20 key offsets are 20 hash functions: the mean error is within 4 of its standard errors.

    A window of 30 ticks has a pane a tick and is exact but for the hashing. Of 640 ticks, the pane
    of 20 at the window's edge counts in proportion, right to a percent on these streams.
    """
    rng = np.random.default_rng([k, within])
    keys = [zipf_keys(rng, 2000, 300, skew) for _ in range(k)]
    exact = exact_size([{"k": v, "ts": np.arange(2000)} for v in keys], within)
    errors = []
    for offset in rng.integers(-(2**50), 2**50, 20):
        tables = [{"k": v + offset, "ts": np.arange(2000)} for v in keys]
        errors.append(sketched(tables, within).n_exact / exact - 1)
    assert abs(np.mean(errors)) < 4 * np.std(errors, ddof=1) / np.sqrt(20) + slack
    assert np.std(errors) > 0


def test_the_sketch_forgets_after_a_gap():
    """Panes are places of a ring: after a long silence all of them are stale."""
    ts = np.concatenate([np.arange(50), np.arange(50) + 10**6])
    tables = [{"k": np.arange(100) % 2, "ts": ts} for _ in range(2)]
    assert sketched(tables, 32).n_exact == exact_size(tables, 32)


def test_the_sketch_counts_before_time_zero():
    """Pane -1 is a pane like any other."""
    tables = [{"k": np.arange(100) % 2, "ts": np.arange(-60, 40)} for _ in range(2)]
    assert sketched(tables, 32).n_exact == exact_size(tables, 32)


def test_a_sketch_of_few_keys_is_exact():
    """Three keys in 2,048 cells, no pane cut: they do not collide, and every estimator is right."""
    tables = [{"k": np.arange(90) % 3, "ts": np.arange(90)} for _ in range(2)]
    r = sketched(tables, 30)
    assert r.n_exact == exact_size(tables, 30)
    assert r.n_exact_error == 0


# --- sampling ahead of the join -----------------------------------------------------------------
def steady_tables(n: int, domain: int, seed: int, skew: float = 1.0):
    """Two streams with a row a tick each."""
    rng = np.random.default_rng(seed)
    return [{"k": zipf_keys(rng, n, domain, skew), "ts": np.arange(n)} for _ in range(2)]


@pytest.mark.parametrize("drop_probes", [False, True])
@pytest.mark.parametrize("thinning", ["systematic", "random"])
@pytest.mark.parametrize("order", ["probe_first", "simultaneous", "evict_first"])
def test_dropped_rows_neither_enter_nor_probe_but_count(drop_probes, thinning, order):
    """Against the oracle, told which rows were dropped: FIFO refuses no other rows."""
    for rng in cases(15, 6):
        streams = random_streams(rng)
        options = {"order": order, "seed": rng.randrange(99)}
        r = jw.simulate(
            as_tables(streams), on="key", time="ts", within=15, max_rows=(4, 5), policy="fifo",
            drop=(0.3, 0.5), drop_probes=drop_probes, thinning=thinning, **options,
        )  # fmt: skip
        dropped = {(side, row) for side, row, reason in shed_rows(r) if reason == REFUSED}
        assert dropped
        kept = [[(s, i) not in dropped for i in range(len(rows))] for s, rows in enumerate(streams)]
        probing = [[True] * len(rows) for rows in streams] if drop_probes else kept
        compare(r, naive.window_join(
            streams, lifetimes=[15, 15], capacity=[4, 5], policy="fifo", order=order,
            insert=kept, probe=probing,
        ))  # fmt: skip


def n_kept(r):
    return [n - refused for n, refused in zip(r.n_in, r.n_refused, strict=True)]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 1.0])
def test_the_given_share_is_dropped(share):
    tables = steady_tables(1000, 20, seed=1)
    for seed in range(5):
        options = {"on": "k", "time": "ts", "within": 50, "drop": share, "seed": seed}
        r = jw.simulate(*tables, **options, policy="full")
        assert all(abs(n - 1000 * (1 - share)) <= 1 for n in n_kept(r))
        r = jw.simulate(*tables, **options, policy="full", thinning="random")
        # a coin a row: within 4 standard deviations
        assert all(abs(n - 1000 * (1 - share)) <= 4 * 16 for n in n_kept(r))


def test_systematic_thinning_spaces_rows_evenly_and_keeps_each_with_equal_chance():
    tables = [{"k": np.arange(60), "ts": np.arange(60)}, {"k": np.arange(60), "ts": np.arange(60)}]
    n_seeds, share = 400, 0.8
    times_kept = np.zeros(60)
    for seed in range(n_seeds):
        options = {"on": "k", "time": "ts", "within": 1, "drop": share, "seed": seed}
        r = jw.simulate(*tables, **options, policy="full")
        kept = np.setdiff1d(np.arange(60), r.shed.row[r.shed.stream == 0])
        assert set(np.diff(kept)) == {5}
        times_kept[kept] += 1
    # 400 * 0.2 = 80 expected, standard deviation 8; 60 rows: within 4.5 of them
    assert np.abs(times_kept - 80).max() < 36


@pytest.mark.parametrize(
    ("max_rows", "allocation"), [(80, None), (80, "unified"), ((30, 60), None)]
)
def test_what_fits_is_kept_and_never_evicted(max_rows, allocation):
    """p* = 1 - B / (rate · window): rows that stay live their whole life (Little's law)."""
    tables = steady_tables(4000, 50, seed=2)
    for seed in range(5):
        r = jw.simulate(
            *tables, on="k", time="ts", within=200, max_rows=max_rows, allocation=allocation,
            policy="fifo", drop="fit", seed=seed,
        )  # fmt: skip
        assert r.n_evicted == (0, 0)
        capacity = r.capacity if len(r.capacity) == 2 else (40, 40)
        assert all(abs(n - 4000 * c / 200) <= 1 for n, c in zip(n_kept(r), capacity, strict=True))


def test_nothing_is_dropped_when_everything_fits():
    tables = steady_tables(500, 50, seed=2)
    for options in ({"max_rows": 500}, {}):
        r = jw.simulate(
            *tables, on="k", time="ts", within=100, policy="fifo", drop="fit", **options
        )
        assert (r.n_shed, r.recall) == (0, 1.0)


def output_by_key(r, tables):
    return np.bincount(tables[0]["k"][r.pairs[0]], minlength=20)


@pytest.mark.parametrize("thinning", ["systematic", "random"])
def test_the_sample_of_the_join_is_unbiased(thinning):
    """chang2004 §4.2: FIFO over thinned streams samples every result with probability κ².

    κ = 60 / 200. Over 60 seeds the mean output of every key is within 4 standard errors (from the
    seeds' own spread) of κ² times the exact join's; random thinning also evicts, hence below it.
    """
    tables = steady_tables(3000, 20, seed=3)
    options = {"on": "k", "time": "ts", "within": 200}
    exact = output_by_key(jw.simulate(*tables, **options), tables)
    kappa = 60 / 200
    outputs = []
    for seed in range(60):
        budget = {"max_rows": 120} if thinning == "systematic" else {}
        drop = "fit" if thinning == "systematic" else 1 - kappa
        r = jw.simulate(
            *tables, **options, **budget, policy="fifo", drop=drop, thinning=thinning, seed=seed
        )
        assert r.n_evicted == (0, 0)
        outputs.append(output_by_key(r, tables))
    error = np.std(outputs, axis=0, ddof=1) / np.sqrt(60)
    assert (np.abs(np.mean(outputs, axis=0) - kappa**2 * exact) < 4 * error).all()


def test_dropped_rows_that_probe_give_one_over_kappa_times_the_output():
    """Then only the earlier row of a result must have been kept: κ instead of κ²."""
    tables = steady_tables(6000, 20, seed=4)
    options = {"on": "k", "time": "ts", "within": 200, "max_rows": 100, "policy": "fifo"}
    n_out = dict.fromkeys((False, True), 0)
    for seed, probes in itertools.product(range(5), n_out):
        r = jw.simulate(*tables, **options, drop="fit", drop_probes=probes, seed=seed)
        n_out[probes] += r.n_out
    assert n_out[True] / n_out[False] == pytest.approx(200 / 50, rel=0.05)


# --- age ----------------------------------------------------------------------------------------
def payoffs(streams, lifetimes, share):
    """Of the exact join of the first rows: (side, row, age) of every earlier partner."""
    events = sorted(
        (ts, side, row)
        for side, rows in enumerate(streams)
        for row, (ts, key) in enumerate(rows)
        if key is not None
    )
    events = events[: int(np.ceil(share * len(events)))]
    found = []
    for (t1, s1, r1), (t2, s2, r2) in itertools.combinations(events, 2):
        same_key = streams[s1][r1][1] == streams[s2][r2][1]
        if s1 != s2 and same_key and t2 - t1 < lifetimes[s1]:
            found.append((s1, r1, max(t2 - t1, 1)))
    return found, events


def best_age(ages):
    """argmax of (results up to an age) / age; the smallest on ties, 1 without results."""
    if not ages:
        return 1
    return max(sorted(set(ages)), key=lambda a: (Fraction(sum(x <= a for x in ages), a), -a))


def learned_means(streams, lifetimes, capacity, share=0.2):
    found, events = payoffs(streams, lifetimes, share)
    keep = [best_age([a for s, _, a in found if s == side]) for side in range(2)]
    span = events[-1][0] - events[0][0] + 1
    seen = [sum(s == side for _, s, _ in events) for side in range(2)]
    fifo = [capacity[s] * span >= seen[s] * keep[s] for s in range(2)]
    return keep, fifo


def test_the_age_that_pays_best_is_learned_by_hand():
    # Each left row meets its partner exactly 3 later: 1 result at age 3, so k = 3; a right row
    # comes after its partner and pays nothing: k = 1.
    streams = [[(t, t) for t in range(60)], [(t + 3, t) for t in range(60)]]
    for capacity, fifo_mode, n_out in (([2, 2], [False, True], 40), ([3, 1], [True, True], 60)):
        # 3 places for one row a tick up to age 3: FIFO. 2 places: staggered, 2 rows in 3 are kept.
        keep, fifo = learned_means(streams, [9, 9], capacity)
        assert (keep, fifo) == ([3, 1], fifo_mode)
        r = jw.simulate(
            as_tables(streams), on="key", time="ts", within=9, max_rows=tuple(capacity),
            policy="age", order="simultaneous",
        )  # fmt: skip
        compare(r, naive.window_join(
            streams, lifetimes=[9, 9], capacity=capacity, policy="age", keep=keep, fifo_mode=fifo,
            order="simultaneous",
        ))  # fmt: skip
        assert r.n_out == n_out


def echoing_streams(rng: random.Random):
    """Left rows, and right rows that mostly echo them some ticks later; some nulls."""
    left = sorted((rng.randrange(60), rng.randrange(12)) for _ in range(70))
    delay = rng.randrange(2, 9)
    right = sorted(
        (ts + delay + rng.randrange(2), key if rng.random() < 0.8 else rng.randrange(12))
        for ts, key in left
    )
    return [[(ts, None if rng.random() < 0.03 else key) for ts, key in s] for s in (left, right)]


def test_learned_ages_agree_with_the_oracle():
    modes = Counter()
    for rng in cases(16, 30):
        streams = echoing_streams(rng)
        capacity = [rng.randrange(1, 8), rng.randrange(1, 8)]
        lifetimes, share = [rng.randrange(3, 30) for _ in "ab"], rng.choice([0.2, 0.5, 1.0])
        keep, fifo = learned_means(streams, lifetimes, capacity, share)
        modes.update(fifo)
        r = jw.simulate(
            as_tables(streams), on="key", time="ts", within=tuple(lifetimes),
            max_rows=tuple(capacity), policy=jw.policy("age", training=share),
        )  # fmt: skip
        compare(r, naive.window_join(
            streams, lifetimes=lifetimes, capacity=capacity, policy="age", keep=keep,
            fifo_mode=fifo,
        ))  # fmt: skip
    assert min(modes[True], modes[False]) > 5


def test_ages_of_single_rows_agree_with_the_oracle():
    for rng in cases(17, 15):
        streams = echoing_streams(rng)
        capacity = [rng.randrange(1, 12), rng.randrange(1, 12)]
        lifetimes = [rng.randrange(3, 30) for _ in "ab"]
        found, _ = payoffs(streams, lifetimes, 1.0)
        keep = [
            [
                best_age([a for s, r, a in found if (s, r) == (side, row)])
                for row in range(len(rows))
            ]
            for side, rows in enumerate(streams)
        ]
        r = jw.simulate(
            as_tables(streams), on="key", time="ts", within=tuple(lifetimes),
            max_rows=tuple(capacity), policy="age:mode=row",
        )  # fmt: skip
        compare(r, naive.window_join(
            streams, lifetimes=lifetimes, capacity=capacity, policy="age", keep=keep,
        ))  # fmt: skip


def test_a_given_age_agrees_with_the_oracle():
    for rng in cases(18, 10):
        streams = random_streams(rng)
        capacity, age = [rng.randrange(1, 9), rng.randrange(1, 9)], rng.randrange(1, 15)
        _, events = payoffs(streams, [20, 20], 0.2)
        span = events[-1][0] - events[0][0] + 1
        seen = [sum(s == side for _, s, _ in events) for side in range(2)]
        fifo = [capacity[s] * span >= seen[s] * age for s in range(2)]
        r = jw.simulate(
            as_tables(streams), on="key", time="ts", within=20, max_rows=tuple(capacity),
            policy=jw.policy("age", keep=age),
        )  # fmt: skip
        compare(r, naive.window_join(
            streams, lifetimes=[20, 20], capacity=capacity, policy="age", keep=[age] * 2,
            fifo_mode=fifo,
        ))  # fmt: skip


# --- what was lost ------------------------------------------------------------------------------
def matches_while_held(streams, found, order):
    """Per row: arrivals that it was an earlier partner of, and results in which it was one."""
    events = sorted(
        (ts, side, row) for side, rows in enumerate(streams) for row, (ts, _) in enumerate(rows)
    )
    place = {(side, row): (ts, seq) for seq, (ts, side, row) in enumerate(events)}
    arrivals, n_results = {}, Counter()
    for result in found:
        members = list(enumerate(result))
        last = max(members, key=place.get)
        for member in members:
            earlier = place[member][0] < place[last][0] or order == "probe_first"
            if member != last and earlier:
                arrivals.setdefault(member, set()).add(last)
                n_results[member] += 1
    return {member: len(of) for member, of in arrivals.items()}, n_results


@pytest.mark.parametrize("order", ["probe_first", "simultaneous", "evict_first"])
@pytest.mark.parametrize("policy", ["fifo", "prob", "gdj"])
def test_shed_rows_say_how_often_they_matched(policy, order):
    n_matching = 0
    for rng in cases(19, 10):
        streams = random_streams(rng)
        r = jw.simulate(
            as_tables(streams), on="key", time="ts", within=15, max_rows=(5, 7), policy=policy,
            order=order,
        )  # fmt: skip
        arrivals, n_results = matches_while_held(streams, results(r), order)
        for side, row, n in zip(r.shed.stream, r.shed.row, r.shed.n_matched, strict=True):
            assert n == n_results[int(side), int(row)] == arrivals.get((int(side), int(row)), 0)
        n_matching += int((r.shed.n_matched > 0).sum())
    assert n_matching > 50


def test_shed_rows_of_three_streams_say_how_many_arrivals_they_matched():
    for rng in cases(20, 10):
        streams = random_streams(rng, k=3, n=40)
        r = jw.simulate(
            as_tables(streams), on="key", time="ts", within=15, max_rows=(5, 7, 5), policy="prob"
        )
        arrivals, _ = matches_while_held(streams, results(r), "probe_first")
        for side, row, n in zip(r.shed.stream, r.shed.row, r.shed.n_matched, strict=True):
            assert n == arrivals.get((int(side), int(row)), 0)


def test_shed_rows_of_late_streams_say_how_often_they_matched():
    for seed in range(10):
        streams = disordered_streams(random.Random(seed), 2, 60)
        r = jw.simulate(
            as_tables(streams), on="key", time="ts", within=(9, 12), lateness=7, max_rows=(5, 7),
            policy="fifo",
        )  # fmt: skip
        # Rows are processed by their stream's clock: its largest time so far.
        clocks = [np.maximum.accumulate([ts for ts, _ in rows]).tolist() for rows in streams]
        by_clock = [
            [(clock, key) for clock, (_, key) in zip(times, rows, strict=True)]
            for times, rows in zip(clocks, streams, strict=True)
        ]
        _, n_results = matches_while_held(by_clock, results(r), "probe_first")
        for side, row, n in zip(r.shed.stream, r.shed.row, r.shed.n_matched, strict=True):
            assert n == n_results[int(side), int(row)]


def test_a_result_tells_its_story_in_one_line():
    r = join("a0 b1 -2", "a2 b3", 10, max_rows=2, policy="fifo")
    assert repr(r) == (
        "<fifo: 1 results, exact join 2 (50.0% of it); 5 rows in, 2 rows shed, 1 with a null key, "
        "2 held>"
    )
    off = join("a0", "a1", 10, accounting="off", policy="gdj:initial_rank=0.5")
    assert repr(off) == (
        "<gdj:initial_rank=0.5: 1 results, exact join not counted; 2 rows in, 0 rows shed, 2 held>"
    )
    late = jw.simulate(stream("a9 a0"), stream("a9"), on="k", time="ts", within=3, lateness=2)
    assert "1 late" in repr(late)
    sketch = sketched(steady_tables(500, 50, seed=1), 100)
    assert re.search(r"exact join [\d,]+ ± [\d,]+ \(\d", repr(sketch))


def test_a_result_is_plain_numbers_for_json():
    r = join("a0 b1 -2", "a2 b3", 10, max_rows=2, policy="fifo")
    assert json.loads(json.dumps(r.to_dict())) == {
        "policy": "fifo",
        "n_out": 1,
        "n_exact": 2,
        "n_exact_error": 0.0,
        "recall": 0.5,
        "n_shed": 2,
        "n_in": [3, 2],
        "n_null": [1, 0],
        "n_late": [0, 0],
        "n_evicted": [1, 1],
        "n_refused": [0, 0],
        "n_expired": [0, 0],
        "rows_held": [1, 1],
        "bytes_held": None,
        "max_bytes": None,
    }


def test_the_same_seed_gives_the_same_join_and_another_seed_another():
    tables = random_tables()
    options = {"on": "k", "time": "ts", "within": 40, "max_rows": 20, "policy": "rand"}
    runs = [results(jw.simulate(*tables, **options, seed=seed)) for seed in (1, 1, 2, -1, 2**70)]
    assert runs[0] == runs[1]
    assert len({tuple(run) for run in runs}) == 4


# --- bad calls: one line that names the culprit and the choices ---------------------------------
ONE = {"k": [1, 2], "ts": [0, 1]}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"on": 5}, "on must be a column name or a list of them, not 5"),
        ({"on": []}, "on must be a column name or a list of them, not []"),
        ({"on": ["k", 5]}, "on must name columns, not 5"),
        ({"on": [("k", "k", "k")]}, "on has 3 values for 2 streams"),
        ({"on": "key"}, "unknown column of the left stream 'key'; choices: k, ts"),
        ({"time": 5}, "time must name a column, not 5"),
        ({"time": ("ts", "tz")},
         "unknown column of the right stream 'tz'; choices: k, ts"),
        ({"within": 0}, "within must be more than 0, not 0"),
        ({"within": -1}, "within must be a whole number >= 0 of time units, not -1"),
        ({"within": None}, "within must be a duration or a number, not None"),
        ({"within": (1, 2, 3)}, "within has 3 values for 2 streams"),
        ({"within": "10 minutes"},
         "within='10 minutes' is a duration, but the time column holds plain numbers; give within "
         "as a number in the same unit"),
        ({"within": 10**30}, f"within={10**30} is too long"),
        ({"within": jw.landmark(0)}, "landmark(0) must be longer than nothing"),
        ({"max_rows": 0}, "max_rows must be a whole number from 1 to 2**31, not 0"),
        ({"max_rows": 1.5}, "max_rows must be a whole number from 1 to 2**31, not 1.5"),
        ({"max_rows": True}, "max_rows must be a whole number from 1 to 2**31, not True"),
        ({"max_rows": (1, 2, 3)}, "max_rows has 3 values for 2 streams"),
        ({"max_rows": (0, 5)}, "max_rows must be a whole number from 1 to 2**31, not 0"),
        ({"memory": "5 XB"}, "cannot read '5 XB' as memory; write e.g. '256 MB'"),
        ({"memory": ("1 MB",)}, "memory has 1 values for 2 streams"),
        ({"memory": "1 MB", "max_rows": 5}, "give max_rows or memory, not both"),
        ({"max_rows": 5, "allocation": "evn"},
         "unknown allocation 'evn'; did you mean 'even'? choices: even, rates, unified"),
        ({"allocation": "even"}, "allocation needs max_rows or memory to allocate"),
        ({"max_rows": (5, 5), "allocation": "even"},
         "allocation does not go with a budget per stream"),
        ({"policy": 5}, "policy must be a name or jw.policy(...), not 5"),
        ({"policy": "gdj:initial=5"},
         "gdj: initial must be one of rank, max, frequency, not 5"),
        ({"policy": "gdj:method"},
         "policy 'gdj:method': write parameters as name=value, not 'method'"),
        ({"order": "probe"},
         "unknown order 'probe'; did you mean 'probe_first'? choices: probe_first, simultaneous, "
         "evict_first"),
        ({"closed": "right"}, "unknown closed 'right'; choices: left, both"),
        ({"accounting": "skech"},
         "unknown accounting 'skech'; did you mean 'sketch'? choices: off, exact, sketch"),
        ({"within": jw.rows(2), "accounting": "sketch"},
         "accounting='sketch' needs a time window; use 'exact' or 'off'"),
        ({"within": jw.rows(2), "lateness": 1},
         "lateness goes with time windows, not with rows(n)"),
        ({"within": jw.rows(2), "max_rows": 2, "policy": "age"},
         "policy 'age' needs time windows, not rows(n)"),
        ({"lateness": "x"},
         "lateness='x' is a duration, but the time column holds plain numbers; give lateness as a "
         "number in the same unit"),
        ({"lateness": 1, "order": "simultaneous"},
         "order='simultaneous' needs two streams in time order and a time window"),
        ({"drop": 2}, "drop must be from 0 to 1 or 'fit', not 2"),
        ({"drop": "fits"}, "drop must be from 0 to 1 or 'fit', not 'fits'"),
        ({"drop": None}, "drop must be from 0 to 1 or 'fit', not None"),
        ({"drop": True}, "drop must be from 0 to 1 or 'fit', not True"),
        ({"drop": (0.5,)}, "drop has 1 values for 2 streams"),
        ({"drop": 0.5, "thinning": "even"},
         "unknown thinning 'even'; choices: systematic, random"),
        ({"seed": "x"}, "seed must be a whole number, not 'x'"),
        ({"seed": None}, "seed must be a whole number, not None"),
    ],
)  # fmt: skip
def test_a_bad_option_is_refused_in_one_line(options, line):
    refuses(line, ONE, ONE, **options)


def test_an_unknown_policy_is_answered_with_the_nearest_and_all_choices():
    names = ", ".join(jw.policy_names())
    refuses(f"unknown policy 'gjd'; did you mean 'gdj'? choices: {names}", ONE, ONE, policy="gjd")


def test_bad_streams_are_refused_in_one_line():
    refuses("give two streams, or a list of two or more as the first argument", ONE)
    refuses("give two streams, or a list of two or more as the first argument", [ONE])
    refuses(
        "a stream must be an Arrow table, a pandas or polars DataFrame, or a dict of arrays, "
        "not list",
        [ONE, ONE],
        ONE,
    )
    refuses(
        "order='evict_first' needs two streams in time order and a time window",
        [ONE, ONE, ONE],
        order="evict_first",
    )
    refuses(
        "time column 'ts' of the 3. stream is string; it must be integer, float, timestamp or date",
        [ONE, ONE, {"k": [1], "ts": ["x"]}],
    )


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "5"])
def test_a_count_window_needs_a_whole_number(n):
    line = re.escape(f"rows(n): n must be a whole number >= 1, not {n!r}")
    with pytest.raises(jw.JoinweirError, match=f"^{line}$"):
        jw.rows(n)
