"""ODJA: the optimum by dynamic programming over what memory can hold (ojewole2006 §4.1).

Instant by instant, all sets of rows that memory may hold are listed, with the most that each can
have earned. A newcomer goes into every set; into a full one in place of any row, or not at all.
Two layers of sets are enough for the value. To know the rows as well, each set remembers the set
it came from and who gave way: all layers, contrary to the paper, which prints from two.

There are up to (w choose M) sets of M rows out of w alive, each with M + 1 ways on. So this is for
few slots, or almost as many as rows alive; it is here as the paper has it, and as a check of the
flow, with which it shares neither graph nor solver.

Differences to the pseudo-code: its indices make a row probe before it is evicted, its figure shows
the other order; here the order is the join's. Of equally good ways the first one found stays.

A set is a bit per row alive: row x of the pool is bit x modulo the width.
"""

from __future__ import annotations

from math import lgamma, log
from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from ..errors import JoinweirError
from .problem import Matches, Pool
from .weights import Weights, weight_of

MAX_STATES = 5_000_000  # in one layer; some 100 bytes each
EMPTY = -1


class _Layer(NamedTuple):
    """Sets of rows, each with its best value and where it came from."""

    bits: np.ndarray  # (states, words)
    hash: np.ndarray  # exclusive or of the members' hashes, so that a change of one row is cheap
    value: np.ndarray
    parent: np.ndarray  # state of the layer before
    dropped: np.ndarray  # row that gave way, or EMPTY
    table: np.ndarray  # hash table of states


@kernel
def _hash(row):
    h = np.uint64(row + 1) * np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return h ^ (h >> np.uint64(27))


@kernel
def _n_bits(word):
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + (
        (word >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def _changed(word, x, added, dropped, width):
    """Word x of a set after one row came and one went (EMPTY: none)."""
    if added != EMPTY and (added % width) >> 6 == x:
        word |= np.uint64(1) << np.uint64((added % width) & 63)
    if dropped != EMPTY and (dropped % width) >> 6 == x:
        word &= ~(np.uint64(1) << np.uint64((dropped % width) & 63))
    return word


@kernel
def _put(old, x, added, dropped, new, n):
    """Set x of the old layer, changed, joins the new one, unless it is there and better already."""
    words = old.bits.shape[1]
    width = 64 * words
    h = old.hash[x]
    if added != EMPTY:
        h ^= _hash(added)
    if dropped != EMPTY:
        h ^= _hash(dropped)
    mask = np.uint64(new.table.size - 1)
    place = h & mask
    while new.table[place] != EMPTY:
        y = new.table[place]
        if new.hash[y] == h:
            same = True
            for word in range(words):
                if _changed(old.bits[x, word], word, added, dropped, width) != new.bits[y, word]:
                    same = False
                    break
            if same:
                if old.value[x] > new.value[y]:
                    new.value[y], new.parent[y], new.dropped[y] = old.value[x], x, dropped
                return n
        place = (place + np.uint64(1)) & mask
    new.table[place] = n
    for word in range(words):
        new.bits[n, word] = _changed(old.bits[x, word], word, added, dropped, width)
    new.hash[n] = h
    new.value[n], new.parent[n], new.dropped[n] = old.value[x], x, dropped
    return n + 1


@kernel
def _insert(old, n_old, new, row, slots, room):
    """All sets after `row` came; returns their number, or -1 if there is no room for them."""
    words = old.bits.shape[1]
    width = 64 * words
    n = 0
    new.table[:] = EMPTY
    for x in range(n_old):
        held = 0
        for word in range(words):
            held += _n_bits(old.bits[x, word])
        if n + held + 2 > room:
            return -1
        if held < slots:
            n = _put(old, x, row, EMPTY, new, n)
            continue
        for word in range(words):
            rest = old.bits[x, word]
            while rest:
                low = rest & (~rest + np.uint64(1))
                bit = 64 * word + _n_bits(low - np.uint64(1))
                n = _put(old, x, row, row - (row - bit) % width, new, n)
                rest ^= low
        n = _put(old, x, row, row, new, n)
    return n


@kernel
def _forget(old, n_old, new, row, room):
    """All sets without a row that died; sets that become the same are one."""
    width = 64 * old.bits.shape[1]
    n = 0
    new.table[:] = EMPTY
    word, shift = (row % width) >> 6, np.uint64((row % width) & 63)
    for x in range(n_old):
        if n + 1 > room:
            return -1
        held = (old.bits[x, word] >> shift) & np.uint64(1)
        n = _put(old, x, EMPTY, row if held else EMPTY, new, n)
    return n


@kernel
def _pay(layer, n, gains, rows, n_gains):
    """Every set earns what its rows are paid in this gap."""
    width = 64 * layer.bits.shape[1]
    for g in range(n_gains):
        b = rows[g] % width
        word, shift = b >> 6, np.uint64(b & 63)
        for x in range(n):
            if (layer.bits[x, word] >> shift) & np.uint64(1):
                layer.value[x] += gains[g]


@kernel
def _gains_by_gap(rows, first, stop, partner, gap, weights, places, gain, gainer):
    """The matches by gap: who is paid, and how much."""
    for x in range(rows.size):
        i = rows[x]
        for at in range(first[i], stop[i]):
            j = partner[at]
            place = places[gap[j]]
            gain[place], gainer[place] = weight_of(weights, i, j), x
            places[gap[j]] = place + 1


@kernel
def _count_by_gap(rows, first, stop, partner, gap, n_gains):
    for x in range(rows.size):
        for at in range(first[rows[x]], stop[rows[x]]):
            n_gains[gap[partner[at]]] += 1


def _layer(states: int, words: int) -> _Layer:
    return _Layer(
        bits=np.zeros((states, words), np.uint64),
        hash=np.zeros(states, np.uint64),
        value=np.zeros(states, np.int64),
        parent=np.zeros(states, np.int32),
        dropped=np.zeros(states, np.int32),
        table=np.full(1 << (2 * states - 1).bit_length(), EMPTY, np.int32),
    )


class _Programme:
    """Two layers, and the trail of all if rows are wanted."""

    def __init__(self, words: int, trail: bool) -> None:
        self.words = words
        self.room = 1024
        self.old, self.new = _layer(self.room, words), _layer(self.room, words)
        self.n = 1
        self.trail: list[tuple[np.ndarray, np.ndarray]] | None = [] if trail else None

    def step(self, make, *how) -> None:
        """One layer more; `make` is a kernel that returns -1 when it needs more room."""
        while (n := make(self.old, self.n, self.new, *how, self.room)) < 0:
            self.room *= 4
            if self.room > MAX_STATES:
                raise _too_many()
            old = self.old
            self.old = _layer(self.room, self.words)
            for mine, theirs in zip(self.old[:5], old[:5]):
                mine[: self.n] = theirs[: self.n]
            self.new = _layer(self.room, self.words)
        self.old, self.new, self.n = self.new, self.old, n
        if self.trail is not None:
            self.trail.append((self.old.parent[:n].copy(), self.old.dropped[:n].copy()))


def _log_sets(rows: int, slots: int) -> float:
    """Logarithm of (rows choose slots)."""
    if slots >= rows:
        return 0.0
    return lgamma(rows + 1) - lgamma(slots + 1) - lgamma(rows - slots + 1)


def _too_many() -> JoinweirError:
    return JoinweirError(
        f"odja has more than {MAX_STATES:,} sets of rows to keep apart; use method='flow'"
    )


def solve_odja(
    pool: Pool, matches: Matches, weights: Weights, *, trail: bool = True, progress=None
):
    """The optimum of a pool.

    Returns its weight, and the last gap in which each of the pool's rows is held (-1: in none), or
    None without the `trail`.
    """
    n_gains = np.zeros(pool.n_gaps + 1, np.int64)
    ranges = (matches.first, matches.stop, matches.partner, pool.gap)
    _count_by_gap(pool.rows, *ranges, n_gains)
    begin = np.cumsum(n_gains) - n_gains
    gain = np.empty(int(n_gains.sum()), np.int64)
    gainer = np.empty(gain.size, np.int64)
    _gains_by_gap(pool.rows, *ranges, weights, begin[:-1].copy(), gain, gainer)
    opens = np.searchsorted(pool.first, np.arange(pool.n_gaps + 1))
    by_death = np.argsort(pool.last, kind="stable")
    deaths = np.searchsorted(pool.last[by_death], np.arange(pool.n_gaps + 1))
    oldest = _oldest_alive(pool)
    widest = int((opens[1:] - oldest).max(initial=1))
    if _log_sets(widest - 1, pool.slots) > log(MAX_STATES):
        raise _too_many()  # before it takes the time to find so many
    programme = _Programme(-(-(widest + 1) // 64), trail)
    moments = []  # (gap, row that came or -1) of each layer, for the trail
    for gap in range(pool.n_gaps):
        dead = by_death[deaths[gap - 1] : deaths[gap]] if gap else by_death[:0]
        for row in dead:
            programme.step(_forget, row)
            moments.append((gap, -1))
        for row in range(opens[gap], opens[gap + 1]):
            programme.step(_insert, row, pool.slots)
            moments.append((gap, row))
        paid = slice(begin[gap], begin[gap + 1])
        _pay(programme.old, programme.n, gain[paid], gainer[paid], gain[paid].size)
        if progress:
            progress((gap + 1) / pool.n_gaps)
    best = int(np.argmax(programme.old.value[: programme.n]))
    value = int(programme.old.value[best])
    if not trail:
        return value, None
    held_in = pool.last.copy()
    for (gap, row), (parent, dropped) in zip(reversed(moments), reversed(programme.trail)):
        if row >= 0 and dropped[best] >= 0:
            held_in[dropped[best]] = -1 if dropped[best] == row else gap - 1
        best = int(parent[best])
    return value, held_in


def _oldest_alive(pool: Pool) -> np.ndarray:
    """Of each gap: the first of the pool's rows that is alive in it or arrives with it."""
    n = pool.rows.size
    oldest = np.searchsorted(pool.first, np.arange(pool.n_gaps), "left")
    # A row is the oldest from the gap in which all before it are dead.
    last = np.maximum.accumulate(pool.last) if n else pool.last
    return np.minimum(oldest, np.searchsorted(last, np.arange(pool.n_gaps), "left"))
