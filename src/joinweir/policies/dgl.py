"""The row goes that has gained least: important rows that match gain, idle ones lose.

Keeps a value a row. It starts as the importance. Each arrival that matches the row adds alpha ·
importance · m · remaining / lifetime, m = how many partners the key has; a tick without a match
multiplies by `decay`. Rule: victim = min (value, ts, seq); the newcomer competes. DGL (dynamic gain
loss) of ojewole2006 §4.3.4, with m from the held rows (``statistics="memory"``).
A *tick* is one unit of the time column, with arrivals or without (in a count window, a row of the
own stream). Probing first, a tick's loss comes before its rows, and a row that is matched gets it
back; evicting first, it comes between admission and probing. So a newcomer loses in the tick of its
arrival only when rows are evicted first.
Deviations: the paper gives neither alpha nor decay; docs/importance.md shows why these defaults.
Cost per arrival: O(matches + log B) amortised. All rows lose by the same factor, so only gains
change their order; a row that gained is moved in the heap when it comes to the top, not before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from ..engine import (
    arriving_importance,
    frequency,
    ignore_count,
    importance_of,
    join_loop,
    remaining,
    time_of,
)
from ..errors import JoinweirError
from ..layout import COMPETING, EVICT_FIRST, NIL, NO_PANE, NOT_ADMITTED, ORDER, record
from ..structures import Heap, before, heap_drop, heap_set, new_heap
from . import FrequencyParameters, Policy, Sizes, in_range

LIFETIME_LOSS = 5 * math.log2(math.e)  # with decay = exp(-5 / lifetime): in doublings, over a life


@dataclass(frozen=True)
class Params(FrequencyParameters):
    """What a match is worth, and what a tick without costs.

    Parameters
    ----------
    alpha
        Weight of a gain.
    decay
        Factor for a tick without a match, more than 0 and at most 1; None: exp(-5 / lifetime).
    """

    competing: bool = True
    statistics: str = "memory"
    alpha: float = 1.0
    decay: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "alpha", 0, 1e9)
        if self.decay is not None:
            in_range(self, "decay", 0, 1)
            if self.decay == 0:
                raise JoinweirError("dgl: decay must be more than 0; a tick would end every value")


VALUED = record(
    value="f8",  # at the beginning of tick `since`
    since="i8",  # after it every tick costs a factor
    credited="i8",  # last tick in which it was matched, or taken in after that tick's loss
    stale="i4",  # 1: it has gained since its key in the heap was set
)


class DglState(NamedTuple):
    """Rows by value. The heap's key is log2 of the value, less the loss since the first tick."""

    heap: Heap  # of slots
    row: np.ndarray  # VALUED[slots]
    first: np.ndarray  # int64[1] tick from which losses are counted, or NO_PANE
    alpha: np.ndarray  # float64[1]
    loss: np.ndarray  # float64[1] -log2(decay); less than 0: by the lifetime


def init(params: Params, sizes: Sizes, as_one: bool) -> DglState:
    """Empty state."""
    loss = -1.0 if params.decay is None else -math.log2(params.decay)
    return DglState(
        heap=new_heap(sizes.streams, sizes.slots, sizes.slots),
        row=np.zeros(sizes.slots, VALUED),
        first=np.full(1, NO_PANE, np.int64),
        alpha=np.full(1, params.alpha, np.float64),
        loss=np.full(1, loss),
    )


@kernel
def loss_of(S, P, side):
    """Loss of a tick, in halvings."""
    return P.loss[0] if P.loss[0] >= 0.0 else LIFETIME_LOSS / S.side[side].lifetime


@kernel
def next_loss(S, side):
    """The tick that costs a newcomer first."""
    return time_of(S, side) + (0 if S.reg[ORDER] == EVICT_FIRST else 1)


@kernel
def rank(S, P, side, value, since):
    """Order of values, whenever they are taken: with time all of them fall alike."""
    return math.log2(value) + (since - P.first[0]) * loss_of(S, P, side)


@kernel
def enter(S, P, slot, side):
    row, own = S.slot[slot], P.row[slot]
    own.stale = 0
    heap_set(P.heap, side, slot, rank(S, P, side, own.value, own.since), row.ts, row.seq)


@kernel
def on_match(S, P, group, side, t, seq, first, n):
    """If it produces an output, priority += alpha · imp · m · remaining lifetime."""
    tick = time_of(S, side)
    loss = loss_of(S, P, side)
    gain = P.alpha[0] * frequency(S, group, side) / S.side[side].lifetime
    ticks = np.int64(0)
    factor = 1.0
    slot = first
    for _ in range(n):
        row, own = S.slot[slot], P.row[slot]
        spared = own.credited == tick
        gained = gain * importance_of(S, slot) * max(0, remaining(S, side, row.end))
        if gained > 0.0:
            losses = tick - own.since + (1 if spared else 0)
            if losses != ticks:  # mostly the same for all rows of a key
                ticks = losses
                factor = 2.0 ** (-loss * losses)
            own.value = own.value * factor + gained
            own.since = tick + 1
        elif not spared:  # nothing gained, but nothing lost in this tick
            own.since += 1
        own.credited = tick
        own.stale = 1
        slot = row.knext


@kernel
def on_insert(S, P, slot, group, side, t):
    if P.first[0] == NO_PANE:
        P.first[0] = time_of(S, side)
    own = P.row[slot]
    own.value = importance_of(S, slot)
    own.since = next_loss(S, side)
    own.credited = own.since - 1
    enter(S, P, slot, side)


@kernel
def on_remove(S, P, slot, group, side, t):
    heap_drop(P.heap, side, slot)


@kernel
def victim(S, P, side, group, t, end, must):
    best = np.int32(NIL)
    least = 0.0
    for s in range(S.side.size):
        if S.side[s].pool != S.side[side].pool or P.heap.size[s] == 0:
            continue
        top = P.heap.entry[s, 0].id
        while P.row[top].stale:  # values only gain on their keys, so a fresh top is the least
            enter(S, P, top, s)
            top = P.heap.entry[s, 0].id
        e = P.heap.entry[s, 0]
        # Streams can lose at different paces: compare what values are now.
        value = e.key - (time_of(S, s) - P.first[0]) * loss_of(S, P, s)
        b = S.slot[best]
        if best == NIL or before(value, e.ts, e.seq, least, b.ts, b.seq):
            best, least = top, value
    if S.reg[COMPETING] and not must:
        own = rank(S, P, side, arriving_importance(S), next_loss(S, side))
        if own - (time_of(S, side) - P.first[0]) * loss_of(S, P, side) < least:
            return NOT_ADMITTED
    return best


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        ignore_count, on_match, on_insert, on_remove, victim,
    )  # fmt: skip


POLICY = Policy(
    params=Params,
    init=init,
    run=run,
    weighs=True,
    paper="ojewole2006 §4.3.4",
    cost="O(matches + log B) amortised",
)
