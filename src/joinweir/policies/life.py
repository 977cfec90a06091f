"""The row goes that has the fewest results to expect: rarity times remaining life.

Keeps counts of keys (the engine's) and a kinetic tournament of keys. Rule: victim = min
(f(key) · (end - now), ts, seq); the newcomer competes. LIFE of das2003, which chang2004 cites but
does not run; reconstructed.
Deviations: none known.
Cost per arrival: O(log² B) amortised. All rows of a key share f, so only the oldest competes, and
the key's value falls as a line with slope -f: a tournament that knows when each comparison turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..compiling import kernel
from ..engine import frequency, ignore_match, is_partner, join_loop, remaining, time_of
from ..layout import COMPETING, N_STREAMS, NIL, NOT_ADMITTED
from ..structures import (
    Tournament,
    before,
    grow_tournament,
    new_tournament,
    power_of_two,
    tournament_drop,
    tournament_set,
    tournament_winner,
)
from ..workload_engine import workload_loop
from . import FrequencyParameters, Policy, Sizes


@dataclass(frozen=True)
class Params(FrequencyParameters):
    """Nothing of its own."""

    competing: bool = True


class LifeState(NamedTuple):
    """Keys by what their oldest row can still expect."""

    tournament: Tournament  # of groups, a tree a side


def init(params: Params, sizes: Sizes, as_one: bool) -> LifeState:
    """Empty state."""
    return LifeState(new_tournament(sizes.streams, power_of_two(sizes.groups)))


def grow(old: LifeState, fresh: LifeState) -> LifeState:
    """A larger tournament with the same entrants."""
    return LifeState(grow_tournament(old.tournament, fresh.tournament))


@kernel
def enter(S, P, group, side, slot):
    row = S.slot[slot]
    f = frequency(S, group, side)
    tournament_set(P.tournament, side, group, f, row.end, row.ts, row.seq, time_of(S, side))


@kernel
def on_count(S, P, group, side, t, arrived):
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
def victim(S, P, side, group, t, end, must):
    k = S.reg[N_STREAMS]
    best = NIL
    best_value = 0.0
    for s in range(k):
        if S.side[s].pool == S.side[side].pool and S.side[s].held > 0:
            g = tournament_winner(P.tournament, s, time_of(S, s))
            slot = S.cell[g * k + s].head
            value = frequency(S, g, s) * float(remaining(S, s, S.slot[slot].end))
            a, b = S.slot[slot], S.slot[best]
            if best == NIL or before(value, a.ts, a.seq, best_value, b.ts, b.seq):
                best, best_value = slot, value
    if S.reg[COMPETING] and not must:
        if frequency(S, group, side) * float(remaining(S, side, end)) < best_value:
            return NOT_ADMITTED
    return best


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        on_count, ignore_match, on_insert, on_remove, victim,
    )  # fmt: skip


# --- several joins: a row's weight is the sum over them; leaves are rows -----------------------
@kernel
def weigh(S, P, slot, side, t):
    row = S.slot[slot]
    tournament_set(P.tournament, side, slot, row.weight, row.end, row.ts, row.seq, t)


@kernel
def insert_weighed(S, P, slot, group, side, t):
    weigh(S, P, slot, side, t)


@kernel
def remove_weighed(S, P, slot, group, side, t):
    tournament_drop(P.tournament, side, slot, t)


@kernel
def victim_weighed(S, P, side, group, t, end, must):
    best = NIL
    best_value = 0.0
    for s in range(S.side.size):
        if S.side[s].pool == S.side[side].pool and S.side[s].held > 0:
            slot = tournament_winner(P.tournament, s, t)
            value = S.slot[slot].weight * float(S.slot[slot].end - t)
            a, b = S.slot[slot], S.slot[best]
            if best == NIL or before(value, a.ts, a.seq, best_value, b.ts, b.seq):
                best, best_value = slot, value
    if S.reg[COMPETING] and not must and S.newcomer[0] * float(end - t) < best_value:
        return NOT_ADMITTED
    return best


@kernel
def run_workload(S, P, batch, start, out, shed):
    return workload_loop(
        S, P, batch, start, out, shed,
        weigh, ignore_match, insert_weighed, remove_weighed, victim_weighed,
    )  # fmt: skip


POLICY = Policy(
    params=Params,
    init=init,
    run=run,
    run_workload=run_workload,
    grow=grow,
    paper="das2003",
    cost="O(log² B) amortised",
)
