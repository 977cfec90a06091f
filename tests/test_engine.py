"""The engine against the naive oracle, against brute force, and at its edges."""

from __future__ import annotations

import pytest

from oracle import BOUNDED, COMBINE, agree, cases, random_importances, random_streams

VARIANTS = [
    *(name for name in BOUNDED if name != "age"),
    "prob:statistics=window",
    "prob:statistics=memory",
    "prob:statistics=oracle",
    "prob:competing=false",
    "life:statistics=window",
    "life:statistics=memory",
    "lfu:statistics=window",
    "rand:competing=true",
    "gdj:initial_rank=0",
    "gdj:initial_rank=1",
    "gdj:initial_rank=0.7,method=3",
    "gdj:method=2",
    "gdj:method=2,rank_from=bottom,initial_rank=0.5",
    "gdj:increment=0,initial_rank=1",
    "gdj:increment=max,initial=max",
    "gdj:increment=0,initial=frequency,competing=true",
    "gdj:increment=rank,initial=frequency,competing=true",
    # rows enough for a fit or three; with the defaults these streams see none
    "lba:h=3,warmup=20,refit=15",
    "lba:h=4,warmup=30,refit=0,horizon=5,competing=true",
    "lba:h=2,warmup=12,refit=9,statistics=window",
    "elba:h=3,warmup=20,refit=15",
    "elba:h=4,warmup=30,refit=0,competing=true,statistics=oracle",
    "elba:h=2,warmup=12,refit=9,horizon=window,statistics=window",
]
WEIGHING = [
    "simp",
    "simp:competing=false",
    "simpprob",
    "simpprob:statistics=window",
    "dimpprob",
    "dimpprob:statistics=window",
    "dimpprob:statistics=history,competing=false",
    "dimpprob:statistics=oracle",
    "dgl",
    "dgl:decay=0.5,alpha=0.3",
    "dgl:decay=1,statistics=window",
    "dgl:alpha=0,competing=false",
    "prob",  # does not look at importances, but results have them
    "lru",
]


@pytest.mark.parametrize("policy", VARIANTS)
def test_agrees_with_the_naive_oracle(policy):
    for rng in cases(1, 25):
        streams = random_streams(rng)
        within = rng.choice([1, 5, 20, 200, (7, 30)])
        capacity = [rng.randrange(1, 12), rng.randrange(1, 12)]
        agree(streams, within=within, capacity=capacity, policy=policy, seed=rng.randrange(9),
              closed=rng.choice(["left", "both"]))  # fmt: skip


@pytest.mark.parametrize("policy", VARIANTS)
def test_agrees_in_a_unified_pool(policy):
    for rng in cases(2, 15):
        agree(random_streams(rng), within=rng.choice([5, 20, 200]), capacity=rng.randrange(1, 20),
              policy=policy, unified=True)  # fmt: skip


@pytest.mark.parametrize("policy", [v for v in VARIANTS if v != "lfu:statistics=memory"])
@pytest.mark.parametrize("order", ["simultaneous", "evict_first"])
def test_agrees_in_synchronous_orders(policy, order):
    for rng in cases(3, 15):
        unified = rng.random() < 0.3
        agree(random_streams(rng, ticks=25), within=rng.choice([2, 5, 20]), policy=policy,
              capacity=rng.randrange(2, 15) if unified else [rng.randrange(1, 9) for _ in "ab"],
              unified=unified, order=order)  # fmt: skip


@pytest.mark.parametrize("policy", [*VARIANTS, "prob:partner=product"])
def test_agrees_for_three_streams(policy):
    for rng in cases(4, 10):
        streams = random_streams(rng, k=3, n=30, domain=4)
        agree(streams, within=rng.choice([5, 20, (5, 10, 15)]), policy=policy,
              capacity=[rng.randrange(1, 9) for _ in range(3)])  # fmt: skip


def test_agrees_for_five_streams():
    for rng in cases(5, 4):
        streams = random_streams(rng, k=5, n=12, domain=2, ticks=20)
        agree(streams, within=8, policy="gdj", capacity=[rng.randrange(2, 6) for _ in range(5)])


# --- rows with importances ----------------------------------------------------------------------
@pytest.mark.parametrize("policy", WEIGHING)
def test_agrees_with_importances(policy):
    for rng in cases(6, 25):
        streams = random_streams(rng)
        agree(streams, within=rng.choice([1, 5, 20, 200, (7, 30)]), policy=policy,
              capacity=[rng.randrange(1, 12), rng.randrange(1, 12)],
              imps=random_importances(rng, streams), combine=rng.choice([*COMBINE]),
              closed=rng.choice(["left", "both"]))  # fmt: skip


@pytest.mark.parametrize("policy", WEIGHING)
@pytest.mark.parametrize("order", ["probe_first", "simultaneous", "evict_first"])
def test_agrees_with_importances_in_every_order(policy, order):
    for rng in cases(7, 15):
        streams = random_streams(rng, ticks=25)
        unified = rng.random() < 0.5
        agree(streams, within=rng.choice([2, 5, 20, (4, 9)]), policy=policy,
              capacity=rng.randrange(2, 15) if unified else [rng.randrange(1, 9) for _ in "ab"],
              unified=unified, order=order, imps=random_importances(rng, streams),
              combine=rng.choice([*COMBINE]))  # fmt: skip


@pytest.mark.parametrize("policy", [*WEIGHING, "dimpprob:partner=product"])
def test_agrees_with_importances_for_three_streams(policy):
    for rng in cases(8, 8):
        streams = random_streams(rng, k=3, n=30, domain=4)
        agree(streams, within=rng.choice([5, 20, (5, 10, 15)]), policy=policy,
              capacity=[rng.randrange(1, 9) for _ in range(3)],
              imps=random_importances(rng, streams), combine=rng.choice([*COMBINE]))  # fmt: skip
