"""Pieces of the optimum as tasks of Spark: the same prices, wherever they are found."""

from __future__ import annotations

import numpy as np
import pytest

import joinweir as jw
from joinweir.errors import JoinweirError
from joinweir.spark import run_pieces


def test_pieces_on_spark_give_what_they_give_in_this_process(spark):
    left, right = jw.streams.zipf_pair(2000, domain=100, skew=1.0, seed=7)
    join = {"on": "key", "time": "ts", "within": 120, "max_rows": 40}
    here = jw.optimum.solve(left, right, **join, method="pieces", piece_gaps=300)
    there = jw.optimum.solve(
        left, right, **join, method="pieces", piece_gaps=300, run_pieces=run_pieces(spark)
    )
    assert here.n_gaps > 4 * 300
    assert (there.value, there.upper_bound, there.gap) == (here.value, here.upper_bound, here.gap)
    for mine, other in zip(here.retained, there.retained, strict=True):
        assert np.array_equal(mine, other)
    best = jw.optimum.solve(left, right, **join)
    assert there.value <= best.value <= there.upper_bound


def test_a_join_without_anything_to_decide_starts_no_job(spark):
    left, right = jw.streams.zipf_pair(50, domain=10, seed=1)
    best = jw.optimum.solve(
        left, right, on="key", time="ts", within=5, max_rows=20, method="pieces",
        run_pieces=run_pieces(spark),
    )  # fmt: skip
    assert best.value == best.n_exact


def test_something_other_than_a_session_is_refused():
    with pytest.raises(JoinweirError, match="run_pieces takes a Spark session, not dict"):
        run_pieces({})
