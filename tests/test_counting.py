"""Lossy counting against the paper's pseudocode, its guarantees, and the size laws (li2006)."""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import reduce
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinweir import counting, streams
from joinweir.counting import LossyCounting
from joinweir.errors import JoinweirError, StateError

EPSILONS = [0.9, 0.5, 0.3, 0.25, 0.1, 0.07, 1 / 49, 0.01]
SKEWS = (1.1, 1.3, 1.5)

epsilons = st.sampled_from(EPSILONS)
# Few keys that come often, and many that come once: both sides of a prune.
keys_of_a_stream = st.builds(
    lambda keys, more: keys + more,
    st.lists(st.one_of(st.integers(0, 4), st.integers(-(2**63), 2**63 - 1)), max_size=60),
    st.builds(
        lambda seed, n, domain: np.random.default_rng(seed).integers(0, domain, n).tolist(),
        st.integers(0, 2**32),
        st.integers(0, 300),
        st.integers(1, 100),
    ),
)


def naive_lossy_counting(stream, width):
    """li2006 Algorithm 2 with a dictionary, and the sizes around each prune."""
    held, before, after = {}, [], []
    for n, e in enumerate(stream, 1):
        b_current = math.ceil(n / width)
        if e in held:
            held[e] = (held[e][0] + 1, held[e][1])
        else:
            held[e] = (1, b_current - 1)
        if n % width == 0:
            before.append(len(held))
            held = {e: (f, d) for e, (f, d) in held.items() if f + d > b_current}
            after.append(len(held))
    return held, before, after


def as_dict(counter):
    return {k: (f, d) for k, f, d in zip(*(column.tolist() for column in counter.entries()))}


def assert_guarantees(counter, stream):
    """f <= true <= f + Δ, nothing short by more than N // w <= εN, nothing frequent missed."""
    true, held, n = Counter(stream), as_dict(counter), len(stream)
    most = n // counter.width
    assert counter.n == n and counter.size == len(held)
    assert most <= counter.epsilon * n * (1 + 1e-12)
    for key, count in true.items():
        f, delta = held.get(key, (0, most))
        assert f <= count <= f + delta and delta <= most and count - f <= most
    assert not held.keys() - true.keys()
    for support in {min(counter.epsilon * 1.01, 1.0), (counter.epsilon + 1) / 2, 1.0}:
        found = counter.frequent(support)
        assert {k for k, c in true.items() if c >= support * n} <= set(found.keys.tolist())
        for key, lower, upper in zip(*(column.tolist() for column in found)):
            assert lower <= true[key] <= upper
            assert true[key] >= (support - counter.epsilon) * n - 1e-9 * n


def copy_stream(n, domain, skew, b, h, seed=0):
    law = streams.zipf_probabilities(domain, skew)
    model = SimpleNamespace(a=np.full(h, (1 - b) / h), b=b, popularity=law)
    keys = streams.copy_model(n, domain=domain, skew=skew, lags=h, fresh=b, seed=seed)["key"]
    return model, keys


# --- the algorithm ------------------------------------------------------------------------------


def test_the_stream_worked_by_hand_is_counted_so():
    # ε = 1/4. Bucket 1: 7 7 1 2, keys 1 and 2 go. Bucket 2: 7 7 7 3, key 3 (1 + 1 <= 2) goes.
    counter = LossyCounting(0.25).update([7, 7, 1, 2, 7, 7, 7, 3, 7, 5])
    assert as_dict(counter) == {7: (6, 0), 5: (1, 2)}
    assert counter.sizes == (2, 2.5, 3, 1.0, 1)
    assert counter.surplus == (6 + 0 - 2) + (1 + 2 - 2)


@given(keys_of_a_stream, epsilons)
def test_agrees_exactly_with_the_pseudocode_of_the_paper(stream, epsilon):
    counter = LossyCounting(epsilon).update(stream)
    held, before, after = naive_lossy_counting(stream, counter.width)
    assert as_dict(counter) == held
    mean = [sum(sizes) / max(len(sizes), 1) for sizes in (before, after)]
    largest = [max(sizes, default=0) for sizes in (before, after)]
    assert counter.sizes == (len(before), mean[0], largest[0], mean[1], largest[1])


@given(keys_of_a_stream, epsilons)
def test_no_frequent_key_is_missed_and_no_count_is_short_by_more_than_epsilon_n(stream, epsilon):
    assert_guarantees(LossyCounting(epsilon).update(stream), stream)


@given(keys_of_a_stream, epsilons, st.lists(st.integers(0, 300), max_size=5))
def test_cutting_the_stream_makes_no_difference(stream, epsilon, cuts):
    whole, parts = LossyCounting(epsilon).update(stream), LossyCounting(epsilon)
    for part in np.split(np.array(stream, np.int64), sorted(c % (len(stream) + 1) for c in cuts)):
        parts.update(part)
    assert parts.to_json() == whole.to_json()


def test_a_table_that_has_to_grow_agrees_with_the_pseudocode():
    stream = streams.zipf(50_000, domain=20_000, skew=0.5, seed=3)["key"]
    counter = LossyCounting(1e-4).update(stream)
    assert counter.size > 1000
    assert as_dict(counter) == naive_lossy_counting(stream.tolist(), 10_000)[0]


@given(keys_of_a_stream, epsilons)
def test_sizes_before_prunes_and_surplus_add_up_to_the_keys_counted(stream, epsilon):
    counter = LossyCounting(epsilon).update(stream)
    held, before, _ = naive_lossy_counting(stream, counter.width)
    buckets = len(stream) // counter.width
    assert sum(before) == len(stream) - sum(f + d - buckets for f, d in held.values())
    assert counting.conservation_gap(counter) == 0


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "uint64", "int64"])
def test_any_integer_type_counts_alike(dtype):
    keys = np.array([3, 3, 9, 1, 3], dtype)
    assert (
        LossyCounting(0.4).update(keys).to_json()
        == LossyCounting(0.4).update([3, 3, 9, 1, 3]).to_json()
    )


def test_views_and_read_only_arrays_count_alike():
    keys = streams.zipf(1000)["key"]
    frozen = keys.copy()
    frozen.flags.writeable = False
    plain = LossyCounting(0.01).update(keys[::3].copy()).to_json()
    assert LossyCounting(0.01).update(keys[::3]).to_json() == plain
    assert LossyCounting(0.01).update(frozen[::3]).to_json() == plain


def test_entries_are_copies():
    counter = LossyCounting(0.1).update([1, 2])
    counter.entries()[1][:] = 99
    assert as_dict(counter) == {1: (1, 0), 2: (1, 0)}


@pytest.mark.parametrize("width", [2, 3, 49, 98, 103, 1000, 123_457, 2**40 + 1])
def test_the_width_of_one_over_w_is_w(width):
    assert LossyCounting(1 / width).width == width


@given(st.floats(1e-9, 1, exclude_max=True))
def test_the_width_is_the_smallest_whose_inverse_is_within_epsilon(epsilon):
    width = counting.bucket_width(epsilon)
    assert 1 / width <= epsilon
    assert width == 1 or 1 / (width - 1) > epsilon


def test_an_epsilon_too_small_for_any_bucket_to_end_counts_exactly():
    counter = LossyCounting(5e-324).update([1, 2, 1])
    assert as_dict(counter) == {1: (2, 0), 2: (1, 0)}


def test_a_share_equal_to_the_support_is_frequent_though_floats_round():
    # 0.07 * 100 = 7.000000000000001
    counter = LossyCounting(0.001).update([1] * 7 + list(range(100, 193)))
    assert 1 in counter.frequent(0.07).keys
    for n in range(1, 200):
        counter = LossyCounting(1 / 49).update([0] * n + [1] * (5 * n))
        assert counter.frequent(5 / 6).keys.tolist() == [1]


# --- merging ------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.one_of(st.integers(0, 4), st.integers())), max_size=300
    ),
    epsilons,
    keys_of_a_stream,
)
def test_merged_partitions_keep_all_guarantees_and_count_on(rows, epsilon, later):
    rows = [(part, key % 2**63) for part, key in rows]
    parts = [LossyCounting(epsilon).update([k for p, k in rows if p == i]) for i in range(4)]
    untouched = parts[1].to_json()
    merged = reduce(LossyCounting.merge, parts)
    assert merged is parts[0] and parts[1].to_json() == untouched
    assert_guarantees(merged, [k for _, k in rows])
    assert counting.conservation_gap(merged) == 0
    assert merged.sizes.prunes == merged.n // merged.width
    merged.update(later)
    assert_guarantees(merged, [k for _, k in rows] + later)
    assert counting.conservation_gap(merged) == 0


def test_merging_with_an_empty_counter_changes_nothing():
    counter = LossyCounting(0.1).update(streams.zipf(105)["key"])
    assert LossyCounting(0.1).merge(counter).to_json() == counter.to_json()
    assert (
        counter.merge(LossyCounting(0.1)).to_json() == LossyCounting(0.1).merge(counter).to_json()
    )


def test_merging_with_itself_doubles_the_counts():
    counter = LossyCounting(0.1).update([1, 1, 2])
    assert as_dict(counter.merge(counter)) == {1: (4, 0), 2: (2, 0)}


def test_two_half_buckets_end_as_one_when_merged():
    left, right = LossyCounting(0.25).update([1, 1]), LossyCounting(0.25).update([1, 2])
    assert as_dict(left.merge(right)) == {1: (3, 0)}
    assert left.sizes == (1, 2.0, 2, 1.0, 1)


def test_a_part_that_dropped_a_key_adds_its_buckets_to_the_error():
    left = LossyCounting(0.5).update([1, 1, 1, 1])  # two buckets
    right = LossyCounting(0.5).update([1, 2])  # one, both keys dropped
    assert as_dict(left.merge(right)) == {1: (4, 1)}


# --- JSON ---------------------------------------------------------------------------------------


@given(keys_of_a_stream, epsilons, keys_of_a_stream)
def test_a_saved_counter_counts_on_as_the_original(stream, epsilon, later):
    counter = LossyCounting(epsilon).update(stream)
    again = LossyCounting.from_json(counter.to_json())
    assert again.to_json() == counter.to_json() and again.sizes == counter.sizes
    assert again.update(later).to_json() == counter.update(later).to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"format": "joinweir.counting 0"},
        {"n": 106},
        {"n": -1},
        {"n": 10**30},
        {"n": "105"},
        {"width": 11},
        {"epsilon": 0.2},
        {"epsilon": math.nan},
        {"sum_before": 1},
        {"keys": [1]},
        {"keys": None},
        {"f": [0.5]},
        {"delta": [True]},
    ],
    ids=str,
)
def test_a_damaged_text_is_refused_in_one_line(change):
    state = json.loads(LossyCounting(0.1).update(streams.zipf(105)["key"]).to_json())
    with pytest.raises(StateError, match=r"^the (saved|text)[^\n]*$"):
        LossyCounting.from_json(json.dumps(state | change))
    key = next(iter(change))
    with pytest.raises(StateError):
        LossyCounting.from_json(json.dumps({k: v for k, v in state.items() if k != key}))


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "1", '{"format": 1}'])
def test_a_text_that_is_no_saved_counter_is_refused(text):
    with pytest.raises(StateError):
        LossyCounting.from_json(text)


# --- bounds -------------------------------------------------------------------------------------


def test_table_1_of_li2006():
    # Printed 3869, 2409, 2089: the first is off by one.
    bounds = [counting.zipf_bound(0.001, z) for z in SKEWS]
    assert bounds == pytest.approx([3870.5, 2409.0, 2089.4], abs=0.05)
    assert counting.independent_bound(0.001) == pytest.approx(7000)


def test_the_second_term_of_theorem_2_is_89_at_skew_1_5():
    assert counting.zipf_bound(0.001, 1.5) - 2 / 0.001 == pytest.approx(89.44, abs=0.005)


def test_worst_case_bound_is_the_formula():
    assert counting.worst_case_bound(0.01, 10_000) == pytest.approx(100 * math.log(100))
    assert counting.worst_case_bound(0.1, 10) == 0.0


@given(st.lists(st.integers(0, 60), max_size=400), st.sampled_from([2, 4, 5, 10]))
def test_size_after_a_prune_is_below_the_worst_case_from_the_third_bucket_on(stream, width):
    stream = stream[: len(stream) // width * width]
    counter, buckets = LossyCounting(1 / width).update(stream), len(stream) // width
    assert counter.size <= width * sum(1 / (i + 1) for i in range(1, buckets + 1))
    if buckets >= 3:
        assert counter.size <= counting.worst_case_bound(1 / width, len(stream))


def test_the_printed_worst_case_can_be_exceeded_after_one_and_two_buckets():
    one = LossyCounting(0.1).update([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    assert one.size == 5 > counting.worst_case_bound(0.1, 10) == 0.0
    # Bucket 1 leaves 3 keys with 3 arrivals; in bucket 2 five more come twice.
    two = LossyCounting(0.1).update([0, 0, 0, 1, 1, 1, 2, 2, 2, 9]).update([*range(10, 15)] * 2)
    assert two.size == 8 > counting.worst_case_bound(0.1, 20) == pytest.approx(6.93, abs=0.01)


# --- the size to expect -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zipf_sizes():
    """Sizes at ε = .001, N = 10^5 and 3000 keys; means over 5 seeds."""

    def sizes(z):
        runs = [streams.zipf(10**5, domain=3000, skew=z, seed=seed)["key"] for seed in range(5)]
        return np.mean([LossyCounting(0.001).update(keys).sizes for keys in runs], axis=0)

    return {z: counting.Sizes(*sizes(z)) for z in SKEWS}


@pytest.mark.parametrize(("z", "closed"), [(1.1, 398.0), (1.3, 242.8), (1.5, 145.0)])
def test_mean_size_of_zipf_streams_is_the_closed_form(zipf_sizes, z, closed):
    law = streams.zipf_probabilities(3000, z)
    assert counting.mean_size(law, 0.001) == pytest.approx(closed, abs=0.05)
    assert zipf_sizes[z].mean_before == pytest.approx(closed, rel=0.05)
    before, after = counting.stationary_size(law, 0.001)
    assert before == counting.mean_size(law, 0.001)
    assert zipf_sizes[z].mean_after == pytest.approx(after, rel=0.05)


@pytest.mark.parametrize(
    ("z", "peak", "pruned"), [(1.1, 429, 179), (1.3, 267, 119), (1.5, 162, 82)]
)
def test_peaks_of_zipf_streams_are_far_below_theorem_2(zipf_sizes, z, peak, pruned):
    sizes = zipf_sizes[z]
    assert sizes.max_before == pytest.approx(peak, rel=0.1)
    assert sizes.max_after == pytest.approx(pruned, rel=0.1)
    assert 8 < counting.zipf_bound(0.001, z) / sizes.max_before < 14


def test_space_falls_with_skew(zipf_sizes):
    for name in ("mean_before", "max_before", "mean_after", "max_after"):
        flat, middle, steep = (getattr(zipf_sizes[z], name) for z in SKEWS)
        assert flat > middle > steep


@pytest.mark.parametrize("epsilon", [0.05, 0.02, 0.01, 0.005, 0.002, 0.001])
def test_theorem_2_bounds_the_measured_space_over_epsilon(epsilon):
    keys = streams.zipf(10**5, domain=3000, skew=1.3, seed=1)["key"]
    peak = LossyCounting(epsilon).update(keys).sizes.max_before
    assert peak < counting.zipf_bound(epsilon, 1.3) < counting.independent_bound(epsilon)


def test_stationary_size_of_two_keys_is_the_queue_worked_by_hand():
    # w = 2, p = 1/4: surplus 0 after a prune with probability (1 - 1/2) / (3/4)^2 = 8/9.
    before, after = counting.stationary_size([0.25, 0.75], 0.5)
    assert before == pytest.approx(0.5 + 1)
    assert after == pytest.approx(1 / 9 + 1)


def test_stationary_size_is_that_of_a_long_run():
    law = [0.4, 0.3, 0.15, 0.1, 0.05]
    keys = np.random.default_rng(5).choice(5, 10**6, p=law)
    sizes = LossyCounting(0.25).update(keys).sizes
    # Standard error below .002 with 250,000 buckets.
    assert (sizes.mean_before, sizes.mean_after) == pytest.approx(
        counting.stationary_size(law, 0.25), abs=0.01
    )


def test_locality_leaves_the_long_run_mean_alone():
    # 50,000 buckets: what is left in surplus, and the sampling of the law, are below 1 %.
    model, keys = copy_stream(10**6, 50, 0.8, b=0.2, h=10)
    sizes = LossyCounting(0.05).update(keys).sizes
    estimate = counting.expected_size(model, 0.05)
    assert sizes.mean_before == pytest.approx(estimate.before, rel=0.01)
    permuted = LossyCounting(0.05).update(np.random.default_rng(0).permutation(keys)).sizes
    assert permuted.mean_before == pytest.approx(estimate.before, rel=0.01)
    assert sizes.mean_after > 1.5 * permuted.mean_after


def test_expected_size_takes_a_bare_law_as_independent_keys():
    law = streams.zipf_probabilities(300, 1.0)
    estimate = counting.expected_size(law, 0.01)
    assert (estimate.before, estimate.after) == counting.stationary_size(law, 0.01)
    alike = SimpleNamespace(a=[0.0], b=1.0, probabilities=law)
    assert counting.expected_size(alike, 0.01) == estimate


@pytest.mark.parametrize(("b", "h"), [(0.1, 50), (0.5, 50), (0.2, 10), (1.0, 1)])
def test_distinct_keys_of_a_bucket_are_estimated_within_5_percent(b, h):
    model, keys = copy_stream(200_000, 3000, 0.8, b, h, seed=4)
    measured = np.mean([np.unique(bucket).size for bucket in keys.reshape(-1, 1000)])
    estimate = counting.expected_size(model, 0.001, method="distinct")
    assert estimate.before == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("b", [0.1, 0.5, 1.0])
def test_monte_carlo_foretells_mean_and_peak_of_another_run(b):
    model, keys = copy_stream(100_000, 3000, 0.8, b, 50, seed=8)
    sizes = LossyCounting(0.001).update(keys).sizes
    estimate = counting.expected_size(model, 0.001, n=100_000, method="monte_carlo", seed=1)
    measured = (sizes.mean_before, sizes.mean_after, sizes.max_before, sizes.max_after)
    found = (estimate.before, estimate.after, estimate.peak_before, estimate.peak_after)
    assert found == pytest.approx(measured, rel=0.1)


def test_size_after_a_prune_is_foretold_for_mild_locality_and_too_high_for_strong():
    # b = .5: 493 expected; b = .1: 658, of which 100 buckets reach 400 on average.
    for b, lowest, highest in ((1.0, 0.99, 1.05), (0.5, 1.0, 1.1), (0.1, 1.4, 1.8)):
        model, keys = copy_stream(100_000, 3000, 0.8, b, 50, seed=8)
        after = LossyCounting(0.001).update(keys).sizes.mean_after
        assert lowest < counting.expected_size(model, 0.001).after / after < highest


def test_monte_carlo_repeats_itself_by_seed():
    model, _ = copy_stream(1, 100, 0.8, 0.3, 5)
    first, again, other = (
        counting.expected_size(model, 0.01, method="monte_carlo", seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_monte_carlo_is_one_stream_over_the_chunks_it_is_made_of(monkeypatch):
    # Lag 3 alone and b = 0: the first three keys for ever, so three entries at most.
    model = SimpleNamespace(a=[0.0, 0.0, 1.0], b=0.0, popularity=np.full(50, 0.02))
    monkeypatch.setattr(counting, "_CHUNK", 7)
    estimate = counting.expected_size(model, 0.01, n=1000, method="monte_carlo")
    assert estimate.peak_before <= 3


@pytest.mark.parametrize(("width", "h"), [(20, 4), (3, 6), (5, 5)])
def test_paper_estimate_is_the_bucket_expectation_step_by_step(width, h):
    rng = np.random.default_rng(width)
    law, a, b = rng.dirichlet(np.ones(12)), rng.dirichlet(np.ones(h)) * 0.7, 0.3
    recent = rng.integers(0, 12, h + 3)
    past = [np.eye(12)[key] for key in recent]  # then P_t = bP + Σ a_j P_{t-j}
    for _ in range(4 * width):
        past.append(b * law + sum(a[j] * past[-1 - j] for j in range(h)))
    expected = np.array(past[recent.size :]).reshape(4, width, 12).sum(axis=1)
    model = SimpleNamespace(a=a, b=b, p=law)
    found = counting.expected_size(model, 1 / width, 4 * width, "paper", recent=recent)
    assert found.peak_before == (expected >= 1).sum(axis=1).max()
    assert found.before == pytest.approx(np.minimum(1, expected).sum(axis=1).mean())


def test_the_papers_counting_rule_misses_the_rare_keys_of_a_bucket():
    # Keys expected at least once: 130 of the 697 entries that there are.
    law = streams.zipf_probabilities(3000, 0.8)
    estimate = counting.expected_size(law, 0.001, method="paper")
    assert estimate.peak_before == 130
    assert (
        estimate.before
        == pytest.approx(counting.mean_size(law, 0.001))
        == pytest.approx(697.4, abs=0.1)
    )


@pytest.mark.parametrize("seed", range(3))
def test_lower_entropy_takes_less_space_at_a_small_epsilon_and_more_at_a_large_one(seed):
    # Peaks over N = 10^5 keys; original < permuted < uniform at .001 (fig. 5c), reversed at .05.
    _, original = copy_stream(10**5, 500, 0.8, b=0.1, h=50, seed=seed)
    rng = np.random.default_rng(seed)
    contenders = (original, rng.permutation(original), rng.integers(0, 500, original.size))
    peaks = {
        epsilon: [LossyCounting(epsilon).update(keys).sizes.max_before for keys in contenders]
        for epsilon in (0.001, 0.05)
    }
    assert peaks[0.001] == sorted(peaks[0.001])
    assert peaks[0.05] == sorted(peaks[0.05], reverse=True)


# --- epsilon for a memory limit -----------------------------------------------------------------

laws = st.one_of(
    st.lists(st.integers(1, 10_000), min_size=1, max_size=40).map(
        lambda weights: np.array(weights) / sum(weights)
    ),
    st.builds(streams.zipf_probabilities, st.integers(5, 200), st.floats(0, 2)),
)


@given(laws, st.floats(0.05, 1.1), st.floats(0.01, 1.0))
def test_epsilon_for_memory_is_the_widest_bucket_that_fits(law, share, support):
    entries = share * law.size
    choice = counting.epsilon_for_memory(entries, support, law)
    assert 0 < choice.epsilon < support
    width = counting.bucket_width(choice.epsilon)
    assert choice.epsilon == 1 / width
    assert choice.expected_entries == pytest.approx(counting.mean_size(law, choice.epsilon))
    fits = choice.expected_entries <= entries * (1 + 1e-9)
    assert choice.feasible == fits
    if not fits:
        assert width == 2 or 1 / (width - 1) >= support
        assert choice.reason.startswith("even epsilon=")
    elif entries < law.size * (1 - 1e-9):
        assert counting.mean_size(law, 1 / (width + 1)) > entries * (1 - 1e-9)
    assert "\n" not in choice.reason


@given(laws, st.lists(st.floats(0.1, 60), min_size=2, max_size=2), st.floats(0.01, 1.0))
def test_more_memory_never_gives_a_larger_epsilon(law, budgets, support):
    less, more = (counting.epsilon_for_memory(b, support, law) for b in sorted(budgets))
    assert more.epsilon <= less.epsilon and more.feasible >= less.feasible


@pytest.mark.parametrize("law", [[1.0], [1.0, 0.0], [1 - 1e-300, 1e-300], [0.5, 0.5]])
def test_epsilon_for_memory_ends_for_extreme_laws(law):
    for entries in (1e-3, 1, 1.5, 2, 1e9):
        assert counting.epsilon_for_memory(entries, 0.05, law).feasible == (
            entries >= np.ceil(counting.mean_size(law, 1 / 21))
        )


def test_a_memory_limit_below_the_coarsest_epsilon_is_said_to_be_infeasible():
    law = streams.zipf_probabilities(3000, 1.1)
    choice = counting.epsilon_for_memory(30, 0.01, law)
    assert not choice.feasible and choice.epsilon == 1 / 101 and choice.expected_entries > 30
    assert choice.reason.endswith("the limit is 30")


def test_the_chosen_epsilon_keeps_to_the_memory_on_average_and_nearly_at_peak():
    law = streams.zipf_probabilities(3000, 1.1)
    keys = streams.zipf(10**5, domain=3000, skew=1.1, seed=2)["key"]
    for entries in (100, 200, 400):
        sizes = LossyCounting(counting.epsilon_for_memory(entries, 0.05, law).epsilon).update(keys)
        assert sizes.sizes.mean_before <= entries * 1.01
        assert sizes.sizes.max_before <= entries * 1.2


def test_epsilon_by_bound_is_7_over_memory_and_below_the_support():
    assert counting.epsilon_by_bound(700, 0.05) == 0.01
    assert counting.epsilon_by_bound(70, 0.05) == 1 / 21
    assert counting.epsilon_by_bound(1, 1.0) == 0.5


def false_positive_shares(entries, support, seeds=range(5)):
    """Mean share of false positives with the chosen epsilon, and with 7/B."""
    law = streams.zipf_probabilities(3000, 1.1)
    shares = []
    for seed in seeds:
        keys = streams.zipf(10**5, domain=3000, skew=1.1, seed=seed)["key"]
        true = np.unique(keys, return_counts=True)
        for epsilon in (
            counting.epsilon_for_memory(entries, support, law).epsilon,
            counting.epsilon_by_bound(entries, support),
        ):
            found = LossyCounting(epsilon).update(keys).frequent(support)
            shares.append(counting.false_positives(found, true, support, keys.size))
    return np.reshape(shares, (-1, 2)).mean(axis=0)


@pytest.mark.parametrize(
    ("entries", "support"), [(200, 0.05), (300, 0.05), (1000, 0.01), (1500, 0.01)]
)
def test_the_chosen_epsilon_gives_fewer_false_positives_than_7_over_memory(entries, support):
    chosen, by_bound = false_positive_shares(entries, support)
    assert chosen < by_bound - 0.1


def test_a_smaller_epsilon_gives_more_false_positives_where_7_over_memory_nears_the_support():
    # ε just below s prunes so hard that little is left to report: 7/100 > s = .01 is held at 1/101.
    chosen, by_bound = false_positive_shares(100, 0.01)
    assert chosen > by_bound + 0.05


def test_false_positives_are_a_share_of_the_reported_keys():
    counts = {7: 60, 8: 30, 9: 10}
    assert counting.false_positives([7, 8, 9], counts, 0.25, 100) == pytest.approx(1 / 3)
    assert counting.false_positives([7, 8], ([7, 8], [60, 30]), 0.3, 100) == 0.0
    assert counting.false_positives([1], counts, 0.5, 100) == 1.0
    assert counting.false_positives([], counts, 0.5, 100) == 0.0


# --- bad input ----------------------------------------------------------------------------------

LAW = [0.5, 0.5]


@pytest.mark.parametrize("epsilon", [0, 1, -0.1, 1.5, math.nan, math.inf, "0.1", None, True])
def test_epsilon_outside_of_0_to_1_is_refused(epsilon):
    for call in (
        LossyCounting,
        counting.independent_bound,
        lambda e: counting.zipf_bound(e, 1.5),
        lambda e: counting.worst_case_bound(e, 100),
        lambda e: counting.mean_size(LAW, e),
        lambda e: counting.stationary_size(LAW, e),
        lambda e: counting.expected_size(LAW, e),
    ):
        with pytest.raises(
            JoinweirError, match=r"^epsilon must be a number above 0 and below 1.*$"
        ):
            call(epsilon)


@pytest.mark.parametrize(
    "keys",
    [
        [1.0, 2.0],
        [math.nan],
        ["a"],
        [b"a"],
        [True],
        [None],
        [[1, 2]],
        [[1], [2, 3]],
        5,
        "abc",
        {1, 2},
        np.array(["2020-01-01"], "M8[D]"),
        np.array([2**63], np.uint64),
        [2**70],
    ],
    ids=repr,
)
def test_keys_that_are_no_int64_are_refused_and_nothing_is_counted(keys):
    counter = LossyCounting(0.1)
    with pytest.raises(JoinweirError, match=r"^keys must be [^\n]*$"):
        counter.update(keys)
    assert counter.n == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LossyCounting(0.1).frequent(0.1), "support must be above epsilon=0.1"),
        (lambda: LossyCounting(0.1).frequent(0.05), "support must be above epsilon=0.1"),
        (lambda: LossyCounting(0.1).frequent(1.5), "support must be a number"),
        (lambda: LossyCounting(0.1).frequent(math.nan), "support must be a number"),
        (lambda: LossyCounting(0.1).merge(LossyCounting(0.2)), "merge needs a LossyCounting of"),
        (lambda: LossyCounting(0.1).merge([1]), "merge needs a LossyCounting of"),
        (lambda: counting.zipf_bound(0.1, 1.0), "z must be a number above 1 and at most 2"),
        (lambda: counting.zipf_bound(0.1, 2.1), "z must be a number above 1 and at most 2"),
        (lambda: counting.zipf_bound(0.1, math.nan), "z must be a number above 1 and at most 2"),
        (lambda: counting.worst_case_bound(0.1, 9), "n must be at least 1/epsilon=10"),
        (lambda: counting.worst_case_bound(0.1, 10.5), "n must be a whole number"),
        (lambda: counting.mean_size([0.5, 0.6], 0.1), "probabilities must be >= 0 and sum to 1"),
        (lambda: counting.mean_size([1.5, -0.5], 0.1), "probabilities must be >= 0 and sum to 1"),
        (lambda: counting.mean_size([math.nan], 0.1), "probabilities must be >= 0 and sum to 1"),
        (lambda: counting.mean_size([], 0.1), "probabilities must be a 1-d array"),
        (lambda: counting.mean_size(["a"], 0.1), "probabilities must be a 1-d array"),
        (lambda: counting.mean_size([[1], [2, 3]], 0.1), "probabilities must be a 1-d array"),
        (lambda: counting.expected_size(LAW, 0.1, method="men"), "unknown method 'men'"),
        (lambda: counting.expected_size("law", 0.1), "model must have the attributes"),
        (lambda: counting.expected_size(SimpleNamespace(a=[1.0]), 0.1), "model must have the"),
        (
            lambda: counting.expected_size(SimpleNamespace(a=[0.5], b=0.2, p=LAW), 0.1),
            "model.a must be >= 0 and sum to 1 - b",
        ),
        (
            lambda: counting.expected_size(SimpleNamespace(a="x", b=0.2, p=LAW), 0.1),
            "model.a must be a 1-d array",
        ),
        (
            lambda: counting.expected_size(SimpleNamespace(a=[0.5], b=math.nan, p=LAW), 0.1),
            "model.b must be a number",
        ),
        (
            lambda: counting.expected_size(LAW, 0.1, method="paper", recent=[2]),
            "recent must be positions in the law, 0 to 1",
        ),
        (lambda: counting.expected_size(LAW, 0.1, 5, "monte_carlo"), "n must be at least"),
        (lambda: counting.expected_size(LAW, 0.1, 100, "monte_carlo", -1), "seed must be"),
        (lambda: counting.epsilon_for_memory(0, 0.1, LAW), "entries must be a number above 0"),
        (lambda: counting.epsilon_for_memory(math.nan, 0.1, LAW), "entries must be a number"),
        (lambda: counting.epsilon_for_memory(5, 0, LAW), "support must be a number"),
        (lambda: counting.epsilon_by_bound(-1, 0.1), "entries must be a number above 0"),
        (lambda: counting.false_positives([1], [1], 0.1, 5), "true_counts must map keys"),
        (lambda: counting.false_positives([1], ([1], []), 0.1, 5), "true_counts must pair as many"),
    ],
)
def test_bad_input_is_named_in_one_line(call, message):
    with pytest.raises(JoinweirError) as error:
        call()
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
