"""The row goes whose key is expected least often in the rest of its own life.

Keeps what `lba` keeps, with a kinetic tournament of keys instead of the heap. Rule: victim =
min (Σ_{i <= T} P_i(key), end, seq), T = rows of the other stream until the row's end, P_i(x) =
probability that its i-th next row is x: b P(x) + Σ_j a_j (1[x_{n+i-1-j} = x], or P_{i-j}(x) when
that row is yet to come). ELBA of li2006 §4.2, definition 2; before the first fit it is LIFE.
Deviations: those of `lba`; Θ is taken at n + i - 1 and the sum ends at T (both are one off in the
paper). With one T for all rows (``horizon=100`` or ``window``, as in the paper's experiments) ELBA
and LBA are the same: ΣP_i = Σ cs_j + cs_{T+1} P(x). The paper's T = remaining life, its definition
1, is the default here. A life that is no whole number of rows ends in a part of a row. The curve
cs_{T+1}(T) goes straight on after 2,048 rows.
Cost per arrival: O(log² B) amortised, and for each of the <= h recent keys that could be the victim
O(log B + h · its places among the last h). Of a key's rows the oldest has the least to expect, so
keys compete, with cs_{T+1}(T) P(x) falling along one convex curve; recent keys are worth more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..compiling import kernel
from ..engine import count_of, ignore_match, is_partner, join_loop, time_of, total_of
from ..layout import COMPETING, N_STREAMS, NIL, NOT_ADMITTED
from ..locality import renewal_sums
from ..structures import (
    Recent,
    Tournament,
    before,
    forget_matches,
    grow_tournament,
    new_recent,
    new_tournament,
    place_on_curve,
    power_of_two,
    recent_earlier,
    recent_latest,
    tournament_drop,
    tournament_set,
    tournament_value,
    tournament_winner,
)
from . import Policy, Sizes
from .lba import (
    Fitted,
    LocalityParameters,
    fit_streams,
    fits,
    know_streams,
    note_arrival,
    nothing_fitted,
    rows_ahead,
    rows_per_tick,
)

CURVE = 2048  # rows ahead up to which cs_{T+1}(T) is kept
LEVELS = 33  # of the tournament, at most


@dataclass(frozen=True)
class Params(LocalityParameters):
    """Nothing of its own."""

    horizon: str | int = "remaining"

    HORIZONS: ClassVar[tuple[str, ...]] = ("remaining", "window")


class ElbaState(NamedTuple):
    """Keys by how often they are expected while their oldest row lives."""

    tournament: Tournament  # of groups, a tree a side, along cs_{T+1}(T)
    recent: Recent
    fitted: Fitted
    sums: np.ndarray  # float64[k, CURVE] U(0), U(1), … of the next stream's model
    stack: np.ndarray  # int32[(h + 2) * LEVELS] scratch


def init(params: Params, sizes: Sizes, as_one: bool) -> ElbaState:
    """Empty state."""
    tournament = new_tournament(sizes.streams, power_of_two(sizes.groups), CURVE + 1)
    if params.horizon != "remaining":
        tournament.base[:], tournament.rate[:] = 1.0, 0.0
    return ElbaState(
        tournament=tournament,
        recent=new_recent(sizes.streams, params.h),
        fitted=nothing_fitted(params, sizes.streams),
        sums=np.ones((sizes.streams, CURVE)),
        stack=np.zeros((params.h + 2) * LEVELS, np.int32),
    )


def grow(old: ElbaState, fresh: ElbaState) -> ElbaState:
    """A larger tournament with the same entrants."""
    return old._replace(tournament=grow_tournament(old.tournament, fresh.tournament))


def inform(params: Params, S, P: ElbaState, known) -> None:
    """Rank by the models of the streams that are known, until the first fit."""
    if know_streams(params, P.fitted, known):
        apply_models(params, S, P)


def refit(params: Params, S, P: ElbaState) -> None:
    """Fit the streams' models to their last rows, and draw the curves anew."""
    fit_streams(params, S, P.fitted, P.recent)
    apply_models(params, S, P)


def apply_models(params: Params, S, P: ElbaState) -> None:
    """The curves of the models; every comparison is made again."""
    h, k = params.h, P.recent.n.size
    for side in range(k):
        model = P.fitted.model[(side + 1) % k]
        found = renewal_sums(model[:h], CURVE)
        P.sums[side, : found.size], P.sums[side, found.size :] = found, found[-1]
        P.tournament.curve[side, 1:] = np.cumsum(model[h] * P.sums[side])
        if params.horizon == "remaining":
            P.tournament.rate[side] = rows_per_tick(S, P.fitted, P.recent, side)
        else:
            P.tournament.base[side] = rows_ahead(params, S, P.fitted, P.recent, side)
    forget_matches(P.tournament)


# --- ranking -------------------------------------------------------------------------------------
@kernel
def repeats(P, key, side, partner, T):
    """What the key's places among the partner stream's last h rows add to the next T rows.

    Σ_j cs_j(T), cs_j(T) = Σ_{i=0}^{h-j} a_{i+j} U(T - 1 - i); T between two whole numbers is
    between their values.
    """
    if T <= 0.0:
        return 0.0
    h = P.recent.row.shape[1]
    n = P.recent.n[partner]
    whole = np.int64(T)
    part = T - float(whole)
    value = 0.0
    number = recent_latest(P.recent, partner, key)
    while number != NIL:
        lag = n - number
        for i in range(min(h - lag, whole) + 1):
            a = P.fitted.model[partner, lag - 1 + i]
            low, high = whole - 1 - i, whole - i
            if low >= 0:
                value += a * (1.0 - part) * P.sums[side, min(low, CURVE - 1)]
            value += a * part * P.sums[side, min(high, CURVE - 1)]
        number = recent_earlier(P.recent, partner, number)
    return value


@kernel
def enter(S, P, group, side, slot):
    """Rank a key by its frequency and the life of `slot`, its oldest row."""
    row = S.slot[slot]
    f = float(count_of(S, group, (side + 1) % S.reg[N_STREAMS]))
    tournament_set(P.tournament, side, group, f, row.end, row.end, row.seq, time_of(S, side))


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
        tournament_drop(P.tournament, side, group, time_of(S, side))
    elif S.cell[cell].head == slot:
        enter(S, P, group, side, S.slot[slot].knext)


@kernel
def least(S, P, side):
    """The group whose oldest row on a side has the least to expect, and how much.

    The tournament tells who is least by fresh draws alone. If that is a recent key, the winners of
    the matches that it won are looked at, too; under other keys nothing can be less.
    """
    N = P.tournament
    partner = (side + 1) % S.reg[N_STREAMS]
    total = float(max(1, total_of(S, partner)))
    now = time_of(S, side)
    leaves = N.line.shape[1]
    tournament_winner(N, side, now)  # brings all matches up to date
    best, best_value = np.int64(NIL), 0.0
    P.stack[0] = 1
    depth = 1
    while depth > 0:
        depth -= 1
        at = np.int64(P.stack[depth])
        leaf = np.int64(N.match[side, at].winner)
        if leaf == NIL:
            continue
        line, top = N.line[side, leaf], N.line[side, best]
        bound = tournament_value(N, side, leaf, now) / total
        if best == NIL or before(bound, line.ts, line.seq, best_value, top.ts, top.seq):
            T = place_on_curve(N, side, line, now)
            more = repeats(P, S.group[leaf].key, side, partner, T)
            value = more + bound
            if best == NIL or before(value, line.ts, line.seq, best_value, top.ts, top.seq):
                best, best_value = leaf, value
            if more > 0.0:
                while at < leaves:  # down to the leaf; those it beat on the way are next
                    won = 2 * at if N.match[side, 2 * at].winner == leaf else 2 * at + 1
                    P.stack[depth] = won ^ 1
                    depth += 1
                    at = won
    return best, best_value


@kernel
def worth(S, P, group, side, end):
    """What a newcomer has to expect."""
    N = P.tournament
    partner = (side + 1) % S.reg[N_STREAMS]
    T = N.base[side] + N.rate[side] * float(end - time_of(S, side))
    value = repeats(P, S.group[group].key, side, partner, T)
    i = min(np.int64(max(T, 0.0)), np.int64(CURVE - 1))
    low, high = N.curve[side, i], N.curve[side, i + 1]
    drawn = low + (max(T, 0.0) - float(i)) * (high - low)
    count = float(count_of(S, group, partner))
    return value + count * drawn / float(max(1, total_of(S, partner)))


@kernel
def victim(S, P, side, group, t, end, must):
    k = S.reg[N_STREAMS]
    best, best_side, best_value = np.int64(NIL), np.int64(0), 0.0
    for s in range(k):
        if S.side[s].pool == S.side[side].pool and S.side[s].held > 0:
            leaf, value = least(S, P, s)
            a, b = P.tournament.line[s, leaf], P.tournament.line[best_side, best]
            if best == NIL or before(value, a.ts, a.seq, best_value, b.ts, b.seq):
                best, best_side, best_value = leaf, s, value
    if S.reg[COMPETING] and not must and worth(S, P, group, side, end) < best_value:
        return np.int32(NOT_ADMITTED)
    return S.cell[best * k + best_side].head


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
    grow=grow,
    fits=fits,
    refit=refit,
    inform=inform,
    paper="li2006 §4.2",
    cost="O(log² B) amortised, and O(h (log B + h)) at worst",
)
