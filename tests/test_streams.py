"""Generators: shapes for every one of them, then the law each one promises.

Statistical tests have a fixed seed and a stated bound, about four standard deviations wide or
more: with 40 other seeds all of them held too.
"""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinweir import streams

NEEDED = {"interval_locality": {"master_rows": 1000}}
KINDS = list(streams.GENERATORS)


def sides(made):
    return [made] if isinstance(made, dict) else list(made)


def counts(stream, domain):
    return np.bincount(stream["key"], minlength=domain)


def assert_distributed(observed, probabilities, spread=1.0):
    """Chi-square within four standard deviations: mean dof, variance 2 dof."""
    expected = observed.sum() * probabilities
    chi2 = ((observed - expected) ** 2 / expected).sum() / spread
    dof = probabilities.size - 1
    assert chi2 < dof + 4 * np.sqrt(2 * dof)


def reuse_gaps(keys):
    """Rows since the previous row of the same key."""
    order = np.argsort(keys, kind="stable")
    same = keys[order][1:] == keys[order][:-1]
    return np.diff(order)[same]


def hourly_correlation(left, right, domain, hours=24, horizon=1440):
    """Mean over the keys of corr(left's rows per hour, right's rows per hour)."""
    table = [
        np.histogram2d(
            s["key"], s["ts"], [np.arange(domain + 1), hours], [[0, domain], [0, horizon]]
        )
        for s in (left, right)
    ]
    return np.mean([np.corrcoef(table[0][0][k], table[1][0][k])[0, 1] for k in range(domain)])


# --- shapes: every generator --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_streams_are_sorted_in_range_and_repeatable(kind, data):
    n = data.draw(st.integers(0, 200), "n")
    chosen = {"seed": data.draw(st.integers(0, 2**40), "seed")}
    known = streams.options(kind)
    if "domain" in known:
        chosen["domain"] = domain = data.draw(st.integers(1, 50), "domain")
    if "rate" in known:
        chosen["rate"] = data.draw(st.floats(0.01, 100), "rate")
    if "skew" in known:
        chosen["skew"] = data.draw(st.floats(0, 3), "skew")
    if "shared" in known:
        chosen["shared"] = data.draw(st.booleans(), "shared")
    if "arrivals" in known:
        chosen["arrivals"] = data.draw(st.sampled_from(streams.ARRIVALS), "arrivals")
    if "correlation" in known:
        chosen["correlation"] = data.draw(st.sampled_from(streams.CORRELATIONS), "correlation")
    if "burst" in known:
        chosen["burst"] = data.draw(st.floats(0.01, 10), "burst")
        chosen["horizon"] = data.draw(st.integers(1, 5000), "horizon")
    if "fresh" in known:
        chosen["fresh"] = data.draw(st.floats(0, 1), "fresh")
        chosen["lags"] = data.draw(st.integers(1, 60), "lags")
    if "period" in known:
        chosen["period"] = data.draw(st.integers(1, 300), "period")
    if "persistence" in known:
        chosen["persistence"] = data.draw(st.floats(0, 1), "persistence")
        chosen["step"] = data.draw(st.floats(0, 100), "step")
    if kind == "interval_locality":
        chosen["intervals"] = data.draw(st.integers(1, 30), "intervals")
        chosen["repeats"] = data.draw(st.integers(1, 3), "repeats")
        chosen["master_rows"] = data.draw(st.integers(90, 200), "master_rows")
        domain = chosen["master_rows"] // chosen["repeats"]

    made = sides(streams.generate(kind, n, **chosen))
    assert len(made) == (2 if kind.endswith("_pair") else 1)
    for stream in made:
        ts, key = stream["ts"], stream["key"]
        assert ts.dtype == key.dtype == np.int64
        assert ts.shape == key.shape
        if kind.startswith("gismo"):
            assert abs(ts.size - n) <= domain / 2 + 1
            assert ((ts >= 0) & (ts < chosen["horizon"])).all()
        else:
            assert ts.size == n
        assert (np.diff(ts) >= 0).all() and (ts >= 0).all()
        assert ((key >= 0) & (key < domain)).all()
    again = sides(streams.generate(kind, n, **chosen))
    for stream, twin in zip(made, again, strict=True):
        assert all(np.array_equal(stream[column], twin[column]) for column in stream)


GOLDEN = {  # keys of eight rows, seed 7, domain 100 (gismo: domain 5)
    "zipf": [[2, 2, 5, 39, 39, 2, 2, 44]],
    "zipf_pair": [[39, 2, 21, 23, 10, 57, 70, 16], [2, 75, 16, 12, 0, 16, 30, 91]],
    "gismo": [[3, 0, 4, 1, 0, 1, 0, 2]],
    "gismo_pair": [[0, 2, 3, 1, 0, 0, 4, 1], [1, 1, 3, 0, 0, 4, 0, 2]],
    "copy_model": [[42, 5, 63, 0, 3, 14, 15, 28]],
    "copy_pair": [[8, 9, 50, 92, 7, 2, 67, 4], [2, 29, 33, 17, 55, 33, 24, 1]],
    "drift_pair": [[4, 45, 91, 61, 34, 4, 83, 32], [64, 63, 6, 43, 45, 72, 36, 11]],
    "random_walk": [[61, 62, 61, 62, 64, 63, 63, 62]],
    "random_walk_pair": [[51, 52, 52, 53, 50, 53, 54, 54], [50, 53, 52, 52, 51, 53, 53, 55]],
    "interval_locality": [[123, 244, 362, 483, 634, 722, 853, 966]],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_of_a_seed_are_frozen(kind):
    options = {"domain": 5} if kind.startswith("gismo") else NEEDED.get(kind, {})
    made = sides(streams.generate(kind, 8, seed=7, **options))
    assert [stream["key"].tolist() for stream in made] == GOLDEN[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_another_stream(kind):
    first, second = (
        sides(streams.generate(kind, 1000, seed=seed, **NEEDED.get(kind, {}))) for seed in (1, 2)
    )
    for one, other in zip(first, second, strict=True):
        assert not np.array_equal(one["key"], other["key"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.endswith("_pair")])
def test_the_two_sides_of_a_pair_are_different_rows(kind):
    left, right = streams.generate(kind, 1000)
    assert not np.array_equal(left["key"], right["key"])
    assert not np.shares_memory(left["ts"], right["ts"])


def test_generators_with_the_same_seed_are_independent_of_each_other():
    # One common stream of uniforms would make the high values fall on the same keys.
    keys = streams.zipf(100_000, seed=5)["key"]
    values = streams.importance(100_000, rare=0.0, seed=5)
    assert abs(np.corrcoef(keys, values)[0, 1]) < 4 / np.sqrt(100_000)


# --- zipf ---------------------------------------------------------------------------------------


def test_zipf_law_of_three_keys_by_hand():
    np.testing.assert_allclose(streams.zipf_probabilities(3, 1.0), [6 / 11, 3 / 11, 2 / 11])
    np.testing.assert_allclose(streams.zipf_probabilities(4, 0.0), [0.25] * 4)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.floats(0, 5), st.integers(0, 99))
def test_guided_draws_equal_a_binary_search(domain, skew, seed):
    cdf, guide = streams._zipf_table(domain, skew)
    # the corners too: 0, each value of the CDF, and its two neighbours
    uniform = np.random.default_rng(seed).random(200)
    corners = np.r_[0.0, cdf, np.nextafter(cdf, 0), np.nextafter(cdf, 1)]
    uniform = np.r_[uniform, corners[corners < 1]]
    naive = np.searchsorted(cdf, uniform, side="right")
    assert np.array_equal(streams._invert_cdf(cdf, guide, uniform), naive)


@pytest.mark.parametrize("skew", [0.0, 0.75, 1.5])
def test_zipf_counts_follow_the_law(skew):
    stream = streams.zipf(200_000, domain=100, skew=skew, seed=1)
    assert_distributed(counts(stream, 100), streams.zipf_probabilities(100, skew))


def test_zipf_log_log_slope_is_minus_the_skew():
    # Slope error: counts of 3500 and more have relative errors below 1.7 %, spread over a
    # factor of 100 in rank; 0.02 is wide.
    seen = counts(streams.zipf(500_000, domain=100, skew=0.75, seed=2), 100)
    slope = np.polyfit(np.log(np.arange(1, 101)), np.log(seen), 1)[0]
    assert slope == pytest.approx(-0.75, abs=0.02)


def test_zipf_rows_are_independent():
    # P(x_n = x_{n-1}) = Σ P², standard deviation at most 0.5 / sqrt(n)
    keys = streams.zipf(200_000, domain=20, skew=1.0, seed=3)["key"]
    same = (streams.zipf_probabilities(20, 1.0) ** 2).sum()
    assert (keys[1:] == keys[:-1]).mean() == pytest.approx(same, abs=2 / np.sqrt(200_000))


@pytest.mark.parametrize(
    ("rate", "ts"),
    [
        (1.0, [0, 1, 2, 3]),
        (2.0, [0, 0, 1, 1]),
        (0.1, [0, 10, 20, 30]),
        (0.7, [0, 1, 2, 4]),
        (1e-9, [0, 10**9, 2 * 10**9, 3 * 10**9]),  # 1 / 1e-9 < 10**9 in float64
    ],
)
def test_constant_arrivals_are_evenly_spaced(rate, ts):
    assert streams.zipf(4, rate=rate)["ts"].tolist() == ts


def test_poisson_arrivals_have_variance_equal_to_the_mean():
    per_unit = np.bincount(streams.zipf(200_000, rate=5.0, arrivals="poisson", seed=4)["ts"])[:-1]
    # 40 000 units: the index of dispersion has standard deviation sqrt(2/40 000) = 0.007
    assert per_unit.mean() == pytest.approx(5.0, abs=0.05)
    assert per_unit.var() / per_unit.mean() == pytest.approx(1.0, abs=0.03)


def test_bursty_arrivals_keep_the_average_rate_in_every_cycle():
    ts = streams.zipf(50_000, rate=2.0, arrivals="bursty", cycle=500.0, seed=5)["ts"]
    per_cycle = np.bincount(ts // 500)
    assert per_cycle.size == 50
    assert np.abs(per_cycle - 1000).max() <= 1


def test_bursty_arrivals_run_at_four_times_and_a_quarter_of_the_rate():
    ts = streams.zipf(80_000, rate=8.0, arrivals="bursty", cycle=1000.0, seed=6)["ts"]
    per_unit = np.bincount(ts, minlength=10_000)
    # a fifth of the units at 32 rows, the rest at 2; corners of a phase fall inside a unit
    assert np.isin(per_unit, [2, 32]).mean() > 0.99
    assert (per_unit == 32).mean() == pytest.approx(0.2, abs=0.005)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 50))
def test_constant_arrivals_at_a_rational_rate_are_exact(rows, units, n):
    ts = streams.zipf(n, rate=rows / units)["ts"]
    assert ts.tolist() == [i * units // rows for i in range(n)]


def test_numpy_numbers_are_as_good_as_python_ones():
    plain = streams.zipf(50, domain=7, rate=2.0, seed=3)
    numpy = streams.zipf(np.int64(50), domain=np.int32(7), rate=np.float32(2), seed=np.uint8(3))
    assert all(np.array_equal(plain[column], numpy[column]) for column in plain)


# --- zipf_pair ----------------------------------------------------------------------------------


def test_direct_correlation_gives_both_sides_the_same_favourites():
    left, right = streams.zipf_pair(50_000, domain=10, skew=1.0, correlation="direct", seed=1)
    law = streams.zipf_probabilities(10, 1.0)
    assert_distributed(counts(left, 10), law)
    assert_distributed(counts(right, 10), law)


def test_inverse_correlation_makes_the_favourite_of_one_side_the_rarest_of_the_other():
    left, right = streams.zipf_pair(50_000, domain=10, skew=1.0, correlation="inverse", seed=1)
    assert counts(left, 10).argmax() == counts(right, 10).argmin() == 0
    assert counts(left, 10).argmin() == counts(right, 10).argmax() == 9
    assert_distributed(counts(right, 10), streams.zipf_probabilities(10, 1.0)[::-1])


def test_no_correlation_permutes_the_favourites_of_the_right_side():
    favourites = set()
    for seed in range(20):
        left, right = streams.zipf_pair(5000, domain=10, skew=1.5, correlation="none", seed=seed)
        assert counts(left, 10).argmax() == 0
        favourites.add(int(counts(right, 10).argmax()))
    # 20 draws from 10 keys: fewer than 5 different ones has probability below 1e-5
    assert len(favourites) >= 5


def test_skew_and_rate_and_length_may_differ_by_side():
    left, right = streams.zipf_pair((1000, 4000), domain=10, skew=(0.0, 2.0), rate=(1.0, 4.0))
    assert left["ts"][-1] == right["ts"][-1] == 999
    assert_distributed(counts(left, 10), np.full(10, 0.1))
    assert_distributed(counts(right, 10), streams.zipf_probabilities(10, 2.0))


# --- gismo --------------------------------------------------------------------------------------


def test_gismo_counts_are_exact():
    law = streams.zipf_probabilities(100, 0.75)
    expected = np.rint(law * 10_000).astype(int)
    assert np.array_equal(counts(streams.gismo(10_000, seed=1), 100), expected)


def test_gismo_pair_has_the_exact_counts_on_each_side_or_over_both():
    law = streams.zipf_probabilities(100, 0.75)
    left, right = streams.gismo_pair(10_000, seed=1)
    assert np.array_equal(counts(left, 100), np.rint(law * 10_000))
    assert np.array_equal(counts(right, 100), np.rint(law * 10_000))
    left, right = streams.gismo_pair(10_000, shared=True, seed=1)
    assert np.array_equal(counts(left, 100) + counts(right, 100), np.rint(law * 20_000))
    assert abs(left["key"].size - right["key"].size) <= 1


def test_gismo_spreads_over_the_whole_horizon():
    # 24 hours of about 417 rows each; bursts make them uneven, but none is empty
    ts = streams.gismo(10_000, burst=1.5, seed=2)["ts"]
    assert np.histogram(ts, 24, (0, 1440))[0].min() > 100


def test_bursty_gismo_reuses_keys_sooner_than_its_random_permutations():
    keys = streams.gismo(10_000, burst=0.5, seed=3)["key"]
    rng = np.random.default_rng(0)
    shuffled = [np.median(reuse_gaps(rng.permutation(keys))) for _ in range(99)]
    # beyond all 99 permutations, i.e. p = 0.01, and by a wide margin
    assert np.median(reuse_gaps(keys)) < 0.5 * min(shuffled)


def test_gismo_reuse_is_the_sooner_the_smaller_the_shape():
    medians = [
        np.median(reuse_gaps(streams.gismo(10_000, burst=burst, seed=4)["key"]))
        for burst in (0.25, 0.5, 1.0, 2.0)
    ]
    assert medians == sorted(medians) and medians[0] < 0.25 * medians[-1]


def test_only_a_shared_gismo_pair_bursts_on_both_sides_at_once():
    shared = streams.gismo_pair(20_000, burst=0.5, shared=True, seed=5)
    apart = streams.gismo_pair(20_000, burst=0.5, shared=False, seed=5)
    assert hourly_correlation(*shared, 100) > 0.7
    assert abs(hourly_correlation(*apart, 100)) < 0.1


# --- copy model ---------------------------------------------------------------------------------


def test_copying_a_single_lag_gives_the_equality_rate_of_the_model():
    # P(x_n = x_{n-L}) = (1-b) + b Σ P²; standard deviation at most 0.5 / sqrt(n)
    law = streams.zipf_probabilities(50, 0.75)
    keys = streams.copy_model(200_000, domain=50, lags=3, weights=[0, 0, 1], fresh=0.4, seed=1)[
        "key"
    ]
    expected = 0.6 + 0.4 * (law**2).sum()
    assert (keys[3:] == keys[:-3]).mean() == pytest.approx(expected, abs=2 / np.sqrt(200_000))


def test_equality_rates_of_the_copy_model_solve_its_yule_walker_equations():
    # ρ(k) = b s₂ + Σ_j a_j ρ(|k-j|) with ρ(0) = 1 (§A2.3); lags 1..3 with unequal weights
    law, b, a = streams.zipf_probabilities(50, 0.75), 0.3, 0.7 * np.array([0.5, 0.3, 0.2])
    s2 = (law**2).sum()
    system, known = np.eye(3), np.full(3, b * s2)
    for k in (1, 2, 3):
        for j in (1, 2, 3):
            if k == j:
                known[k - 1] += a[j - 1]
            else:
                system[k - 1, abs(k - j) - 1] -= a[j - 1]
    rho = np.linalg.solve(system, known)
    keys = streams.copy_model(400_000, domain=50, lags=3, weights=[5, 3, 2], fresh=b, seed=2)["key"]
    measured = [(keys[k:] == keys[:-k]).mean() for k in (1, 2, 3)]
    # rows are correlated over about 1/b lags, so the standard deviation is some 0.002
    np.testing.assert_allclose(measured, rho, atol=0.01)


def test_copy_model_leaves_the_marginal_law_alone():
    # A fresh draw founds a family of S copies (each row is copied 1-b times on average), with
    # E S² / E S = 1/b² = 25 (Galton-Watson); so many times is chi-square larger.
    stream = streams.copy_model(400_000, domain=50, lags=20, fresh=0.2, seed=3)
    assert_distributed(counts(stream, 50), streams.zipf_probabilities(50, 0.75), spread=25)


def test_copy_model_of_fresh_draws_alone_is_independent():
    stream = streams.copy_model(200_000, domain=50, fresh=1.0, seed=4)
    law = streams.zipf_probabilities(50, 0.75)
    assert_distributed(counts(stream, 50), law)
    keys = stream["key"]
    assert (keys[1:] == keys[:-1]).mean() == pytest.approx((law**2).sum(), abs=0.005)


def test_copy_model_without_fresh_draws_lives_on_its_first_rows():
    keys = streams.copy_model(5000, domain=10**6, skew=0.0, lags=5, fresh=0.0, seed=5)["key"]
    # row 0 is fresh; each of rows 1..4 may be (its lag reaches before the start); no later one
    assert set(keys) == set(keys[:5])


def test_lags_of_weight_zero_are_never_drawn():
    keys = streams.copy_model(
        2000, domain=10**6, skew=0.0, lags=4, weights=[0, 1, 0, 0], fresh=0.0, seed=6
    )["key"]
    assert np.array_equal(keys[2:], keys[:-2])


def test_only_a_shared_copy_pair_repeats_the_other_side():
    # Share of right rows whose key the left had among its last 25: lag <= 50 of the process.
    def found(left, right):
        windows = np.lib.stride_tricks.sliding_window_view(left["key"], 25)
        return (windows[:-1] == right["key"][25:, None]).any(axis=1).mean()

    options = {"domain": 10_000, "skew": 0.0, "lags": 50, "fresh": 0.2, "seed": 7}
    assert found(*streams.copy_pair(20_000, shared=True, **options)) > 0.5
    assert found(*streams.copy_pair(20_000, shared=False, **options)) < 0.02


def test_dealing_a_process_gives_each_side_half_of_it_at_random():
    goes_left = streams._deal(100_001, np.random.default_rng(1))
    assert abs(goes_left.sum() - 50_000.5) == 0.5
    assert (goes_left[0:-1:2] ^ goes_left[1::2]).all()
    # even positions go left half of the time: 50 000 coins, four standard deviations
    assert goes_left[0::2].mean() == pytest.approx(0.5, abs=2 / np.sqrt(50_000))


# --- drift and random walks ---------------------------------------------------------------------


def test_drift_changes_the_favourite_every_period_and_on_both_sides_alike():
    left, right = streams.drift_pair(20_000, domain=50, skew=1.5, period=1000, seed=1)
    favourites = [
        [np.bincount(s["key"][s["ts"] // 1000 == epoch]).argmax() for epoch in range(20)]
        for s in (left, right)
    ]
    assert favourites[0] == favourites[1]
    changes = np.count_nonzero(np.diff(favourites[0]))
    # each of 19 changes keeps its favourite with probability 1/50
    assert changes >= 16


def test_drift_at_unequal_rates_follows_time_not_rows():
    left, right = streams.drift_pair(
        (2000, 8000), domain=30, skew=60.0, period=100, rate=(1.0, 4.0), seed=2
    )
    # with this skew only rank 1 occurs, so the key is a function of time alone
    key_at = dict(zip(left["ts"].tolist(), left["key"].tolist(), strict=True))
    assert all(
        key_at[t] == k for t, k in zip(right["ts"].tolist(), right["key"].tolist(), strict=True)
    )


def test_drift_keeps_the_zipf_law_within_a_period():
    left, _ = streams.drift_pair(50_000, domain=20, skew=1.0, period=50_000, seed=3)
    seen = np.sort(counts(left, 20))[::-1]
    # sorting counts biases them by far less than the spread allowed here
    assert_distributed(seen, streams.zipf_probabilities(20, 1.0))


def test_drift_averages_out_to_uniform_over_many_periods():
    left, _ = streams.drift_pair(100_000, domain=10, skew=1.0, period=10, seed=4)
    # one period of 10 rows shares a permutation, so a count has up to 10 Σ P² = 1.9 times the
    # multinomial variance
    assert_distributed(counts(left, 10), np.full(10, 0.1), spread=2.0)


def test_drift_over_a_table_larger_than_one_chunk_is_still_a_permutation():
    # 2**22 // 3_000_000 = 1 epoch a chunk
    left, right = streams.drift_pair(6, domain=3_000_000, skew=60.0, period=2, seed=5)
    assert np.array_equal(left["key"], right["key"])
    assert [len(set(left["key"][i : i + 2])) for i in (0, 2, 4)] == [1, 1, 1]
    assert len(set(left["key"])) == 3


def test_random_walk_has_the_autocorrelation_and_spread_of_its_ar1():
    keys = streams.random_walk(400_000, domain=200, step=1.0, persistence=0.95, seed=1)["key"]
    # variance 1 / (1 - 0.95²) = 10.26, plus 1/12 for rounding; memory of 20 rows, so the
    # relative standard deviation of the variance is about sqrt(2 * 20 / 400 000) = 1 %
    assert keys.var() == pytest.approx(10.256 + 1 / 12, rel=0.05)
    assert keys.mean() == pytest.approx(99.5, abs=0.5)
    assert np.corrcoef(keys[1:], keys[:-1])[0, 1] == pytest.approx(0.95 * 10.256 / 10.34, abs=0.005)


def test_a_pure_random_walk_stays_in_the_domain_and_visits_all_of_it():
    keys = streams.random_walk(50_000, domain=20, persistence=1.0, seed=2)["key"]
    assert set(keys) == set(range(20))
    # held at the walls it must come back: no wall takes more than a quarter of the rows
    assert np.bincount(keys).max() < 0.25 * keys.size


def test_shared_walks_are_seen_by_both_sides_and_separate_ones_are_not():
    shared = streams.random_walk_pair(100_000, shared=True, seed=3)
    apart = streams.random_walk_pair(100_000, shared=False, seed=3)
    # walk variance 50.25, noise 1 + 1/12: correlation 0.979; the walk forgets in 100 rows, so
    # two separate ones have a correlation with standard deviation near 0.03
    assert np.corrcoef(shared[0]["key"], shared[1]["key"])[0, 1] == pytest.approx(0.979, abs=0.01)
    assert abs(np.corrcoef(apart[0]["key"], apart[1]["key"])[0, 1]) < 0.15


# --- interval locality --------------------------------------------------------------------------


def test_interval_rows_fall_into_their_block_of_the_master_table():
    stream = streams.interval_locality(50_000, master_rows=10_000, repeats=4, seed=1)
    # K = 2500 keys, 25 blocks of 100; 2000 rows an interval
    assert np.array_equal(stream["key"] // 100, np.arange(50_000) // 2000)


def test_interval_keys_are_zipf_within_their_block():
    stream = streams.interval_locality(100_000, master_rows=500, intervals=25, seed=2)
    ranks = np.bincount(stream["key"] % 20, minlength=20)
    assert_distributed(ranks, streams.zipf_probabilities(20, 1.0))


def test_blocks_that_do_not_divide_evenly_cover_every_key():
    stream = streams.interval_locality(50_000, master_rows=83, intervals=25, skew=0.0, seed=3)
    assert set(stream["key"]) == set(range(83))


# --- importance ---------------------------------------------------------------------------------


def test_importance_lies_in_its_two_ranges_in_the_stated_share():
    values = streams.importance(100_000, seed=1)
    high = values >= 50
    assert ((values[high] <= 100) & (values[high] >= 50)).all()
    assert ((values[~high] <= 10) & (values[~high] >= 1)).all()
    # standard deviation sqrt(.05 * .95 / 100 000) = 0.0007
    assert high.mean() == pytest.approx(0.05, abs=0.003)
    assert values[~high].mean() == pytest.approx(5.5, abs=0.05)
    assert values[high].mean() == pytest.approx(75, abs=1)


def test_importance_without_by_key_ignores_the_keys():
    keys = streams.zipf(1000, seed=2)["key"]
    assert np.array_equal(streams.importance(keys, seed=3), streams.importance(1000, seed=3))


def test_importance_by_key_marks_whole_keys_and_the_same_ones_for_every_stream():
    keys = np.repeat(np.arange(2000), 5)
    values = streams.importance(keys, by_key=True, seed=1)
    per_key = (values >= 50).reshape(2000, 5)
    assert (per_key.all(axis=1) == per_key.any(axis=1)).all()
    # 2000 keys, share 0.05: standard deviation 0.005
    assert per_key[:, 0].mean() == pytest.approx(0.05, abs=0.02)
    others = streams.importance(np.arange(2000)[::-1].copy(), by_key=True, seed=2)
    assert np.array_equal(others[::-1] >= 50, per_key[:, 0])
    assert not np.array_equal(others[::-1], values[::5])


def test_another_key_seed_marks_other_keys():
    keys = np.arange(2000)
    marked = [streams.importance(keys, by_key=True, key_seed=s) >= 50 for s in (0, 1)]
    # two sets of about 100 out of 2000 share about 5
    assert (marked[0] & marked[1]).sum() < 20


# --- by name, and refusals ----------------------------------------------------------------------


def test_every_public_stream_function_is_registered_under_its_own_name():
    returning_streams = {
        name
        for name, function in inspect.getmembers(streams, inspect.isfunction)
        if not name.startswith("_")
        and function.__module__ == streams.__name__
        and inspect.signature(function).return_annotation
        in (streams.Stream, tuple[streams.Stream, streams.Stream])
    }
    assert set(KINDS) == returning_streams
    assert all(streams.GENERATORS[kind].__name__ == kind for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_generator_lists_a_summary_and_its_options(kind):
    assert 20 < len(streams.summary(kind)) <= 100 and streams.summary(kind).endswith(".")
    options = streams.options(kind)
    assert options["seed"].default == 0
    assert all(option.annotation is not option.empty for option in options.values())
    for name in options:
        assert name in inspect.getdoc(streams.GENERATORS[kind])


def test_generate_is_the_generator_called_by_name():
    by_name = streams.generate("zipf", 50, domain=7, seed=3)
    direct = streams.zipf(50, domain=7, seed=3)
    assert all(np.array_equal(by_name[column], direct[column]) for column in direct)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("zpif", 5, {}), "unknown generator 'zpif', choose from zipf, zipf_pair, gismo"),
        (("zipf", 5, {"sped": 1}), "generator zipf has no option 'sped', choose from domain, skew"),
        (
            ("interval_locality", 5, {}),
            "generator interval_locality needs the option 'master_rows'",
        ),
        (("zipf", -1, {}), r"n must be an integer in \[0, 2\*\*53\], got -1"),
        (("zipf", 2.5, {}), r"n must be an integer in \[0, 2\*\*53\], got 2.5"),
        (("zipf", True, {}), "n must be an integer"),
        (("zipf", 5, {"domain": 0}), r"domain must be an integer in \[1, 2\*\*53\], got 0"),
        (("zipf", 5, {"domain": "x"}), "domain must be an integer .* got 'x'"),
        (("zipf", 5, {"skew": -0.1}), "skew must be a number >= 0, got -0.1"),
        (("zipf", 5, {"skew": float("nan")}), "skew must be a number >= 0, got nan"),
        (("zipf", 5, {"rate": 0}), "rate must be a number > 0, got 0"),
        (("zipf", 5, {"rate": "fast"}), "rate must be a number > 0, got 'fast'"),
        (("zipf", 10**6, {"rate": 1e-12}), r"rate must be a number > \S+ so that 1000000 rows end"),
        (("zipf", 5, {"seed": -1}), "seed must be an integer"),
        (("zipf", 5, {"arrivals": "slow"}), "arrivals must be one of constant, poisson, bursty"),
        (
            ("zipf", 5, {"arrivals": "bursty", "rate": 0.1, "cycle": 5.0}),
            "cycle must be a number >= 1/rate = 10 for bursty arrivals, got 5",
        ),
        (("zipf_pair", 5, {"correlation": "some"}), "correlation must be one of direct, inverse"),
        (("zipf_pair", 5, {"skew": (1.0, 1.0, 1.0)}), "skew must be one value or a .* pair"),
        (("zipf_pair", (5, -5), {}), "n must be an integer .* got -5"),
        (("gismo", 5, {"burst": 0}), "burst must be a number > 0, got 0"),
        (("gismo", 5, {"horizon": 0}), "horizon must be an integer .* got 0"),
        (("gismo_pair", 5, {"shared": 1}), "shared must be True or False, got 1"),
        (("copy_model", 5, {"fresh": 1.5}), r"fresh must be a number in \[0, 1\], got 1.5"),
        (("copy_model", 5, {"lags": 0}), "lags must be an integer .* got 0"),
        (("copy_model", 5, {"weights": [1, 2]}), "weights must be 50 numbers, one per lag"),
        (("copy_model", 5, {"lags": 2, "weights": [0, 0]}), "weights must be >= 0 and not all 0"),
        (("copy_pair", 5, {"lags": 2, "weights": [2, -1]}), "weights must be >= 0 and not all 0"),
        (("copy_model", 5, {"lags": 2, "weights": "ab"}), "weights must be 2 numbers"),
        (("drift_pair", 5, {"period": 0}), "period must be an integer .* got 0"),
        (("drift_pair", 5, {"period": 0.5}), "period must be an integer .* got 0.5"),
        (("random_walk", 5, {"step": -1}), "step must be a number >= 0, got -1"),
        (("random_walk", 5, {"persistence": 1.1}), r"persistence must be a number in \[0, 1\]"),
        (("random_walk_pair", 5, {"noise": -1}), "noise must be a number >= 0, got -1"),
        (
            ("interval_locality", 5, {"master_rows": 10}),
            r"intervals must be at most master_rows // repeats = 10 keys, got 25",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line_that_names_it(call, message):
    kind, n, options = call
    with pytest.raises(ValueError, match=f"^{message}") as refusal:
        streams.generate(kind, n, **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_or_keys": -1}, "n must be an integer .* got -1"),
        ({"n_or_keys": np.array([0.5])}, "keys must be a 1-d integer array, got 1-d float64"),
        ({"n_or_keys": 5, "by_key": True}, "by_key=True needs the array of keys, got n=5"),
        ({"n_or_keys": 5, "rare": 2}, r"rare must be a number in \[0, 1\], got 2"),
        ({"n_or_keys": 5, "usual": (3, 1)}, "usual must be a number >= 3, got 1"),
        ({"n_or_keys": 5, "high": 50}, r"high must be a \(low, high\) pair of numbers, got 50"),
    ],
)
def test_importance_refuses_bad_input_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        streams.importance(**arguments)
