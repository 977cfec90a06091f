"""Summaries of sorted rows against brute force, and closed forms against every permutation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinweir.errors import JoinweirError
from joinweir.locality import fit_sample, models_over_h, popularity, zipf_of_counts
from joinweir.summaries import (
    GRID,
    KeyRuns,
    PairCounts,
    log_grid,
    permuted_drift,
    permuted_mean_log,
    permuted_survival,
)


def by_key(keys):
    keys = np.asarray(keys, np.int64)
    order = np.argsort(keys, kind="stable")
    return keys[order], order.astype(np.int64)


def brute_distances(keys):
    last, found = {}, []
    for i, key in enumerate(keys):
        if key in last:
            found.append(i - last[key])
        last[key] = i
    return found


def brute_pairs(left, right, window):
    """(key, ts) rows: pairs, and which rows have one."""
    pairs = [
        (i, j)
        for i, (lk, lt) in enumerate(left)
        for j, (rk, rt) in enumerate(right)
        if lk == rk and abs(lt - rt) < window
    ]
    return len(pairs), len({i for i, _ in pairs}), len({j for _, j in pairs})


# --- one stream ---------------------------------------------------------------------------------
@given(st.lists(st.integers(0, 6), min_size=2, max_size=60), st.integers(1, 9), st.integers(1, 7))
def test_key_runs_are_what_a_walk_along_the_stream_finds(keys, h, piece):
    n = len(keys)
    ordered, positions = by_key(keys)
    found = KeyRuns(n, h, n_sampled=n)
    for at in range(0, n, piece):
        found.update(ordered[at : at + piece], positions[at : at + piece])
    found.end()

    distances = brute_distances(keys)
    assert found.n_distances == len(distances)
    assert found.sum_log == pytest.approx(sum(map(math.log, distances)))
    histogram = np.bincount(np.searchsorted(GRID, distances), minlength=GRID.size)
    assert found.histogram.tolist() == histogram.tolist()
    for k in range(1, h + 1):
        equal = sum(keys[i] == keys[i - k] for i in range(k, n))
        assert found.matches[k - 1] == equal
    counts = [keys.count(key) for key in set(keys)]
    values, multiplicity = found.frequencies()
    assert values.tolist() == sorted(set(counts), reverse=True)
    assert multiplicity.tolist() == [counts.count(value) for value in values]
    half = n // 2
    early, late = keys[:half], keys[half:]
    drift = sum(abs(early.count(k) / half - late.count(k) / (n - half)) for k in set(keys)) / 2
    assert found.drift == pytest.approx(drift)


def test_key_runs_of_shards_merge_to_those_of_the_stream():
    rng = np.random.default_rng(1)
    keys = rng.zipf(1.3, 20_000) % 1000
    # A frequency above the small ones' array, so that the list of large ones is merged, too.
    keys = np.concatenate([keys, np.zeros(70_000, np.int64)])[rng.permutation(90_000)]
    ordered, positions = by_key(keys)
    whole = KeyRuns(keys.size, 20, n_sampled=5000).update(ordered, positions).end()
    merged = None
    for shard in range(3):
        mine = ordered % 3 == shard
        part = KeyRuns(keys.size, 20, n_sampled=5000)
        part = part.update(ordered[mine], positions[mine]).end()
        part = KeyRuns.from_bytes(part.to_bytes())
        merged = part if merged is None else merged.merge(part)
    assert merged.matches.tolist() == whole.matches.tolist()
    assert merged.histogram.tolist() == whole.histogram.tolist()
    assert [v.tolist() for v in merged.frequencies()] == [v.tolist() for v in whole.frequencies()]
    assert merged.drift == pytest.approx(whole.drift)
    a, b = np.full(20, 0.01), 0.8
    assert merged.log_loss(a, b) == pytest.approx(whole.log_loss(a, b))
    assert 4500 < merged.sample()[0].size < 5500


def test_summaries_of_other_streams_do_not_merge():
    with pytest.raises(JoinweirError, match="same stream"):
        KeyRuns(10, 2).merge(KeyRuns(11, 2))
    with pytest.raises(JoinweirError, match="same windows"):
        PairCounts([1]).merge(PairCounts([2]))


def test_a_sample_of_all_rows_gives_the_model_of_the_stream():
    rng = np.random.default_rng(2)
    keys = rng.integers(0, 50, 4000)
    for i in range(5, keys.size):  # half of the rows repeat one of the five before them
        if rng.random() < 0.5:
            keys[i] = keys[i - 1 - rng.integers(5)]
    ordered, positions = by_key(keys)
    runs = KeyRuns(keys.size, 10, n_sampled=keys.size).update(ordered, positions).end()
    (a, b) = models_over_h(keys, [10])[0]
    sample = runs.sample()
    assert sample[0].size == keys.size - 10
    a_of_sample, b_of_sample = fit_sample(*sample, np.full(11, 1 / 11))
    # Both stop within 0.01 of the largest log-likelihood of 4,000 rows.
    assert b_of_sample == pytest.approx(b, abs=0.01)
    assert a_of_sample[:5].sum() == pytest.approx(a[:5].sum(), abs=0.02)
    loss, error = runs.log_loss(a, b)
    q = [
        b * np.mean(keys == keys[n]) + sum(a[j - 1] for j in range(1, 11) if keys[n - j] == keys[n])
        for n in range(10, keys.size)
    ]
    assert loss == pytest.approx(-np.mean(np.log(q)))
    assert error == pytest.approx(np.std(np.log(q)) / math.sqrt(len(q)))


# --- two streams --------------------------------------------------------------------------------
rows_of = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=25)


@given(rows_of, rows_of, st.integers(1, 40), st.integers(1, 9))
def test_pair_counts_are_those_of_a_nested_loop(left, right, window, piece):
    rows = sorted([(k, t, 0) for k, t in left] + [(k, t, 1) for k, t in right])
    key, ts, side = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    windows = [window, 3 * window]
    found = PairCounts(windows)
    for at in range(0, len(rows), piece):
        cut = slice(at, at + piece)
        found.update(key[cut], ts[cut], side[cut])
    found = PairCounts.from_bytes(found.end().to_bytes())
    for w, length in enumerate(windows):
        pairs, left_rows, right_rows = brute_pairs(left, right, length)
        assert (found.pairs[w], found.matched[0][w], found.matched[1][w]) == (
            pairs,
            left_rows,
            right_rows,
        )
    assert found.n_equal == brute_pairs(left, right, 10**9)[0]


def test_a_hot_key_costs_memory_for_its_window_only():
    n = 200_000
    ts = np.arange(n)
    found = PairCounts([100])
    found.update(np.zeros(n, np.int64), ts, (ts % 2).astype(np.int8)).end()
    assert found.pairs == [sum(2 * (n - d) // 2 for d in range(1, 100, 2))]
    assert found._held.shape[1] == 1024
    alone = PairCounts([100]).update(np.zeros(n, np.int64), ts, np.zeros(n, np.int8)).end()
    assert alone.pairs == [0]
    assert alone._held.shape[1] == 1024


def test_history_is_met_but_does_not_count():
    key, ts = np.zeros(4, np.int64), np.arange(4)
    found = PairCounts([10]).update(key, ts, np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    assert found.end().pairs == [3]  # of 4 pairs that of the two first


def test_popular_rows_by_hand():
    # Key 1: 1 row against 8; key 2: 9 rows against 1. Of the left rows a tenth is the one of key
    # 1, which has 8 of 17 pairs; of the right ones 0.9 of a row: that of key 2, with 8.1.
    key = np.array([1] * 9 + [2] * 10, np.int64)
    side = np.array([0] + [1] * 8 + [0] * 9 + [1])
    found = PairCounts([5]).update(key, np.zeros(19, np.int64), side).end()
    assert found.n_equal == 17
    assert found.popular_share(0.1) == pytest.approx((8 / 17 + 8.1 / 17) / 2)


def test_more_windows_than_a_row_has_flags_are_refused():
    with pytest.raises(JoinweirError, match="at most 16 windows"):
        PairCounts(range(1, 18))


# --- a random order -----------------------------------------------------------------------------
@pytest.mark.parametrize("keys", ["aabb", "aaab", "aabbbc", "abacada"])
def test_closed_forms_are_means_over_all_permutations(keys):
    orders = list(itertools.permutations(keys))
    every = [d for order in orders for d in brute_distances(order)]
    counts = [keys.count(key) for key in set(keys)]
    frequency = np.array(sorted(set(counts), reverse=True))
    n_keys = np.array([counts.count(value) for value in frequency])
    ks = np.arange(len(keys) + 1)
    expected = [np.mean([d > k for d in every]) for k in ks]
    assert permuted_survival(frequency, n_keys, ks) == pytest.approx(expected)
    assert permuted_mean_log(frequency, n_keys) == pytest.approx(np.mean(np.log(every)))


def test_the_mean_log_distance_is_right_beyond_the_exact_terms():
    n, c = 200_000, 20
    frequency, n_keys = np.array([c]), np.array([n // c])
    k = np.arange(1, n)
    survival = permuted_survival(frequency, n_keys, k)
    assert permuted_mean_log(frequency, n_keys) == pytest.approx(
        float(np.log1p(1 / k) @ survival), abs=1e-5
    )


def test_the_halves_of_a_shuffled_stream_differ_as_foretold():
    rng = np.random.default_rng(3)
    keys = rng.zipf(1.5, 4000) % 300
    found = []
    for _ in range(200):
        runs = KeyRuns(keys.size, 1).update(*by_key(rng.permutation(keys))).end()
        found.append(runs.drift)
    expected = permuted_drift(*runs.frequencies())
    # 200 shuffles: five standard errors, and a thousandth for the coins' approximation.
    assert np.mean(found) == pytest.approx(expected, abs=5 * np.std(found) / 14 + 0.001)


# --- Zipf ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("n", "skew"), [(50, 1.2), (5000, 1.5), (300_000, 1.1), (300_000, 3.0)])
def test_zipf_of_counts_is_zipf_of_the_keys(n, skew):
    keys = np.random.default_rng(4).zipf(skew, n) % 10**6
    found = popularity(keys)
    slow = found.zipf()
    values, n_keys = np.unique(found.counts, return_counts=True)
    fast = zipf_of_counts(values[::-1], n_keys[::-1])
    for name in ("exponent", "standard_error", "r_squared", "mle", "ks"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name), rel=1e-7, abs=1e-9), name


def test_zipf_of_one_key_and_of_keys_that_are_alike():
    assert math.isnan(zipf_of_counts(np.array([7]), np.array([1])).mle)
    even = zipf_of_counts(np.array([3]), np.array([10**9]))  # costs nothing per key
    assert (even.exponent, even.r_squared) == (0.0, 1.0)
    assert even.mle < 1e-6 and even.ks < 1e-6


def test_a_logarithmic_grid_has_whole_numbers_once():
    grid = log_grid(10_000)
    assert grid[0] == 1 and grid[-1] == 10_000
    assert (np.diff(grid) > 0).all()
