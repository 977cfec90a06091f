"""The optimum against the paper, brute force, a second algorithm, and every policy."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joinweir as jw
from joinweir import optimum
from joinweir.errors import JoinweirError
from joinweir.optimum import bound, flow, graph, pieces, problem, solving, weights
from joinweir.policies import definition
from joinweir.simulation import split_budget

ORDERS = ("probe_first", "simultaneous", "evict_first")
WAYS = (
    {"method": "flow", "solver": "paths"},
    {"method": "flow", "solver": "ortools"},
    {"method": "odja"},
)
LEFT = {"k": [1, 9, 1, 3, 4, 2], "imp": [1, 20, 1, 5, 5, 1], "t": range(6)}
RIGHT = {"k": [3, 1, 1, 1, 9, 1], "imp": [5, 1, 1, 1, 20, 1], "t": range(6)}
COMBINED = {
    "min": min,
    "max": max,
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "mean": lambda a, b: (a + b) / 2,
}


# --- the worked example of ojewole2006 -----------------------------------------------------------
def example(**how):
    return optimum.solve(
        LEFT, RIGHT, on="k", time="t", within=4, max_rows=4, importance="imp", **how
    )


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("order", "importance", "n_out"),
    [("evict_first", 30, 7), ("simultaneous", 31, 8), ("probe_first", 30, 7)],
)
def test_the_papers_example_keeps_what_is_important(order, importance, n_out, way):
    best = example(order=order, objective="importance", **way)
    assert (best.value, best.importance, best.n_out) == (importance, importance, n_out)
    assert (best.n_exact, best.exact_importance) == (9, 32)
    assert (best.upper_bound, best.gap) == (importance, 0)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_papers_largest_result_is_less_important(way):
    most = example(order="evict_first", objective="count", **way)
    assert (most.value, most.n_out, most.importance) == (8, 8, 12)


def test_the_papers_exact_join():
    found = optimum.exact(LEFT, RIGHT, on="k", time="t", within=4, importance="imp")
    assert found == (9, 32)


def test_the_papers_example_holds_the_row_that_is_worth_twenty():
    best = example(order="evict_first", objective="importance")
    held = dict(zip(zip(best.retained.stream, best.retained.row), best.retained.until))
    assert held[0, 1] == 4  # R's key 9 of time 1 is held until S's of time 4 has come
    assert held[1, 0] == 3  # S's key 3 of time 0, worth 5
    assert best.retained.n_out.sum() == 6  # and one pair of a single instant needs no memory


# --- brute force: all decisions that a policy could take -----------------------------------------
def brute_force(arrivals, slots, order, worth):
    """The largest total worth over all ways to admit, refuse and evict, arrival by arrival.

    `arrivals` are (ts, side, row, key, end) in order; `slots` are by side, or one for both. `worth`
    gives (count, importance)-like tuples that are compared as such.
    """
    groups = [[a] for a in arrivals]
    if order != "probe_first":
        times = sorted({a[0] for a in arrivals})
        groups = [[a for a in arrivals if a[0] == t] for t in times]
    pool_of = (lambda side: 0) if len(slots) == 1 else (lambda side: side)

    def pairs(held, group):
        return [(x, y) for x in held for y in group if x[1] != y[1] and x[3] == y[3]]

    def admissions(held, group):
        found = {frozenset(held)}
        for row in group:
            after = set()
            for memory in found:
                mine = [x for x in memory if pool_of(x[1]) == pool_of(row[1])]
                if len(mine) < slots[pool_of(row[1])]:
                    after.add(memory | {row})
                else:
                    after.add(memory)
                    after |= {(memory - {x}) | {row} for x in mine}
            found = after
        return found

    def add(a, b):
        return tuple(x + y for x, y in zip(a, b, strict=True))

    def total(results):
        return add(*[tuple(map(sum, zip(*map(worth, results), (0, 0), strict=True))), (0, 0)])

    @cache
    def best(g, held):
        if g == len(groups):
            return (0, 0)
        group = groups[g]
        alive = frozenset(x for x in held if x[4] > group[0][0])
        lefts = [x for x in group if x[1] == 0]
        inside = total([(x, y) for x, y in pairs(lefts, group)])
        if order == "evict_first":
            return max(
                add(add(inside, total(pairs(memory - set(group), group))), best(g + 1, memory))
                for memory in admissions(alive, group)
            )
        now = add(inside, total(pairs(alive, group)))
        return add(now, max(best(g + 1, memory) for memory in admissions(alive, group)))

    return best(0, frozenset())


@st.composite
def small_joins(draw, most=6):
    """Two short streams with ties in time, repeated keys, nulls, and a budget."""
    tables = []
    for _ in range(2):
        n = draw(st.integers(0, most))
        times = sorted(draw(st.lists(st.integers(0, 6), min_size=n, max_size=n)))
        keys = draw(st.lists(st.sampled_from([1, 1, 2, 3, None]), min_size=n, max_size=n))
        worth = draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))
        tables.append({"k": keys, "t": np.array(times, np.int64), "imp": np.array(worth, float)})
    within = draw(st.sampled_from([(1, 4), (3, 3), (5, 2), (7, 7)]))
    budget = draw(
        st.sampled_from(
            [
                {"max_rows": (1, 1)},
                {"max_rows": (1, 3)},
                {"max_rows": (2, 1)},
                {"max_rows": 3},
                {"max_rows": 5, "allocation": "rates"},
                {"max_rows": 1, "allocation": "unified"},
                {"max_rows": 2, "allocation": "unified"},
            ]
        )
    )
    return tables, within, budget


def arrivals_of(tables, within):
    rows = [
        (int(t), side, row, key, int(t) + within[side])
        for side, table in enumerate(tables)
        for row, (t, key) in enumerate(zip(table["t"], table["k"], strict=True))
        if key is not None
    ]
    return sorted(rows, key=lambda r: r[:3])


@settings(max_examples=250)
@given(
    small_joins(),
    st.sampled_from(ORDERS),
    st.sampled_from(("count", "importance")),
    st.sampled_from(sorted(COMBINED)),
)
def test_no_way_to_admit_and_evict_gets_more_and_one_gets_as_much(case, order, objective, combine):
    tables, within, budget = case
    arrivals = arrivals_of(tables, within)

    def worth(pair):
        x, y = pair
        value = COMBINED[combine](tables[x[1]]["imp"][x[2]], tables[y[1]]["imp"][y[2]])
        return (1, value) if objective == "count" else (value, 1)

    best = optimum.solve(
        *tables,
        on="k",
        time="t",
        within=within,
        **budget,
        order=order,
        objective=objective,
        importance="imp",
        combine=combine,
    )
    expected = brute_force(arrivals, best.slots, order, worth)
    found = (best.n_out, best.importance)
    assert found == (expected if objective == "count" else expected[::-1])
    assert best.upper_bound == best.value
    assert_fits(best, arrivals)


def assert_fits(best, arrivals):
    """Rows that are held never exceed memory, whatever the order of events."""
    until = {
        (s, r): t
        for s, r, t in zip(*(a.tolist() for a in (best.retained.stream, best.retained.row)),
                           best.retained.until.tolist(), strict=True)
    }  # fmt: skip
    for t, side, row, *_ in arrivals:
        # Whoever was admitted before this row, or with it, and still waits for a later arrival.
        held = [
            (a[1], a[2])
            for a in arrivals
            if a[:3] <= (t, side, row) and until.get((a[1], a[2]), -1) > t
        ]
        if len(best.slots) == 1:
            assert len(held) <= best.slots[0]
        else:
            assert all(sum(s == p for s, _ in held) <= best.slots[p] for p in (0, 1))


# --- three solvers, one answer -------------------------------------------------------------------
@settings(max_examples=300)
@given(
    small_joins(most=16),
    st.sampled_from(ORDERS),
    st.sampled_from(("count", "importance")),
)
def test_odja_and_both_flow_solvers_agree(case, order, objective):
    tables, within, budget = case
    found = [
        optimum.solve(
            *tables, on="k", time="t", within=within, **budget, order=order,
            objective=objective, importance="imp", **way,
        )
        for way in WAYS
    ]  # fmt: skip
    assert len({(best.value, best.n_out, best.importance, best.upper_bound) for best in found}) == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("max_rows", [(1, 1), (4, 4), (3, 1), (1, 9)])
def test_odja_and_flow_agree_where_sets_are_many(order, max_rows):
    left, right = jw.streams.zipf_pair(300, domain=6, skew=(1.0, 0.0), seed=3)
    for seed, table in enumerate((left, right)):
        table["importance"] = jw.streams.importance(300, seed=seed)
    found = [
        optimum.solve(
            left, right, on="key", time="ts", within=10, max_rows=max_rows, order=order,
            objective="importance", importance="importance", **way,
        )
        for way in WAYS
    ]  # fmt: skip
    assert found[0].n_rows > 100
    assert np.allclose([best.value for best in found], found[0].value, rtol=1e-12)
    assert all(best.gap < 1e-9 for best in found)


# --- what must hold on any stream ----------------------------------------------------------------
def streams_to_try():
    yield "zipf", jw.streams.zipf_pair(600, domain=30, skew=1.0, seed=1)
    yield "bursts", jw.streams.gismo_pair(600, domain=20, seed=2)
    yield "drift", jw.streams.drift_pair(600, domain=40, seed=3)
    rng = np.random.default_rng(5)
    ties = [
        {"ts": np.sort(rng.integers(0, 120, n)), "key": rng.integers(0, 12, n)} for n in (500, 300)
    ]
    yield "ties", tuple(ties)


@pytest.mark.parametrize("budget", [{"max_rows": 30}, {"max_rows": (5, 25)},
                                    {"max_rows": 31, "allocation": "unified"},
                                    {"max_rows": 30, "allocation": "rates"}], ids=str)  # fmt: skip
@pytest.mark.parametrize("order", ORDERS)
def test_no_policy_beats_the_optimum(order, budget):
    for name, (left, right) in streams_to_try():
        join = {"on": "key", "time": "ts", "within": (40, 60), "order": order, **budget}
        best = optimum.solve(left, right, **join)
        full = jw.simulate(left, right, **join, policy="full")
        assert best.n_exact == full.n_exact == full.n_out, name
        for policy in jw.policy_names():
            if definition(policy).bounded:
                try:
                    got = jw.simulate(left, right, **join, policy=policy, pairs=False, shed=False)
                except JoinweirError:
                    continue  # the policy does not do this kind of join, and says so
                assert got.n_out <= best.n_out, (name, policy)
                assert got.n_exact == best.n_exact


@pytest.mark.parametrize("within", [jw.rows(25), jw.landmark(50), "closed"], ids=str)
def test_no_policy_beats_the_optimum_in_other_windows(within):
    join = {"on": "key", "time": "ts", "within": within, "max_rows": 16}
    if within == "closed":
        join |= {"within": 30, "closed": "both"}
    for name, (left, right) in streams_to_try():
        best = optimum.solve(left, right, **join)
        for policy in ("fifo", "prob", "lru"):
            got = jw.simulate(left, right, **join, policy=policy)
            assert got.n_exact == best.n_exact, name
            assert got.n_out <= best.n_out, (name, policy)


def test_no_policy_has_more_importance_than_the_optimum():
    left, right = jw.streams.zipf_pair(800, domain=30, skew=1.0, seed=1)
    for seed, table in enumerate((left, right)):
        table["importance"] = jw.streams.importance(800, seed=seed)
    join = {"on": "key", "time": "ts", "within": 60, "max_rows": 30}
    best = optimum.solve(
        left, right, **join, objective="importance", importance="importance", combine="sum"
    )
    for policy in ("fifo", "prob", "gdj", "life"):
        rows = jw.simulate(left, right, **join, policy=policy).pairs
        got = (left["importance"][rows[0]] + right["importance"][rows[1]]).sum()
        assert got <= best.upper_bound * (1 + 1e-12)


def test_the_optimum_is_concave_in_memory_and_ends_at_the_exact_join():
    left, right = jw.streams.zipf_pair(500, domain=25, skew=0.8, seed=9)
    values = [
        optimum.solve(left, right, on="key", time="ts", within=40, max_rows=(m, 1)).value
        for m in range(1, 45)
    ]
    gains = np.diff(values)
    assert (gains >= 0).all()
    assert (np.diff(gains) <= 0).all()
    free = optimum.solve(left, right, on="key", time="ts", within=40)
    assert free.value == free.n_exact == free.upper_bound
    assert free.slots is None


@given(
    st.integers(2, 60), st.integers(0, 50), st.integers(0, 50), st.sampled_from(["even", "rates"])
)
def test_memory_is_split_as_the_simulation_splits_it(total, n_left, n_right, allocation):
    from joinweir.optimum.problem import slots_per_pool

    rates = np.array([n_left, n_right]) / 7
    assert slots_per_pool(total, allocation, [n_left, n_right]) == split_budget(
        total, allocation, rates
    )


def test_fractions_of_importance_state_their_rounding():
    rng = np.random.default_rng(3)
    tables = [
        {"k": rng.integers(0, 5, 400), "t": np.arange(400), "imp": rng.random(400) + 1e-3}
        for _ in range(2)
    ]
    join = {"on": "k", "time": "t", "within": 30, "importance": "imp", "combine": "product"}
    best = optimum.solve(*tables, **join, max_rows=10, objective="importance")
    other = optimum.solve(*tables, **join, max_rows=10, objective="importance", solver="ortools")
    assert best.value <= best.upper_bound
    assert 0 <= best.gap < 1e-9
    assert best.scale > 2**30
    assert abs(best.value - other.value) <= best.gap * best.upper_bound + 1e-9


def test_an_empty_stream_has_an_optimum_of_nothing():
    empty = {"k": [], "t": np.array([], np.int64)}
    for way in WAYS:
        best = optimum.solve(empty, empty, on="k", time="t", within=3, max_rows=2, **way)
        assert (best.value, best.upper_bound, best.gap, best.recall) == (0, 0, 0, 1)


# --- bad input -----------------------------------------------------------------------------------
def refused(**changes):
    arguments = {"on": "k", "time": "t", "within": 4, "max_rows": 4, "importance": "imp"}
    with pytest.raises(JoinweirError) as error:
        optimum.solve(
            changes.pop("left", LEFT), changes.pop("right", RIGHT), **(arguments | changes)
        )
    return str(error.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0, 1, 1, 0, 1, 1], "row 3 has 0.0"),
        ([1.0, 1, -2, 1, 1, 1], "row 2 has -2.0"),
        ([1.0, 1, 1, 1, 1, float("nan")], "row 5 has nan"),
        ([1.0, None, 1, 1, 1, 1], "row 1 has no value"),
        ([1.0, 1, 1, 1, float("inf"), 1], "row 4 has inf"),
        (list("abcdef"), "it must be numeric"),
    ],
)
def test_a_bad_importance_is_named_with_its_row(values, said):
    message = refused(right=RIGHT | {"imp": values})
    assert said in message
    assert "importance column 'imp' of the right stream" in message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory": "64 MB", "max_rows": None}, "the optimum counts rows; give max_rows"),
        ({"objective": "imp"}, "unknown objective 'imp'"),
        ({"combine": "avg"}, "unknown combine 'avg'"),
        ({"method": "flwo"}, "did you mean 'flow'?"),
        ({"solver": "simplex"}, "unknown solver 'simplex'"),
        ({"order": "evict"}, "unknown order 'evict'"),
        ({"closed": "right"}, "unknown closed 'right'"),
        ({"within": 0}, "within must be more than 0"),
        ({"within": (1, 2, 3)}, "within has 3 values for 2 streams"),
        ({"max_rows": 1}, "must be at least 2"),
        ({"max_rows": 0}, "max_rows must be a whole number"),
        ({"max_rows": (2, 2), "allocation": "even"}, "does not go with a budget per stream"),
        ({"max_rows": None, "allocation": "even"}, "allocation needs max_rows"),
        ({"allocation": "fair"}, "unknown allocation 'fair'"),
        ({"importance": "weight"}, "unknown column of the left stream 'weight'"),
        ({"importance": None, "objective": "importance"}, "needs importance="),
        ({"importance": 3}, "importance must name a column"),
        ({"right": None}, "the optimum is for two streams"),
        ({"on": 3}, "on must be a column name"),
        ({"time": 3}, "time must name a column"),
        ({"within": jw.rows(3), "order": "simultaneous"}, "needs a time window, not rows(n)"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_that_names_the_culprit(changes, said):
    message = refused(**changes)
    assert said in message
    assert "\n" not in message


def test_without_or_tools_it_says_which_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.graph.python", None)
    assert "pip install 'joinweir[optimum]'" in refused(solver="ortools")
    assert example(objective="count").n_out == 8  # the other solvers do without


def test_odja_gives_up_before_memory_does(monkeypatch):
    monkeypatch.setattr(optimum.odja, "MAX_STATES", 2000)
    rng = np.random.default_rng(0)
    tables = [{"k": rng.integers(0, 3, 90), "t": np.arange(90), "imp": np.ones(90)}] * 2
    message = refused(left=tables[0], right=tables[1], method="odja", within=30, max_rows=(12, 12))
    assert "use method='flow'" in message


# --- bounds --------------------------------------------------------------------------------------
def a_graph(n=2000, *, slots=20, objective="count", order="probe_first", skew=1.0):
    """The left pool's graph of a pair of streams."""
    left, right = jw.streams.zipf_pair(n, domain=100, skew=skew, seed=7)
    for seed, table in enumerate((left, right)):
        table["imp"] = np.rint(jw.streams.importance(n, seed=seed))
    arrivals = problem.read(left, right, problem.Join("key", "ts", 120, order, "left", "imp"))
    matches = problem.find_matches(arrivals)
    made = weights.make_weights(objective, 0, arrivals, matches)
    return graph.build(problem.pools(arrivals, [slots, slots])[0], matches, made)


@pytest.mark.parametrize("objective", ["count", "importance"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_prices_of_the_paths_prove_that_nothing_is_better(order, objective):
    made = a_graph(order=order, objective=objective)
    solution = flow.solve_flow(made, "paths")
    assert made.n_options > 1000
    assert (solution.price >= 0).all()
    # Exact but for what is added to make up for rounding: 10^-10 of it.
    assert solution.value <= bound.dual_value(made, solution.price) <= solution.value * (1 + 2e-10)


def naive_dual_value(made, price):
    total = made.slots * price.sum()
    for row in range(made.row.size):
        options = range(made.at[row], made.at[row + 1])
        nets = [made.value[x] - price[made.start[row] : made.gap[x] + 1].sum() for x in options]
        total += max(0, *nets)
    return total


def test_any_prices_bound_the_optimum_from_above():
    made = a_graph(400, objective="importance")
    optimum_value = flow.solve_flow(made, "paths").value
    rng = np.random.default_rng(2)
    for scale in (0.0, 0.01, 0.1, 1.0):
        price = rng.random(made.n_gaps) * scale * made.value.max()
        assert bound.dual_value(made, price) >= optimum_value
        assert bound.dual_value(made, price) == pytest.approx(naive_dual_value(made, price))


def occupied(made, held_in):
    """Rows in each gap, one by one."""
    count = np.zeros(made.n_gaps, np.int64)
    for start, end in zip(made.start, held_in):
        count[start : end + 1] += 1
    return count


@pytest.mark.parametrize("find", [bound.find_bounds, pieces.bounds_from_pieces])
@pytest.mark.parametrize("skew", [(1.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("objective", ["count", "importance"])
def test_bounds_enclose_the_optimum_closely(find, skew, objective):
    made = a_graph(3000, skew=skew, objective=objective)
    exact = flow.solve_flow(made, "paths").value
    found = find(made, **({"gaps": 300} if find is pieces.bounds_from_pieces else {}))
    assert found.value <= exact <= found.upper
    assert found.value >= 0.98 * exact
    assert found.upper <= 1.02 * exact
    held = found.held_in >= 0
    earned = 0
    for row in np.flatnonzero(held):
        options = slice(made.at[row], made.at[row + 1])
        earned += int(made.value[options][made.gap[options] == found.held_in[row]][0])
    assert earned == found.value
    assert occupied(made, found.held_in).max() <= made.slots


def test_pieces_with_a_margin_find_the_prices_of_the_whole():
    made = a_graph(3000, objective="importance")
    exact = flow.solve_flow(made, "paths").value
    close = pieces.bounds_from_pieces(made, gaps=400, rounds=1)
    far = pieces.bounds_from_pieces(made, gaps=400, margin=0, rounds=1)
    assert exact <= close.upper < far.upper
    assert close.upper <= 1.001 * exact


def test_pieces_cover_every_gap_once():
    made = a_graph(1500)
    cuts = list(pieces.cut(made, 100, 30))
    assert sum(piece.own for piece in cuts) == made.n_gaps
    for piece in cuts:
        assert (piece.gap < piece.n_gaps).all()
        assert (np.diff(piece.at) > 0).all()
        assert piece.start.size == piece.at.size - 1


@settings(max_examples=150)
@given(
    small_joins(most=12),
    st.sampled_from(ORDERS),
    st.sampled_from(("count", "importance")),
    st.sampled_from(("bound", "pieces")),
)
def test_bounds_hold_on_small_streams(case, order, objective, method):
    tables, within, budget = case
    join = {"on": "k", "time": "t", "within": within, "order": order, "importance": "imp"}
    best = optimum.solve(*tables, **join, **budget, objective=objective)
    near = optimum.solve(
        *tables, **join, **budget, objective=objective, method=method, piece_gaps=2
    )
    assert near.value <= best.value <= near.upper_bound
    assert near.gap == pytest.approx((near.upper_bound - near.value) / max(near.upper_bound, 1))
    assert_fits(near, arrivals_of(tables, within))


def test_auto_takes_the_bound_where_the_flow_would_take_too_long(monkeypatch):
    left, right = jw.streams.zipf_pair(500, domain=25, skew=0.8, seed=9)
    join = {"on": "key", "time": "ts", "within": 40, "max_rows": 10}
    assert set(optimum.solve(left, right, **join).solver) <= set(flow.SOLVERS)
    monkeypatch.setattr(solving, "LONGEST", 0.0)
    found = optimum.solve(left, right, **join)
    assert found.solver == ("bound", "bound")
    assert 0 <= found.gap < 0.05


# --- the page ------------------------------------------------------------------------------------
def test_the_example_of_the_page_prints_what_the_page_shows(capsys):
    page = (Path(__file__).parent.parent / "docs" / "optimum.md").read_text()
    example, shown = re.search(r"```python\n(.*?)```\n```\n(.*?)```", page, re.DOTALL).groups()
    exec(compile(example, "optimum.md", "exec"), {})
    assert capsys.readouterr().out == shown
