"""The sketch of the exact join's size: rows out of order, cut panes, its error and its memory.

The exact join of accepted rows is all pairs in the window, in whatever order they came; so the
oracle here is a count over sorted times, which shares nothing with the engine.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import joinweir as jw
from joinweir import layout as L
from joinweir.state import JoinConfig, JoinState, make_batch


def config_of(lifetimes, lateness=None, accounting="sketch", **options):
    return JoinConfig(
        jw.policy("fifo"),
        lifetimes,
        (50, 50),
        ordered=lateness is None,
        lateness=lateness or (),
        accounting=accounting,
        **options,
    )


def feed(state, ts, side, key):
    rows = np.arange(len(ts))
    state.process(make_batch(state.config, ts=ts, side=side, key=key, row=rows), results=False)
    return state


def pairs_in_window(ts, side, key, lifetimes) -> int:
    """Pairs with l.ts - life of r < r.ts < l.ts + life of l, counted key by key."""
    ts, side, key = np.asarray(ts), np.asarray(side), np.asarray(key)
    n = 0
    for k in np.unique(key):
        left, right = (np.sort(ts[(key == k) & (side == s)]) for s in (0, 1))
        until = np.searchsorted(right, left + lifetimes[0], "left")
        n += int((until - np.searchsorted(right, left - lifetimes[1], "right")).sum())
    return n


def accepted(rows, lateness):
    """Rows that are not behind their own side's largest time by more than its lateness."""
    high = [None, None]
    kept = []
    for side, t, key in rows:
        if high[side] is None or t >= high[side] - lateness[side]:
            kept.append((side, t, key))
            high[side] = t if high[side] is None else max(high[side], t)
    return kept


def columns(rows):
    side, ts, key = zip(*rows, strict=True)
    return np.array(ts), np.array(side), np.array(key)


# --- exact where it can be -----------------------------------------------------------------------
A_ROW = st.tuples(st.integers(0, 1), st.integers(-16, 16), st.integers(0, 2))


@given(
    st.lists(A_ROW, min_size=1, max_size=80),
    st.tuples(st.integers(1, 32), st.integers(1, 32)),
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_three_keys_and_a_pane_a_tick_are_counted_exactly(rows, lifetimes, lateness):
    """33 places for 33 ticks: no pane is cut, and three keys do not collide in 2,048 cells."""
    rows = accepted(rows, lateness)
    ts, side, key = columns(rows)
    state = feed(JoinState(config_of(lifetimes, lateness)), ts, side, key)
    assert state.exact_size() == (pairs_in_window(ts, side, key, lifetimes), 0.0)


@given(
    st.lists(st.tuples(A_ROW, st.integers(0, 5)), min_size=1, max_size=33),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.integers(0, 12),
    st.integers(2, 10**9),
)
def test_far_apart_bursts_with_a_pane_a_tick_are_counted_exactly(rows, lifetimes, late, apart):
    """33 rows never need more than the 33 places, whatever lies between them."""
    rows = [(side, t + (100 + apart) * burst, key) for (side, t, key), burst in rows]
    rows.sort(key=lambda row: row[1] // 50)
    rows = accepted(rows, (late, late))
    ts, side, key = columns(rows)
    state = feed(JoinState(config_of(lifetimes, (late, late))), ts, side, key)
    assert state.exact_size() == (pairs_in_window(ts, side, key, lifetimes), 0.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(-(10**6), 10**6), st.integers(0, 2)),
        min_size=1,
        max_size=200,
    ),
    st.tuples(st.integers(1, 10**5), st.integers(1, 10**5)),
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    st.integers(1, 8),
)
def test_the_list_of_panes_holds_what_is_alive(rows, lifetimes, lateness, panes):
    rows = accepted(rows, lateness)
    state = JoinState(config_of(lifetimes, lateness, sketch_panes=panes))
    before = state.bytes_of_state()
    for at in range(0, len(rows), 7):
        feed(state, *columns(rows[at : at + 7]))
        for s in (0, 1):
            live = state.store.side["sketch_live"][s]
            first, last, place, n, times = state.store.sketch_pane[s].reshape(5, -1)
            assert (first[:live] <= last[:live]).all()
            assert (last[: live - 1] < first[1:live]).all() if live else True
            assert sorted(place) == list(range(panes + 1))
            clock = state.store.side["clock"][s]
            mine = [t for side, t, _ in rows[: at + 7] if side == s]
            alive = [t for t in mine if t + lifetimes[s] > clock]
            assert (last[:live] + lifetimes[s] > clock).all()
            assert n[:live].sum() >= len(alive)  # a pane goes when its last row does
            for t in alive:
                i = np.searchsorted(first[:live], t, "right") - 1
                assert first[i] <= t <= last[i]
            assert (times[:live] >= 0).all()
            assert (times[:live] <= n[:live] * (last - first)[:live]).all()
    assert (state.store.sketch.sum(axis=1) == state.store.sketch_sum).all()
    assert state.bytes_of_state() == before


def test_hand_worked_two_sides_late_and_ahead():
    """Left rows live 3 ticks, right ones 2: left 10 matches right 9 to 12."""
    rows = [(1, 8, 0), (1, 9, 0), (1, 12, 0), (1, 13, 0), (0, 10, 0), (0, 11, 0), (1, 11, 0)]
    state = feed(JoinState(config_of((3, 2), (5, 5))), *columns(rows))
    # left 10: 9, 12; left 11: 12, 13; right 11: left 10 and 11
    assert state.exact_size() == (6, 0.0)


# --- unbiased ------------------------------------------------------------------------------------
def late_streams(rng, n, *, domain, skew, lateness, lag=0, step=1, rate=1, start=0, pause=0):
    """Two streams; each row comes up to its lateness after its time, the right side `lag` more."""
    weights = 1 / np.arange(1, domain + 1) ** skew
    parts = []
    for s in (0, 1):
        ts = np.sort(rng.integers(0, n // rate, n))
        ts = (start + ts + pause * (ts > n // rate // 2)) * step
        arrival = ts + rng.integers(0, lateness[s] + 1, n) + lag * s
        key = rng.choice(domain, n, p=weights / weights.sum())
        parts.append((ts, np.full(n, s), key, arrival))
    ts, side, key, arrival = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((side, ts, arrival))
    return ts[order], side[order], key[order]


CASES = {
    "late": {},
    "hardly late": {"lateness": (2, 5)},
    "late by twice the window": {"lateness": (1400, 1400)},
    "late by ten windows": {"lateness": (1500, 1500), "lifetimes": (150, 150)},
    "one side late, its rows dead on arrival": {"lateness": (1500, 0), "lifetimes": (200, 1000)},
    "unequal lives": {"lifetimes": (100, 1300)},
    "lagging by ten windows": {"lifetimes": (200, 150), "lag": 2000},
    "lagging, narrow": {"lifetimes": (20, 10), "lag": 2000},
    "before and after zero, with a pause": {"start": -1500, "pause": 10**7},
    "times in steps": {"step": 1000, "rate": 10, "lifetimes": (32_000, 45_000)},
    "few panes": {"sketch_panes": 8, "lateness": (1400, 1400)},
    "sparse": {"lifetimes": (64, 64), "domain": 5},
}


def runs(case, n_runs, n=3000, domain=300, skew=1.0, lateness=(60, 60), lifetimes=(700, 700),
         sketch_panes=32, **streams):  # fmt: skip
    """Relative error of the sketch, and what it states, on fresh streams and hash functions."""
    rng = np.random.default_rng([len(case), n_runs])
    errors, stated = [], []
    sketch = {key: streams.pop(key) for key in list(streams) if key.startswith("sketch_")}
    for _ in range(n_runs):
        ts, side, key = late_streams(rng, n, domain=domain, skew=skew, lateness=lateness, **streams)
        exact = pairs_in_window(ts, side, key, lifetimes)
        config = config_of(lifetimes, lateness, sketch_panes=sketch_panes, **sketch)
        found, error = feed(
            JoinState(config), ts, side, key + rng.integers(-(2**50), 2**50)
        ).exact_size()
        errors.append(found / exact - 1)
        stated.append(error / exact)
    return np.array(errors), np.array(stated)


@pytest.mark.parametrize("case", CASES)
def test_late_rows_are_counted_without_bias(case):
    """30 streams, hash functions and all: the mean error is within 4 of its standard errors."""
    errors, stated = runs(case, 30, **CASES[case])
    assert abs(errors.mean()) < 4 * errors.std(ddof=1) / np.sqrt(30)
    assert np.median(np.abs(errors)) < 0.02  # the largest is 8 %: the two first keys collided
    # The mean square of Student's t with 7 degrees is 1.4; 30 of them are below 3.
    assert np.mean((errors / stated) ** 2) < 3


def test_exact_accounting_agrees_with_the_oracle_here():
    """So the oracle and the engine speak of the same join."""
    rng = np.random.default_rng(5)
    for case in CASES.values():
        options = {"domain": 300, "skew": 1.0, "lateness": (60, 60)} | case
        lifetimes = options.pop("lifetimes", (700, 700))
        options.pop("sketch_panes", None)
        ts, side, key = late_streams(rng, 500, **options)
        state = JoinState(config_of(lifetimes, options["lateness"], accounting="exact"))
        exact = pairs_in_window(ts, side, key, lifetimes)
        assert feed(state, ts, side, key).exact_size() == (exact, 0.0)


# --- the stated error covers cut panes -----------------------------------------------------------
FEW_KEYS = {"domain": 3, "skew": 0.0, "sketch_width": 2**13, "sketch_depth": 4}


@pytest.mark.parametrize("panes", [32, 8])
def test_the_error_of_cut_panes_is_stated_as_large_as_it_is(panes):
    """Three keys do not collide: all error comes from cut panes, none is in the estimators' spread.

    The mean square of 40 errors in units of the stated one is 1 ± 0.22.
    """
    rng = np.random.default_rng(panes)
    scores = []
    for _ in range(40):
        ts, side, key = late_streams(rng, 4000, domain=3, skew=0.0, lateness=(0, 0))
        order = np.lexsort((side, ts))
        ts, side, key = ts[order], side[order], key[order]
        state = JoinState(config_of((700, 700), sketch_panes=panes))
        found, stated = feed(state, ts, side, key).exact_size()
        estimates = state.store.sketch_out[: state.config.sketch_depth]
        assert np.ptp(estimates) == 0 < stated
        scores.append((found - pairs_in_window(ts, side, key, (700, 700))) / stated)
    assert 0.4 < np.mean(np.square(scores)) < 1.9


@pytest.mark.parametrize("case", ["late", "hardly late", "lagging by ten windows", "few panes"])
def test_the_error_of_cut_panes_is_not_stated_too_small_with_late_rows(case):
    errors, stated = runs(case, 40, **(CASES[case] | FEW_KEYS))
    assert (stated > 0).all()
    assert np.mean((errors / stated) ** 2) < 1.9


@pytest.mark.parametrize("lateness", [None, (3 * 10**6, 3 * 10**6)])
def test_seconds_in_microseconds_are_counted_exactly(lateness):
    """32 panes of a second: every edge falls on rows, which are wholly out, not to a millionth."""
    rng = np.random.default_rng(1)
    ts, side, key = late_streams(rng, 600, domain=3, skew=0.0, lateness=(0, 0))
    order = np.lexsort((side, ts))
    if lateness:
        order = order[np.argsort(ts[order] + rng.integers(0, 4, ts.size), kind="stable")]
    ts, side, key = ts[order] * 10**6 + 123_456, side[order], key[order]
    state = feed(JoinState(config_of((32 * 10**6,) * 2, lateness)), ts, side, key)
    exact = pairs_in_window(ts, side, key, (32 * 10**6,) * 2)
    assert state.exact_size() == (pytest.approx(exact, rel=1e-12), 0.0)


# --- memory and time -----------------------------------------------------------------------------
def test_panes_are_fine_again_after_a_lag():
    """A stream two hours behind, that catches up: coarse panes leave with their rows."""
    within, behind = 600, 7200
    config = config_of((within, within), (30, 30))
    state = JoinState(config)
    before = state.bytes_of_state()
    keys = np.random.default_rng(4).integers(0, 3, 2 * behind + 6000)
    ahead = np.arange(behind)
    feed(state, ahead, np.zeros(behind, int), keys[:behind])
    live = state.store.side["sketch_live"][0]
    assert live == config.sketch_panes + 1
    first, last = state.store.sketch_pane[0].reshape(5, -1)[:2, :live]
    assert (first[0], last[-1]) == (0, behind - 1)  # nothing that may still match is forgotten
    assert (last - first).max() < 4 * behind / config.sketch_panes
    feed(state, ahead, np.ones(behind, int), keys[behind : 2 * behind])
    together = np.repeat(np.arange(behind, behind + 3000), 2)
    feed(state, together, np.arange(6000) % 2, keys[2 * behind :])
    for s in (0, 1):
        live = state.store.side["sketch_live"][s]
        first, last = state.store.sketch_pane[s].reshape(5, -1)[:2, :live]
        assert (last - first).max() <= 2 * state.store.side["sketch_span"][s]
    side = np.concatenate([np.zeros(behind), np.ones(behind), np.arange(6000) % 2])
    ts = np.concatenate([ahead, ahead, together])
    exact = pairs_in_window(ts, side, keys, (within, within))
    found, stated = state.exact_size()
    assert abs(found - exact) < 4 * stated < 0.004 * exact
    # Memory: the panes' arrays are what they were; rows held and keys are not the sketch's.
    fresh = JoinState(config).store
    for name in ("sketch", "sketch_sum", "sketch_pane", "sketch_out"):
        assert getattr(state.store, name).nbytes == getattr(fresh, name).nbytes
    assert state.bytes_of_state() < before + 2**16


@pytest.mark.parametrize("lateness", [None, (60, 60)])
def test_micro_batches_and_restarts_do_not_matter(lateness):
    rng = np.random.default_rng(3)
    ts, side, key = late_streams(rng, 2000, domain=100, skew=1.0, lateness=(60, 60))
    if lateness is None:
        order = np.lexsort((side, ts))
        ts, side, key = ts[order], side[order], key[order]
    config = config_of((300, 200), lateness)
    whole = feed(JoinState(config), ts, side, key)
    state = JoinState(config)
    for at in range(0, ts.size, 333):
        feed(state, *(column[at : at + 333] for column in (ts, side, key)))
        state = JoinState.restore(config, state.snapshot())
    assert state.exact_size() == whole.exact_size()


# --- who gets a sketch ---------------------------------------------------------------------------
def late_tables(k=2, n=4000):
    rng = np.random.default_rng(2)
    ts = np.arange(n) + rng.integers(0, 50, n)
    return [{"k": rng.integers(0, 200, n), "ts": ts} for _ in range(k)]


def test_a_budget_in_bytes_with_late_rows_is_sketched():
    options = {"on": "k", "time": "ts", "within": 1000, "lateness": 60, "pairs": False}
    exact = jw.simulate(late_tables(), **options)
    assert exact.n_exact_error == 0
    r = jw.simulate(late_tables(), memory="1 MB", **options)
    assert 0 < r.n_exact_error < 0.1 * exact.n_exact
    assert abs(r.n_exact - exact.n_exact) < 4 * r.n_exact_error
    assert r.bytes_held <= r.max_bytes <= 2**20


def test_three_late_streams_are_counted_exactly_or_not_at_all():
    options = {"on": "k", "time": "ts", "within": 20, "lateness": 60, "pairs": False}
    r = jw.simulate(late_tables(3, 300), memory="1 MB", **options)
    assert r.n_exact_error == 0
    with pytest.raises(jw.JoinweirError, match="counts late rows of two streams only"):
        jw.simulate(late_tables(3, 300), accounting="sketch", **options)
    three = JoinConfig(
        jw.policy("fifo"), (5, 5, 5), None, ordered=False, lateness=(1, 1, 1), accounting="sketch"
    )
    with pytest.raises(jw.JoinweirError, match="counts late rows of two streams only"):
        JoinState(three)


@pytest.mark.parametrize("window", ["count_window", "landmarks"])
def test_a_sketch_needs_a_time_window(window):
    with pytest.raises(jw.JoinweirError, match="'sketch' needs a time window"):
        JoinState(config_of((5, 5), **{window: True}))


def test_the_grain_of_times_is_their_largest_common_step():
    config = config_of((50, 50))
    state = feed(JoinState(config), [-7, 5, 5, 23, 24], [0, 0, 1, 0, 1], [1, 1, 1, 1, 1])
    assert state.store.side["sketch_grain"].tolist() == [6, 19]
    assert state.store.side["sketch_first"].tolist() == [-7, 5]
    assert JoinState(config).store.side["sketch_first"].tolist() == [L.NO_PANE] * 2
