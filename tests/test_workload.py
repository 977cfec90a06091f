"""Several joins under one budget, against the naive oracle and by hand."""

from __future__ import annotations

import pytest

import joinweir as jw
import naive
from joinweir.layout import REASONS
from oracle import cases

POLICIES = [
    "full",
    "fifo",
    "rand",
    "rand:competing=true",
    "lru",
    "lfu",
    "prob",
    "prob:competing=false",
    "life",
    "gdj",
    "gdj:initial_rank=0.8,method=3",
]


def random_rows(rng, attributes, n=40, ticks=40):
    rows = []
    for _ in range(n):
        values = {
            a: None if rng.random() < 0.05 else min(int(rng.expovariate(0.6)), 5)
            for a in attributes
        }
        rows.append((rng.randrange(ticks), values))
    return sorted(rows, key=lambda row: row[0])


def shapes(rng):
    """(attributes of each stream, queries as (members, lifetimes))."""
    a, b, c, d = (rng.choice([4, 10, 30]) for _ in range(4))
    return rng.choice(
        [
            (["xy", "xy"], [([(0, "x"), (1, "x")], [a, b]), ([(0, "y"), (1, "y")], [c, d])]),
            (["x", "x", "x"], [([(0, "x"), (1, "x"), (2, "x")], [a, b, c])]),
            (["x", "xy", "y"], [([(0, "x"), (1, "x")], [a, a]), ([(1, "y"), (2, "y")], [b, c])]),
            (["x", "x", "y", "y"], [([(0, "x"), (1, "x")], [a, a]),
                                    ([(2, "y"), (3, "y")], [b, b])]),
            (["xy", "xy", "x"], [([(0, "x"), (1, "x"), (2, "x")], [a, b, c]),
                                 ([(1, "y"), (0, "y")], [d, d])]),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_agrees_with_the_naive_oracle(policy):
    for rng in cases(11, 20):
        attributes, queries = shapes(rng)
        streams = [random_rows(rng, names) for names in attributes]
        unified = rng.random() < 0.5
        capacity = rng.randrange(2, 25) if unified else [rng.randrange(1, 12) for _ in streams]
        params = jw.policies.read_policy(policy)
        expected = naive.workload_join(
            streams,
            queries,
            capacity if policy != "full" else None,
            params.name,
            unified=unified,
            competing=params.competing,
            seed=5,
            params={"method": 1, "initial_rank": getattr(params, "initial_rank", 0)}
            if params.name == "gdj"
            else None,
        )
        tables = {
            f"s{i}": {"ts": [ts for ts, _ in rows]}
            | {a: [values[a] for _, values in rows] for a in names}
            for i, (rows, names) in enumerate(zip(streams, attributes, strict=True))
        }
        jobs = [
            jw.query(*(f"s{s}" for s, _ in members), on=members[0][1], within=tuple(lifetimes))
            for members, lifetimes in queries
        ]
        result = jw.simulate_workload(
            tables,
            jobs,
            time="ts",
            max_rows=capacity if unified else tuple(capacity),
            allocation="unified" if unified else None,
            policy=params,
            seed=5,
        )
        found = sorted(
            (q, *row)
            for q, columns in enumerate(result.rows)
            for row in zip(*(column.tolist() for column in columns), strict=True)
        )
        assert found == sorted(expected.results)
        assert sum(result.n_out) == expected.n_out
        assert sum(result.n_exact) == expected.n_exact
        assert list(result.n_null) == expected.n_null
        shed = result.shed
        assert [
            (int(side), int(row), REASONS[reason])
            for side, row, reason in zip(shed.stream, shed.row, shed.reason, strict=True)
        ] == expected.shed
        for side in range(len(streams)):
            counted = (
                result.n_null[side]
                + result.n_evicted[side]
                + result.n_refused[side]
                + result.n_expired[side]
                + result.rows_held[side]
            )
            assert counted == result.n_in[side]
