"""The row goes whose key is expected least often in the next T rows of the other stream.

Keeps counts of keys (the engine's), a heap of keys, the last h keys of each stream, and the keys of
the last `warmup` rows, to which the locality model (a, b) of each stream is fitted. Rule: victim =
min (U(key), end, seq), U(x) = Σ_{j <= h: x_{n-j} = x} cs_j + cs_{T+1} P(x), where x_{n-j} is the
other stream's key j rows ago and cs are the column sums of M^T. LBA of li2006 §4.2, algorithm 1,
with lemma 3; before the first fit it is PROB.
Deviations: M^T in closed form (`locality`), fitted by EM instead of least squares; P goes on being
counted instead of staying what it was at the fit; T in time is turned into rows by the other
stream's rate. For k > 2 streams the next one counts.
Cost per arrival: O(log B + h); a fit O(warmup · h) at most, once in `refit` rows. All rows of a key
share U, and only keys among the last h are worth more than cs_{T+1} P: the heap is ordered by
P, and searched below its top only under such keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..compiling import kernel
from ..engine import count_of, ignore_match, is_partner, join_loop, total_of
from ..errors import JoinweirError
from ..layout import CLOCK, COMPETING, COUNT_WINDOW, N_STREAMS, NIL, NOT_ADMITTED
from ..locality import fit_by_steps, occurrence_weights
from ..structures import (
    Heap,
    Recent,
    before,
    heap_drop,
    heap_set,
    new_heap,
    new_recent,
    recent_add,
    recent_earlier,
    recent_latest,
)
from . import FrequencyParameters, Policy, Sizes, in_range, one_of

UNSTARTED = np.iinfo(np.int64).min


@dataclass(frozen=True)
class LocalityParameters(FrequencyParameters):
    """What the policies that use a locality model can be told.

    Parameters
    ----------
    h
        How many rows back a key may be repeated from.
    horizon
        For how long ahead occurrences are expected: ``window`` (a row's whole life; of a row with
        a week to live, the week's), ``remaining`` (what is left of it; elba only), or a number of
        rows of the other stream. Short ones follow bursts, long ones popularity.
    warmup
        Rows of all streams before the first fit, and how many of its last rows each stream's model
        is fitted to. At least 4 h.
    refit
        Rows of all streams between two fits; 0: the first fit stays.
    """

    h: int = 50
    horizon: str | int = "window"
    warmup: int = 5000
    refit: int = 20_000

    HORIZONS: ClassVar[tuple[str, ...]] = ("window",)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "statistics", ("history", "window", "oracle"))
        one_of(self, "partner", ("next",))
        for name, low, high in (("h", 1, 2000), ("warmup", 4, 10**7), ("refit", 0, 2**62)):
            in_range(self, name, low, high)
            if getattr(self, name) != int(getattr(self, name)):
                raise JoinweirError(f"{self.name}: {name} must be a whole number")
        if self.warmup < 4 * self.h:
            raise JoinweirError(
                f"{self.name}: warmup must be at least 4 h = {4 * self.h}, not {self.warmup}"
            )
        if self.horizon not in self.HORIZONS:
            if isinstance(self.horizon, str):
                choices = ", ".join(map(repr, self.HORIZONS))
                raise JoinweirError(
                    f"{self.name}: horizon must be {choices} or a number, not {self.horizon!r}"
                )
            in_range(self, "horizon", 1, 10**8)

    def serves_workloads(self) -> bool:
        """A row that serves several joins has no one stream to look ahead in."""
        return False


@dataclass(frozen=True)
class Params(LocalityParameters):
    """Nothing of its own."""


class Fitted(NamedTuple):
    """The streams' models, and what they are fitted to."""

    sample: np.ndarray  # int64[k, warmup] keys of each stream's last rows, row i at i % warmup
    model: np.ndarray  # float64[k, h + 1] a_1 … a_h, b
    rate: np.ndarray  # float64[k] rows per tick, from fit to fit
    since: np.ndarray  # int64[k + 1] each stream's rows at the last fit; the time then


class LbaState(NamedTuple):
    """Keys by how often they are expected."""

    heap: Heap  # of cells (group * k + side), by count; ties by end
    recent: Recent
    fitted: Fitted
    weight: np.ndarray  # float64[k, h + 1] what a side's rows count for: cs_1 … cs_h, cs_{T+1}
    stack: np.ndarray  # int32[h + 3] scratch


def init(params: Params, sizes: Sizes, as_one: bool) -> LbaState:
    """Empty state."""
    weight = np.zeros((sizes.streams, params.h + 1))
    weight[:, params.h] = 1.0
    return LbaState(
        heap=new_heap(sizes.streams, sizes.slots, sizes.groups * sizes.streams),
        recent=new_recent(sizes.streams, params.h),
        fitted=nothing_fitted(params, sizes.streams),
        weight=weight,
        stack=np.zeros(params.h + 3, np.int32),
    )


# --- the model -----------------------------------------------------------------------------------
def nothing_fitted(params: LocalityParameters, streams: int) -> Fitted:
    """Independent rows, until a fit says otherwise."""
    model = np.zeros((streams, params.h + 1))
    model[:, params.h] = 1.0
    since = np.zeros(streams + 1, np.int64)
    since[streams] = UNSTARTED
    sample = np.zeros((streams, params.warmup), np.int64)
    return Fitted(sample, model, np.zeros(streams), since)


@kernel
def note_arrival(F, R, key, side, t):
    """A row of a stream, kept or not, moves its recent keys on."""
    if F.since[F.rate.size] == UNSTARTED:
        F.since[F.rate.size] = t
    F.sample[side, R.n[side] % F.sample.shape[1]] = key
    recent_add(R, side, key)


def fit_streams(params: LocalityParameters, S, F: Fitted, R: Recent) -> None:
    """Fit every stream's model to its last rows, and measure its rate."""
    h, k = params.h, R.n.size
    clock = int(S.reg[CLOCK])
    elapsed = max(1, clock - int(F.since[k]))
    for s in range(k):
        n = int(R.n[s])
        F.rate[s] = (n - int(F.since[s])) / elapsed
        last = min(n, params.warmup)
        if last >= 4 * h:  # of fewer rows nothing can be said
            keys = F.sample[s, np.arange(n - last, n) % params.warmup]
            F.model[s, :h], F.model[s, h] = fit_by_steps(keys, h)
    F.since[:k], F.since[k] = R.n, clock


def rows_per_tick(S, F: Fitted, R: Recent, side: int) -> float:
    """How many rows the next stream has while a row of `side` ages by one tick (or row).

    To 20 binary digits: multiples of it are then exact, and what is equal stays equal.
    """
    partner = (side + 1) % R.n.size
    rate = float(F.rate[partner])
    if S.reg[COUNT_WINDOW]:
        rate = int(R.n[partner]) / max(1, int(R.n[side]))
        if not R.n[side] and F.rate[side]:  # nothing but what was known beforehand
            rate = float(F.rate[partner] / F.rate[side])
    mantissa, exponent = math.frexp(rate)
    return math.ldexp(round(mantissa * 2**20), exponent - 20)


def rows_ahead(params: LocalityParameters, S, F: Fitted, R: Recent, side: int) -> int:
    """T, in rows of the next stream."""
    if params.horizon != "window":
        return int(params.horizon)
    window = int(S.side[side]["lifetime"]) * rows_per_tick(S, F, R, side)
    return max(1, min(10**8, round(window)))


def fits(params: LocalityParameters) -> tuple[int, int]:
    """After how many rows a fit is due first, and then again and again."""
    return params.warmup, params.refit


def know_streams(params: LocalityParameters, F: Fitted, known) -> bool:
    """Take the models that are known beforehand; False if they do not say how far to look ahead."""
    if not isinstance(params.horizon, int) and any(k.rate is None for k in known):
        return False
    h = params.h
    for s, k in enumerate(known):
        a = np.asarray(k.a, np.float64)[:h]  # what came from further back counts as fresh
        F.model[s, :h] = 0.0
        F.model[s, : a.size], F.model[s, h] = a, 1.0 - float(a.sum())
        F.rate[s] = k.rate or 0.0
    return True


def inform(params: Params, S, P: LbaState, known) -> None:
    """Rank by the models of the streams that are known, until the first fit."""
    if know_streams(params, P.fitted, known):
        apply_models(params, S, P)


def refit(params: Params, S, P: LbaState) -> None:
    """(M, P) = Warmup(S); insert P and the column sums cs into the histogram."""
    fit_streams(params, S, P.fitted, P.recent)
    apply_models(params, S, P)


def apply_models(params: Params, S, P: LbaState) -> None:
    """The column sums of the models as they are now."""
    h, k = params.h, P.recent.n.size
    for side in range(k):
        model = P.fitted.model[(side + 1) % k]
        T = rows_ahead(params, S, P.fitted, P.recent, side)
        P.weight[side, :h], P.weight[side, h] = occurrence_weights(model[:h], model[h], T)


# --- ranking -------------------------------------------------------------------------------------
@kernel
def repeats(P, key, side, partner):
    """Σ cs_j over the lags j at which the partner stream had the key."""
    n = P.recent.n[partner]
    number = recent_latest(P.recent, partner, key)
    value = 0.0
    while number != NIL:
        value += P.weight[side, n - number - 1]
        number = recent_earlier(P.recent, partner, number)
    return value


@kernel
def fresh_draws(S, P, count, side, partner):
    """cs_{T+1} P(x) of a key that was counted so often."""
    return P.weight[side, P.weight.shape[1] - 1] * (count / max(1, total_of(S, partner)))


@kernel
def enter(S, P, group, side, slot):
    """Rank a key by its frequency; `slot` is its oldest row."""
    row = S.slot[slot]
    k = S.reg[N_STREAMS]
    count = float(count_of(S, group, (side + 1) % k))
    heap_set(P.heap, side, group * k + side, count, row.end, row.seq)


@kernel
def on_count(S, P, group, side, t, arrived):
    if arrived:
        note_arrival(P.fitted, P.recent, S.group[group].key, side, t)
    k = S.reg[N_STREAMS]
    for s in range(k):
        if is_partner(S, s, side) and S.cell[group * k + s].rows > 0:
            enter(S, P, group, s, S.cell[group * k + s].head)


@kernel
def on_insert(S, P, slot, group, side, t):
    if S.cell[group * S.reg[N_STREAMS] + side].head == slot:
        enter(S, P, group, side, slot)


@kernel
def on_remove(S, P, slot, group, side, t):
    cell = group * S.reg[N_STREAMS] + side
    if S.cell[cell].rows == 1:
        heap_drop(P.heap, side, cell)
    elif S.cell[cell].head == slot:
        enter(S, P, group, side, S.slot[slot].knext)


@kernel
def least(S, P, side):
    """Place in a side's heap of the key with the smallest U, and U.

    The heap is ordered by a bound of U that is U itself for all but recent keys. What is below
    another key need not be looked at.
    """
    k = S.reg[N_STREAMS]
    partner = (side + 1) % k
    best, best_value = np.int64(NIL), 0.0
    P.stack[0] = 0
    depth = 1
    while depth > 0:
        depth -= 1
        at = np.int64(P.stack[depth])
        if at >= P.heap.size[side]:
            continue
        entry = P.heap.entry[side, at]
        bound = fresh_draws(S, P, entry.key, side, partner)
        top = P.heap.entry[side, best]
        if best == NIL or before(bound, entry.ts, entry.seq, best_value, top.ts, top.seq):
            more = repeats(P, S.group[entry.id // k].key, side, partner)
            value = more + bound
            if best == NIL or before(value, entry.ts, entry.seq, best_value, top.ts, top.seq):
                best, best_value = at, value
            if more > 0.0:
                P.stack[depth], P.stack[depth + 1] = 2 * at + 1, 2 * at + 2
                depth += 2
    return best, best_value


@kernel
def victim(S, P, side, group, t, end, must):
    k = S.reg[N_STREAMS]
    best, best_side, best_value = np.int64(NIL), np.int64(0), 0.0
    for s in range(k):
        if S.side[s].pool == S.side[side].pool and P.heap.size[s] > 0:
            at, value = least(S, P, s)
            a, b = P.heap.entry[s, at], P.heap.entry[best_side, best]
            if best == NIL or before(value, a.ts, a.seq, best_value, b.ts, b.seq):
                best, best_side, best_value = at, s, value
    if S.reg[COMPETING] and not must:
        partner = (side + 1) % k
        own = repeats(P, S.group[group].key, side, partner)
        own += fresh_draws(S, P, float(count_of(S, group, partner)), side, partner)
        if own < best_value:
            return np.int32(NOT_ADMITTED)
    return S.cell[P.heap.entry[best_side, best].id].head


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        on_count, ignore_match, on_insert, on_remove, victim,
    )  # fmt: skip


POLICY = Policy(
    params=Params,
    init=init,
    run=run,
    fits=fits,
    refit=refit,
    inform=inform,
    paper="li2006 §4.2",
    cost="O(log B + h)",
)
