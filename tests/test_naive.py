"""The oracle itself, against examples worked by hand and against identities of the papers."""

import random
from collections import Counter

import pytest

from naive import (
    NO_WORKLOADS,
    POLICIES,
    Rand,
    count_window_join,
    exact_count,
    exact_count_window_join,
    exact_join,
    window_join,
    workload_join,
)

ORDERS = ["probe_first", "simultaneous", "evict_first"]
EVICTED, REFUSED = "evicted", "not admitted"


def stream(text):
    """'a1 b2 -3' -> [(1, 'a'), (2, 'b'), (3, None)]"""
    return [(int(word[1:]), None if word[0] == "-" else word[0]) for word in text.split()]


def shed_rows(result, side=0):
    return [row for s, row, _ in result.shed if s == side]


def random_streams(rng, k=2, n=40, n_keys=5, null_share=0.05, max_step=1):
    streams = []
    for _ in range(k):
        t, part = 0, []
        for _ in range(n):
            t += rng.randint(0, max_step)
            part.append((t, None if rng.random() < null_share else rng.randrange(n_keys)))
        streams.append(part)
    return streams


def options_for(policy, k=2):
    if policy == "gdj":
        return {"params": {"initial_rank": 0.5}}
    if policy == "age":
        return {"keep": [2] * k}
    return {}


# ------------------------------------------------------------------------------ the exact join


def test_a_row_is_dead_at_ts_plus_lifetime_unless_the_window_is_closed():
    # L0 lives at 0, 1, 2 (end = 3); closed: also at 3.
    streams = [stream("a0"), stream("a2 a3 a4")]
    for closed, expected in [(False, [(0, 0)]), (True, [(0, 0), (0, 1)])]:
        assert exact_join(streams, [3, 3], closed) == expected
        assert exact_count(streams, [3, 3], closed) == len(expected)
        for policy in ["full", "fifo"]:
            got = window_join(
                streams, lifetimes=[3, 3], capacity=[1, 1], policy=policy, closed=closed
            )
            assert got.results == expected
            assert got.n_exact == got.n_out == len(expected)


def test_every_stream_has_its_own_lifetime():
    # L0 (end 1) is gone when R0 comes at 3; R0 (end 8) is still there when L1 comes at 4.
    streams = [stream("a0 a4"), stream("a3")]
    assert exact_join(streams, [1, 5]) == [(1, 0)]
    got = window_join(streams, lifetimes=[1, 5], capacity=None, policy="fifo")
    assert got.results == [(1, 0)]


def test_a_row_that_does_not_live_at_its_own_instant_is_refused():
    with pytest.raises(ValueError, match="end > ts"):
        exact_join([stream("a0"), stream("a0")], [0, 1])


def test_nulls_are_only_counted():
    # L0 is null: no match with the null R0, no place in the buffer, not shed.
    got = window_join(
        [stream("-1 a2"), stream("-1 a3")], lifetimes=[9, 9], capacity=[1, 1], policy="fifo"
    )
    assert got.results == [(1, 1)]
    assert got.n_null == [1, 1]
    assert got.shed == []
    assert got.n_exact == 1
    assert got.max_held == [1, 1]


def test_landmark_windows_end_at_the_next_landmark():
    # Landmarks 5 and 10. Before 5: L0, R0. From 5 on: L1, R1, R2.
    streams = [stream("a3 a6"), stream("a4 a5 a9")]
    ends = [[5, 10], [5, 10, 10]]
    assert exact_join(streams, None, ends=ends) == [(0, 0), (1, 1), (1, 2)]
    got = window_join(streams, ends=ends, capacity=None, policy="fifo")
    assert got.results == [(0, 0), (1, 1), (1, 2)]
    assert got.n_exact == 3


def test_example_of_the_importance_paper_has_nine_exact_results():
    # ojewole2006's worked example: key 1: R1 S2 S3 S4, R3 S2 S3 S4 S6 = 7; 9: R2 S5; 3: R4 S1.
    keys_r, keys_s = [1, 9, 1, 3, 4, 2], [3, 1, 1, 1, 9, 1]
    streams = [list(enumerate(keys_r, 1)), list(enumerate(keys_s, 1))]
    for order in ORDERS:
        got = window_join(streams, lifetimes=[4, 4], capacity=[4, 4], policy="fifo", order=order)
        assert got.n_exact == got.n_out == 9
    # evict_first with 4 places is exact. With 3 the pairs 3 instants apart are lost: R1 leaves for
    # R4 before S4 probes, and so on.
    got = window_join(
        streams, lifetimes=[4, 4], capacity=[3, 3], policy="fifo", order="evict_first"
    )
    lost = set(exact_join(streams, [4, 4])) - set(got.results)
    assert lost == {(0, 3), (1, 4), (2, 5), (3, 0)}


# ------------------------------------------------------------------------- policies, sequential


def test_fifo_evicts_the_oldest():
    # 3: L is full (a b), a leaves for c. 4: R0 finds no a. 5: R1 finds b.
    got = window_join(
        [stream("a1 b2 c3"), stream("a4 b5")], lifetimes=[9, 9], capacity=[2, 9], policy="fifo"
    )
    assert got.results == [(1, 1)]
    assert got.shed == [(0, 0, EVICTED)]
    assert (got.n_out, got.n_exact) == (1, 2)
    assert got.max_held == [2, 2]


def test_expired_rows_leave_before_anybody_is_evicted():
    # L0 ends at 3, so at 3 there is room for c: nothing is shed. 4: L1 (end 4) has expired too.
    got = window_join(
        [stream("a1 b2 c3"), stream("b4 c4")], lifetimes=[2, 2], capacity=[2, 9], policy="fifo"
    )
    assert got.shed == []
    assert got.results == [(2, 1)]


def test_no_place_at_all_means_not_admitted():
    # R may keep nothing, L one row. 2: R0 finds L0 and is refused. 3: L1 finds nobody.
    got = window_join(
        [stream("a1 a3"), stream("a2")], lifetimes=[9, 9], capacity=[1, 0], policy="fifo"
    )
    assert got.results == [(0, 0)]
    assert got.shed == [(1, 0, REFUSED), (0, 0, EVICTED)]


def test_lru_evicts_the_one_not_matched_for_longest():
    # 3: R0 touches L0. 4: b (own arrival) is staler than a: b leaves. 5: a is found. 6: b is not.
    streams = [stream("a1 b2 c4"), stream("a3 a5 b6")]
    got = window_join(streams, lifetimes=[9, 9], capacity=[2, 9], policy="lru")
    assert got.results == [(0, 0), (0, 1)]
    assert got.shed == [(0, 1, EVICTED)]


# R has shown a once, b twice when L's rows come; a twice more before L's last.
FREQUENT = [stream("a4 b5 z6 b9"), stream("a1 b2 b3 a7 a8 b10")]


def test_lfu_compares_the_frequencies_of_arrival_and_newcomers_compete():
    # 4: a enters with f=1. 5: b with f=2. 6: z has f=0 < 1: refused. 7, 8: a is found, keeps f=1.
    # 9: b has f=2, the smallest is a with 1: a leaves. 10: both b are found.
    got = window_join(FREQUENT, lifetimes=[20, 20], capacity=[2, 9], policy="lfu")
    assert got.shed == [(0, 2, REFUSED), (0, 0, EVICTED)]
    assert got.results == [
        *[(0, 0), (1, 1), (1, 2), (0, 3), (0, 4), (3, 1), (3, 2)],
        *[(1, 5), (3, 5)],
    ]


def test_prob_compares_the_frequencies_of_now():
    # As above up to 8, but at 9 a has f=3, b has f=2: the older b leaves (equal: b may enter).
    got = window_join(FREQUENT, lifetimes=[20, 20], capacity=[2, 9], policy="prob")
    assert got.shed == [(0, 2, REFUSED), (0, 1, EVICTED)]
    assert got.results[-1:] == [(3, 5)]
    assert got.n_out == 8
    # Not competing: at 6 z enters for a (f=1), at 9 z (f=0) leaves.
    got = window_join(FREQUENT, lifetimes=[20, 20], capacity=[2, 9], policy="prob", competing=False)
    assert got.shed == [(0, 0, EVICTED), (0, 2, EVICTED)]


def test_life_weighs_frequency_with_remaining_life():
    # R has shown a twice, b once. 12: a (end 14) is worth 2*2, L1 (end 19) 1*7, L2 1*10: a leaves.
    # prob would drop L1 (1 < 2). 13: R3 misses a, R4 finds both b.
    streams = [stream("a4 b9 b12"), stream("a1 a2 b3 a13 b13")]
    got = window_join(streams, lifetimes=[10, 10], capacity=[2, 9], policy="life")
    assert got.shed == [(0, 0, EVICTED)]
    assert got.results == [(0, 0), (0, 1), (1, 2), (2, 2), (1, 4), (2, 4)]
    got = window_join(streams, lifetimes=[10, 10], capacity=[2, 9], policy="prob")
    assert got.shed == [(0, 1, EVICTED)]
    assert got.results == [(0, 0), (0, 1), (1, 2), (2, 2), (0, 3), (2, 4)]


@pytest.mark.parametrize(
    ("statistics", "capacity_r", "victim"),
    [
        ("history", 0, 0),  # a twice, b once: b leaves
        ("window", 0, 1),  # both a of R are dead (ends 4, 5), b lives (end 9): a leaves
        ("memory", 0, 0),  # R keeps nothing: equal, the oldest leaves
        ("memory", None, 1),  # R keeps b only: a leaves
        ("oracle", 0, 1),  # in all a twice, b three times: a leaves
    ],
)
def test_where_the_frequencies_come_from(statistics, capacity_r, victim):
    streams = [stream("b3 a4 b7"), stream("a1 a2 b6 b20 b21")]
    got = window_join(
        streams,
        lifetimes=[100, 3],
        capacity=[2, capacity_r],
        policy="prob",
        statistics=statistics,
    )
    assert shed_rows(got) == [victim]


def test_rand_draws_with_splitmix64_and_fills_the_hole_with_the_last():
    # The published first outputs of splitmix64 for seed 0; as u: 0.88 0.43 0.03 0.97 0.11
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    published += [0xF88BB8A8724C81EC, 0x1B39896A51A8749B]
    rand = Rand(join=None, seed=0)
    assert [rand.uniform() for _ in range(5)] == [(z >> 11) / 2**53 for z in published]
    # times 3: 2 1 0 2 0. abc: d for c; abd: e for b; ade (last fills the hole): f for a;
    # edf: g for f; edg: h for e.
    streams = [stream("a1 b2 c3 d4 e5 f6 g7 h8"), []]
    got = window_join(streams, lifetimes=[99, 99], capacity=[3, 3], policy="rand")
    assert shed_rows(got) == [2, 1, 0, 5, 4]
    # Competing in 2 places, times 3 again: c itself; b; a.
    streams = [stream("a1 b2 c3 d4 e5"), []]
    got = window_join(streams, lifetimes=[99, 99], capacity=[2, 2], policy="rand", competing=True)
    assert got.shed == [(0, 2, REFUSED), (0, 1, EVICTED), (0, 0, EVICTED)]


def test_rand_expires_stream_by_stream_in_a_unified_array():
    # 2: L0 R0 L1 R1. 4: L0 goes: R1 R0 L1; R0 goes: R1 L1. L2 L3 fill up: R1 L1 L2 L3.
    # R2: 0.88*4 -> place 3: L3 leaves. R3: 0.43*4 -> place 1: L1 leaves.
    streams = [stream("a1 c2 e4 g4"), stream("b1 d2 f4 h4")]
    got = window_join(streams, lifetimes=[3, 3], capacity=4, policy="rand", unified=True)
    assert got.shed == [(0, 3, EVICTED), (0, 1, EVICTED)]


def test_age_keeps_every_row_its_time_and_refuses_meanwhile():
    streams = [stream("a1 b2 c2 d3 e4"), []]
    # keep 2: a is due at 3, b at 4. 2: nobody is due, c is refused. 3: d for a. 4: e for b.
    got = window_join(streams, lifetimes=[9, 9], capacity=[2, 2], policy="age", keep=[2, 2])
    assert got.shed == [(0, 2, REFUSED), (0, 0, EVICTED), (0, 1, EVICTED)]
    # One keep per row: a is due at 6, b at 3: d for b; then nobody (d is due at 6): e is refused.
    keep = [[5, 1, 9, 3, 9], []]
    got = window_join(streams, lifetimes=[9, 9], capacity=[2, 2], policy="age", keep=keep)
    assert got.shed == [(0, 2, REFUSED), (0, 1, EVICTED), (0, 4, REFUSED)]
    # fifo mode: the oldest leaves at once.
    got = window_join(
        streams,
        lifetimes=[9, 9],
        capacity=[2, 2],
        policy="age",
        keep=[2, 2],
        fifo_mode=[True, False],
    )
    assert got.shed == [(0, 0, EVICTED), (0, 1, EVICTED), (0, 2, EVICTED)]


@pytest.mark.parametrize(
    ("initial_rank", "victims"),
    [
        # 4, 5, 6: credits a=2 b=1 c=0. 7: c leaves for d, which starts with ...
        (1.0, [2, 0]),  # ... the largest of (1, 2). 8: b=2. 9: all have 2: the oldest, a, leaves.
        (0.0, [2, 3]),  # ... the smallest, 1. 8: b=2. 9: d leaves.
        (0.5, [2, 3]),  # ... index floor(0.5 * 1) = 0, the same.
    ],
)
def test_gdj_method_1_pays_one_per_match(initial_rank, victims):
    streams = [stream("a1 b2 c3 d7 e9"), stream("a4 a5 b6 b8")]
    got = window_join(
        streams,
        lifetimes=[20, 20],
        capacity=[3, 9],
        policy="gdj",
        params={"method": 1, "initial_rank": initial_rank},
    )
    assert shed_rows(got) == victims
    assert got.results == [(0, 0), (0, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize(
    ("rank_from", "victims"),
    [
        # 4: z +1. 5: z is on top, +1 = 2. 6: both a have one above: +2 each (ranks taken first).
        # 7: all 2: z leaves, c starts with 2. 8: L1 leaves. 9: L2 leaves (not c: L2 is older).
        ("top", [0, 1, 2]),
        # 4: z +1. 5: z has two below: +3 = 4. 6: both a +1 = 1. 7: L1 leaves, c starts with 1.
        # 8: L2 leaves. 9: c leaves.
        ("bottom", [1, 2, 3]),
    ],
)
def test_gdj_method_2_pays_the_rank(rank_from, victims):
    streams = [stream("z1 a2 a3 c7 d8 e9"), stream("z4 z5 a6")]
    got = window_join(
        streams,
        lifetimes=[20, 20],
        capacity=[3, 9],
        policy="gdj",
        params={"method": 2, "initial_rank": 0.0, "rank_from": rank_from},
    )
    assert shed_rows(got) == victims


def test_ranks_from_the_bottom_count_strictly_smaller_credits():
    # 4: y, nobody below: +1. 5: z, nobody below (a is equal): +1. 6: a (0) leaves, c starts with 1.
    # 7: all have 1: the oldest, y, leaves.
    got = window_join(
        [stream("y1 z2 a3 c6 d7"), stream("y4 z5")],
        lifetimes=[20, 20],
        capacity=[3, 9],
        policy="gdj",
        params={"method": 2, "initial_rank": 0.0, "rank_from": "bottom"},
    )
    assert shed_rows(got) == [2, 0]


def test_rows_may_be_kept_from_probing_and_from_entering():
    # L0 probes R0, does not enter. L1 enters unseen. L2 does nothing. R1 finds L1 only.
    streams = [stream("a1 a2 a3"), stream("a0 a4")]
    got = window_join(
        streams,
        lifetimes=[9, 9],
        capacity=None,
        policy="fifo",
        probe=[[True, False, False], [True, True]],
        insert=[[False, True, False], [True, True]],
    )
    assert got.results == [(0, 0), (1, 1)]
    assert got.shed == [(0, 0, REFUSED), (0, 2, REFUSED)]
    assert got.n_exact == 6


@pytest.mark.parametrize(
    ("statistics", "shed"),
    [
        ("history", (1, 0, EVICTED)),  # a is seen twice, L2 is dropped unseen; b twice: may enter
        ("oracle", (1, 1, REFUSED)),  # the whole input has three a: b stays outside
    ],
)
def test_statistics_do_not_see_rows_dropped_before_the_join(statistics, shed):
    got = window_join(
        [stream("a1 a2 a3 b4 b5"), stream("a0 b9")],
        lifetimes=[99, 99],
        capacity=[None, 1],
        policy="prob",
        statistics=statistics,
        probe=[[True, False, False, True, True], [True, True]],
        insert=[[False, True, False, True, True], [True, True]],
    )
    assert [entry for entry in got.shed if entry[0] == 1] == [shed]


# -------------------------------------------------------------------------------------- orders


@pytest.mark.parametrize(
    ("order", "capacity", "results"),
    [
        # 2: L1 finds R0, takes L0's place, so R1 finds nobody. 3: L2 finds R1; R2 finds L2.
        ("probe_first", 1, [(1, 0), (2, 1), (2, 2)]),
        # 2: L1 finds R0, R1 finds L0, then both places change. 3: L2 finds R1; pair L2 R2.
        ("simultaneous", 1, [(1, 0), (0, 1), (2, 1), (2, 2)]),
        # 2: the places change first, nobody older is left. 3: the same; pair L2 R2.
        ("evict_first", 1, [(2, 2)]),
        # 2: L = a b, R = b a: L1 finds R0, R1 finds L0. 3: L = b a, R = a a: L2 finds R1; pair.
        ("evict_first", 2, [(1, 0), (0, 1), (2, 1), (2, 2)]),
    ],
)
def test_three_orders_of_one_instant(order, capacity, results):
    got = window_join(
        [stream("a1 b2 a3"), stream("b1 a2 a3")],
        lifetimes=[10, 10],
        capacity=[capacity, capacity],
        policy="fifo",
        order=order,
    )
    assert got.results == results
    assert got.n_exact == 5


@pytest.mark.parametrize(
    ("order", "victim"),
    [
        ("probe_first", 1),  # a and b enter with 0, R0 finds a (credit 1): at 2 b leaves
        ("simultaneous", 0),  # the pair of the instant pays nobody: at 2 the older, a, leaves
        ("evict_first", 0),
    ],
)
def test_pairs_of_an_instant_pay_no_credit(order, victim):
    got = window_join(
        [stream("a1 b1 c2"), stream("a1")],
        lifetimes=[10, 10],
        capacity=[2, 2],
        policy="gdj",
        params={"initial_rank": 0.0},
        order=order,
    )
    assert got.results == [(0, 0)]
    assert shed_rows(got) == [victim]


@pytest.mark.parametrize(
    ("order", "victim", "results"),
    [
        ("probe_first", 0, []),  # c comes first (side 0) and takes a's place
        ("simultaneous", 1, [(0, 0)]),  # R0 touches a before c looks for a place: b leaves
        ("evict_first", 0, []),  # c takes a's place, then R0 probes
    ],
)
def test_when_matches_take_effect(order, victim, results):
    got = window_join(
        [stream("a1 b2 c3"), stream("a3")],
        lifetimes=[10, 10],
        capacity=[2, 2],
        policy="lru",
        order=order,
    )
    assert shed_rows(got) == [victim]
    assert got.results == results


@pytest.mark.parametrize("order", ["simultaneous", "evict_first"])
def test_a_row_that_does_not_probe_is_in_no_pair_of_its_instant(order):
    # 1: L0 does not probe: no pair with R0, but it enters. 2: R1 finds L0. L1 probes without
    # entering: it finds R0 and pairs with R1.
    got = window_join(
        [stream("a1 a2"), stream("a1 a2")],
        lifetimes=[9, 9],
        capacity=None,
        policy="fifo",
        order=order,
        probe=[[False, True], [True, True]],
        insert=[[True, False], [True, True]],
    )
    assert sorted(got.results) == [(0, 1), (1, 0), (1, 1)]
    assert got.shed == [(0, 1, REFUSED)]
    assert got.n_exact == 4


@pytest.mark.parametrize("order", ["simultaneous", "evict_first"])
def test_instants_need_two_streams(order):
    with pytest.raises(ValueError, match="two streams"):
        window_join([[], [], []], lifetimes=[1, 1, 1], capacity=None, policy="fifo", order=order)


# --------------------------------------------------------------------- unified pools, k streams


def test_a_unified_pool_evicts_from_any_stream():
    # 3: L1 finds R0 (credit 1); L0 (0) leaves, L1 starts with 1. 4: R1: the older of R0, L1 leaves.
    got = window_join(
        [stream("a1 b3"), stream("b2 a4 b5")],
        lifetimes=[9, 9],
        capacity=2,
        unified=True,
        policy="gdj",
        params={"initial_rank": 1.0},
    )
    assert got.results == [(1, 0), (1, 2)]
    # 5: R2 finds L1 (credit 2); R1 (1) leaves.
    assert got.shed == [(0, 0, EVICTED), (1, 0, EVICTED), (1, 1, EVICTED)]
    assert got.max_held == [2]


def test_three_streams_pay_for_complete_results_only():
    # 3: S1 b: no b in S2, so nobody is paid. 4: S1 a: S0 a and S2 a are there: both are paid.
    # 5: c takes the place of b (0), not of the older a (1). 6: S2 a: one more result.
    streams = [stream("a1 b2 c5"), stream("b3 a4"), stream("a0 a6")]
    got = window_join(
        streams,
        lifetimes=[9, 9, 9],
        capacity=[2, 9, 9],
        policy="gdj",
        params={"initial_rank": 0.0},
    )
    assert got.results == [(0, 1, 0), (0, 1, 1)]
    assert got.shed == [(0, 1, EVICTED)]


@pytest.mark.parametrize(
    ("partner", "victim"),
    [
        ("next", 1),  # f of a = 2 in S1, of b = 1: b leaves
        ("product", 0),  # f of a = 2 * 0, of b = 1 * 1: a leaves (for an a: 0 is not less than 0)
    ],
)
def test_the_partner_of_a_stream_is_the_next_or_all_others(partner, victim):
    got = window_join(
        [stream("a2 b3 a4"), stream("a1 a1 b1"), stream("b1")],
        lifetimes=[9, 9, 9],
        capacity=[2, None, None],
        policy="prob",
        partner=partner,
    )
    assert got.shed == [(0, victim, EVICTED)]


# ------------------------------------------------------------------------------- count windows


def test_count_windows_hold_the_last_rows_of_each_stream():
    # windows: 1 row of L, 2 rows of R. 2: R0 finds L0. 3: L1 replaces L0. 4: R1 finds no a.
    # 5: R2 finds L1, R0 dies. 6: L2 replaces L1, finds R1.
    streams = [stream("a1 b3 a6"), stream("a2 a4 b5")]
    got = count_window_join(streams, [1, 2], None, "fifo")
    assert got.results == [(0, 0), (1, 2), (2, 1)]
    assert sorted(got.results) == exact_count_window_join(streams, [1, 2])
    assert got.n_exact == 3
    # With one place for R: 4: R0 leaves for R1; 5: R1 for R2, so L2 finds nobody.
    got = count_window_join(streams, [1, 2], [1, 1], "fifo")
    assert got.results == [(0, 0), (1, 2)]
    assert got.shed == [(1, 0, EVICTED), (1, 1, EVICTED)]


def test_a_null_takes_no_place_in_a_count_window():
    got = count_window_join([stream("a1 -2"), stream("a3")], [1, 1], None, "fifo")
    assert got.results == [(0, 0)]
    assert got.n_exact == 1


def test_life_in_a_count_window_counts_rows_left():
    # Window of 3 rows; at 3 three rows of L have come. a: 2 * (0+3-3) = 0, L1: 1 * (1+3-3) = 1,
    # L2: 1 * 2: a leaves. prob: L1 leaves.
    streams = [stream("a1 b2 b3"), stream("a0 a0 b0")]
    assert shed_rows(count_window_join(streams, [3, 9], [2, 9], "life")) == [0]
    assert shed_rows(count_window_join(streams, [3, 9], [2, 9], "prob")) == [1]


@pytest.mark.parametrize("policy", POLICIES)
def test_count_windows_with_room_are_exact(policy):
    rng = random.Random(5)
    for _ in range(10):
        streams = random_streams(rng)
        got = count_window_join(streams, [6, 9], [9, 9], policy, **options_for(policy))
        assert sorted(got.results) == exact_count_window_join(streams, [6, 9])
        assert got.n_out == got.n_exact
        small = count_window_join(streams, [6, 9], [3, 3], policy, **options_for(policy))
        assert not Counter(small.results) - Counter(got.results)
        assert policy == "full" or max(small.max_held) <= 3


# ----------------------------------------------------------------------------------- workloads

TWO_QUERIES = [([(0, "x"), (1, "x")], [10, 10]), ([(0, "y"), (1, "y")], [10, 10])]


def test_a_query_sees_a_row_only_during_its_own_lifetime():
    # S0's row lives to 6 for q0, to 3 for q1. 2: found by both. 4: found by q0 only.
    queries = [([(0, "x"), (1, "x")], [5, 5]), ([(0, "y"), (1, "y")], [2, 2])]
    both = {"x": 1, "y": 1}
    got = workload_join([[(1, both)], [(2, both), (4, both)]], queries, 9, "fifo")
    assert got.results == [(0, 0, 0), (1, 0, 0), (0, 0, 1)]
    assert got.n_exact == 3


def test_a_row_is_paid_once_per_query():
    # 3: S1's first row finds row 0 in both queries (+2), its second finds row 1 in q0 (+1).
    # 4: row 1 leaves.
    streams = [
        [(1, {"x": 1, "y": 1}), (2, {"x": 2, "y": 2}), (4, {"x": 0, "y": 0})],
        [(3, {"x": 1, "y": 1}), (3, {"x": 2, "y": 9})],
    ]
    got = workload_join(
        streams, TWO_QUERIES, [2, 9], "gdj", unified=False, params={"initial_rank": 0.0}
    )
    assert got.results == [(0, 0, 0), (1, 0, 0), (0, 1, 1)]
    assert got.shed == [(0, 1, EVICTED)]


def test_prob_in_a_workload_sums_over_the_queries():
    # S1 has shown x: 1, 2, 2 and y: 5, 6, 5. Row 0: 1 + 2 = 3. Row 1: 2 + 0 = 2 (null: nothing).
    # Row 2: 2 + 1 = 3: row 1 leaves. Row 3: 0 + 1 < 3: refused.
    streams = [
        [
            (1, {"x": 1, "y": 5}),
            (2, {"x": 2, "y": None}),
            (3, {"x": 2, "y": 6}),
            (4, {"x": 8, "y": 6}),
        ],
        [(0, {"x": 1, "y": 5}), (0, {"x": 2, "y": 6}), (0, {"x": 2, "y": 5})],
    ]
    got = workload_join(streams, TWO_QUERIES, [2, 9], "prob", unified=False)
    assert got.shed == [(0, 1, EVICTED), (0, 3, REFUSED)]


def test_life_in_a_workload_lasts_to_the_largest_end():
    # q1 sees rows for 2 instants only, but they are resident for q0's 10. S1 has shown x: 1, 1, 2.
    # 9: row 0 (end 11) is worth 2 * 2, row 1 (end 17) 1 * 8: row 0 leaves. prob: row 1 leaves.
    queries = [([(0, "x"), (1, "x")], [10, 10]), ([(0, "y"), (1, "y")], [2, 2])]
    streams = [
        [(1, {"x": 1}), (7, {"x": 2}), (9, {"x": 2})],
        [(0, {"x": 1}), (0, {"x": 1}), (0, {"x": 2})],
    ]
    for policy, victim in [("life", 0), ("prob", 1)]:
        got = workload_join(streams, queries, [2, 9], policy, unified=False)
        assert got.shed == [(0, victim, EVICTED)]
        assert got.results == [(0, 0, 0), (0, 0, 1), (0, 1, 2), (0, 2, 2)]


def test_a_row_without_any_value_never_enters_a_workload():
    streams = [[(1, {"x": None, "y": None}), (1, {"x": 1, "y": None})], [(2, {"x": 1, "y": None})]]
    got = workload_join(streams, TWO_QUERIES, 9, "fifo")
    assert got.n_null == [1, 0]
    assert got.results == [(0, 1, 0)]
    assert got.max_held == [2]


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in NO_WORKLOADS])
def test_a_workload_of_one_query_is_a_window_join(policy, k, unified):
    rng = random.Random(k)
    for closed in [False, True]:
        streams = random_streams(rng, k, n=25)
        capacity = 7 if unified else [3] * k
        options = dict(options_for(policy), unified=unified, closed=closed, seed=3)
        one = window_join(streams, lifetimes=[5] * k, capacity=capacity, policy=policy, **options)
        wide = [[(ts, {"x": key}) for ts, key in part] for part in streams]
        query = ([(side, "x") for side in range(k)], [5] * k)
        many = workload_join(wide, [query], capacity, policy, **options)
        assert [(0, *rows) for rows in one.results] == many.results
        assert (one.shed, one.n_null, one.n_exact) == (many.shed, many.n_null, many.n_exact)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in NO_WORKLOADS])
def test_a_workload_with_room_is_exact_in_every_query(policy):
    rng = random.Random(8)
    queries = [
        ([(0, "x"), (1, "y")], [4, 6]),
        ([(2, "y"), (0, "y"), (1, "x")], [5, 7, 3]),
    ]
    x, y = random_streams(rng, 3, 20), random_streams(rng, 3, 20)
    streams = [
        [(ts, {"x": a, "y": b}) for (ts, a), (_, b) in zip(x[s], y[s], strict=True)]
        for s in range(3)
    ]
    got = workload_join(streams, queries, 99, policy, **options_for(policy))
    expected = []
    for q, (members, lifetimes) in enumerate(queries):
        part = [[(ts, row[name]) for ts, row in streams[s]] for s, name in members]
        expected += [(q, *rows) for rows in exact_join(part, lifetimes)]
    assert sorted(got.results) == sorted(expected)
    assert got.n_exact == got.n_out > 0


# ---------------------------------------------------------------------------------- identities


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("unified", [False, True])
def test_results_are_exact_with_room_and_part_of_it_without(policy, order, unified):
    rng = random.Random(1)
    for closed in [False, True]:
        streams = random_streams(rng)
        options = dict(
            options_for(policy),
            lifetimes=[4, 6],
            policy=policy,
            order=order,
            unified=unified,
            closed=closed,
        )
        exact = exact_join(streams, [4, 6], closed)
        ample = window_join(streams, capacity=99 if unified else [99, 99], **options)
        assert sorted(ample.results) == exact
        assert ample.n_exact == len(exact)
        assert ample.shed == []
        small = window_join(streams, capacity=5 if unified else [3, 3], **options)
        assert not Counter(small.results) - Counter(exact)
        if policy != "full":
            assert max(small.max_held) <= (5 if unified else 3)
            assert len(small.shed) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_three_streams_with_room_are_exact(policy):
    streams = random_streams(random.Random(2), k=3, n=20, n_keys=3)
    got = window_join(
        streams, lifetimes=[4, 6, 5], capacity=None, policy=policy, **options_for(policy, 3)
    )
    assert sorted(got.results) == exact_join(streams, [4, 6, 5])
    assert got.n_exact == got.n_out > 0


@pytest.mark.parametrize("method", [2, 3])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("unified", [False, True])
def test_uniform_decrements_change_nothing(method, order, unified):
    """chang2004 §4.1, §5.2: method 3 is method 1, and the -1 of method 2 is without effect."""
    rng = random.Random(3)
    for _ in range(50):
        streams = random_streams(rng, n=30)
        options = {
            "lifetimes": [7, 5],
            "capacity": 5 if unified else [3, 2],
            "unified": unified,
            "policy": "gdj",
            "order": order,
        }
        q = rng.choice([0.0, 0.3, 0.5, 0.9, 1.0])
        literal = {"method": method, "initial_rank": q, "literal_decrement": True}
        plain = {"method": 1 if method == 3 else 2, "initial_rank": q}
        assert window_join(streams, params=literal, **options) == window_join(
            streams, params=plain, **options
        )


SPECIAL_CASES = {
    "fifo": {"params": {"increment": 0, "initial_rank": 1.0}},
    "lru": {"params": {"increment": "max", "initial": "max"}},
    "lfu": {"params": {"increment": 0, "initial": "frequency"}, "competing": True},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("policy", SPECIAL_CASES)
def test_classic_policies_are_special_cases_of_gdj(policy, unified, order):
    """chang2004 §4: LFU, LRU and FIFO as instances of GDJ."""
    rng = random.Random(4)
    for statistics in ["history", "window", "memory", "oracle"]:
        for _ in range(5):
            streams = random_streams(rng)
            options = {
                "lifetimes": [7, 5],
                "capacity": 5 if unified else [3, 2],
                "unified": unified,
                "order": order,
                "statistics": statistics,
            }
            assert window_join(streams, policy=policy, **options) == window_join(
                streams, policy="gdj", **SPECIAL_CASES[policy], **options
            )


def test_a_percentile_newcomer_is_never_refused():
    # Its would-be credit is one of the pool's, so never below the smallest.
    streams = random_streams(random.Random(6))
    options = {
        "lifetimes": [7, 5],
        "capacity": [3, 2],
        "policy": "gdj",
        "params": {"initial_rank": 0.0},
    }
    assert window_join(streams, competing=True, **options) == window_join(streams, **options)
