"""What the papers claim of policies, and what the registry promises about them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import joinweir as jw
from joinweir import layout as L
from joinweir.policies import definition, gdj, read_policy
from joinweir.state import JoinConfig, JoinState, make_batch

WINDOW = 1000
ROWS = 30_000
KINDS = [
    "independent",
    "inverse",
    "own_locality",
    "bursts",
    "shared_locality",
    "joint_drift",
    "walk",
]


def streams_named(name: str):
    """Two streams of 30,000 rows over 500 keys; the seed is fixed."""
    make = {
        "independent": lambda: jw.streams.zipf_pair(ROWS, domain=500, seed=1),
        "inverse": lambda: jw.streams.zipf_pair(ROWS, domain=500, correlation="inverse", seed=1),
        "own_locality": lambda: jw.streams.copy_pair(ROWS, domain=500, seed=1),
        "bursts": lambda: jw.streams.gismo_pair(ROWS, domain=500, horizon=ROWS, seed=1),
        "shared_locality": lambda: jw.streams.copy_pair(ROWS, domain=500, shared=True, seed=1),
        "joint_drift": lambda: jw.streams.drift_pair(ROWS, domain=500, period=500, seed=1),
        "walk": lambda: jw.streams.random_walk_pair(ROWS, domain=500, seed=1),
    }
    return make[name]()


def run(pair, policy, share=0.1, **options):
    options = {"pairs": False, "shed": False} | options
    return jw.simulate(
        *pair,
        on="key",
        time="ts",
        within=WINDOW,
        max_rows=int(share * 2 * WINDOW),
        policy=policy,
        **options,
    )


# --- the first paper's claims -------------------------------------------------------------------
@pytest.mark.parametrize("name", ["shared_locality", "joint_drift"])
def test_gdj_beats_prob_where_the_streams_move_together(name):
    pair = streams_named(name)
    assert run(pair, "gdj").recall > 1.1 * run(pair, "prob").recall
    assert run(pair, "gdj").recall > 1.1 * run(pair, "prob:statistics=window").recall


@pytest.mark.parametrize("name", ["independent", "inverse", "own_locality", "bursts"])
def test_prob_beats_gdj_and_gdj_beats_rand_on_independent_streams(name):
    pair = streams_named(name)
    recalls = [run(pair, policy).recall for policy in ("prob", "gdj", "rand")]
    assert recalls[0] > 1.1 * recalls[1] > 1.2 * recalls[2]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_self_tuned_gdj_ends_within_5_percent_of_the_best_fixed_rank(name, share):
    pair = streams_named(name)
    ranks = (0, 0.02, 0.05, 0.1, 0.25, 0.45, 0.7, 0.95, 1)
    best = max(run(pair, jw.policy("gdj", initial_rank=q), share).recall for q in ranks)
    assert run(pair, "gdj:initial_rank=auto", share).recall > 0.95 * best


def test_self_tuning_on_a_sample_of_the_keys_still_follows_the_best():
    # 4,096 rows held: ghosts run on a quarter of the keys (state.GHOST_ROWS).
    pair = jw.streams.drift_pair(120_000, domain=20_000, period=10_000, seed=2)
    options = {"on": "key", "time": "ts", "within": 20_000, "max_rows": 4096}
    options |= {"pairs": False, "shed": False}
    fixed = [
        jw.simulate(*pair, policy=jw.policy("gdj", initial_rank=q), **options).n_out
        for q in (0.02, 0.1, 0.25, 0.45, 0.7, 0.95)
    ]
    assert jw.simulate(*pair, policy="gdj:initial_rank=auto", **options).n_out > 0.95 * max(fixed)


def test_recall_is_1_at_full_memory_for_a_constant_rate_and_less_for_a_bursty_one():
    steady = jw.streams.zipf_pair(5000, seed=3)
    bursty = jw.streams.zipf_pair(5000, arrivals="bursty", seed=3)
    for policy in ("fifo", "prob", "gdj"):
        assert run(steady, policy, share=1.0).recall == 1.0
        assert run(bursty, policy, share=1.0).recall < 1.0


def test_unified_rand_equals_proportional_rand_in_expectation():
    pair = jw.streams.zipf_pair((20_000, 10_000), rate=(2.0, 1.0), domain=200, seed=4)
    options = {"on": "key", "time": "ts", "within": 1000, "max_rows": 600, "policy": "rand"}
    options |= {"pairs": False, "shed": False}
    unified = [jw.simulate(*pair, allocation="unified", seed=i, **options).n_out for i in range(8)]
    shares = [jw.simulate(*pair, allocation="rates", seed=i, **options).n_out for i in range(8)]
    # the standard error of either mean is about 0.3 %
    assert np.mean(unified) == pytest.approx(np.mean(shares), rel=0.02)


def test_unified_gdj_beats_proportional_prob_on_a_direct_and_an_inverse_join():
    direct = jw.streams.zipf_pair(20_000, domain=100, skew=1.0, correlation="direct", seed=5)
    inverse = jw.streams.zipf_pair(20_000, domain=100, skew=1.0, correlation="inverse", seed=6)
    tables = dict(zip("abcd", (*direct, *inverse), strict=True))
    jobs = [jw.query("a", "b", on="key", within=500), jw.query("c", "d", on="key", within=500)]
    options = {"time": "ts", "max_rows": 400, "rows": False, "shed": False}
    unified = jw.simulate_workload(tables, jobs, policy="gdj", allocation="unified", **options)
    even = jw.simulate_workload(tables, jobs, policy="prob", allocation="rates", **options)
    assert sum(unified.n_out) > sum(even.n_out)


# --- identities --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("special", "plain"),
    [
        ("gdj:increment=0,initial_rank=1", "fifo"),
        ("gdj:increment=max,initial=max", "lru"),
        ("gdj:increment=0,initial=frequency,competing=true", "lfu"),
        ("gdj:method=3", "gdj:method=1"),
        ("gdj:method=3,initial_rank=0.9", "gdj:initial_rank=0.9"),
    ],
)
@pytest.mark.parametrize("allocation", ["even", "unified"])
def test_special_cases_of_gdj_are_identical_to_their_namesakes(special, plain, allocation):
    pair = jw.streams.copy_pair(4000, domain=60, shared=True, seed=7)
    a, b = (
        run(pair, policy, pairs=True, shed=True, allocation=allocation)
        for policy in (special, plain)
    )
    assert all((x == y).all() for x, y in zip(a.pairs, b.pairs, strict=True))
    assert all((x == y).all() for x, y in zip(a.shed, b.shed, strict=True))


@pytest.mark.parametrize("late", [0, 3, WINDOW // 5, 2 * WINDOW])
@pytest.mark.parametrize("capacity", [(500, 500), (700,)])
def test_gdj_by_key_and_row_by_row_are_identical(late, capacity):
    """The paged histogram and the search tree are two ways to the same credits.

    Out of order some rows of a key gain and others do not: more or fewer than those that do.
    """
    pair = jw.streams.zipf_pair(20_000, domain=40, skew=1.2, seed=8)
    config = JoinConfig(
        jw.policy("gdj", initial_rank=0.3), (WINDOW, WINDOW // 2), capacity,
        ordered=not late, lateness=(late, late) if late else (),
    )  # fmt: skip
    assert gdj.choose_run(config.policy, True) is gdj.run
    ts = np.concatenate([pair[0]["ts"], pair[1]["ts"]])
    side = np.repeat([0, 1], 20_000).astype(np.int8)
    row = np.tile(np.arange(20_000), 2)
    key = np.concatenate([pair[0]["key"], pair[1]["key"]])
    by = np.lexsort((row, side, ts))
    if late:  # rows come up to `late` after their time
        delay = np.random.default_rng(1).integers(0, late, ts.size)
        by = np.lexsort((row, side, ts + delay))
    outcomes = []
    for by_row in (False, True):
        state = JoinState(config)
        if by_row:
            state.compiled_run = gdj.run_by_row
            state._fresh_policy_state = lambda s=state: gdj.init(
                config.policy, dataclasses.replace(s._sizes(), workload=True), False
            )
            state.policy_state = state._fresh_policy_state()
        batch = make_batch(config, ts=ts[by], side=side[by], key=key[by], row=row[by])
        outcomes.append(state.process(batch, results=True, shed=True))
    assert np.array_equal(outcomes[0].results, outcomes[1].results)
    assert np.array_equal(outcomes[0].shed, outcomes[1].shed)


def test_method_3_keeps_the_sum_of_credits_constant():
    """chang2004 §5.2: "the total credits across the buffer remains a constant"."""
    config = JoinConfig(jw.policy("gdj", method=3), lifetimes=(100, 100), capacity=(4, 4))
    state = JoinState(config)
    rows = [(0, 0, 1), (0, 0, 2), (0, 0, 1), (0, 0, 3)]  # (ts, side, key): fill the left buffer
    matches = [(t, 1, 1 + t % 3) for t in range(1, 30)]
    sums = []
    for i, (t, side, key) in enumerate(rows + matches):
        state.process(make_batch(config, ts=[t], side=[side], key=[key], row=[i]))
        if t > 0:
            held = state.store.slot["side"][_held(state.store)]
            # what this time unit added falls off when the next one begins
            pending = state.policy_state.ageing["gained"][0]
            sums.append(gdj.credits(state.store, state.policy_state)[held == 0].sum() - pending)
    assert np.allclose(sums, 0)


def _held(store) -> list[int]:
    held = []
    for side in range(store.side.size):
        slot = store.expiry[side]["head"]
        while slot != L.NIL:
            held.append(slot)
            slot = store.slot[slot]["enext"]
    return sorted(held, key=lambda slot: store.slot[slot]["seq"])


def test_prob_remembers_a_capped_number_of_keys():
    config = JoinConfig(
        jw.policy("prob"), lifetimes=(50, 50), capacity=(20, 20), accounting="off", max_idle=100
    )
    state = JoinState(config)
    n = 20_000
    rng = np.random.default_rng(9)
    batch = make_batch(
        config,
        ts=np.arange(n),
        side=rng.integers(0, 2, n),
        key=rng.integers(0, 10_000, n),
        row=np.arange(n),
    )
    state.process(batch, results=False)
    assert state.store.reg[L.N_GROUPS] <= 100 + 40 + 1
    assert state.store.reg[L.N_IDLE] <= 100


# --- the registry --------------------------------------------------------------------------------
def test_every_policy_file_is_registered_under_its_stem():
    folder = Path(jw.policies.__file__).parent
    stems = sorted(p.stem for p in folder.glob("*.py") if p.stem != "__init__")
    assert jw.policy_names() == stems


@pytest.mark.parametrize("name", jw.policy_names())
def test_every_policy_says_what_it_is(name):
    declared = definition(name)
    assert declared.name == name
    assert declared.summary.endswith(".")
    assert declared.cost.startswith("O(")
    assert "Cost per arrival" in declared.module.__doc__
    assert "Deviations" in declared.module.__doc__ or name == "full"
    keys = (Path(__file__).parent.parent / "docs" / "references.bib").read_text()
    for reference in declared.paper.replace(";", " ").split():
        if reference[-1].isdigit() and reference[0].isalpha():
            assert "{" + reference + "," in keys


@pytest.mark.parametrize("name", jw.policy_names())
def test_parameters_survive_the_way_through_text(name):
    params = jw.policy(name)
    assert read_policy(str(params)) == params
    assert str(params) == name
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.competing = True


def test_text_with_parameters_is_read_with_its_types():
    params = read_policy("gdj:initial_rank=0.2,method=2,competing=true")
    assert (params.initial_rank, params.method, params.competing) == (0.2, 2, True)
    assert str(params) == "gdj:competing=True,initial_rank=0.2,method=2"
    assert read_policy(str(params)) == params


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gjd", "unknown policy 'gjd'; did you mean 'gdj'? choices: age, dgl"),
        ("gdj:rank=1", "unknown parameter of gdj 'rank'"),
        ("gdj:initial_rank=2", "gdj: initial_rank must be a number from 0 to 1, not 2"),
        ("gdj:initial_rank=high", "gdj: initial_rank must be 'auto' or from 0 to 1, not 'high'"),
        ("gdj:method=4", "gdj: method must be one of 1, 2, 3, not 4"),
        ("prob:statistics=guess", "prob: statistics must be one of history, window"),
        ("prob:statistics", "write parameters as name=value, not 'statistics'"),
        ("age:keep=0", "age: keep must be a number from 1"),
        ("rand:competing=maybe", "rand: competing must be one of True, False, not 'maybe'"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(text, says):
    with pytest.raises(jw.JoinweirError) as caught:
        read_policy(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
