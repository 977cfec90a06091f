"""Locality measures and the model of li2006, against hand-worked examples and slow oracles.

Statistical tests have a fixed seed and a stated bound.
"""

import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinweir import locality, streams
from joinweir.errors import JoinweirError
from joinweir.locality import EqualityCounts, LocalityModel, Popularity

SHORT = st.lists(st.integers(0, 5), min_size=2, max_size=60)


def copied(n, seed, **law):
    return streams.copy_model(n, seed=seed, **law)["key"]


def independent(n, seed, **law):
    return streams.zipf(n, seed=seed, **law)["key"]


def rmse(errors):
    return float(np.sqrt(np.mean(np.square(errors))))


# --- naive: slow and obvious, sharing no code with the package ----------------------------------


def naive_iad(keys):
    gaps = []
    for n, key in enumerate(keys):
        for k in range(1, n + 1):
            if keys[n - k] == key:
                gaps.append(k)
                break
    return gaps


def naive_stack_distance(keys):
    found = []
    for n, key in enumerate(keys):
        for m in range(n - 1, -1, -1):
            if keys[m] == key:
                found.append(len(set(keys[m + 1 : n])))
                break
    return found


def naive_weights(a, b, T):
    """Column sums of the power of the characteristic matrix (A2.4)."""
    h = len(a)
    size = max(T, h)  # for T < h all lags stay in the state, and only T rows are summed
    matrix = np.zeros((size + 1, size + 1))
    matrix[0, :h], matrix[0, size], matrix[size, size] = a, b, 1.0
    for i in range(1, size):
        matrix[i, i - 1] = 1.0
    sums = np.linalg.matrix_power(matrix, T)[:T].sum(axis=0)
    return sums[:h], sums[h:size], sums[size]


def naive_law(model, past, all_keys):
    """P(next key | past) for every key, one lag at a time."""
    law = dict.fromkeys(all_keys, 0.0)
    fresh = model.b
    for j, weight in enumerate(model.a, start=1):
        if j <= len(past):
            law[past[-j]] += weight
        else:
            fresh += weight
    for key, p in zip(model.popularity.keys.tolist(), model.popularity.probabilities):
        law[key] += fresh * p
    return law


def naive_matches(keys, h):
    return [sum(keys[n] == keys[n - k] for n in range(k, len(keys))) for k in range(1, h + 1)]


def naive_future(model, recent, T, runs, rng):
    """Counts of each key in T simulated rows, `runs` times."""
    law = np.r_[model.b, model.a]
    counts = np.zeros((runs, model.popularity.keys.size))
    for run in range(runs):
        past = list(recent)
        for _ in range(T):
            lag = rng.choice(law.size, p=law)
            if lag:
                past.append(past[-lag])
            else:
                past.append(rng.choice(law_keys(model), p=model.popularity.probabilities))
        for key in past[len(recent) :]:
            counts[run, law_keys(model).index(key)] += 1
    return counts


def law_keys(model):
    return model.popularity.keys.tolist()


# --- distances ----------------------------------------------------------------------------------


def test_distances_of_a_stream_worked_by_hand():
    keys = list("abcabba")
    # rows 3 (a), 4 (b), 5 (b), 6 (a) repeat rows 0, 1, 4, 3
    assert locality.iad(keys).tolist() == [3, 3, 1, 3]
    assert locality.stack_distance(keys).tolist() == [2, 2, 0, 1]


@given(SHORT)
def test_distances_agree_with_the_quadratic_oracle(keys):
    assert locality.iad(keys).tolist() == naive_iad(keys)
    assert locality.stack_distance(keys).tolist() == naive_stack_distance(keys)


def test_stack_distance_agrees_with_the_oracle_on_a_long_stream():
    keys = copied(1500, 3, domain=300, fresh=0.3).tolist()
    assert locality.stack_distance(keys).tolist() == naive_stack_distance(keys)


def test_share_of_stack_distances_below_c_is_the_hit_rate_of_lru():
    keys, size = independent(3000, 1, domain=80).tolist(), 20
    cache, hits = [], 0
    for key in keys:
        if key in cache:
            hits += 1
            cache.remove(key)
        cache.append(key)
        cache = cache[-size:]
    assert (locality.stack_distance(keys) < size).sum() == hits


def test_distances_do_not_depend_on_how_keys_are_written():
    keys = independent(500, 2, domain=30)
    texts = [f"k{key}" for key in keys]
    spellings = [
        keys.astype(np.int8),
        keys.astype(np.uint64),
        np.array(texts),
        texts,
        np.array(texts, dtype=object),
        [text.encode() for text in texts],
        np.array([text.encode() for text in texts]),
        keys.astype("M8[s]"),
        keys.astype(float),
    ]
    for spelling in spellings:
        assert (locality.iad(spelling) == locality.iad(keys)).all()
        assert (locality.stack_distance(spelling) == locality.stack_distance(keys)).all()


def test_texts_that_differ_in_a_closing_nul_are_different_keys():
    assert locality.iad(["a", "a\0", "a"]).tolist() == [2]
    assert locality.iad([b"a", b"a\0", b"a"]).tolist() == [2]


def test_cdf_is_the_share_of_distances_up_to_each_value():
    values, shares = locality.cdf([3, 3, 1, 3])
    assert values.tolist() == [1, 3] and shares.tolist() == [0.25, 1.0]
    assert [part.size for part in locality.cdf([])] == [0, 0]


def test_permuting_keeps_the_counts_and_depends_on_the_seed_alone():
    keys = copied(1000, 0, domain=50)
    one = locality.permuted(keys, seed=1)
    assert (np.sort(one) == np.sort(keys)).all()
    assert (one == locality.permuted(keys, seed=1)).all()
    assert (one != locality.permuted(keys, seed=2)).any()
    assert (one != keys).any()


def test_correlation_shortens_distances_below_the_permuted_stream():
    keys = copied(20_000, 4, domain=500, skew=0.5, fresh=0.2)
    shuffled = locality.permuted(keys)
    assert np.median(locality.iad(keys)) < np.median(locality.iad(shuffled)) / 2
    assert np.median(locality.stack_distance(keys)) < np.median(locality.stack_distance(shuffled))


# --- the law of distances between independent rows (eq. 1) ---------------------------------------


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.0, 2.0])
def test_eq_1_and_its_tail_sum_to_one(skew):
    p = streams.zipf_probabilities(300, skew)
    k_max = 5000
    tail = (p * (1 - p) ** k_max).sum()  # Σ_{k > k_max} of each key's geometric law
    assert locality.iad_independent(p, k_max).sum() + tail == pytest.approx(1.0, abs=1e-13)


def test_eq_1_of_uniform_keys_is_geometric():
    k = np.arange(1, 2001)
    expected = 0.02 * 0.98 ** (k - 1)
    assert locality.iad_independent(np.full(50, 0.02), 2000) == pytest.approx(expected, rel=1e-12)


def test_eq_1_stays_exact_at_a_million_rows():
    p = np.array([1 - 1e-6, 1e-6])
    density = locality.iad_independent(p, 10**6)
    exact = 1e-12 * math.exp((10**6 - 1) * math.log1p(-1e-6))
    assert density[-1] == pytest.approx(exact, rel=1e-9)
    assert (density >= 0).all()


def test_eq_1_of_one_certain_key_is_distance_one():
    assert locality.iad_independent([1.0, 0.0], 3).tolist() == [1.0, 0.0, 0.0]


def test_eq_1_is_the_law_of_a_permuted_stream_within_one_percent():
    # 100,000 rows: 4 standard deviations of a share are 4 / (2 √100,000) = 0.0063; first rows
    # of a key, which have no distance, add at most 100 / 100,000.
    keys = locality.permuted(copied(100_000, 5, domain=100, skew=1.0, fresh=0.1), seed=5)
    k_max = 2000
    measured = np.bincount(locality.iad(keys), minlength=k_max + 1)[1 : k_max + 1] / keys.size
    law = locality.iad_independent(locality.popularity(keys), k_max)
    assert np.abs(np.cumsum(measured) - np.cumsum(law)).max() < 0.01
    # and the unpermuted stream does not follow it
    measured = np.bincount(locality.iad(copied(100_000, 5, domain=100, skew=1.0, fresh=0.1)))
    assert abs(measured[1:51].sum() / keys.size - law[:50].sum()) > 0.1


def test_theorem_1_distances_of_zipf_1_fall_like_1_over_k_in_mid_range():
    # c = 1 / H_N = 0.095 at N = 20,000: the range 1/c << k << N/c is 11 << k << 209,000.
    p = streams.zipf_probabilities(20_000, 1.0)
    density = locality.iad_independent(p, 5000)
    k = np.unique(np.geomspace(100, 5000, 60).astype(int))
    slope = np.polyfit(np.log(k), np.log(density[k - 1]), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.03)
    assert density[1000 - 1] * 1000 == pytest.approx(p[0], rel=0.05)  # d(k) ≈ c / k


# --- popularity ---------------------------------------------------------------------------------


def test_popularity_ranks_by_count_and_then_by_key():
    found = locality.popularity(["b", "c", "a", "c", "b", "d", "c"])
    assert found.keys.tolist() == ["c", "b", "a", "d"]
    assert found.counts.tolist() == [3, 2, 1, 1]
    assert found.probabilities == pytest.approx([3 / 7, 2 / 7, 1 / 7, 1 / 7])


@pytest.mark.parametrize("skew", [0.0, 0.3, 0.7126, 1.0, 1.5, 3.0])
def test_an_exact_zipf_law_is_recovered_by_both_fits(skew):
    fit = Popularity.known(streams.zipf_probabilities(1000, skew)).zipf()
    assert fit.exponent == pytest.approx(skew, abs=1e-9)
    assert fit.mle == pytest.approx(skew, abs=1e-6)
    assert fit.r_squared == pytest.approx(1.0, abs=1e-9)
    assert fit.standard_error < 1e-9
    assert fit.ks < 1e-6


def test_zipf_line_worked_by_hand():
    # ln counts 3, 1, 0 (times ln e) at ln ranks 0, ln 2, ln 3
    x, y = np.log([1, 2, 3]), np.array([3.0, 1.0, 0.0])
    p = np.exp(y)
    fit = Popularity.known(p / p.sum()).zipf()
    slope, intercept = np.polyfit(x, y, 1)
    residual = ((y - slope * x - intercept) ** 2).sum()
    assert fit.exponent == pytest.approx(-slope)
    assert fit.r_squared == pytest.approx(1 - residual / ((y - y.mean()) ** 2).sum())
    assert fit.standard_error == pytest.approx(np.sqrt(residual / ((x - x.mean()) ** 2).sum()))


def test_likelihood_finds_the_exponent_of_a_sample_within_two_percent():
    fit = locality.popularity(independent(200_000, 6, domain=200, skew=0.9)).zipf()
    assert fit.mle == pytest.approx(0.9, rel=0.02)
    assert fit.ks < 0.01


def test_no_other_exponent_is_likelier_than_the_mle():
    found = locality.popularity(independent(3000, 7, domain=100, skew=0.8))
    x = np.log(np.arange(1, found.keys.size + 1))

    def likelihood(s):
        return -s * (found.probabilities @ x) - np.log(np.exp(-s * x).sum())

    best = found.zipf().mle
    assert all(likelihood(best) >= likelihood(best + d) for d in (-0.1, -1e-3, 1e-3, 0.1))


def test_a_geometric_law_is_further_from_zipf_than_a_zipf_law():
    p = 0.9 ** np.arange(100)
    assert Popularity.known(p / p.sum()).zipf().ks > 0.1


def test_zipf_leaves_open_what_one_or_two_keys_cannot_tell():
    one, two = locality.popularity([5, 5]).zipf(), locality.popularity([1, 1, 2]).zipf()
    assert math.isnan(one.exponent) and math.isnan(one.mle) and one.ks == 0.0
    assert math.isnan(two.standard_error) and two.exponent == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([], "not empty"),
        ([0.5, 0.4], "sum to 1"),
        ([1.5, -0.5], ">= 0"),
        ([math.nan, 1.0], ">= 0"),
        (["x"], "numbers"),
        ([[1.0]], "1-d"),
    ],
)
def test_impossible_probabilities_are_named(p, message):
    with pytest.raises(JoinweirError, match=message):
        locality.iad_independent(p, 5)


# --- what the model expects of the next rows ----------------------------------------------------


def random_model(h, seed, domain=6):
    rng = np.random.default_rng(seed)
    law = rng.dirichlet(np.ones(h + 1))
    return LocalityModel(law[1:], law[0], Popularity.known(rng.dirichlet(np.ones(domain))))


@pytest.mark.parametrize("h", [1, 2, 5, 12])
@pytest.mark.parametrize("T", [0, 1, 2, 4, 5, 6, 40])
def test_closed_form_equals_the_column_sums_of_the_matrix_power(h, T):
    model = random_model(h, seed=100 * h + T)
    cs, fresh = model.weights(T)
    expected, beyond_h, expected_fresh = naive_weights(model.a, model.b, T)
    assert cs == pytest.approx(expected, abs=1e-12)
    assert fresh == pytest.approx(expected_fresh, abs=1e-12)
    assert beyond_h == pytest.approx(0.0, abs=1e-15)


@given(st.integers(1, 30), st.integers(0, 300), st.integers(0, 1000))
def test_weights_sum_to_t(h, T, seed):
    cs, fresh = random_model(h, seed).weights(T)
    assert cs.sum() + fresh == pytest.approx(T, rel=1e-10)
    assert (cs >= 0).all() and fresh >= 0


def test_weights_worked_by_hand():
    # a = (1/2, 1/4), b = 1/4: u = 1, 1/2, 1/2; U = 1, 3/2, 2.
    model = LocalityModel([0.5, 0.25], 0.25, Popularity.known([0.5, 0.5]))
    cs, fresh = model.weights(3)
    assert cs.tolist() == [0.5 * 2 + 0.25 * 1.5, 0.25 * 2]
    assert fresh == 0.25 * (1 + 1.5 + 2)


def test_independent_rows_are_expected_by_popularity_alone():
    model = LocalityModel([0.0, 0.0], 1.0, Popularity.known([0.7, 0.3]))
    assert model.expected_occurrences([1, 1], 10)[1] == pytest.approx([7.0, 3.0])


def test_one_step_expectation_is_the_law_of_the_next_row():
    model = random_model(4, seed=9)
    past = [0, 3, 3, 1, 0]
    keys, expected = model.expected_occurrences(past, 1)
    law = naive_law(model, past, keys.tolist())
    assert expected == pytest.approx([law[key] for key in keys.tolist()])


def test_expected_occurrences_are_the_mean_of_simulated_futures():
    # 4000 futures; each mean within 4 standard errors.
    model = LocalityModel([0.3, 0.1, 0.35], 0.25, Popularity.known([0.5, 0.3, 0.2]))
    recent, T = [2, 2, 1], 8
    counts = naive_future(model, recent, T, 4000, np.random.default_rng(10))
    _, expected = model.expected_occurrences(recent, T)
    error = counts.std(axis=0) / np.sqrt(len(counts))
    assert (np.abs(counts.mean(axis=0) - expected) < 4 * error).all()
    assert expected.sum() == pytest.approx(T)


def test_expected_occurrences_are_the_mean_of_the_copy_model():
    # All 60,000 places of a stream drawn from the model: mean of (seen - expected) within 4
    # standard errors, taken over 300 blocks since neighbouring places share rows.
    n, h, T = 60_000, 6, 20
    keys = copied(n, 11, domain=8, skew=1.0, lags=h, fresh=0.2)
    p = streams.zipf_probabilities(8, 1.0)
    model = LocalityModel(np.full(h, 0.8 / h), 0.2, Popularity.known(p))
    cs, fresh = model.weights(T)
    for key in (0, 3):
        is_key = (keys == key).astype(float)
        seen = np.convolve(is_key, np.ones(T), "valid")[h:]  # rows n … n+T-1
        recent = sum(cs[j - 1] * is_key[h - j : h - j + seen.size] for j in range(1, h + 1))
        errors = seen - recent - fresh * p[key]
        blocks = errors[: seen.size // 300 * 300].reshape(300, -1).mean(axis=1)
        assert abs(blocks.mean()) < 4 * blocks.std() / np.sqrt(300)


def test_missing_lags_count_as_fresh_draws_and_more_than_h_are_cut():
    model = random_model(3, seed=12)
    for recent in ([], [1], [0, 1], [4, 0, 1], [5, 5, 4, 0, 1]):
        assert model.expected_occurrences(recent, 7)[1].sum() == pytest.approx(7)
    long, short = ([5, 5, 4, 0, 1], [4, 0, 1])
    assert (model.expected_occurrences(long, 7)[1] == model.expected_occurrences(short, 7)[1]).all()
    assert model.expected_occurrences([], 7)[1] == pytest.approx(7 * model.popularity.probabilities)


def test_a_recent_key_that_the_popularity_does_not_know_is_expected_too():
    model = LocalityModel([0.5], 0.5, locality.popularity(["a", "b"]))
    keys, expected = model.expected_occurrences(["zebra"], 1)
    assert keys.tolist() == ["a", "b", "zebra"]
    assert expected.tolist() == [0.25, 0.25, 0.5]
    keys, expected = model.expected_occurrences([7], 1)
    assert keys.tolist() == ["a", "b", 7] and expected[2] == 0.5


# --- estimating ---------------------------------------------------------------------------------


@given(SHORT, st.integers(1, 8), st.sampled_from(locality.ESTIMATORS))
@example([0, 1] * 20, 4, "yule_walker")  # a singular system
@example([0, 1] * 20, 4, "paper")
@example([0, 1, 2, 3, 4, 5], 5, "paper")
def test_every_estimate_lies_on_the_simplex(keys, h, estimator):
    model = locality.fit(keys, h, estimator)
    assert model.h == min(h, len(keys) - 1)
    assert (model.a >= 0).all() and 0 <= model.b <= 1
    assert model.b + model.a.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("estimator", locality.ESTIMATORS)
def test_unequal_lag_weights_are_found(estimator):
    # 100,000 rows: the standard error of a lag's weight is below 0.006 for all estimators.
    truth = np.array([0.4, 0.0, 0.2, 0.1])
    keys = copied(100_000, 13, domain=200, skew=0.8, lags=4, fresh=0.3, weights=truth)
    model = locality.fit(keys, 4, estimator)
    assert model.a == pytest.approx(truth, abs=0.025)
    assert model.b == pytest.approx(0.3, abs=0.025)


@pytest.mark.parametrize("estimator", ["em", "yule_walker"])
def test_fresh_share_falls_to_its_true_value_at_the_true_lag_and_stays(estimator):
    # li2006 figure 2; 100,000 rows, within 0.01 for h >= 50.
    keys = copied(100_000, 14, domain=500, skew=0.8, lags=50, fresh=0.1)
    b = locality.b_over_h(keys, [5, 20, 50, 80], estimator)
    assert b[0] > b[1] + 0.05 and b[1] > b[2] + 0.05
    assert b[2:] == pytest.approx([0.1, 0.1], abs=0.01)


@pytest.mark.parametrize(
    ("estimator", "low"), [("em", 0.98), ("yule_walker", 0.98), ("paper", 0.9)]
)
def test_fresh_share_of_the_permuted_stream_stays_near_one(estimator, low):
    keys = locality.permuted(copied(100_000, 14, domain=500, skew=0.8, lags=50, fresh=0.1))
    assert (locality.b_over_h(keys, [5, 50, 80], estimator) > low).all()


def test_em_and_yule_walker_err_less_than_the_papers_least_squares():
    # D = 200, Zipf 0.8, h = 5, N = 8000, b = 0.3; 24 seeds give 0.0055, 0.0071 and 0.0127.
    errors = {name: [] for name in locality.ESTIMATORS}
    for seed in range(24):
        keys = copied(8000, seed, domain=200, skew=0.8, lags=5, fresh=0.3)
        for name in errors:
            errors[name].append(locality.fit(keys, 5, name).b - 0.3)
    assert rmse(errors["em"]) < 0.008
    assert rmse(errors["yule_walker"]) < 0.009
    assert max(rmse(errors["em"]), rmse(errors["yule_walker"])) < rmse(errors["paper"]) * 0.75


def test_only_the_papers_estimate_depends_on_how_keys_are_numbered():
    keys = copied(5000, 15, domain=100, skew=0.8, lags=5, fresh=0.3)
    renamed = np.random.default_rng(0).permutation(100)[keys]
    for name in locality.ESTIMATORS:
        one, two = locality.fit(keys, 5, name).b, locality.fit(renamed, 5, name).b
        assert (abs(one - two) > 1e-4) == (name == "paper")


def test_papers_estimate_solves_the_normal_equations_of_the_paper():
    keys = copied(3000, 16, domain=40, skew=0.5, lags=3, fresh=0.4)
    x = keys - keys.min() + 1.0
    assert np.unique(keys).size == x.max()  # every key occurs: its number is its code
    rows = [np.r_[x[n - 3 : n][::-1], x.mean()] for n in range(3, x.size)]
    expected = np.linalg.lstsq(np.array(rows), x[3:], rcond=None)[0]
    model = locality.fit(keys, 3, "paper")
    raw = locality._least_squares(keys - keys.min(), 3)
    assert raw == pytest.approx(np.r_[expected[3], expected[:3]], abs=1e-9)
    assert model.a == pytest.approx(expected[:3], abs=0.01)  # the projection moves it little


def test_em_finds_the_largest_likelihood():
    keys = copied(2000, 17, domain=30, lags=3, fresh=0.4).tolist()
    h = 3
    best = locality.fit(keys, h, tolerance=1e-6)
    p = dict(zip(best.popularity.keys.tolist(), best.popularity.probabilities))

    def likelihood(w):
        return sum(
            math.log(w[0] * p[keys[n]] + sum(w[j] * (keys[n - j] == keys[n]) for j in (1, 2, 3)))
            for n in range(h, len(keys))
        )

    w = np.r_[best.b, best.a]
    top = likelihood(w)
    rng = np.random.default_rng(18)
    for size in (0.3, 0.03, 0.003):
        for _ in range(10):
            assert likelihood((1 - size) * w + size * rng.dirichlet(np.ones(4))) <= top + 1e-6


@pytest.mark.parametrize(
    "keys",
    [
        copied(3000, 26, domain=40, lags=8, fresh=0.2),
        independent(3000, 27, domain=3, skew=2.0),
        np.arange(3000) % 7,
        np.repeat(np.arange(1500) % 40, 2),
        np.r_[np.zeros(2999, int), 1],
    ],
    ids=["copied", "few-keys", "periodic", "doubled", "nearly-constant"],
)
def test_newton_steps_reach_at_least_where_a_thousand_plain_em_steps_lead(keys):
    h = 8
    equal = np.array([keys[h:] == keys[h - j : keys.size - j] for j in range(1, h + 1)])
    p = np.bincount(keys)[keys[h:]] / keys.size
    parts = np.vstack([p, equal])
    w = np.full(h + 1, 1 / (h + 1))
    for _ in range(1000):
        w = (w[:, None] * parts / (w @ parts)).mean(axis=1)
    model = locality.fit(keys, h)
    reached = np.log(np.r_[model.b, model.a] @ parts).sum()
    assert reached > np.log(w @ parts).sum() - 0.02


def test_em_stops_at_the_given_number_of_passes():
    keys = independent(5000, 19, domain=200)
    rough = locality.fit(keys, 20, max_iterations=1)
    assert rough.b < locality.fit(keys, 20).b


@given(st.lists(SHORT | st.just([]), min_size=1, max_size=6), st.integers(1, 7))
def test_merged_counts_equal_one_pass_whatever_the_cuts(parts, h):
    whole = [key for part in parts for key in part]
    once = EqualityCounts(h).update(whole)
    assert once.matches.tolist() == naive_matches(whole, h)
    chunks, left = EqualityCounts(h), EqualityCounts(h)
    pieces = [EqualityCounts(h).update(part) for part in parts]
    for part, piece in zip(parts, pieces):
        chunks.update(part)
        left = left.merge(piece)
    right = EqualityCounts(h)
    for piece in reversed(pieces):  # merging is associative
        right = piece.merge(right)
    for other in (chunks, left, right):
        assert other.n_rows == len(whole)
        assert other.matches.tolist() == once.matches.tolist()
        if len(whole) >= 2:
            assert other.model().to_json() == once.model().to_json()


def test_counts_in_rows_of_one_equal_one_pass():
    keys = copied(300, 20, domain=10, lags=5)
    one_by_one = EqualityCounts(8)
    for key in keys:
        one_by_one.update([f"key {key}"])
    once = EqualityCounts(8).update([f"key {key}" for key in keys])
    assert one_by_one.matches.tolist() == naive_matches(keys.tolist(), 8)
    assert one_by_one.model().to_json() == once.model().to_json()


def test_fit_by_yule_walker_is_the_model_of_the_counts():
    keys = copied(2000, 21, domain=20, lags=5)
    counted = EqualityCounts(5).update(keys)
    assert locality.fit(keys, 5, "yule_walker").to_json() == counted.model().to_json()
    shorter = locality.fit(keys, 3, "yule_walker")
    assert counted.model(h=3).a == pytest.approx(shorter.a, abs=1e-12)


def test_counts_refuse_another_h_and_another_type_of_keys():
    counted = EqualityCounts(3).update([1, 2])
    with pytest.raises(JoinweirError, match="same h=3"):
        counted.merge(EqualityCounts(4))
    with pytest.raises(JoinweirError, match="keep their type"):
        counted.update(["1"])
    with pytest.raises(JoinweirError, match="no rows"):
        _ = EqualityCounts(3).popularity


@pytest.mark.parametrize("raw", [[0.2, 0.3, 0.5], [2.0, -1.0, 0.0], [0.4, 0.4, 0.4], [-5, -5, -4]])
def test_projection_is_the_nearest_point_of_the_simplex(raw):
    raw = np.array(raw, dtype=float)
    point = locality._project(raw)
    grid = np.linspace(0, 1, 101)
    others = np.array([(x, y, 1 - x - y) for x in grid for y in grid if x + y <= 1 + 1e-12])
    assert point.sum() == pytest.approx(1.0) and (point >= 0).all()
    nearest = np.linalg.norm(others - raw, axis=1).min()
    assert np.linalg.norm(point - raw) <= nearest + 1e-12


# --- entropy ------------------------------------------------------------------------------------


def test_entropy_of_uniform_keys_is_ln_d():
    keys = np.random.default_rng(22).integers(0, 500, 10_000)
    exact = LocalityModel(np.zeros(50), 1.0, Popularity.known(np.full(500, 1 / 500)))
    assert exact.entropy(keys) == pytest.approx(math.log(500), rel=1e-12)
    assert exact.entropy(keys, method="log_loss") == pytest.approx(math.log(500), rel=1e-12)


def test_estimated_entropy_of_uniform_keys_is_ln_d_less_the_plug_in_bias():
    # li2006 table 2 has 6.19 for uniform keys: ln 500 - 499 / 20,000 = 6.1896.
    keys = np.random.default_rng(22).integers(0, 500, 10_000)
    found = locality.fit(keys, h=5).entropy(keys)
    assert found == pytest.approx(math.log(500) - 499 / 20_000, abs=0.01)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("h", [1, 3, 7])
def test_entropy_is_the_mean_over_rows_of_the_entropy_of_the_next_key(h, seed):
    model = random_model(h, seed)
    keys = np.random.default_rng(seed).integers(0, 8, 25).tolist()  # 6 and 7 are unknown to it
    entropies, losses = [], []
    for n, key in enumerate(keys):
        law = naive_law(model, keys[:n], range(8))
        entropies.append(-sum(q * math.log(q) for q in law.values() if q > 0))
        losses.append(-math.log(law[key]) if law[key] > 0 else math.inf)
    assert model.entropy(keys) == pytest.approx(np.mean(entropies), rel=1e-12)
    assert model.entropy(keys, method="log_loss") == pytest.approx(np.mean(losses), rel=1e-12)


def test_entropy_without_fresh_draws_is_that_of_the_start():
    # Row 0 is fresh (ln 2), rows 1 … 3 repeat it for sure.
    model = LocalityModel([1.0], 0.0, Popularity.known([0.5, 0.5]))
    assert model.entropy([1, 1, 1, 1]) == pytest.approx(math.log(2) / 4)
    assert model.entropy([1, 1, 1, 0], method="log_loss") == math.inf


def test_bits_are_nats_over_ln_2():
    keys = copied(2000, 23, domain=50)
    model = locality.fit(keys, 10)
    for method in locality.ENTROPIES:
        nats, bits = (model.entropy(keys, unit=unit, method=method) for unit in ("nats", "bits"))
        assert bits == pytest.approx(nats / math.log(2))


@pytest.mark.parametrize("seed", range(5))
def test_lemma_4_permuting_a_stream_with_locality_raises_its_entropy(seed):
    keys = copied(20_000, seed, domain=500, skew=0.8, lags=20, fresh=0.3)
    shuffled = locality.permuted(keys, seed)
    for method in locality.ENTROPIES:
        original = locality.fit(keys, 20).entropy(keys, method=method)
        assert original < locality.fit(shuffled, 20).entropy(shuffled, method=method) - 1.0


def test_lemma_4_entropies_of_a_stream_without_locality_are_equal_within_two_percent():
    keys = independent(20_000, 24, domain=500, skew=0.8)
    shuffled = locality.permuted(keys)
    original = locality.fit(keys, 20).entropy(keys)
    assert original == pytest.approx(locality.fit(shuffled, 20).entropy(shuffled), rel=0.02)


def test_both_entropies_agree_under_the_true_model():
    # 50,000 rows; the log-loss has a standard deviation below 2.5 nats per row: 4 σ = 0.045.
    keys = copied(50_000, 25, domain=100, skew=0.8, lags=10, fresh=0.3)
    p = streams.zipf_probabilities(100, 0.8)
    model = LocalityModel(np.full(10, 0.07), 0.3, Popularity.known(p))
    assert model.entropy(keys) == pytest.approx(model.entropy(keys, method="log_loss"), abs=0.045)


# --- JSON ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        [3, 1, 3, 2**62],
        [2**64 + 1, -5, 2**64 + 1],
        ["ä", "b", "ä", "\ud800"],
        ["a", "a\0", "a"],
        [b"\xff\x00", b"\xff", b"\xff"],
        [b"x", b"y", b"x"],
        np.array([1.5, 0.1, 0.1]),
        np.array([True, False, True]),
        np.array([1, 2, 2], dtype="M8[us]"),
        np.array([1, 2, 2], dtype=np.uint64) + np.uint64(2**63),
    ],
    ids=["int", "big", "text", "nul", "bytes-nul", "bytes", "float", "bool", "time", "uint64"],
)
def test_a_model_comes_back_from_json_bit_by_bit(keys):
    model = locality.fit(keys, 2)
    text = model.to_json()
    back = LocalityModel.from_json(text)
    assert back.to_json() == text
    assert back.popularity.keys.dtype == model.popularity.keys.dtype
    assert back.popularity.keys.tolist() == model.popularity.keys.tolist()
    assert (back.a == model.a).all() and back.b == model.b
    assert back.entropy(keys) == model.entropy(keys)


def test_known_probabilities_come_back_from_json_without_counts():
    model = LocalityModel([0.1], 0.9, Popularity.known([0.7, 0.3], ["x", "y"]))
    assert LocalityModel.from_json(model.to_json()).popularity.counts is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format="x"), "no format"),
        (lambda c: c.update(version=2), "version 2"),
        (lambda c: c.pop("a"), "damaged"),
        (lambda c: c.update(b=0.9), "must be 1"),
        (lambda c: c.update(a=[-1.0, 1.5]), "a must be"),
        (lambda c: c["popularity"].update(type="O"), "type 'O'"),
        (lambda c: c["popularity"].update(type="no such type"), "damaged"),
        (lambda c: c["popularity"].update(probabilities=[0.5]), "sum to 1"),
        (lambda c: c["popularity"].update(keys=["x"]), "damaged|one length"),
    ],
)
def test_damaged_json_is_refused_in_one_line(change, message):
    content = json.loads(locality.fit([1, 2, 2, 1], 2).to_json())
    change(content)
    with pytest.raises(JoinweirError, match=message) as caught:
        LocalityModel.from_json(json.dumps(content))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", None])
def test_what_is_no_model_is_refused(text):
    with pytest.raises(JoinweirError, match="not a locality model"):
        LocalityModel.from_json(text)


def test_keys_that_json_cannot_hold_are_named():
    model = locality.fit(np.array([(1, 2), (1, 3), None], dtype=object)[:2], 1)
    with pytest.raises(JoinweirError, match="tuple"):
        model.to_json()


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", locality.ESTIMATORS)
def test_a_stream_of_one_key_counts_as_independent(estimator):
    model = locality.fit(["x"] * 100, 5, estimator)
    assert model.b == 1.0 and model.a.tolist() == [0.0] * 5
    assert model.entropy(["x"] * 100) == 0.0
    assert EqualityCounts(5).update(["x"] * 100).model().b == 1.0


@pytest.mark.parametrize("estimator", ["em", "yule_walker"])
def test_a_stream_without_repeats_has_no_locality(estimator):
    keys = np.arange(1000)
    assert locality.fit(keys, 20, estimator).b == pytest.approx(1.0, abs=1e-6)
    assert locality.iad(keys).size == locality.stack_distance(keys).size == 0


@pytest.mark.parametrize("estimator", locality.ESTIMATORS)
def test_h_is_cut_to_the_rows_there_are(estimator):
    assert locality.fit([1, 2, 1, 1], 50, estimator).h == 3
    assert locality.fit([1, 2], 50, estimator).h == 1


@pytest.mark.parametrize("rows", [[], [1]])
@pytest.mark.parametrize("estimator", locality.ESTIMATORS)
def test_fewer_than_two_rows_cannot_be_fitted(rows, estimator):
    with pytest.raises(JoinweirError, match=rf"have {len(rows)} row\(s\).* at least 2"):
        locality.fit(rows, 5, estimator)
    with pytest.raises(JoinweirError, match="at least 2"):
        EqualityCounts(5).update(rows).model()


def test_an_empty_stream_has_no_distances_no_popularity_and_no_entropy():
    assert locality.iad([]).size == locality.stack_distance([]).size == 0
    assert locality.permuted([]).size == 0
    with pytest.raises(JoinweirError, match="empty"):
        locality.popularity([])
    with pytest.raises(JoinweirError, match="empty"):
        random_model(2, 0).entropy([])


@pytest.mark.parametrize(
    "keys",
    [
        [1, None, 2, None],
        ["a", None, "b", math.nan],
        [1.0, math.nan, 2.0, math.nan],
        np.array(["NaT", 5, "NaT"], dtype="M8[s]"),
        np.ma.array([1, 2, 3], mask=[True, False, True]),
    ],
    ids=["none", "text", "nan", "nat", "masked"],
)
def test_nulls_are_counted_in_the_error(keys):
    for function in (locality.iad, locality.stack_distance, locality.popularity, locality.fit):
        with pytest.raises(JoinweirError, match=r"^keys hold 2 null\(s\); drop these rows first$"):
            function(keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("abc", "not one str"),
        ([[1, 2], [3, 4]], "not 2-d"),
        ([[1, 2], [3]], "several lengths"),
        (7, "not 0-d"),
        ([1, "a"], "one sortable type, not int, str"),
        ([{}, {}], "one sortable type, not dict"),
        ([1j, 2j], "not complex128"),
    ],
)
def test_what_is_no_stream_of_keys_is_named(keys, message):
    with pytest.raises(JoinweirError, match=message):
        locality.fit(keys)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: locality.fit([1, 2, 1], estimator="yule-walker"), "did you mean 'yule_walker'"),
        (lambda: locality.fit([1, 2, 1], h=0), "h must be an integer"),
        (lambda: locality.fit([1, 2, 1], h=2.5), "h must be an integer"),
        (lambda: locality.fit([1, 2, 1], tolerance=0), "tolerance must be"),
        (lambda: locality.fit([1, 2, 1], max_iterations=0), "max_iterations must be"),
        (lambda: locality.b_over_h([1, 2, 1], [0]), "h must be an integer"),
        (lambda: locality.b_over_h([1, 2, 1], [1], "ls"), "unknown estimator"),
        (lambda: locality.iad_independent([1.0], 0), "k_max must be"),
        (lambda: locality.permuted([1], seed=-1), "seed must be"),
        (lambda: random_model(2, 0).weights(-1), "T must be"),
        (lambda: random_model(2, 0).weights(1.5), "T must be"),
        (lambda: random_model(2, 0).entropy([1], unit="bit"), "did you mean 'bits'"),
        (lambda: random_model(2, 0).entropy([1], method="loss"), "unknown method"),
        (lambda: LocalityModel([], 1.0, locality.popularity([1])), "a must be"),
        (lambda: LocalityModel(["x"], 1.0, locality.popularity([1])), "a must be"),
        (lambda: LocalityModel([0.5], 0.4, locality.popularity([1])), "must be 1, not 0.9"),
        (lambda: LocalityModel([0.0], math.nan, locality.popularity([1])), "b must be"),
        (lambda: LocalityModel([0.5], 0.5, [1.0]), "must be a Popularity"),
        (lambda: Popularity([1, 2], None, [0.2, 0.8]), "must fall"),
        (lambda: Popularity([1], None, [0.8, 0.2]), "one length"),
        (lambda: Popularity.known([0.8, 0.2], ["a"]), "one length"),
    ],
)
def test_a_bad_option_is_named_in_one_line(call, message):
    with pytest.raises(JoinweirError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_model_cannot_be_changed():
    model = locality.fit([1, 2, 1, 1], 2)
    for array in (model.a, model.popularity.keys, model.popularity.probabilities):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
