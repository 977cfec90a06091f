"""The engine's benchmark: what it measures, not how fast this machine is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from joinweir import bench
from joinweir.errors import JoinweirError
from joinweir.policies import policy_names


@pytest.fixture(scope="module")
def timings() -> list[bench.Timing]:
    return bench.time_engine(
        ["fifo", "prob"], [50, 200], arrivals=3000, pairs_up_to=50, apart=False
    )


def test_each_policy_is_timed_at_each_budget_beside_the_exact_join(timings) -> None:
    found = [(t.policy, t.rows, t.pairs) for t in timings]
    assert found == [
        *(("full", 50, False), ("full", 50, True)),
        *(("fifo", 50, False), ("fifo", 50, True)),
        *(("prob", 50, False), ("prob", 50, True)),
        *(("full", 200, False), ("fifo", 200, False), ("prob", 200, False)),
    ]


def test_the_budget_is_a_tenth_of_the_window_and_a_whole_window_comes_first(timings) -> None:
    assert all(t.window == 10 * t.rows == t.warmed for t in timings)


def test_times_and_matches_are_positive_and_the_exact_join_matches_most(timings) -> None:
    assert all(t.ns_per_arrival > 0 and t.matches_per_arrival >= 0 for t in timings)
    for rows in (50, 200):
        counted = {t.policy: t.matches_per_arrival for t in timings if t.rows == rows}
        assert counted["full"] == max(counted.values()) > 0


def test_the_ratio_is_to_the_exact_join_in_the_same_mode(timings) -> None:
    by_name = {(t.policy, t.rows, t.pairs): t for t in timings}
    for t in timings:
        full = by_name["full", t.rows, t.pairs]
        assert t.ratio_to_full == pytest.approx(t.ns_per_arrival / full.ns_per_arrival)
    assert by_name["full", 50, True].ratio_to_full == 1


def test_growth_compares_the_largest_with_the_smallest_budget(timings) -> None:
    growth = bench.growth(timings)
    assert list(growth) == ["full", "fifo", "prob"]
    assert {(g["from_rows"], g["to_rows"]) for g in growth.values()} == {(50, 200)}


def test_timings_are_plain_numbers_for_json(timings) -> None:
    json.dumps([t.to_dict() for t in timings] + [bench.machine()], allow_nan=False)


def test_pairs_are_capped(monkeypatch) -> None:
    monkeypatch.setattr(bench, "MAX_PAIRS", 30)
    monkeypatch.setattr(bench, "PAIRS_AT_ONCE", 5)
    counted, written = bench.time_engine(["full"], [200], arrivals=3000, apart=False)
    assert counted.arrivals == 3000
    assert written.arrivals == max(3, int(30 / counted.matches_per_arrival))


def test_a_slow_policy_gets_less_warm_up_but_full_memory(monkeypatch) -> None:
    monkeypatch.setattr(bench, "WARM_SECONDS", 0.0)
    full, fifo = bench.time_engine(["fifo"], [400], arrivals=300, pairs_up_to=0, apart=False)
    assert full.warmed == 4000  # the exact join always gets a whole window
    assert 400 <= fifo.warmed < 4000
    assert not bench.growth([replace(fifo, rows=10), fifo])["fifo"]["whole_window"]


def test_every_policy_of_the_registry_is_timed_by_default() -> None:
    names = bench.default_policies()
    assert set(policy_names()) <= set(names)
    assert names[0] == "full"
    assert "gdj:method=2" in names


def test_a_budget_without_room_for_both_streams_is_refused() -> None:
    with pytest.raises(JoinweirError, match="rows must be at least 2"):
        bench.time_engine(["fifo"], [1])


def test_a_process_for_each_policy_gives_the_same_figures_but_for_the_time() -> None:
    found: dict[bool, list[bench.Timing]] = {}
    told: list[tuple[str, float]] = []
    for apart in (True, False):
        timings = bench.time_engine(
            ["fifo"], [50], arrivals=600, apart=apart, progress=lambda *step: told.append(step)
        )
        found[apart] = [replace(t, ns_per_arrival=0.0, ratio_to_full=None) for t in timings]
    assert told == 2 * [("full, B = 50", 0.0), ("fifo, B = 50", 0.5)]
    assert found[True] == found[False]
    assert found[True][0].matches_per_arrival > 0


def test_a_process_that_fails_is_reported_in_one_line() -> None:
    with pytest.raises(JoinweirError, match="timing full failed: ValueError: "):
        bench.time_engine(["fifo"], [50], arrivals=600, seed=-1)
