"""`lba` and `elba`: worked by hand, against each other, against PROB and LIFE, and their fits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import joinweir as jw
from joinweir import locality
from joinweir.layout import N_ARRIVALS
from joinweir.policies import elba, lba, read_policy
from joinweir.state import JoinConfig, JoinState, make_batch


def simulate(pair, policy, *, within=500, share=0.2, allocation="even", **options):
    left, right = pair
    rows = max(2, round(2 * within * share))
    return jw.simulate(
        left, right, on="key", time="ts", within=within, max_rows=rows, allocation=allocation,
        policy=policy, **options,
    )  # fmt: skip


def same(a, b) -> bool:
    columns = zip((*a.pairs, *a.shed), (*b.pairs, *b.shed), strict=True)
    return all(np.array_equal(x, y) for x, y in columns)


# --- worked by hand ------------------------------------------------------------------------------
X, Y, Z = 1, 2, 3


def held_by_hand(policy: str, model, rate, past, rows, newcomer):
    """Which keys the left buffer of two rows holds in the end.

    The right stream brings the keys `past` at times 1, 2, …; `model` is (a, b) of it. `rows` of
    the left one, (time, key), fill its buffer before that, and `newcomer` comes after it.
    """
    config = JoinConfig(read_policy(policy), lifetimes=(20, 20), capacity=(2, 9))
    state = JoinState(config)
    events = [(t, 0, key) for t, key in rows] + [(t + 1, 1, key) for t, key in enumerate(past)]
    events.sort()
    for row, (t, side, key) in enumerate(events):
        state.process(make_batch(config, ts=[t], side=[side], key=[key], row=[row]))
    own = state.policy_state
    own.fitted.model[1], own.fitted.rate[1] = [*model[0], model[1]], rate
    module = elba if policy.startswith("elba") else lba
    module.apply_models(config.policy, state.store, own)
    t, key = newcomer
    state.process(make_batch(config, ts=[t], side=[0], key=[key], row=[99]))
    slot = state.store.slot
    mine = (slot["row"] >= 0) & (slot["side"] == 0)
    return sorted(state.store.group["key"][slot["group"][mine]].tolist())


def test_the_key_of_a_moment_ago_is_worth_more_than_the_popular_one():
    """h = 1, a_1 = b = 1/2, the next row only. The past is x x x y, so P(x) = 3/4, P(y) = 1/4.

    U(x) = b P(x) = 0.375 and U(y) = a_1 + b P(y) = 0.625: x goes, where PROB would let y go.
    """
    given = {"rows": [(0, X), (0, Y)], "past": [X, X, X, Y], "newcomer": (6, Z)}
    fitted = {"model": ([0.5], 0.5), "rate": 1.0}
    assert held_by_hand("lba:h=1,warmup=4,horizon=1", **fitted, **given) == [Y, Z]
    assert held_by_hand("elba:h=1,warmup=4,horizon=1", **fitted, **given) == [Y, Z]
    # In the next 20 rows what comes of one repeat is soon forgotten; P decides:
    # cs_1 = 1/2 + … + 1/2^20 = 1, cs_21 = 20 - 1 = 19: U(x) = 14.25, U(y) = 1 + 4.75 = 5.75.
    assert held_by_hand("lba:h=1,warmup=4,horizon=20", **fitted, **given) == [X, Z]


def test_elba_asks_for_the_rest_of_a_rows_life():
    """Independent rows, one a tick: P(x) = 3/5 for the 20 - 12 = 8 ticks that x has left is 4.8,
    and P(y) = 2/5 for the 18 ticks of y is 7.2. x goes; LBA, with 20 ticks for both, lets y go.
    """
    given = {"rows": [(0, X), (10, Y)], "past": [X, X, Y, Y, X], "newcomer": (12, Z)}
    fitted = {"model": ([0.0], 1.0), "rate": 1.0}
    assert held_by_hand("elba:h=1,warmup=4", **fitted, **given) == [Y, Z]
    assert held_by_hand("lba:h=1,warmup=4", **fitted, **given) == [X, Z]


# --- identities ----------------------------------------------------------------------------------
@pytest.mark.parametrize("horizon", [1, 30, 700, "window"])
@pytest.mark.parametrize("allocation", ["even", "unified"])
@pytest.mark.parametrize("shared", [False, True])
def test_elba_with_one_horizon_for_all_rows_is_lba(horizon, allocation, shared):
    pair = jw.streams.copy_pair(6000, domain=60, lags=20, shared=shared, seed=7)
    rest = f"h=20,warmup=1000,refit=2500,horizon={horizon}"
    a, b = (
        simulate(pair, f"{name}:{rest}", allocation=allocation, within=200)
        for name in ("lba", "elba")
    )
    assert same(a, b)


@pytest.mark.parametrize(("name", "plain"), [("lba", "prob"), ("elba", "life")])
@pytest.mark.parametrize("statistics", ["history", "window"])
def test_until_the_first_fit_they_are_prob_and_life(name, plain, statistics):
    pair = jw.streams.copy_pair(4000, domain=60, shared=True, seed=8)
    a, b = (
        simulate(pair, policy)
        for policy in (
            f"{name}:warmup=8001,statistics={statistics}",
            f"{plain}:competing=false,statistics={statistics}",
        )
    )
    assert same(a, b)
    assert not same(a, simulate(pair, f"{name}:warmup=2000,statistics={statistics}"))


# --- what they are worth -------------------------------------------------------------------------
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.5])
def test_lba_beats_prob_beats_rand_on_the_copy_model(shared, share):
    """li2006 figure 3; with independent and with shared locality, as docs/choosing.md shows."""
    found = {policy: [] for policy in ("rand", "prob", "lba")}
    for seed in range(5):
        pair = jw.streams.copy_pair(20_000, domain=100, shared=shared, seed=seed)
        for policy, recalls in found.items():
            recalls.append(simulate(pair, policy, share=share, pairs=False, shed=False).recall)
    lead = np.subtract(found["lba"], found["prob"])
    assert lead.mean() > 2 * lead.std(ddof=1) / np.sqrt(lead.size) > 0
    assert np.mean(found["prob"]) > 1.1 * np.mean(found["rand"])


def test_on_independent_rows_lba_is_as_good_as_prob():
    pair = jw.streams.zipf_pair(20_000, domain=100, seed=3)
    a, b = (simulate(pair, policy, pairs=False, shed=False).recall for policy in ("lba", "prob"))
    assert a == pytest.approx(b, rel=0.01)


# --- fits ----------------------------------------------------------------------------------------
def test_fits_are_due_by_the_number_of_rows_however_they_come():
    counts = []

    def remember(params, S, P):
        counts.append(int(S.reg[N_ARRIVALS]))

    pair = jw.streams.copy_pair(1000, domain=20, seed=1)
    config = JoinConfig(
        read_policy("lba:h=5,warmup=300,refit=700"), lifetimes=(50, 50), capacity=(9, 9)
    )
    ts = np.repeat(pair[0]["ts"], 2)
    side = np.tile(np.array([0, 1], np.int8), 1000)
    key = np.stack([pair[0]["key"], pair[1]["key"]], axis=1).reshape(-1)
    for cuts in ([], [100], [299, 300, 301, 1000], list(range(0, 2000, 37))):
        counts.clear()
        state = JoinState(config)
        state.definition = dataclasses.replace(state.definition, refit=remember)
        batch = make_batch(config, ts=ts, side=side, key=key, row=np.arange(2000) // 2)
        for part in zip(*(np.split(column, cuts) for column in batch), strict=True):
            state.process(type(batch)(*part))
        assert counts == [300, 1000, 1700]


def test_the_fitted_model_is_that_of_the_generator():
    """b = 0.2 over 50 lags, all alike; the fit sees 20,000 rows a stream."""
    left, right = jw.streams.copy_pair(20_000, domain=200, lags=50, fresh=0.2, seed=4)
    config = JoinConfig(read_policy("lba:warmup=40000,refit=0"), (500, 500), (100, 100))
    state = JoinState(config)
    n = left["ts"].size
    batch = make_batch(
        config,
        ts=np.repeat(left["ts"], 2),
        side=np.tile(np.array([0, 1], np.int8), n),
        key=np.stack([left["key"], right["key"]], axis=1).reshape(-1),
        row=np.repeat(np.arange(n), 2),
    )
    state.process(batch, results=False)
    fitted = state.policy_state.fitted
    assert fitted.model[:, 50] == pytest.approx(0.2, abs=0.03)
    assert fitted.model.sum(axis=1) == pytest.approx(1)
    assert fitted.rate == pytest.approx(1, rel=1e-3)
    # T = 500 rows; a row that repeats a row … is worth what the closed form says of this model
    model = locality.LocalityModel(
        fitted.model[1, :50], fitted.model[1, 50], locality.popularity(right["key"])
    )
    cs, fresh = model.weights(500)
    assert state.policy_state.weight[0] == pytest.approx([*cs, fresh], rel=1e-12)


def test_a_slow_stream_is_not_fitted_to_a_handful_of_rows():
    left, right = jw.streams.copy_pair(3000, domain=20, seed=2)
    few = {name: column[::30] for name, column in right.items()}
    config = read_policy("lba:h=50,warmup=1000,refit=1000")
    result = jw.simulate(left, few, on="key", time="ts", within=100, max_rows=20, policy=config)
    assert 0 < result.recall < 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lba:h=0", "lba: h must be a number from 1 to 2000, not 0"),
        ("lba:h=2.5", "lba: h must be a whole number"),
        ("lba:warmup=100", "lba: warmup must be at least 4 h = 200, not 100"),
        ("lba:horizon=remaining", "lba: horizon must be 'window' or a number, not 'remaining'"),
        ("elba:horizon=long", "elba: horizon must be 'remaining', 'window' or a number"),
        ("lba:horizon=0", "lba: horizon must be a number from 1"),
        ("lba:statistics=memory", "lba: statistics must be one of history, window, oracle"),
        ("lba:partner=product", "lba: partner must be one of next, not 'product'"),
        ("lba:refit=-1", "lba: refit must be a number from 0"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(text, says):
    with pytest.raises(jw.JoinweirError) as caught:
        read_policy(text)
    assert says in str(caught.value)


# --- what is known beforehand --------------------------------------------------------------------
class Profile:
    """What `known=` reads of a stream's profile."""

    def __init__(self, stream, model, rate, n=50):
        found = locality.popularity(stream["key"])
        self.key_columns = ("key",)
        self.counts = tuple(found.counts[:n].tolist())
        self.keys = tuple(found.keys[:n].tolist())
        self.n_rows = len(stream["key"])
        self.model_a, self.model_b, self.rate = model[0], model[1], rate

    def key_table(self):
        return {"key": np.array(self.keys), "count": np.array(self.counts)}


class Found:
    def __init__(self, *profiles):
        self.profiles = profiles


def split(pair, n):
    """The first n rows of each stream, and the others."""
    first = [{name: column[:n] for name, column in stream.items()} for stream in pair]
    rest = [{name: column[n:] for name, column in stream.items()} for stream in pair]
    return first, rest


@pytest.mark.parametrize("policy", ["prob", "life", "lfu"])
def test_known_frequencies_are_those_of_a_join_that_saw_the_rows(policy):
    """Every key is listed, so PROB with known counts ranks as if it had counted them itself."""
    first, rest = split(jw.streams.zipf_pair(4000, domain=50, seed=5), 2000)
    known = Found(*(Profile(stream, ([0.0], 1.0), 1.0) for stream in first))
    told = simulate(rest, policy, known=known, within=100)
    seen = simulate(jw.streams.zipf_pair(4000, domain=50, seed=5), policy, within=100)
    late = seen.pairs[0] >= 2100  # by then nothing is left of the first rows
    assert sorted(zip(*(column[late] - 2000 for column in seen.pairs), strict=True)) == sorted(
        (a, b) for a, b in zip(*told.pairs, strict=True) if a >= 100
    )


@pytest.mark.parametrize("policy", ["lba", "elba", "lba:horizon=50"])
def test_a_known_model_is_worth_as_much_as_a_fitted_one_from_the_first_row(policy):
    pair = jw.streams.copy_pair(4000, domain=100, shared=True, seed=6)
    models = [locality.fit(stream["key"]) for stream in pair]
    known = Found(*(Profile(s, (m.a, m.b), 1.0, 100) for s, m in zip(pair, models, strict=True)))
    options = {"pairs": False, "shed": False}
    # 8,000 rows in all: the default first fit is past the middle
    told = simulate(pair, policy, known=known, **options).recall
    assert told > 1.03 * simulate(pair, policy, **options).recall


def test_known_keys_of_any_type_are_found_again():
    pair = jw.streams.zipf_pair(500, domain=20, seed=7)
    named = [s | {"key": np.array([f"k{key}" for key in s["key"]])} for s in pair]
    options = {"within": 50}
    plain = [
        Found(*(Profile(stream, ([0.0], 1.0), None) for stream in streams))
        for streams in (pair, named)
    ]
    a = simulate(pair, "prob", known=plain[0], **options)
    b = simulate(named, "prob", known=plain[1], **options)
    assert same(a, b)


@pytest.mark.parametrize(
    ("known", "policy", "says"),
    [
        (Found(), "prob", "a profile for each of the 2 streams; it has 0"),
        (object(), "prob", "a profile for each of the 2 streams; it has 0"),
        (None, "fifo", "policy 'fifo' has no use for known="),
        (None, "prob:statistics=window", "has no use for known="),
    ],
)
def test_what_cannot_be_known_is_refused_in_one_line(known, policy, says):
    pair = jw.streams.zipf_pair(100, domain=20, seed=7)
    known = known or Found(*(Profile(stream, ([0.0], 1.0), 1.0) for stream in pair))
    with pytest.raises(jw.JoinweirError, match=says):
        simulate(pair, policy, known=known)
