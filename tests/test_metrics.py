"""Metrics against numbers worked by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinweir import metrics

EXACT = [1] * 6 + [2] * 4
APPROX = [1, 1, 1, 2]


def test_recall_is_the_share_of_exact_results():
    assert metrics.recall(4, 10) == 0.4
    assert metrics.recall(10, 10) == 1.0
    assert metrics.recall(0, 10) == 0.0


def test_recall_of_an_empty_join_is_one():
    assert metrics.recall(0, 0) == 1.0


@pytest.mark.parametrize("bad", [(-1, 10), (1, -10), (math.nan, 1), (1, math.inf)])
def test_recall_names_a_count_that_cannot_be(bad):
    with pytest.raises(ValueError, match=r"^n_(out|exact) must be a finite number >= 0"):
        metrics.recall(*bad)


def test_importance_lost_and_kept_add_up_to_one():
    assert metrics.relative_importance(30, 50) == 0.6
    assert metrics.approximation_error(30, 50) == 0.4
    assert metrics.approximation_error(0, 0) == 0.0


def test_the_worked_example_of_ojewole2006_trades_results_for_importance():
    # §A4.2: exact 9 results of importance 32; the optimum finds 7 worth 30, the largest
    # approximation 8 worth only 12.
    assert metrics.approximation_error(30, 32) == 0.0625
    assert metrics.approximation_error(12, 32) == 0.625
    assert metrics.recall(7, 9) < metrics.recall(8, 9) == pytest.approx(0.888889, abs=1e-6)


def test_histogram_has_keys_in_order_with_counts():
    keys, counts = metrics.key_histogram([2, 1, 1, 1])
    assert keys.tolist() == [1, 2] and counts.tolist() == [3, 1]
    assert [part.size for part in metrics.key_histogram([])] == [0, 0]


def test_sse_of_the_running_example():
    # shares .75/.25 against .6/.4: .15**2 + .15**2
    assert metrics.distortion_sse(APPROX, EXACT) == pytest.approx(0.045)


def test_sse_counts_keys_that_only_one_side_has():
    assert metrics.distortion_sse([1], [2]) == 2.0
    assert metrics.distortion_sse([1], [1, 2]) == pytest.approx(0.5)
    assert metrics.distortion_sse([1, 9], [2, 9]) == pytest.approx(0.5)


def test_sse_of_no_results_is_the_sum_of_squared_exact_shares():
    assert metrics.distortion_sse([], EXACT) == pytest.approx(0.36 + 0.16)
    assert metrics.distortion_sse([], []) == 0.0


def test_kl_of_the_running_example():
    by_hand = 0.75 * math.log(0.75 / 0.6) + 0.25 * math.log(0.25 / 0.4)
    assert metrics.distortion_kl(APPROX, EXACT) == pytest.approx(by_hand)
    assert by_hand == pytest.approx(0.0498567, abs=1e-7)


def test_kl_of_one_key_out_of_two_equal_ones_is_ln_2():
    assert metrics.distortion_kl([1], [1, 2]) == pytest.approx(math.log(2))


def test_kl_refuses_results_that_are_not_part_of_the_exact_join():
    with pytest.raises(
        ValueError, match="approx must have no key that exact lacks, got 1, first 3"
    ):
        metrics.distortion_kl([1, 3], [1, 2])


def test_kl_of_no_results_is_nan_unless_there_were_none():
    assert math.isnan(metrics.distortion_kl([], EXACT))
    assert metrics.distortion_kl([], []) == 0.0


def test_keys_and_histograms_of_them_give_the_same_distortion():
    pairs = [metrics.key_histogram(APPROX), (np.array([2, 1]), np.array([4, 6]))]
    for distortion in (metrics.distortion_sse, metrics.distortion_kl):
        assert distortion(*pairs) == pytest.approx(distortion(APPROX, EXACT))


def test_text_keys_work_as_well_as_numbers():
    assert metrics.distortion_sse(["a", "a", "a", "b"], ["a"] * 6 + ["b"] * 4) == pytest.approx(
        0.045
    )


def test_keys_with_count_zero_do_not_matter():
    assert metrics.distortion_kl(([1, 2, 3], [3, 1, 0]), EXACT) == pytest.approx(
        0.0498567, abs=1e-7
    )


@pytest.mark.parametrize(
    ("histogram", "message"),
    [
        (([1, 2], [3]), "approx must pair distinct keys with as many counts, got 2 keys"),
        (([1, 1], [3, 4]), "approx must pair distinct keys"),
        (([1, 2], [3, -1]), "approx must have finite counts >= 0"),
    ],
)
def test_a_damaged_histogram_is_refused_by_name(histogram, message):
    with pytest.raises(ValueError, match=message):
        metrics.distortion_sse(histogram, EXACT)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(1, 4))
def test_distortion_sees_only_the_shape(keys, times):
    assert metrics.distortion_sse(keys, keys * times) == pytest.approx(0, abs=1e-15)
    assert metrics.distortion_kl(keys, keys * times) == pytest.approx(0, abs=1e-12)


@given(st.data())
def test_distortion_of_a_part_is_bounded(data):
    exact = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=30))
    part = data.draw(st.lists(st.sampled_from(exact), min_size=1, max_size=30))
    assert 0 <= metrics.distortion_sse(part, exact) <= 2
    # D(p||q) <= ln(1 / min q), and the rarest exact key has a share of at least 1/len
    assert 0 <= metrics.distortion_kl(part, exact) <= math.log(len(exact)) + 1e-12
