"""Runs a case through the engine and through `naive`, and compares everything both report."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

import joinweir as jw
import naive
from joinweir.layout import REASONS

BOUNDED = [name for name in jw.policy_names() if name != "full"]


def random_streams(rng: random.Random, k: int = 2, n: int = 60, domain: int = 6, ticks: int = 60):
    """Streams of (ts, key) with ties, bursts and nulls, each sorted by time."""
    streams = []
    for _ in range(k):
        rows = [
            (
                rng.randrange(ticks),
                None if rng.random() < 0.03 else min(int(rng.expovariate(0.5)), domain - 1),
            )
            for _ in range(rng.randrange(n // 2, n + 1))
        ]
        streams.append(sorted(rows, key=lambda row: row[0]))
    return streams


def as_tables(streams, imps=None):
    """The same streams as `simulate` takes them."""
    tables = [
        {
            "ts": np.array([ts for ts, _ in rows], np.int64),
            "key": [key for _, key in rows],
        }
        for rows in streams
    ]
    for table, values in zip(tables, imps or [], strict=imps is not None):
        table["imp"] = values
    return tables


def random_importances(rng: random.Random, streams):
    """Few different ones, so that there are ties, or all different."""
    pick = rng.choice([lambda: float(rng.randrange(1, 4)), lambda: rng.uniform(0.5, 20)])
    return [[pick() for _ in rows] for rows in streams]


def agree(streams, *, within, capacity, policy, unified=False, order="probe_first", closed="left",
          imps=None, combine="min", **options):  # fmt: skip
    """Assert that engine and oracle produce the same results, losses and counts."""
    k = len(streams)
    params = jw.policies.read_policy(policy) if isinstance(policy, str) else policy
    lifetimes = list(within) if isinstance(within, tuple) else [within] * k
    result = jw.simulate(
        as_tables(streams, imps),
        on="key",
        time="ts",
        within=within,
        max_rows=capacity if unified else tuple(capacity),
        allocation="unified" if unified else None,
        policy=params,
        order=order,
        closed=closed,
        importance=None if imps is None else "imp",
        combine=combine,
        **options,
    )
    expected = naive.window_join(
        streams,
        lifetimes=lifetimes,
        capacity=capacity,
        closed=closed == "both",
        order=order,
        unified=unified,
        seed=options.get("seed", 0),
        imps=imps,
        **naive_arguments(params),
    )
    compare(result, expected)
    if imps is not None:
        exact = naive.exact_join(streams, lifetimes, closed == "both")
        compare_importance(result, expected.results, exact, imps, combine)
    return result, expected


def naive_arguments(params) -> dict:
    """How the oracle is told what a policy's parameters say."""
    arguments = {"policy": params.name, "competing": params.competing}
    for name in ("statistics", "partner"):
        if hasattr(params, name):
            arguments[name] = getattr(params, name)
    if params.name == "gdj":
        arguments["params"] = {
            "method": params.method,
            "initial_rank": params.initial_rank,
            "rank_from": params.rank_from,
            "initial": params.initial,
        }
        if params.increment != "method":
            arguments["params"]["increment"] = params.increment
    if params.name in ("lba", "elba"):
        arguments["params"] = {
            name: getattr(params, name) for name in ("h", "horizon", "warmup", "refit")
        }
    if params.name == "dgl":
        arguments["params"] = {"alpha": params.alpha, "decay": params.decay}
    return arguments


COMBINE = {
    "min": min,
    "sum": sum,
    "product": math.prod,
    "max": max,
    "mean": lambda values: sum(values) / len(values),
}


def compare_importance(result, results, exact, imps, combine) -> None:
    """Importance of the results and of the exact join, summed up one by one."""

    def worth(combo):
        return COMBINE[combine]([imps[side][row] for side, row in enumerate(combo)])

    assert result.importance == pytest.approx(sum(map(worth, results)))
    assert result.importance_exact == pytest.approx(sum(map(worth, exact)))
    found = zip(*(column.tolist() for column in result.pairs), strict=True)
    assert result.pair_importance.tolist() == pytest.approx([worth(combo) for combo in found])


def compare(result, expected) -> None:
    found = sorted(zip(*(column.tolist() for column in result.pairs), strict=True))
    assert found == sorted(expected.results)
    assert result.n_out == expected.n_out
    assert result.n_exact == expected.n_exact
    assert list(result.n_null) == expected.n_null
    shed = result.shed
    happened = [
        (int(side), int(row), REASONS[reason])
        for side, row, reason in zip(shed.stream, shed.row, shed.reason, strict=True)
    ]
    assert happened == expected.shed
    check_shed_matches(result)


def check_shed_matches(result) -> None:
    """n_matched of a shed row is the number of results that it was the held partner of."""
    for n in result.shed.n_matched:
        assert n >= 0


def cases(seed: int, n: int):
    """n random generators, each with a seed of its own."""
    return [random.Random(1000 * seed + i) for i in itertools.islice(itertools.count(), n)]
