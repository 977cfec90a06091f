"""The data dictionary: every array of a join's state, and what stands in it.

The engine is a state machine over these flat arrays. Kernels take them as one ``Store``; a
policy adds its own named tuple of arrays. Nothing here computes.

Names: a *slot* is the place of one held row; a *group* is all that is known of one key; a
*side* is the number of a stream (0 = left, 1 = right, … k-1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LAYOUT_VERSION = 4
MAGIC = b"JWEIR\x00"

NIL = -1  # no slot, no group, no log entry
NO_PANE = -(1 << 62)  # an empty place of the sketch's ring; pane -1 exists
NOT_ADMITTED = -1  # what a policy's `victim` returns when the newcomer itself loses

# --- Store.reg: scalars ------------------------------------------------------------------------
(
    N_STREAMS,  # k
    N_ARRIVALS,  # accepted rows so far = the next seq
    N_OUT,  # results produced
    N_EXACT,  # results of the exact join (accounting = exact)
    FREE_SLOT,  # heads of the free lists, linked through enext, following, enext
    FREE_GROUP,
    FREE_LOG,
    N_SLOTS,  # slots in use
    N_GROUPS,  # groups in use
    N_LOG,  # log entries in use
    N_IDLE,  # groups kept for their history alone
    MAX_IDLE,  # cap on those
    CLOCK,  # largest time processed
    ORDERED,  # 1: rows come in time order over all streams, so every held row is in window
    ORDER,  # event order, see below
    COUNT_WINDOW,  # 1: a row's life is measured in rows of its own stream
    KEEP_LOG,  # 1: in-window arrivals are logged (exact accounting, or window statistics)
    ACCOUNTING,  # see below
    STATISTICS,  # see below
    PARTNER,  # see below
    COMPETING,  # 1: a newcomer can lose against the held rows
    RNG,  # splitmix64 state, as signed bits
    DIGEST,  # digest of the sources that this process's compiled code came from
    LOG_BYTES,  # charge per log entry against a budget in bytes (0: budget in rows)
    PINNED,  # the arriving row's group, which may not be given up under it
    WANTED,  # room for results that the next row needs
    LEAST_SIZE,  # smallest charge of any row so far
    PLACED,  # slot that the last admitted row went to, or NIL
    COMBINE,  # importance of a result from its rows' ones, see below; UNWEIGHED: there is none
    CHAINED,  # 1: a key's logged arrivals are chained, to be visited one by one
    REG_SIZE,
) = range(31)

# --- Store.totals: sums of importances ---------------------------------------------------------
(
    IMP_OUT,  # of the results produced
    IMP_EXACT,  # of the exact join (accounting = exact)
    IMP_ARRIVING,  # no sum: importance of the row that asks for room
    TOTALS,
) = range(4)

# --- Store.counters: one row a side ------------------------------------------------------------
C_IN, C_EVICTED, C_REFUSED, C_EXPIRED, C_MATCHED_ARRIVALS, COUNTERS = range(6)

PROBE_FIRST, SIMULTANEOUS, EVICT_FIRST = range(3)  # ORDER
ORDERS = ("probe_first", "simultaneous", "evict_first")
OFF, EXACT, SKETCH = range(3)  # ACCOUNTING
ACCOUNTINGS = ("off", "exact", "sketch")
HISTORY, WINDOW, MEMORY, ORACLE = range(4)  # STATISTICS
STATISTICS_SOURCES = ("history", "window", "memory", "oracle")
NEXT, PRODUCT = range(2)  # PARTNER
PARTNERS = ("next", "product")
# COMBINE
UNWEIGHED, COMBINE_MIN, COMBINE_SUM, COMBINE_PRODUCT, COMBINE_MAX, COMBINE_MEAN = range(6)
COMBINATIONS = ("", "min", "sum", "product", "max", "mean")
PROBES, INSERTS = 1, 2  # bits of a row's `action`
EVICTED, REFUSED = 0, 1  # why a row was shed
REASONS = ("evicted", "not admitted")


def record(**fields: str) -> np.dtype:
    """A record type with aligned fields."""
    return np.dtype(list(fields.items()), align=True)


# Arrays of records rather than an array per field: what is used together lies on one cache line,
# and numba compiles a policy over these 18 arrays in 8 s, over 55 it took 42 s.
SIDE = record(
    lifetime="i8",  # longest life of a row
    lateness="i8",  # how far behind the largest time a row may still come
    clock="i8",  # ends of held rows are compared with this
    seen_max="i8",  # largest time so far
    arrived="i8",  # accepted rows
    held="i8",  # rows held
    logged="i8",  # arrivals in the log: those in the window, kept or not
    seen="i8",  # arrivals that were counted for history statistics
    known="i8",  # rows of the whole input (oracle)
    pool="i8",  # which pool the side draws on
    sketch_span="i8",  # length of a pane of the sketch
    sketch_low="i8",  # panes before it are out of the sum (rows in order)
    sketch_live="i8",  # panes in the sum (rows out of order)
    sketch_first="i8",  # time of the first row, or NO_PANE
    sketch_grain="i8",  # all times are multiples of it from there on; 0: there is but one time
)
POOL = record(
    cap="i8",  # budget, in rows or bytes
    used="i8",  # what held rows (and the log) take of it
)
ENDS = record(  # of a doubly linked list by time
    head="i4",
    tail="i4",
    hint="i4",  # where the last one went: the next goes near it
)
PLACE = record(key="i8", group="i4")  # of the key index: open addressing, NIL = free
GROUP = record(
    key="i8",
    following="i4",  # free list
    idle="i4",  # 1: free, or kept for its history alone
)
CELL = record(  # one key on one side, at group * k + side
    head="i4",  # chain of the key's held rows, by time
    tail="i4",
    rows="i4",  # rows held
    live="i4",  # arrivals in the window, kept or not
    hits="i4",  # arrivals that matched the held rows
    instant="i4",  # first row of the running instant, NIL outside one
    seen="i8",  # arrivals so far (history)
    known="i8",  # arrivals in the whole input (oracle)
)
CHAIN = record(head="i4", tail="i4")  # a key's logged arrivals on one side, by time
SLOT = record(  # a held row
    ts="i8",
    end="i8",  # first time at which the row is dead
    seq="i8",  # arrival number, the last tie-break
    row="i8",  # the caller's number of the row; NIL when the slot is free
    group="i4",
    side="i4",
    size="i4",  # charge against the budget
    mark="i4",  # hits of the cell when the row came: n_matched is the difference
    knext="i4",  # chain of the key's rows on one side, by time
    kprev="i4",
    enext="i4",  # expiry list of the side, by time; also the free list
    eprev="i4",
)
LOGGED = record(  # an arrival in the window, kept or not
    ts="i8",
    end="i8",
    group="i4",
    knext="i4",  # used only when CHAINED
    kprev="i4",
    enext="i4",
    eprev="i4",
)


class Store(NamedTuple):
    """All state of a join on one common key of k streams, policy apart."""

    reg: np.ndarray  # int64[REG_SIZE] scalars
    counters: np.ndarray  # int64[k, COUNTERS]
    side: np.ndarray  # SIDE[k]
    pool: np.ndarray  # POOL[pools]
    expiry: np.ndarray  # ENDS[k] lists of held rows
    logs: np.ndarray  # ENDS[k] lists of logged arrivals
    table: np.ndarray  # PLACE[a power of two >= 1.5 * groups]
    group: np.ndarray  # GROUP[groups]
    cell: np.ndarray  # CELL[groups * k]
    chain: np.ndarray  # CHAIN[groups * k] when CHAINED
    slot: np.ndarray  # SLOT[rows]
    log: np.ndarray  # LOGGED[arrivals in the window]
    # Importances stand apart: a SLOT fills one cache line, and most joins have none.
    slot_imp: np.ndarray  # float64[rows] of held rows, when weighed
    log_imp: np.ndarray  # float64[arrivals in the window] of logged arrivals, when weighed
    totals: np.ndarray  # float64[TOTALS]
    sketch: np.ndarray  # int32[k, panes + 1, depth, width] counters of a pane
    sketch_sum: np.ndarray  # int32[k, depth, width] over the live panes
    # int64[k, panes + 1] which pane stands in a place, or NO_PANE; or, when rows may come out of
    # order, [k, 5 * (panes + 1)]: first and last times, places, rows and their times of the panes
    sketch_pane: np.ndarray
    # float64[4 * depth] running estimates of n_exact, then of their variance by cut panes; the rest
    # is work space
    sketch_out: np.ndarray
    scratch: np.ndarray  # int64[3, k + 1]
    nothing: np.ndarray  # int64[0, k] for results that are only counted


class Batch(NamedTuple):
    """Accepted rows in the order in which they are to be processed."""

    ts: np.ndarray  # int64[n]
    end: np.ndarray  # int64[n]
    side: np.ndarray  # int8[n]
    key: np.ndarray  # int64[n]
    row: np.ndarray  # int64[n]
    size: np.ndarray  # int32[n] charge against the budget
    action: np.ndarray  # uint8[n] bits PROBES, INSERTS
    imp: np.ndarray  # float64[n] importance > 0; float64[0] in a join without
    group: np.ndarray  # int32[n] filled in: the row's group while it is processed
    alike: np.ndarray  # int32[n] filled in: the next row of the instant with the same key and side;
    # when rows come one by one, the slot that the row went to, or NIL
