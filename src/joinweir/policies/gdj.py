"""The row with the least credit goes; a match earns credit (GreedyDual-Join).

Keeps a credit a row. Rule (chang2004 Algorithm 1, §4.1): victim = min (credit, ts, seq); a newcomer
starts at the `initial_rank` percentile of the credits in its pool; every match of a held row raises
its credit; at the end of a time unit all credits of a pool may fall.

==========  ====================================  ===========================================
method      a matched row gains                   all rows of a pool lose, per time unit
==========  ====================================  ===========================================
1           1                                     nothing
2           its rank in the order of credits      1
3           1                                     what the pool gained / rows in it
==========  ====================================  ===========================================

Deviations and choices where the paper is silent:

- The percentile counts from the poorest row (0 = poorest): the value at floor(q (n - 1)) of the
  credits after the eviction. The paper's "rank 0.995" reads best from the richest: q = 0.005.
- Every decrement is the same for all rows of a pool, and a newcomer starts *relative* to the rows
  that are there; so no decrement ever changes a decision, and methods 1 and 3 give identical
  results. It is kept as one offset a pool (`credits` subtracts it).
- Ranks of method 2 count from the richest (1 = richest), so that poor rows gain more, and all ranks
  are taken before any row of this arrival gains (in a unified pool of k > 2 streams, before any row
  of the same stream does); ``rank_from="bottom"`` turns them round.
- `increment` and `initial` open the general scheme: ``increment=0, initial_rank=1`` is FIFO,
  ``increment="max", initial="max"`` LRU, ``increment=0, initial="frequency", competing=True`` LFU.
- ``initial_rank="auto"`` is the "dynamic feedback" of §5.2: small ghosts of the join on a sample of
  the keys try several percentiles, and the join follows the one that produces most.

Cost per arrival: methods 1 and 3, victim in O(log B): all rows of a key gain together, so a heap
of keys and a small heap inside each suffice; the percentile is kept in a histogram (`Credits`) in
which a key's rows move 128 credits at a time (O(1 + m / 128) for a key whose credits lie close,
O(m) at worst, m = rows that gain; rows of the key that do not gain with the others, since a row
came out of order, cost O(log m) each). Method 2 and the special cases: O((1 + m) log B) in a search
tree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..compiling import kernel
from ..engine import frequency, ignore_count, join_loop
from ..errors import JoinweirError
from ..layout import COMPETING, N_ARRIVALS, N_STREAMS, NOT_ADMITTED, record
from ..structures import (
    Credits,
    Heap,
    PairHeaps,
    Tree,
    credit_at,
    grow_credits,
    grown,
    heap_drop,
    heap_of_pool,
    heap_set,
    new_credits,
    new_heap,
    new_pair_heaps,
    new_tree,
    page_count,
    pages_gain,
    pair_insert,
    pair_remove,
    tally,
    tally_gain,
    tree_at,
    tree_below,
    tree_insert,
    tree_remove,
    widen_credits,
)
from ..workload_engine import ignore_weight, workload_loop
from . import FrequencyParameters, Policy, Sizes, in_range, one_of

PAGED_ABOVE, UNPAGED_BELOW = 15, 8  # rows of a key; apart, lest one row turn it to and fro
FEW = 4  # rows of a paged key that may gain, or not gain, by themselves
ROWS_PER_PAGE = 8  # with fewer a key is too thin for pages; bounds their memory, too
TRIED_RANKS = (0.02, 0.1, 0.25, 0.45, 0.7, 0.95)
FROM_RANK, FROM_MAX, FROM_FREQUENCY = range(3)
BY_ONE, BY_RANK, BY_RANK_BOTTOM, BY_MAX, BY_NOTHING = range(5)
LOSE_NOTHING, LOSE_ONE, LOSE_GAINS = range(3)


@dataclass(frozen=True)
class Params(FrequencyParameters):
    """Rules for credit.

    Parameters
    ----------
    initial_rank
        Percentile of the credits at which a newcomer starts, from 0 (poorest) to 1; or ``auto``.
    method
        The paper's METHOD 1, 2 or 3.
    rank_from
        ``top`` or ``bottom``: where method 2 counts ranks from.
    increment
        Instead of the method's: 1, 0, ``rank``, or ``max`` (to the top).
    initial
        ``rank``: at `initial_rank`; ``max``: on top; ``frequency``: how often the key occurs in the
        partner stream.
    """

    initial_rank: float | str = 0.25
    method: int = 1
    rank_from: str = "top"
    increment: int | str = "method"
    initial: str = "rank"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_rank != "auto":
            if isinstance(self.initial_rank, str):
                raise JoinweirError(
                    f"gdj: initial_rank must be 'auto' or from 0 to 1, not {self.initial_rank!r}"
                )
            in_range(self, "initial_rank", 0, 1)
        elif self.initial != "rank":
            raise JoinweirError("gdj: initial_rank='auto' goes with initial='rank' only")
        one_of(self, "method", (1, 2, 3))
        one_of(self, "rank_from", ("top", "bottom"))
        one_of(self, "increment", ("method", 0, 1, "rank", "max"))
        one_of(self, "initial", ("rank", "max", "frequency"))

    def source_of_frequencies(self) -> str | None:
        """Credits need no frequencies, unless newcomers start with theirs."""
        return self.statistics if self.initial == "frequency" else None

    def serves_workloads(self) -> bool:
        """Not with a first credit by frequency, nor while the percentile is being found."""
        return self.initial != "frequency" and self.initial_rank != "auto"

    def gains(self) -> int:
        """What a matched row gains."""
        rule = ("rank" if self.method == 2 else 1) if self.increment == "method" else self.increment
        by_rank = BY_RANK if self.rank_from == "top" else BY_RANK_BOTTOM
        return {0: BY_NOTHING, 1: BY_ONE, "rank": by_rank, "max": BY_MAX}[rule]

    def by_key(self) -> bool:
        """Whether the rows of a key gain together and by 1."""
        return self.gains() in (BY_ONE, BY_NOTHING) and self.initial == "rank"


AGEING = record(
    offset="f8",  # what every row of the pool has lost so far
    gained="f8",  # credits added in this time unit
    until="i8",  # the time unit
)


class GdjState(NamedTuple):
    """Credits by key (`heap`, `heaps`, `credits`) or row by row (`tree`)."""

    rules: np.ndarray  # int64[3] initial, gain, loss
    rank: np.ndarray  # float64[1] initial_rank
    ageing: np.ndarray  # AGEING[pools]
    heap: Heap  # of cells (group * k + side) by the least credit in them
    heaps: PairHeaps  # rows of each cell by base = credit - gain of the cell
    credits: Credits
    tree: Tree
    scratch: np.ndarray  # int64[slots]


def init(params: Params, sizes: Sizes, as_one: bool) -> GdjState:
    """Empty state; only the structures that will be used have room."""
    grouped = params.by_key() and not sizes.workload
    cells = sizes.groups * sizes.streams if grouped else 1
    by_key = sizes.slots if grouped else 1
    initial = {"rank": FROM_RANK, "max": FROM_MAX, "frequency": FROM_FREQUENCY}[params.initial]
    loss = (LOSE_NOTHING, LOSE_ONE, LOSE_GAINS)[params.method - 1]
    start = params.initial_rank if params.initial_rank != "auto" else TRIED_RANKS[0]
    ageing = np.zeros(sizes.pools, AGEING)
    ageing["until"] = np.iinfo(np.int64).min
    return GdjState(
        rules=np.array([initial, params.gains(), loss], np.int64),
        rank=np.array([start], np.float64),
        ageing=ageing,
        heap=new_heap(sizes.streams, by_key, cells),
        heaps=new_pair_heaps(by_key, cells),
        credits=new_credits(sizes.pools, cells, by_key // ROWS_PER_PAGE + 8, 1024),
        tree=new_tree(sizes.pools, 1 if grouped else sizes.slots),
        scratch=np.zeros(1 if grouped else sizes.slots, np.int64),
    )


def grow(old: GdjState, fresh: GdjState) -> GdjState:
    """Room for more rows and keys."""
    return GdjState(
        rules=old.rules,
        rank=old.rank,
        ageing=old.ageing,
        heap=grown(old.heap, fresh.heap),
        heaps=grown(old.heaps, fresh.heaps),
        credits=grow_credits(old.credits, fresh.credits),
        tree=grown(old.tree, fresh.tree),
        scratch=fresh.scratch,
    )


def before_batch(S, P: GdjState, n: int) -> GdjState:
    """Room in the histogram: n arrivals raise no credit by more than n."""
    tops = P.heap.entry["key"][:, 0][P.heap.size > 0]
    if tops.size == 0:
        return P
    return P._replace(credits=widen_credits(P.credits, int(tops.min()), n))


def alternatives(params: Params) -> tuple[Params, ...]:
    """Percentiles to try when it is left to us."""
    if params.initial_rank != "auto":
        return ()
    return tuple(replace(params, initial_rank=q) for q in TRIED_RANKS)


def adopt(P: GdjState, params: Params) -> None:
    """Go on with another percentile."""
    P.rank[0] = params.initial_rank


# --- credits fall -----------------------------------------------------------------------------
@kernel
def fall(S, P, t):
    """At the end of a time unit: decrease credits (chang2004 Algorithm 1, last step)."""
    for pool in range(P.ageing.size):
        a = P.ageing[pool]
        if t > a.until:
            if P.rules[2] == LOSE_ONE:
                a.offset += 1.0
            elif P.rules[2] == LOSE_GAINS and a.gained > 0:
                rows = 0
                for s in range(S.side.size):
                    if S.side[s].pool == pool:
                        rows += S.side[s].held
                if rows > 0:
                    a.offset += a.gained / rows
            a.gained = 0.0
            a.until = t


# --- by key: "if B_r[i] joins with s: increase credit of B_r[i]" --------------------------------
@kernel
def enter(S, P, cell, side):
    """Rank a key by its poorest row."""
    slot = P.heaps.root[cell]
    row = S.slot[slot]
    credit = P.heaps.kin[slot].base + P.credits.group[cell].gain
    heap_set(P.heap, side, cell, float(credit), row.ts, row.seq)


@kernel
def on_match(S, P, group, side, t, seq, first, n):
    fall(S, P, t)
    if P.rules[1] == BY_ONE:
        cell = group * S.reg[N_STREAMS] + side
        pool = S.side[side].pool
        if n < S.cell[cell].rows:
            gain_of_some(S, P, cell, pool, first, n)
        else:
            if P.credits.group[cell].paged:
                pages_gain(P.credits, pool, cell)
            else:
                tally_rows(S, P, cell, pool, first, n)
            P.credits.group[cell].gain += 1
        enter(S, P, cell, side)
        P.ageing[pool].gained += n


@kernel
def tally_rows(S, P, cell, pool, first, n):
    """So many rows of a key gain 1 in the histogram."""
    slot = first
    for _ in range(n):
        tally_gain(P.credits, pool, P.heaps.kin[slot].base + P.credits.group[cell].gain)
        slot = S.slot[slot].knext


@kernel
def gain_of_some(S, P, cell, pool, first, n):
    """Some rows of a key gain: others are outside the window of a row that came out of order.

    The smaller part is touched row by row: either the n rows gain, or all do and the others' bases
    fall. The others are few unless rows come very late.
    """
    key = P.credits.group[cell]
    rows = S.cell[cell].rows
    others = rows - n
    if key.paged and min(n, others) > FEW:  # a page for each would overfill them
        count_rows(S, P, cell, rows, -1)
        key.paged = 0
    if n <= others:
        tally_rows(S, P, cell, pool, first, n)
        slot = first
        for _ in range(n):
            base = P.heaps.kin[slot].base
            if key.paged:
                page_count(P.credits, cell, base, -1)
                page_count(P.credits, cell, base + 1, 1)
            pair_remove(P.heaps, S.slot, cell, slot)
            pair_insert(P.heaps, S.slot, cell, slot, base + 1)
            slot = S.slot[slot].knext
    else:
        if key.paged:
            others_keep(S, P, cell, first, others, False)
            pages_gain(P.credits, pool, cell)
        else:
            tally_rows(S, P, cell, pool, first, n)
        key.gain += 1
        others_keep(S, P, cell, first, others, True)
    if key.paged and key.pages * ROWS_PER_PAGE > rows:
        count_rows(S, P, cell, rows, -1)
        key.paged = 0


@kernel
def others_keep(S, P, cell, first, others, lower):
    """Rows before and behind those that gain: out of the pages, or in with a lower base."""
    slot = S.cell[cell].head
    before = 0
    while slot != first:
        keep_credit(S, P, cell, slot, lower)
        slot = S.slot[slot].knext
        before += 1
    slot = S.cell[cell].tail
    for _ in range(others - before):
        keep_credit(S, P, cell, slot, lower)
        slot = S.slot[slot].kprev


@kernel
def keep_credit(S, P, cell, slot, lower):
    base = P.heaps.kin[slot].base
    paged = P.credits.group[cell].paged
    if not lower:
        page_count(P.credits, cell, base, -1)
        return
    if paged:
        page_count(P.credits, cell, base - 1, 1)
    pair_remove(P.heaps, S.slot, cell, slot)
    pair_insert(P.heaps, S.slot, cell, slot, base - 1)


@kernel
def on_insert(S, P, slot, group, side, t):
    """Assign initial credit to s, insert s into B_s."""
    fall(S, P, t)
    cell = group * S.reg[N_STREAMS] + side
    pool = S.side[side].pool
    n = P.credits.pool[pool].n
    credit = np.int64(0)
    if n > 0:
        credit = credit_at(P.credits, pool, np.int64(P.rank[0] * (n - 1)))
    key = P.credits.group[cell]
    rows = S.cell[cell].rows
    if rows == 1:
        key.gain, key.paged = 0, 0
    base = credit - key.gain
    tally(P.credits, pool, credit, 1)
    pair_insert(P.heaps, S.slot, cell, slot, base)
    if key.paged:
        page_count(P.credits, cell, base, 1)
        if key.pages * ROWS_PER_PAGE > rows:
            count_rows(S, P, cell, rows, -1)
            key.paged = 0
    elif rows > PAGED_ABOVE and rows & (rows - 1) == 0:  # a thin key is tried again when doubled
        counted = count_rows(S, P, cell, rows, 1)
        if key.pages * ROWS_PER_PAGE <= rows:
            key.paged = 1
        else:
            count_rows(S, P, cell, counted, -1)
    if P.heaps.root[cell] == slot:
        enter(S, P, cell, side)


@kernel
def count_rows(S, P, cell, rows, n):
    """Enter the first so many rows of a key into pages (n = 1), or take them out (n = -1).

    Entering ends early when it takes too many pages; returned is how many rows were done.
    """
    slot = S.cell[cell].head
    for i in range(rows):
        page_count(P.credits, cell, P.heaps.kin[slot].base, n)
        if n > 0 and P.credits.group[cell].pages * ROWS_PER_PAGE > S.cell[cell].rows:
            return i + 1
        slot = S.slot[slot].knext
    return rows


@kernel
def on_remove(S, P, slot, group, side, t):
    cell = group * S.reg[N_STREAMS] + side
    was_least = P.heaps.root[cell] == slot
    key = P.credits.group[cell]
    base = P.heaps.kin[slot].base
    rows = S.cell[cell].rows
    tally(P.credits, S.side[side].pool, base + key.gain, -1)
    if key.paged and (rows <= UNPAGED_BELOW or key.pages * ROWS_PER_PAGE > rows - 1):
        count_rows(S, P, cell, rows, -1)
        key.paged = 0
    elif key.paged:
        page_count(P.credits, cell, base, -1)
    pair_remove(P.heaps, S.slot, cell, slot)
    if rows == 1:
        heap_drop(P.heap, side, cell)
    elif was_least:
        enter(S, P, cell, side)


@kernel
def victim(S, P, side, group, t, end, must):
    """Remove s_i from B_s with smallest credit. A percentile never lies below it."""
    s = heap_of_pool(P.heap, S.side, side)
    return P.heaps.root[P.heap.entry[s, 0].id]


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        ignore_count, on_match, on_insert, on_remove, victim,
    )  # fmt: skip


# --- row by row -------------------------------------------------------------------------------
@kernel
def raise_rows(S, P, group, side, t, seq, first, n):
    fall(S, P, t)
    gain = P.rules[1]
    if gain == BY_NOTHING:
        return
    pool = S.side[side].pool
    credits = P.scratch  # all are decided before any changes
    rows = P.tree.node[P.tree.root[pool]].count
    slot = first
    for i in range(n):
        old = P.tree.node[slot].key
        if gain == BY_ONE:
            credits[i] = old + 1
        elif gain == BY_RANK:
            credits[i] = old + 1 + rows - tree_below(P.tree, pool, old + 1)
        elif gain == BY_RANK_BOTTOM:
            credits[i] = old + 1 + tree_below(P.tree, pool, old)
        else:
            credits[i] = seq
        P.ageing[pool].gained += credits[i] - old
        slot = S.slot[slot].knext
    slot = first
    for i in range(n):
        if credits[i] != P.tree.node[slot].key:
            tree_remove(P.tree, S.slot, pool, slot)
            tree_insert(P.tree, S.slot, pool, slot, credits[i])
        slot = S.slot[slot].knext


@kernel
def first_credit(S, P, group, side, seq):
    if P.rules[0] == FROM_MAX:
        return seq
    if P.rules[0] == FROM_FREQUENCY:
        return np.int64(frequency(S, group, side))
    pool = S.side[side].pool
    root = P.tree.root[pool]
    if root < 0:
        return np.int64(0)
    n = P.tree.node[root].count
    return P.tree.node[tree_at(P.tree, pool, np.int64(P.rank[0] * (n - 1)))].key


@kernel
def insert_row(S, P, slot, group, side, t):
    fall(S, P, t)
    credit = first_credit(S, P, group, side, S.slot[slot].seq)
    tree_insert(P.tree, S.slot, S.side[side].pool, slot, credit)


@kernel
def remove_row(S, P, slot, group, side, t):
    tree_remove(P.tree, S.slot, S.side[side].pool, slot)


@kernel
def victim_row(S, P, side, group, t, end, must):
    least = tree_at(P.tree, S.side[side].pool, 0)
    if S.reg[COMPETING] and not must:
        if first_credit(S, P, group, side, S.reg[N_ARRIVALS] - 1) < P.tree.node[least].key:
            return NOT_ADMITTED
    return least


@kernel
def run_by_row(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        ignore_count, raise_rows, insert_row, remove_row, victim_row,
    )  # fmt: skip


def choose_run(params: Params, as_one: bool):
    """The loop that fits."""
    return run if params.by_key() else run_by_row


def credits(S, P: GdjState) -> np.ndarray:
    """Credit of every held row now, in order of arrival (for looking at, not for the join)."""
    k = S.side.size
    held = []
    for s in range(k):
        slot = S.expiry[s]["head"]
        while slot >= 0:
            held.append(slot)
            slot = S.slot[slot]["enext"]
    held = np.array(sorted(held, key=lambda slot: S.slot[slot]["seq"]), np.int64)
    side = S.slot["side"][held]
    if P.heaps.kin.size > 1:
        cell = S.slot["group"][held] * k + side
        values = P.heaps.kin["base"][held] + P.credits.group["gain"][cell]
    else:
        values = P.tree.node["key"][held]
    return values - P.ageing["offset"][S.side["pool"][side]]


@kernel
def run_workload(S, P, batch, start, out, shed):
    return workload_loop(
        S, P, batch, start, out, shed,
        ignore_weight, raise_rows, insert_row, remove_row, victim_row,
    )  # fmt: skip


POLICY = Policy(
    params=Params,
    init=init,
    run=run,
    run_workload=run_workload,
    choose_run=choose_run,
    grow=grow,
    before_batch=before_batch,
    alternatives=alternatives,
    adopt=adopt,
    paper="chang2004 §4",
    cost="O(log B); method 2 O((1 + m) log B)",
)
