"""Importances of rows and results: worked by hand, refused when bad, and carried everywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import joinweir as jw
from joinweir import bench
from joinweir.cli import main
from joinweir.state import JoinConfig, JoinState, make_batch

# ojewole2006 Figure 1: one row a tick on either side, w = 4
R = {"ts": np.arange(6), "k": [1, 9, 1, 3, 4, 2], "imp": [1.0, 20.0, 1.0, 5.0, 5.0, 1.0]}
S = {"ts": np.arange(6), "k": [3, 1, 1, 1, 9, 1], "imp": [5.0, 1.0, 1.0, 1.0, 20.0, 1.0]}


def join(left=R, right=S, **options):
    options = {"on": "k", "time": "ts", "within": 4, "importance": "imp"} | options
    return jw.simulate(left, right, **options)


def fed(policy, rows, *, lifetime=10, capacity=(2, 9), order="probe_first"):
    """Rows (t, side, key, importance) one by one; which left rows were shed, in order."""
    config = JoinConfig(
        jw.policies.read_policy(policy), (lifetime, lifetime), capacity, order=order,
        importance="min",
    )  # fmt: skip
    ts, side, key, imp = (list(column) for column in zip(*rows, strict=True))
    batch = make_batch(config, ts=ts, side=side, key=key, row=range(len(rows)), imp=imp)
    shed = JoinState(config).process(batch, shed=True).shed
    return shed[shed[:, 0] == 0, 1].tolist()


# --- by hand ------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["probe_first", "simultaneous", "evict_first"])
def test_the_papers_example_has_9_results_of_importance_32(order):
    exact = join(policy="prob", order=order)
    assert (exact.n_out, exact.importance, exact.importance_exact) == (9, 32.0, 32.0)
    assert sorted(exact.pair_importance) == [1, 1, 1, 1, 1, 1, 1, 5, 20]
    assert exact.importance_recall == 1.0


def test_the_papers_example_keeps_at_most_its_optimum_of_30():
    for policy in ("simp", "simpprob", "dimpprob", "dgl"):
        kept = join(policy=policy, order="evict_first", max_rows=4)
        assert kept.importance <= 30
        assert kept.importance_recall == kept.importance / 32


@pytest.mark.parametrize(
    ("combine", "total"),
    [("min", 5.0), ("sum", 12.0), ("product", 18.0), ("max", 7.0), ("mean", 6.0)],
)
def test_importance_of_results_by_hand(combine, total):
    """Two results: (3, 2) and (3, 4) make min 2+3, sum 5+7, product 6+12, max 3+4, mean 2.5+3.5."""
    left = {"ts": [0], "k": [1], "imp": [3]}
    right = {"ts": [1, 2, 3], "k": [1, 1, 2], "imp": [2.0, 4.0, 9.0]}
    r = join(left, right, policy="prob", combine=combine)
    assert (r.importance, r.importance_exact) == (total, total)


def test_simp_lets_the_least_important_go_and_the_oldest_of_equals():
    rows = [(0, 0, 1, 5.0), (1, 0, 2, 1.0), (2, 0, 3, 3.0), (3, 0, 4, 2.0), (4, 0, 5, 3.0)]
    # 1 goes for 3; the newcomer of 2 loses against 5 and 3; a 3 takes the place of the older 3.
    assert fed("simp", rows) == [1, 3, 2]


RIGHT_FIRST = [(0, 1, 7, 1.0), (0, 1, 7, 1.0), (0, 1, 8, 1.0)]  # two partners for 7, one for 8


def test_dimpprob_goes_by_importance_times_partners_as_they_are_now():
    rows = [
        *RIGHT_FIRST,
        (1, 0, 7, 2.0),  # row 3: 2 · 2 = 4
        (1, 0, 8, 3.0),  # row 4: 3 · 1 = 3
        (2, 0, 9, 50.0),  # row 5: no partner, worth 0: not admitted
        (3, 1, 8, 1.0),  # row 4 is now worth 3 · 2 = 6
        (4, 0, 7, 2.5),  # row 7: 5, in the place of row 3
    ]
    assert fed("dimpprob", rows) == [5, 3]


def test_simpprob_goes_by_partners_as_they_were():
    rows = [
        *RIGHT_FIRST,
        (1, 0, 7, 2.0),  # row 3: 4
        (1, 0, 8, 3.0),  # row 4: 3, and stays so
        (2, 0, 9, 50.0),  # row 5: 0
        (3, 1, 8, 1.0),
        (4, 0, 7, 2.5),  # row 7: 5, in the place of row 4
    ]
    assert fed("simpprob", rows) == [5, 4]


@pytest.mark.parametrize("policy", ["simpprob", "dimpprob"])
def test_of_equal_values_the_less_important_goes_even_if_it_is_the_newcomer(policy):
    # nobody has partners: all are worth 0
    rows = [(0, 0, 1, 4.0), (1, 0, 2, 3.0), (2, 0, 3, 3.5), (3, 0, 4, 1.0), (4, 0, 5, 3.5)]
    assert fed(policy, rows) == [1, 3, 2]


def test_dgl_by_hand():
    """decay 1/2, lifetime 10. Row 0 has no match: 4, then 2, then 1 at time 2.

    Row 1 starts with 2. At time 1 it is matched twice: by row 2, when no partner of it is held (no
    gain, but no loss), and by row 3, when one is: + 2 · 1 · 9/10. So 3.8, and 1.9 at time 2.
    """
    rows = [(0, 0, 1, 4.0), (0, 0, 2, 2.0), (1, 1, 2, 1.0), (1, 1, 2, 1.0)]
    assert fed("dgl:decay=0.5", [*rows, (2, 0, 3, 0.9)]) == [4]
    assert fed("dgl:decay=0.5", [*rows, (2, 0, 3, 1.1)]) == [0]
    assert fed("dgl:decay=0.5", [*rows, (2, 0, 3, 1.8), (2, 0, 4, 1.85)]) == [0, 4]
    assert fed("dgl:decay=0.5", [*rows, (2, 0, 3, 2.0), (2, 0, 4, 2.0)]) == [0, 1]


def test_dgl_loses_in_ticks_without_arrivals_too():
    rows = [(0, 0, 1, 16.0), (5, 0, 2, 0.51)]  # 16 / 2^5 = 0.5
    assert fed("dgl:decay=0.5", rows, capacity=(1, 9)) == [0]
    rows = [(0, 0, 1, 16.0), (5, 0, 2, 0.49)]
    assert fed("dgl:decay=0.5", rows, capacity=(1, 9)) == [1]


def test_dgl_evicting_first_has_not_lost_for_the_running_tick():
    rows = [(0, 0, 1, 16.0), (5, 0, 2, 0.51)]  # a loss each for the ticks 0 … 4, as above
    assert fed("dgl:decay=0.5", rows, capacity=(1, 9), order="evict_first") == [0]
    rows = [(0, 0, 1, 16.0), (0, 1, 1, 1.0), (1, 1, 1, 1.0), (5, 0, 2, 1.01)]
    # matched at time 1 with two partners held: 8 + 16 · 2 · 9/10, and three losses since: 4.6
    assert fed("dgl:decay=0.5", rows, capacity=(1, 9), order="evict_first") == [3]


# --- identities ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("weighing", "plain"),
    [
        ("simp", "fifo"),
        ("simpprob:statistics=history", "lfu"),
        ("dimpprob", "prob:statistics=memory"),
    ],
)
def test_rows_of_equal_importance_are_ranked_as_without(weighing, plain):
    left, right = jw.streams.zipf_pair(3000, domain=60, seed=5)
    options = {"on": "key", "time": "ts", "within": 300, "max_rows": 60}
    expected = jw.simulate(left, right, policy=plain, **options)
    ones = [table | {"one": np.ones(table["ts"].size)} for table in (left, right)]
    for found in (
        jw.simulate(left, right, policy=weighing, **options),
        jw.simulate(*ones, policy=weighing, importance="one", **options),
    ):
        assert (found.shed.row == expected.shed.row).all()
        assert found.n_out == expected.n_out
    assert found.importance == found.n_out  # importances of 1 just count
    assert found.importance_exact == found.n_exact


# --- functions, and joins of results ------------------------------------------------------------
def weighed_pair(n=2000, seed=3):
    return jw.streams.with_importance(jw.streams.zipf_pair(n, domain=40, seed=seed), seed=seed)


@pytest.mark.parametrize("pairs", [True, False])
def test_a_function_gives_what_the_named_combination_gives(pairs):
    options = {"on": "key", "within": 100, "max_rows": 40, "policy": "prob", "pairs": pairs}
    named = join(*weighed_pair(), combine="product", **options)
    given = join(*weighed_pair(), combine=np.multiply, **options)
    assert given.importance == pytest.approx(named.importance)
    assert given.importance_exact == pytest.approx(named.importance_exact)
    assert named.importance < named.importance_exact
    assert (given.pair_importance is None) == (not pairs)


def test_results_with_their_importance_can_be_joined_again():
    left, right = weighed_pair(300)
    first = join(left, right, on="key", within=20, max_rows=20, policy="dimpprob")
    ts = np.maximum(left["ts"][first.pairs[0]], right["ts"][first.pairs[1]])
    made = {"ts": ts, "key": left["key"][first.pairs[0]], "imp": first.pair_importance}
    again = join(made, right, on="key", within=5, max_rows=20, policy="prob", combine="sum")
    expected = first.pair_importance[again.pairs[0]] + right["imp"][again.pairs[1]]
    assert again.importance == pytest.approx(expected.sum())


def test_a_stream_without_importances_has_1():
    r = join(importance=("imp", None), combine="product", policy="prob")
    assert r.importance == 7 + 5 + 20
    other = join(importance=(None, "imp"), combine="product", policy="prob")
    assert other.importance == r.importance


# --- what is said -------------------------------------------------------------------------------
def test_a_result_tells_its_importance_and_is_silent_without():
    r = join(policy="prob", max_rows=4)
    told = f"importance {r.importance:,.6g} ({r.importance_recall:.1%} of the exact join's)"
    assert told in repr(r)
    assert r.to_dict()["importance_recall"] == r.importance_recall
    plain = join(policy="prob", importance=None)
    assert plain.importance is None and plain.pair_importance is None
    assert "importance" not in repr(plain) and "importance" not in plain.to_dict()


@pytest.mark.parametrize("accounting", ["off", "sketch"])
def test_importance_of_the_exact_join_is_unknown_unless_accounted_exactly(accounting):
    r = join(policy="prob", accounting=accounting)
    assert (r.importance, r.importance_exact, r.importance_recall) == (32.0, None, None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"importance": "weight"}, "column of the left stream.*'weight'"),
        ({"importance": ("imp",)}, "importance has 1 values for 2 streams"),
        ({"importance": (None, None)}, "importance must name a column"),
        ({"importance": 3}, "importance must name a column, not 3"),
        ({"importance": ("imp", 3)}, "importance must name columns, not 3"),
        ({"combine": "median"}, "combine.*'median'"),
        ({"combine": lambda a, b: 1.0}, "one finite number for each pair"),
        ({"combine": lambda a, b: a / 0 * 0}, "one finite number for each pair"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bad_options_are_refused(options, says):
    with pytest.raises(jw.JoinweirError, match=says):
        join(policy="prob", **options)


@pytest.mark.parametrize(
    ("bad", "shown"),
    [(0.0, "0.0"), (-2.0, "-2.0"), (np.nan, "nan"), (None, "null"), (np.inf, "inf")],
)
def test_a_bad_importance_is_refused_with_stream_column_and_row(bad, shown):
    right = S | {"imp": [1.0, 1.0, bad, 1.0, bad, 1.0]}
    says = f"'imp' of the right stream must be finite and above 0; row 2 has {shown}"
    with pytest.raises(jw.JoinweirError, match=says):
        join(R, right, policy="prob")
    with pytest.raises(jw.JoinweirError, match="'imp' of the left stream must hold numbers"):
        join(R | {"imp": list("abcdef")}, S, policy="prob")


@pytest.mark.parametrize(
    "policy",
    ["dgl:decay=0", "dgl:decay=1.5", "dgl:alpha=-1", "dgl:decay=x", "simp:statistics=window"],
)
def test_bad_parameters_are_refused(policy):
    with pytest.raises(jw.JoinweirError):
        jw.policies.read_policy(policy)


# --- carried ------------------------------------------------------------------------------------
def test_a_rebuilt_join_keeps_importances_of_held_and_of_noted_rows():
    """Half of the stream under one policy, the rest under another, with room for all rows."""
    config = JoinConfig(jw.policy("prob"), (50, 50), (500, 500), importance="min")
    rng = np.random.default_rng(2)
    n = 400
    columns = {"ts": np.arange(n), "side": rng.integers(0, 2, n), "key": rng.integers(0, 9, n)}
    columns |= {"row": np.arange(n), "imp": rng.uniform(1, 9, n)}
    whole = JoinState(config)
    whole.process(make_batch(config, **columns))
    state = JoinState(config)
    half = n // 2
    state.process(make_batch(config, **{name: v[:half] for name, v in columns.items()}))
    before = state.importance_totals()
    other = JoinConfig(jw.policy("dimpprob"), (50, 50), (400, 400), importance="min")
    state, lost = state.rebuilt(other)
    assert lost.shape[0] == 0
    assert state.importance_totals() == (0.0, 0.0)
    state.process(make_batch(other, **{name: v[half:] for name, v in columns.items()}))
    after = state.importance_totals()
    assert np.add(before, after) == pytest.approx(whole.importance_totals())


def test_a_budget_in_bytes_pays_for_importances():
    left, right = weighed_pair(3000)
    options = {"on": "key", "within": 2000, "memory": 200_000, "policy": "prob", "pairs": False}
    weighed = join(left, right, accounting="off", **options)
    plain = join(left, right, accounting="off", importance=None, **options)
    assert sum(weighed.rows_held) < sum(plain.rows_held)
    assert weighed.bytes_held <= weighed.max_bytes


def test_importances_can_be_attached_to_keys():
    left, right = jw.streams.with_importance(jw.streams.zipf_pair(5000), by_key=True, seed=4)
    high = [set(side["key"][side["imp"] >= 50]) for side in (left, right)]
    assert high[0] == high[1] and 0 < len(high[0]) < 20
    assert list(jw.streams.with_importance({"ts": left["ts"], "key": left["key"]}, name="w")) == [
        "ts",
        "key",
        "w",
    ]


# --- what the paper claims ------------------------------------------------------------------------
def test_the_order_of_the_papers_policies_in_its_usual_setting():
    """§5.2: w = 400, M = 200, D = 100, Zipf 1 and 0; means of three seeds, each by 5 % or more."""
    setting = bench.ImportanceSetting("")

    def kept(policy):
        return np.mean([bench.importance_after_warmup(setting, policy, s) for s in (1, 2, 3)])

    gain_loss, static, simp, rand = map(kept, ("dgl", "lfu:statistics=memory", "simp", "rand"))
    assert gain_loss > 1.05 * static
    assert static > 1.05 * simp
    assert simp > 1.05 * rand
    assert kept("simpprob") > 1.05 * static
    assert kept("dimpprob:statistics=window") > 1.05 * kept("dimpprob")


# --- the command line and the page ----------------------------------------------------------------
def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_the_command_line_makes_and_shows_importances(capsys, tmp_path):
    file = tmp_path / "z.parquet"
    code, out, _ = run(
        capsys, "generate", "zipf_pair", "--rows", 500, "--importance", "500,1000", "-o", file
    )
    assert code == 0 and "500 rows of ts, key, imp" in out
    sides = [tmp_path / f"z_{side}.parquet" for side in ("left", "right")]
    assert max(pq.read_table(sides[0])["imp"].to_pylist()) > 500
    asked = ["simulate", "--left", sides[0], "--right", sides[1], "--on", "key", "--time", "ts"]
    asked += ["--within", 50, "--max-rows", 20, "--importance", "imp", "--policy", "prob"]
    code, out, _ = run(capsys, *asked, "--combine", "sum", "--json")
    (told,) = json.loads(out)["policies"]
    expected = jw.simulate(
        *map(pq.read_table, sides), on="key", time="ts", within=50, max_rows=20, policy="prob",
        importance="imp", combine="sum",
    )  # fmt: skip
    assert code == 0 and told["importance"] == pytest.approx(expected.importance)
    assert told["importance_recall"] == pytest.approx(expected.importance_recall)
    joined = tmp_path / "joined.parquet"
    code, out, _ = run(capsys, *asked, "-o", joined)
    assert code == 0 and "importance" in out and "Importance of the exact join" in out
    assert pq.read_table(joined)["importance"].to_pylist()
    code, _, err = run(capsys, *asked[:-4], "--policy", "prob", "--combine", "sum")
    assert code == 2 and "--combine needs --importance" in err
    code, _, err = run(capsys, *asked, "--importance", "weight,imp")
    assert code == 2 and "'weight'" in err


def test_the_example_of_the_page_prints_what_the_page_shows(capsys):
    page = (Path(__file__).parent.parent / "docs" / "importance.md").read_text()
    example, shown = re.search(r"```python\n(.*?)```\n```\n(.*?)```", page, re.DOTALL).groups()
    exec(compile(example, "importance.md", "exec"), {})
    assert capsys.readouterr().out == shown
