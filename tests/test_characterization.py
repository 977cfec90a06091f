"""`jw.characterize`: figures by hand and by brute force, the verdict against measured policies."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import joinweir as jw
from joinweir import JoinweirError, bench, characterization, locality
from joinweir.profiling import read_windows


def stream(keys, ts=None):
    return {"k": np.asarray(keys), "t": np.arange(len(keys)) if ts is None else np.asarray(ts)}


def pairs_within(left, right, window):
    n = 0
    for key, t in zip(left["k"], left["t"]):
        n += int(((right["k"] == key) & (np.abs(right["t"] - t) < window)).sum())
    return n


@pytest.fixture(scope="module")
def shared():
    left, right = jw.streams.copy_pair(20_000, domain=200, shared=True, seed=1)
    return jw.characterize(left, right, key="key", time="ts", within=[50, 500])


# --- by hand ------------------------------------------------------------------------------------
def test_a_stream_by_hand():
    p = jw.characterize(stream(list("abacab")), key="k", time="t", h=2).profiles[0]
    assert (p.n_rows, p.n_distinct, p.n_null, p.n_out_of_order) == (6, 3, 0, 0)
    assert (p.keys, p.counts) == (("a", "b", "c"), (3, 2, 1))
    assert (p.ranks, p.rank_counts) == ((1, 2, 3), (3, 2, 1))
    # Distances: a 2, a 2, b 4.
    assert p.mean_iad == pytest.approx((2 * 2 * 4) ** (1 / 3))
    assert p.iad.share[p.iad.at.index(2)] == pytest.approx(2 / 3)
    assert p.iad.share[-1] == 1.0
    # Two random rows are equal in 3 + 1 of 15 cases; 3 keys.
    assert p.skew == pytest.approx(3 * 4 / 15)
    assert p.entropy.uniform == pytest.approx(math.log(3))
    h = -sum(q * math.log(q) for q in (3 / 6, 2 / 6, 1 / 6))
    assert p.entropy.popularity == pytest.approx(h)
    # Stack distances: a 1 (b), a 1 (c), b 2 (a, c): a cache of 2 keys meets two of three.
    assert (p.stack.at, p.stack.share) == ((1, 2, 3), (0.0, pytest.approx(2 / 3), 1.0))
    assert (p.first, p.last, p.rate) == (0, 5, 1.0)
    # The first half is aba, the second cab: c and one a differ.
    assert p.drift == pytest.approx(1 / 3)


def test_windows_by_hand():
    left, right = stream([1, 1, 2], [0, 5, 6]), stream([1, 2, 3], [1, 9, 20])
    found = jw.characterize(left, right, key="k", time="t", within=[4, 5], permutations=0)
    four, five = found.windows
    assert (four.n_pairs, four.n_matched) == (2, (2, 2))  # (0, 1) and (6, 9), not (5, 1)
    assert (five.n_pairs, five.n_matched) == (3, (3, 2))
    # Rows less than 4 apart: 0-1, 6-9; equal keys at any distance: 2 · 1 + 1 · 1 of 9.
    assert (four.n_close, four.n_expected) == (2, pytest.approx(2 * 3 / 9))
    assert five.n_close == 4  # and 5-1, 5-9
    assert four.lift == pytest.approx(3.0)
    assert four.spread is None


# --- against slow and obvious code --------------------------------------------------------------
def test_a_profile_agrees_with_the_measures_of_locality():
    keys = jw.streams.copy_pair(5000, domain=100, seed=3)[0]["key"]
    p = jw.characterize({"k": keys}, key="k", h=20).profiles[0]
    distances = locality.iad(keys)
    assert p.mean_iad == pytest.approx(np.exp(np.log(distances).mean()))
    for at, share in zip(p.iad.at, p.iad.share):
        assert share == pytest.approx((distances <= at).mean())
    stacks = locality.stack_distance(keys)
    for at, share in zip(p.stack.at, p.stack.share):
        assert share == pytest.approx((stacks < at).mean())
    model = locality.fit(keys, 20)
    assert p.model_b == pytest.approx(model.b)
    assert p.model_a == pytest.approx(model.a)
    assert p.b[-1] == p.model_b
    assert p.entropy.conditional == pytest.approx(model.entropy(keys))
    assert p.entropy.log_loss == pytest.approx(model.entropy(keys, method="log_loss"))
    whole = locality.popularity(keys)
    assert p.keys == tuple(whole.keys.tolist())
    assert p.zipf.mle == pytest.approx(whole.zipf().mle)


def test_the_random_order_is_the_mean_of_many_permutations():
    keys = jw.streams.copy_pair(3000, domain=50, seed=4)[0]["key"]
    p = jw.characterize({"k": keys}, key="k").profiles[0]
    means = [np.log(locality.iad(locality.permuted(keys, seed=s))).mean() for s in range(100)]
    # 100 permutations: five standard errors of their mean.
    assert math.log(p.mean_iad_permuted) == pytest.approx(np.mean(means), abs=np.std(means) / 2)
    assert p.locality == pytest.approx(p.mean_iad / p.mean_iad_permuted)


def test_expected_pairs_are_the_mean_of_many_shuffles():
    rng = np.random.default_rng(5)
    left = stream(rng.zipf(1.5, 400) % 40, np.sort(rng.integers(0, 1000, 400)))
    right = stream(rng.zipf(1.7, 300) % 40, np.sort(rng.integers(0, 1000, 300)))
    window = jw.characterize(left, right, key="k", time="t", within=100).windows[0]
    assert window.n_pairs == pairs_within(left, right, 100)
    found = []
    for _ in range(200):
        shuffled = [{**side, "k": rng.permutation(side["k"])} for side in (left, right)]
        found.append(pairs_within(*shuffled, 100))
    # 200 shuffles: five standard errors of their mean; the reported spread is from five of them.
    error = np.std(found) / math.sqrt(200)
    assert window.n_expected == pytest.approx(np.mean(found), abs=5 * error)
    assert 0.3 < window.spread / np.std(found) < 3


def test_the_newest_tenth_is_what_fifo_returns():
    left, right = jw.streams.copy_pair(5000, domain=100, shared=True, seed=6)
    window = jw.characterize(left, right, key="key", time="ts", within=500).windows[0]
    fifo = jw.simulate(
        left, right, on="key", time="ts", within=500, max_rows=(50, 50), policy="fifo"
    )
    assert fifo.n_exact == window.n_pairs
    # Off by rows that arrive at the same tick, and by the rounding of a tenth.
    assert fifo.recall == pytest.approx(window.kept_by_recency, rel=0.05)


# --- the verdict --------------------------------------------------------------------------------
LBA = characterization.LBA
POLICIES = ("fifo", "lru", "prob", "prob:statistics=window", "gdj", LBA)


def test_the_verdict_names_a_policy_near_the_best_on_all_streams_of_the_docs():
    pairs = bench.recall_streams()
    measured = bench.measure_recall(POLICIES, [characterization.MEMORY_SHARE], pairs=pairs)
    for name, (left, right) in pairs.items():
        recall = {row["policy"]: row["recall"] for row in measured if row["stream"] == name}
        found = jw.characterize(
            left, right, key="key", time="ts", within=bench.RECALL_WINDOW, permutations=2
        )
        chosen = found.favoured[0]
        assert recall[chosen] >= 0.94 * max(recall.values()), (name, found.favoured, recall)
        window = found.windows[0]
        assert window.kept_by_recency == pytest.approx(recall["fifo"], abs=0.02), name
        assert window.kept_by_popularity == pytest.approx(recall["prob"], abs=0.05), name


def test_what_the_verdict_says_of_shared_locality(shared):
    assert shared.favoured == ("lru", LBA, "gdj")
    assert shared.findings["shared"] and all(shared.findings["locality"])
    text = " ".join(shared.verdict())
    assert "short-term locality" in text and "The streams share it" in text and "gdj" in text


def test_even_keys_without_locality_favour_the_cheapest_policy():
    left, right = jw.streams.zipf_pair(20_000, domain=200, skew=0.0, seed=7)
    found = jw.characterize(left, right, key="key", time="ts", within=500)
    assert found.favoured == ("fifo",)
    assert "about equally frequent" in found.verdict()[0]


def test_streams_without_a_match_favour_nothing():
    found = jw.characterize(stream([1, 2] * 50), stream([3, 4] * 50), key="k", time="t", within=9)
    assert found.favoured == ()
    assert "not one pair" in found.verdict()[-1]
    assert found.windows[0].lift is None
    assert "favours" in repr(found)


# --- what is hard to digest ---------------------------------------------------------------------
def test_a_constant_key():
    found = jw.characterize(stream([7] * 100), key="k", time="t")
    p = found.profiles[0]
    assert (p.n_distinct, p.locality, p.model_b) == (1, pytest.approx(1.0), 1.0)
    assert math.isnan(p.zipf.mle)
    assert "one key" in found.verdict()[0]
    again = jw.Characterization.from_json(found.to_json())
    assert math.isnan(again.profiles[0].zipf.exponent)
    assert again.to_json() == found.to_json()


def test_keys_that_never_come_again():
    found = jw.characterize(stream(np.arange(1000)), key="k", time="t", top=10)
    p = found.profiles[0]
    assert (p.locality, p.mean_iad, p.model_b, p.iad.at) == (None, None, 1.0, ())
    assert (p.keys, p.counts) == (tuple(range(10)), (1,) * 10)
    assert p.popularity().rest == pytest.approx(0.99)
    assert "a key of its own" in found.verdict()[0]


def test_fewer_rows_than_h():
    p = jw.characterize(stream([1, 2, 1]), key="k", time="t", h=50).profiles[0]
    assert p.hs == (1, 2)
    assert "h=50 is cut to 2" in p.notes[0]


@pytest.mark.parametrize("keys", [[], [1], [None, None, 4]])
def test_too_few_rows_are_an_error_that_says_so(keys):
    with pytest.raises(JoinweirError, match="at least 2 are needed"):
        jw.characterize({"k": pa.array(keys, pa.int64())}, key="k")


def test_null_keys_are_counted_and_set_aside():
    keys = pa.array([1, None, 2, 1, None], pa.int64())
    found = jw.characterize({"k": keys, "t": [0, 1, 2, 3, 4]}, key="k", time="t")
    p = found.profiles[0]
    assert (p.n_rows, p.n_null, p.mean_iad) == (3, 2, pytest.approx(2.0))
    assert "2 rows have a null key" in " ".join(found.verdict())


def test_unsorted_time_is_sorted_stably_and_told():
    rng = np.random.default_rng(8)
    keys, ts = rng.integers(0, 20, 500), rng.integers(0, 100, 500)
    order = np.argsort(ts, kind="stable")
    p = jw.characterize({"k": keys, "t": ts}, key="k", time="t").profiles[0]
    sorted_p = jw.characterize({"k": keys[order], "t": ts[order]}, key="k", time="t").profiles[0]
    assert p.n_out_of_order == int((ts[1:] < np.maximum.accumulate(ts)[:-1]).sum()) > 0
    assert "out of order" in p.notes[0]
    assert (p.iad, p.b, p.drift) == (sorted_p.iad, sorted_p.b, sorted_p.drift)


def test_without_time_rows_are_their_own_clock():
    left, right = stream([1, 2, 1, 3]), stream([2, 1, 1, 1])
    found = jw.characterize({"k": left["k"]}, {"k": right["k"]}, key="k", within=2, permutations=0)
    assert found.windows[0].n_pairs == pairs_within(left, right, 2)
    assert found.profiles[0].rate is None and found.profiles[0].first is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": "nope"}, "unknown column of the left stream 'nope'"),
        ({"key": []}, "key must be a column name"),
        ({"time": "nope"}, "unknown column"),
        ({"time": 3}, "time must name a column"),
        ({"h": 0}, "h must be an integer"),
        ({"h": True}, "h must be an integer"),
        ({"top": 0}, "top must be an integer"),
        ({"seed": -1}, "seed must be an integer"),
        ({"permutations": -1}, "permutations must be"),
        ({"within": 0}, "within must be more than 0"),
        ({"within": []}, "at least one window"),
        ({"within": "10 minutes"}, "plain numbers"),
        ({"within": list(range(1, 12))}, "at most 8 windows"),
        ({"names": ["a"]}, "names must be 2"),
        ({"right": stream(["x", "y"])}, "types that cannot be equal"),
        ({"right": {"k": [1, 1], "t": [dt.datetime(2024, 1, 1)] * 2}}, "different kinds"),
        ({"left": {"k": [1, 1], "t": [None, 1]}}, "nulls; drop them"),
        ({"left": {"k": [1, 1], "t": [0, 1, 2]}}, "differ in length"),
        ({"right": None, "within": 5}, "within goes with two streams"),
    ],
)
def test_bad_input_is_one_clear_line(changes, message):
    both = {"left": stream([1, 2, 1]), "right": stream([1, 2, 2])} | changes
    arguments = {"key": "k", "time": "t"} | {
        name: value for name, value in changes.items() if name not in ("left", "right")
    }
    with pytest.raises(JoinweirError, match=message) as error:
        jw.characterize(both["left"], both["right"], **arguments)
    assert "\n" not in str(error.value)


def test_default_windows_suit_the_streams():
    minute = 60_000_000
    found = read_windows(None, 0, 1000 * minute, 11_000, timestamps=True, scale=1_000_000)
    assert [name for name, _ in found] == ["1 minute", "10 minutes", "1 hour"]
    assert read_windows(None, 0, 0, 10, timestamps=True, scale=1_000_000) == [(1e-6, 1)]
    assert read_windows([20, 5, 20], 0, 9, 9, timestamps=False, scale=1) == [(5, 5), (20, 20)]


# --- tables, keys and types ---------------------------------------------------------------------
def test_every_kind_of_table_gives_the_same():
    columns = {"k": ["x", "y", "x", "z"], "t": [1, 2, 3, 4]}
    tables = [columns, pa.table(columns), pd.DataFrame(columns), pl.DataFrame(columns)]
    found = {jw.characterize(table, key="k", time="t").to_json() for table in tables}
    types = {"large_string", "string", "string_view"}  # polars and pandas have their own
    assert len({json.dumps({**json.loads(f), "profiles": None}) for f in found}) == 1
    for text in found:
        profile = json.loads(text)["profiles"][0]
        assert profile["key_types"][0] in types
        assert (profile["keys"], profile["counts"]) == (["x", "y", "z"], [2, 1, 1])


@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, 3, -1], pa.int32()),
        pa.array([2**64 - 1, 5, 5], pa.uint64()),
        pa.array([0.5, float("nan"), 0.5]),
        pa.array([True, False, True]),
        pa.array(["b", "ä", "b"]),
        pa.array([b"\x00\xff", b"", b""]),
        pa.array([b"ab", b"cd", b"ab"], pa.binary(2)),
        pa.array([0, 10**6 + 1, 0], pa.timestamp("us")),
        pa.array([0, 10**9 + 1, 0], pa.timestamp("ns")),
        pa.array([0, 10**6 + 1, 0], pa.timestamp("us", "Europe/Berlin")),
        pa.array([dt.date(2024, 2, 29), dt.date(1969, 1, 1), dt.date(1969, 1, 1)]),
        pa.array([decimal.Decimal("1.50"), decimal.Decimal("-2.00"), decimal.Decimal("1.50")]),
        pa.array(["u", "v", "u"]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_frequent_keys_keep_their_type_through_json(values):
    found = jw.characterize({"k": values}, key="k")
    p = jw.Characterization.from_json(found.to_json()).profiles[0]
    assert p == found.profiles[0]
    table = p.key_table()
    plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    assert table["k"].type == plain.type
    counted = dict(zip(map(repr, table["k"].to_pylist()), table["count"].to_pylist()))
    for value in plain.to_pylist():
        assert counted[repr(value)] == sum(repr(v) == repr(value) for v in plain.to_pylist())


def test_composite_keys_whose_names_differ_by_side():
    left = {"a": [1, 1, 2], "b": ["x", "y", "x"], "t": [0, 1, 2]}
    right = {"c": [1, 2, 2], "b": ["x", "x", "x"], "u": [0, 1, 2]}
    found = jw.characterize(
        left, right, key=[("a", "c"), "b"], time=("t", "u"), within=10, permutations=0
    )
    assert found.windows[0].n_pairs == 1 + 2
    assert found.profiles[1].keys == ((2, "x"), (1, "x"))
    assert found.profiles[1].key_table().column_names == ["c", "b", "count"]
    again = jw.Characterization.from_json(found.to_json())
    assert again == found
    assert again.profiles[0].locality_model().popularity.keys.tolist() == list(
        found.profiles[0].keys
    )


# --- the object ---------------------------------------------------------------------------------
def test_saved_and_loaded_it_is_the_same(shared, tmp_path):
    file = tmp_path / "saved.json"
    shared.save(file)
    again = jw.Characterization.load(file)
    assert again == shared
    assert again.to_json() == shared.to_json()
    profile = json.loads(file.read_text())["profiles"][0]
    assert set(profile["model"]) == {"a", "b"} and len(profile["model"]["a"]) == 50
    assert len(profile["keys"]) == len(profile["counts"]) == 200
    assert profile["rate"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a characterization"),
        ("[]", "no format"),
        ('{"format": "joinweir-characterization", "version": 9}', "version 9, this reads 1"),
        ('{"format": "joinweir-characterization", "version": 1}', "damaged"),
    ],
)
def test_a_damaged_file_is_refused(text, message, tmp_path):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(JoinweirError, match=message):
        jw.Characterization.load(tmp_path / "bad.json")


def test_it_is_small_and_shows_itself(shared):
    large = jw.characterize(
        stream(np.random.default_rng(9).integers(0, 10**5, 200_000)), key="k", time="t"
    )
    assert len(large.to_json()) < 150_000
    assert repr(shared).startswith("<left: 20,000 rows of 200 keys")
    page = shared._repr_html_()
    assert page.count("<table>") == 2 and "script" not in page


def test_the_page_has_the_verdict_the_pictures_and_no_network(shared):
    page = shared.to_html()
    for text in ("Popularity", "Stack distance", "Fresh draws", "Lift", "random order", "gdj"):
        assert text in page
    assert 'src="http' not in page
    figure = shared.plot()
    assert len(figure.data) == 4 * 4 + 1


def test_the_same_seed_gives_the_same_and_another_hardly_differs():
    left, right = jw.streams.gismo_pair(5000, domain=100, horizon=5000, seed=1)
    arguments = {"key": "key", "time": "ts", "within": 100}
    one, two = (jw.characterize(left, right, **arguments, seed=3) for _ in range(2))
    other = jw.characterize(left, right, **arguments, seed=4)
    assert one.to_json() == two.to_json()
    assert one.profiles[0].stack_permuted != other.profiles[0].stack_permuted
    assert one.windows[0].n_expected == other.windows[0].n_expected


def test_a_popularity_with_a_rest_survives_json_and_refuses_an_entropy(shared):
    p = jw.characterize(stream([1] * 5 + [2] * 3 + [3] * 2), key="k", time="t", top=2).profiles[0]
    model = p.locality_model()
    assert model.popularity.rest == pytest.approx(0.2)
    again = locality.LocalityModel.from_json(model.to_json())
    assert again.popularity.rest == model.popularity.rest
    with pytest.raises(JoinweirError, match="every key"):
        model.entropy([1, 2])
