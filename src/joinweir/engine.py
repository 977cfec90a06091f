"""The state machine of a window join on one common key: probe, insert, expire, evict, account.

The engine owns everything but the ranking. A policy file compiles its own ``run`` around
`join_loop`, handing in five hooks:

``on_count(S, P, group, side, t, arrived)``
    the statistics of a key on a side have moved: by an arrival if `arrived`, else (with window or
    memory statistics) by a row that came into memory or left;
``on_match(S, P, group, side, t, seq, first, n)``
    arrival number `seq` matched the n rows of the key's chain on `side` that begin with slot
    `first`: all of them, when rows come one by one and in order (`groups_match_as_one`);
``on_insert(S, P, slot, group, side, t)`` / ``on_remove(S, P, slot, group, side, t)``
    a row was taken in (already linked) / is about to go (still linked);
``victim(S, P, side, group, t, end, must) -> slot``
    which row gives way to a newcomer of `group` on `side`; `NOT_ADMITTED` if the newcomer itself
    loses, which is allowed only when `must` is false.

`join_loop` is inlined into each ``run``: hooks handed to a compiled function as arguments would
make numba compile anew in every process, and Spark starts many. numba notices only changes of the
policy's own file, so the loop leaves `ENGINE_DIGEST` in the state for `state.py` to compare.
"""

from __future__ import annotations

import numpy as np

from .compiling import DIGEST as ENGINE_DIGEST
from .compiling import inlined, kernel, shared_hook
from .layout import (
    ACCOUNTING,
    C_EVICTED,
    C_EXPIRED,
    C_IN,
    C_MATCHED_ARRIVALS,
    C_REFUSED,
    CHAINED,
    CLOCK,
    COMBINE,
    COMBINE_MAX,
    COMBINE_MEAN,
    COMBINE_MIN,
    COMBINE_PRODUCT,
    COUNT_WINDOW,
    DIGEST,
    EVICT_FIRST,
    EVICTED,
    EXACT,
    FREE_GROUP,
    FREE_LOG,
    FREE_SLOT,
    HISTORY,
    IMP_ARRIVING,
    IMP_EXACT,
    IMP_OUT,
    INSERTS,
    KEEP_LOG,
    LOG_BYTES,
    MAX_IDLE,
    MEMORY,
    N_ARRIVALS,
    N_EXACT,
    N_GROUPS,
    N_IDLE,
    N_LOG,
    N_OUT,
    N_SLOTS,
    N_STREAMS,
    NEXT,
    NIL,
    NO_PANE,
    NOT_ADMITTED,
    ORDER,
    ORDERED,
    PARTNER,
    PINNED,
    PLACED,
    PROBE_FIRST,
    PROBES,
    REFUSED,
    SKETCH,
    STATISTICS,
    UNWEIGHED,
    WANTED,
    WINDOW,
)
from .structures import mix, sign_of


# --- hooks of a policy that does not care -----------------------------------------------------
@shared_hook
def ignore_count(S, P, group, side, t, arrived):
    pass


@shared_hook
def ignore_match(S, P, group, side, t, seq, first, n):
    pass


@shared_hook
def ignore_insert(S, P, slot, group, side, t):
    pass


@shared_hook
def ignore_remove(S, P, slot, group, side, t):
    pass


# --- key index ---------------------------------------------------------------------------------
@kernel
def find_group(S, key):
    """The group of a key, or NIL."""
    mask = S.table.size - 1
    at = mix(key) & mask
    while S.table[at].group != NIL:
        if S.table[at].key == key:
            return S.table[at].group
        at = (at + 1) & mask
    return np.int32(NIL)


@kernel
def add_group(S, key):
    """The group of a key, made if it is new. The caller has seen to free groups."""
    mask = S.table.size - 1
    at = mix(key) & mask
    while S.table[at].group != NIL:
        if S.table[at].key == key:
            return S.table[at].group
        at = (at + 1) & mask
    g = np.int32(S.reg[FREE_GROUP])
    S.reg[FREE_GROUP] = S.group[g].following
    S.reg[N_GROUPS] += 1
    S.table[at].key = key
    S.table[at].group = g
    k = S.reg[N_STREAMS]
    S.group[g].key = key
    S.group[g].idle = 0
    for s in range(k):
        S.cell[g * k + s].head = NIL
        S.cell[g * k + s].tail = NIL
        S.cell[g * k + s].rows = 0
        S.cell[g * k + s].live = 0
        S.cell[g * k + s].hits = 0
        S.cell[g * k + s].seen = 0
        S.cell[g * k + s].known = 0
        S.cell[g * k + s].instant = NIL
        if S.reg[CHAINED]:
            S.chain[g * k + s].head = NIL
            S.chain[g * k + s].tail = NIL
    return g


@kernel
def enter_group(S, key):
    """The group for an arrival; one that was kept for its history alone is no longer idle."""
    g = add_group(S, key)
    if S.group[g].idle:
        S.group[g].idle = 0
        S.reg[N_IDLE] -= 1
    return g


@kernel
def drop_group(S, g):
    """Take a group out of the index; later keys of its run move up, so no tombstones."""
    mask = S.table.size - 1
    hole = mix(S.group[g].key) & mask
    while S.table[hole].group != g:
        hole = (hole + 1) & mask
    at = hole
    while True:
        at = (at + 1) & mask
        if S.table[at].group == NIL:
            break
        home = mix(S.table[at].key) & mask
        if ((at - home) & mask) >= ((at - hole) & mask):
            S.table[hole].key = S.table[at].key
            S.table[hole].group = S.table[at].group
            hole = at
    S.table[hole].group = NIL
    S.group[g].idle = 1
    S.group[g].following = np.int32(S.reg[FREE_GROUP])
    S.reg[FREE_GROUP] = g
    S.reg[N_GROUPS] -= 1


@kernel
def is_idle(S, g):
    """No held row, no logged row, not part of the running instant."""
    k = S.reg[N_STREAMS]
    for s in range(k):
        if S.cell[g * k + s].rows or S.cell[g * k + s].live or S.cell[g * k + s].instant != NIL:
            return False
    return g != S.reg[PINNED]


@kernel
def forget_rare_keys(S):
    """Halve the idle groups: those seen least often go (amortised O(1) an arrival)."""
    k = S.reg[N_STREAMS]
    most = 1
    while S.reg[N_IDLE] > S.reg[MAX_IDLE] // 2:
        for at in range(S.table.size):
            g = S.table[at].group
            while g != NIL and S.group[g].idle:
                times = 0
                for s in range(k):
                    times += S.cell[g * k + s].seen
                if times > most:
                    break
                drop_group(S, g)
                S.reg[N_IDLE] -= 1
                g = S.table[at].group  # another group may have moved up into this place
        most *= 2


@kernel
def release_group(S, g):
    """Called when a group may have become idle: keep it for its history, or give it up."""
    if not S.group[g].idle and is_idle(S, g):
        if S.reg[MAX_IDLE] == 0:
            drop_group(S, g)
        else:
            S.group[g].idle = 1
            S.reg[N_IDLE] += 1
            if S.reg[N_IDLE] > S.reg[MAX_IDLE]:
                forget_rare_keys(S)


# --- lists and chains --------------------------------------------------------------------------
@kernel
def link_by_time(nodes, ends, side, node):
    """Link into a list ordered by time, starting near the last insertion.

    Rows of one micro-batch come sorted, so the way from one to the next is short even when the
    batch as a whole lies behind rows that are already held.
    """
    t = nodes[node].ts
    at = ends[side].tail
    if at != NIL and nodes[at].ts > t:
        at = ends[side].hint
        if at == NIL:
            at = ends[side].tail
        while at != NIL and nodes[at].ts > t:
            at = nodes[at].eprev
        while at != NIL and nodes[at].enext != NIL and nodes[nodes[at].enext].ts <= t:
            at = nodes[at].enext
    after = ends[side].head if at == NIL else nodes[at].enext
    nodes[node].eprev = at
    nodes[node].enext = after
    if at == NIL:
        ends[side].head = node
    else:
        nodes[at].enext = node
    if after == NIL:
        ends[side].tail = node
    else:
        nodes[after].eprev = node
    ends[side].hint = node


@kernel
def unlink(nodes, ends, side, node):
    a, b = nodes[node].eprev, nodes[node].enext
    if a == NIL:
        ends[side].head = b
    else:
        nodes[a].enext = b
    if b == NIL:
        ends[side].tail = a
    else:
        nodes[b].eprev = a
    if ends[side].hint == node:
        ends[side].hint = a


@kernel
def chain_by_time(nodes, chains, c, node):
    """Link into a key's chain, ordered by time."""
    t = nodes[node].ts
    at = chains[c].tail
    while at != NIL and nodes[at].ts > t:
        at = nodes[at].kprev
    after = chains[c].head if at == NIL else nodes[at].knext
    nodes[node].kprev = at
    nodes[node].knext = after
    if at == NIL:
        chains[c].head = node
    else:
        nodes[at].knext = node
    if after == NIL:
        chains[c].tail = node
    else:
        nodes[after].kprev = node


@kernel
def unchain(nodes, chains, c, node):
    a, b = nodes[node].kprev, nodes[node].knext
    if a == NIL:
        chains[c].head = b
    else:
        nodes[a].knext = b
    if b == NIL:
        chains[c].tail = a
    else:
        nodes[b].kprev = a


# --- statistics --------------------------------------------------------------------------------
@kernel
def count_of(S, g, side):
    """How often a key occurs on a side, by the configured source."""
    source = S.reg[STATISTICS]
    k = S.reg[N_STREAMS]
    if source == HISTORY:
        return S.cell[g * k + side].seen
    if source == WINDOW:
        return np.int64(S.cell[g * k + side].live)
    if source == MEMORY:
        return np.int64(S.cell[g * k + side].rows)
    return S.cell[g * k + side].known


@kernel
def total_of(S, side):
    """How many rows of a side `count_of` counts, over all keys."""
    source = S.reg[STATISTICS]
    if source == HISTORY:
        return S.side[side].seen
    if source == WINDOW:
        return S.side[side].logged
    if source == MEMORY:
        return S.side[side].held
    return S.side[side].known


@kernel
def frequency(S, g, side):
    """How often partners of a row of `side` with this key occur."""
    k = S.reg[N_STREAMS]
    if k == 2:
        return float(count_of(S, g, 1 - side))
    if S.reg[PARTNER] == NEXT:
        return float(count_of(S, g, (side + 1) % k))
    product = 1.0
    for s in range(k):
        if s != side:
            product *= count_of(S, g, s)
    return product


@kernel
def is_partner(S, side, other):
    """Whether `frequency(…, side)` depends on the counts of `other`."""
    k = S.reg[N_STREAMS]
    return other != side and (k == 2 or S.reg[PARTNER] != NEXT or other == (side + 1) % k)


# --- importance --------------------------------------------------------------------------------
@kernel
def importance_of(S, slot):
    """Importance of a held row; 1 in a join without."""
    return 1.0 if S.reg[COMBINE] == UNWEIGHED else S.slot_imp[slot]


@kernel
def arriving_importance(S):
    """Importance of the row for which a victim is sought; 1 in a join without."""
    return 1.0 if S.reg[COMBINE] == UNWEIGHED else S.totals[IMP_ARRIVING]


@kernel
def fold(how, a, b):
    """Importance of several rows so far, and one more; a mean is divided by who asks."""
    if how == COMBINE_MIN:
        return min(a, b)
    if how == COMBINE_MAX:
        return max(a, b)
    if how == COMBINE_PRODUCT:
        return a * b
    return a + b


@kernel
def importance_of_matches(S, nodes, imps, first, n, imp):
    """Summed importance of the results of an arrival with n rows of a chain."""
    how = S.reg[COMBINE]
    total = 0.0
    at = first
    for _ in range(n):
        total += fold(how, imp, imps[at])
        at = nodes[at].knext
    return total / 2.0 if how == COMBINE_MEAN else total


# --- matches -----------------------------------------------------------------------------------
@kernel
def in_window(nodes, first, last, n, t, t_end, before_t):
    """Of a chain of n rows by time: how many match a row that lives [t, t_end), and the first.

    Both ends of the chain may hold rows outside the window; rows in between match. With
    `before_t` rows of the instant t do not count.
    """
    while first != NIL and nodes[first].end <= t:
        n -= 1
        first = nodes[first].knext
    limit = t if before_t else t_end
    while n > 0 and nodes[last].ts >= limit:
        n -= 1
        last = nodes[last].kprev
    return n, first


@kernel
def combinations(S, g, side, t, t_end, row, imp, from_log, out, n):
    """Results of an arrival in a k-way join: one row of every other side, max ts < min end.

    They are written to `out` from n on, unless it has no rows; returned is the next n. In a join
    with importances theirs is added to the totals.
    """
    k = S.reg[N_STREAMS]
    how = S.reg[COMBINE]
    at, latest, earliest_end = S.scratch[0], S.scratch[1], S.scratch[2]
    emit = out.shape[0] > 0
    latest[0], earliest_end[0] = t, t_end
    depth = 0
    fresh = True
    while depth >= 0:
        if depth == k:
            if emit:
                for s in range(k):
                    out[n, s] = row if s == side else S.slot[at[s]].row
            if how != UNWEIGHED:
                worth = imp
                for s in range(k):
                    if s != side:
                        other = S.log_imp[at[s]] if from_log else S.slot_imp[at[s]]
                        worth = fold(how, worth, other)
                if how == COMBINE_MEAN:
                    worth /= k
                S.totals[IMP_EXACT if from_log else IMP_OUT] += worth
            n += 1
            depth -= 1
            fresh = False
            continue
        if depth == side:
            if fresh:
                latest[depth + 1], earliest_end[depth + 1] = latest[depth], earliest_end[depth]
                depth += 1
            else:
                depth -= 1
            continue
        if fresh:
            c = g * k + depth
            at[depth] = S.chain[c].head if from_log else S.cell[c].head
        elif from_log:
            at[depth] = S.log[at[depth]].knext
        else:
            at[depth] = S.slot[at[depth]].knext
        fresh = False
        while at[depth] != NIL:
            node = at[depth]
            node_ts = S.log[node].ts if from_log else S.slot[node].ts
            node_end = S.log[node].end if from_log else S.slot[node].end
            a = max(latest[depth], node_ts)
            b = min(earliest_end[depth], node_end)
            if a < b or S.reg[COUNT_WINDOW]:
                latest[depth + 1], earliest_end[depth + 1] = a, b
                fresh = True
                break
            at[depth] = S.log[node].knext if from_log else S.slot[node].knext
        depth += 1 if fresh else -1
    return n


# --- accounting --------------------------------------------------------------------------------
@kernel
def log_arrival(S, g, side, t, t_end, imp):
    k = S.reg[N_STREAMS]
    entry = np.int32(S.reg[FREE_LOG])
    S.reg[FREE_LOG] = S.log[entry].enext
    S.reg[N_LOG] += 1
    S.log[entry].ts = t
    S.log[entry].end = t_end
    S.log[entry].group = g
    if S.reg[COMBINE] != UNWEIGHED:
        S.log_imp[entry] = imp
    link_by_time(S.log, S.logs, side, entry)
    if S.reg[CHAINED]:
        chain_by_time(S.log, S.chain, g * k + side, entry)
    S.cell[g * k + side].live += 1
    S.side[side].logged += 1
    S.pool[S.side[side].pool].used += S.reg[LOG_BYTES]


@kernel
def unlog(S, entry, side):
    k = S.reg[N_STREAMS]
    g = S.log[entry].group
    unlink(S.log, S.logs, side, entry)
    if S.reg[CHAINED]:
        unchain(S.log, S.chain, g * k + side, entry)
    S.cell[g * k + side].live -= 1
    S.side[side].logged -= 1
    S.pool[S.side[side].pool].used -= S.reg[LOG_BYTES]
    S.log[entry].enext = np.int32(S.reg[FREE_LOG])
    S.reg[FREE_LOG] = entry
    S.reg[N_LOG] -= 1
    return g


@kernel
def exact_matches(S, g, side, t, t_end, imp):
    """How many results this arrival has in the exact join; their importance joins the totals."""
    k = S.reg[N_STREAMS]
    n = 1
    for s in range(k):
        if s != side:
            n *= S.cell[g * k + s].live
    weighed = S.reg[COMBINE] != UNWEIGHED
    if (S.reg[ORDERED] and not weighed) or n == 0:
        return n
    if k == 2:
        c = g * k + 1 - side
        first = S.chain[c].head
        if not S.reg[ORDERED]:
            n, first = in_window(S.log, first, S.chain[c].tail, n, t, t_end, False)
        if weighed:
            S.totals[IMP_EXACT] += importance_of_matches(S, S.log, S.log_imp, first, n, imp)
        return n
    return combinations(S, g, side, t, t_end, 0, imp, True, S.nothing, 0)


@kernel
def note_grain(S, s, t):
    """Learn the largest step of which all times of a side are multiples, from its first one on.

    Seconds in a column of microseconds, say. Then a window's edge mostly falls on rows, and to
    spread a pane's rows evenly over its ticks would count half a step too many at every edge.
    """
    grain = S.side[s].sketch_grain
    if grain == 1:
        return
    if S.side[s].sketch_first == NO_PANE:
        S.side[s].sketch_first = t
    step = abs(t - S.side[s].sketch_first)
    if grain == 0 or step % grain != 0:
        while step != 0:
            grain, step = step, grain % step
        S.side[s].sketch_grain = grain


@kernel
def share_until(S, s, start, stop, edge):
    """Which share of a pane's rows, of times from start to before stop, is not after the edge."""
    grain = S.side[s].sketch_grain
    if grain == 1:
        return (edge - start + 1) / (stop - start)
    if grain == 0:  # all rows so far are of one time
        grain = np.int64(1 << 62)
    first = S.side[s].sketch_first
    before = (start - 1 - first) // grain
    return ((edge - first) // grain - before) / max(1, (stop - 1 - first) // grain - before)


@kernel
def count_in_sketch(S, key, side, place):
    """Add an arrival to its pane and to the sum."""
    k, _, depth, width = S.sketch.shape
    for d in range(depth):
        h = sketch_hash(key, d * k + side)
        cell = h & (width - 1)
        S.sketch[side, place, d, cell] += sign_of(h)
        S.sketch_sum[side, d, cell] += sign_of(h)


@kernel
def clear_pane(S, s, place):
    """Take a pane out of the sum."""
    _, _, depth, width = S.sketch.shape
    for d in range(depth):
        for cell in range(width):
            S.sketch_sum[s, d, cell] -= S.sketch[s, place, d, cell]
            S.sketch[s, place, d, cell] = 0


@kernel
def drop_panes(S, s, t):
    """Take panes that have wholly left the window out of the sums (rows in order)."""
    _, places, _, _ = S.sketch.shape
    cut = (t - S.side[s].lifetime) // S.side[s].sketch_span
    if cut <= S.side[s].sketch_low:
        return
    for place in range(places):
        if S.sketch_pane[s, place] != NO_PANE and S.sketch_pane[s, place] < cut:
            S.sketch_pane[s, place] = NO_PANE
            clear_pane(S, s, place)
    S.side[s].sketch_low = cut


@kernel
def sketch_hash(key, number):
    """Hash function of that number."""
    return mix(mix(key) + np.int64(0x632BE59BD9B4E019) * (number + 1))


@kernel
def sketch_arrival(S, key, side, t):
    """Count an arrival in the paned Count-Sketch, and add its estimated exact matches.

    Every depth is an estimator of its own (charikar2002): unbiased, since the signs of other keys
    cancel in the mean; their spread gives the standard error. The pane that the window's edge cuts
    counts in proportion, to the share w of its rows that are inside if they are spread evenly.

    What that adds to the variance is counted, too. A key's n rows in the cut pane are inside with
    probability w each, so an arrival's count of them has the variance n w (1 - w). The key's r
    earlier arrivals while the edge crossed the pane erred to the same side: their edges were, on
    average, half as far into it, and the covariances with them add n w (1 - w) r. The key's rows in
    the arrival's own pane stand for r. Both counts are sketched, by independent hash functions.
    """
    k, places, depth, width = S.sketch.shape
    for s in range(k):
        drop_panes(S, s, S.reg[CLOCK])
    note_grain(S, side, t)
    pane = t // S.side[side].sketch_span
    own = pane % places
    S.sketch_pane[side, own] = pane
    product, variance = 2 * depth, 3 * depth
    for d in range(depth):
        S.sketch_out[product + d] = 1.0
        S.sketch_out[variance + d] = 0.0
    for s in range(k):
        if s == side:
            continue
        span = S.side[s].sketch_span
        edge = t - S.side[s].lifetime  # rows of this time and before are out
        cut = edge // span
        place = cut % places
        gone = 0.0
        if S.sketch_pane[s, place] == cut:
            gone = share_until(S, s, cut * span, cut * span + span, edge)
        spread = gone * (1.0 - gone)
        longer = span / S.side[side].sketch_span
        for d in range(depth):
            h = sketch_hash(key, d * k + s)
            cell = h & (width - 1)
            estimate = float(S.sketch_sum[s, d, cell])
            one = S.sketch_out[product + d]
            added = 0.0
            if gone > 0.0:
                at_edge = float(S.sketch[s, place, d, cell])
                estimate -= gone * at_edge
                if spread > 0.0:
                    g = sketch_hash(key, d * k + side)
                    before = S.sketch[side, own, d, g & (width - 1)] * sign_of(g)
                    added = spread * at_edge * sign_of(h) * (1.0 + before * longer)
            S.sketch_out[product + d] = one * estimate * sign_of(h)
            if k == 2:
                S.sketch_out[variance + d] = added
            else:
                S.sketch_out[variance + d] = (
                    S.sketch_out[variance + d] * estimate * estimate + one * one * added
                )
    for d in range(depth):
        S.sketch_out[d] += S.sketch_out[product + d]
        S.sketch_out[depth + d] += S.sketch_out[variance + d]
    count_in_sketch(S, key, side, own)


# --- the sketch when rows come out of order ------------------------------------------------------
# A side's panes are then a list by time, not a ring: one side may be hours ahead of another, and
# all that its rows can still match must be covered. A new pane is one span long; when there is no
# place for it, the two neighbours that are shortest together become one. So memory is fixed, edges
# get coarser while a side lags behind, and fine again when it has caught up.
# In sketch_pane[s]: [i] first time in pane i, [places + i] last time, [2 * places + i] its place,
# [3 * places + i] its rows, [4 * places + i] the sum of their times since the first; the places of
# i >= sketch_live are free.
@kernel
def panes_until(S, s, t):
    """How many panes begin at t or before."""
    low, high = np.int64(0), S.side[s].sketch_live
    while low < high:
        middle = (low + high) // 2
        if S.sketch_pane[s, middle] <= t:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def remove_pane(S, s, i):
    """Take an empty pane off the list."""
    places = S.sketch.shape[1]
    panes = S.sketch_pane[s]
    place = panes[2 * places + i]
    S.side[s].sketch_live -= 1
    n = S.side[s].sketch_live
    for column in range(0, panes.size, places):
        for j in range(column + i, column + n):
            panes[j] = panes[j + 1]
    panes[2 * places + n] = place


@kernel
def merge_panes(S, s):
    """Make one pane of two neighbours, those that are shortest together."""
    _, places, depth, width = S.sketch.shape
    panes = S.sketch_pane[s]
    best = 0
    for i in range(1, S.side[s].sketch_live - 1):
        if panes[places + i + 1] - panes[i] < panes[places + best + 1] - panes[best]:
            best = i
    a, b = panes[2 * places + best], panes[2 * places + best + 1]
    for d in range(depth):
        for cell in range(width):
            S.sketch[s, a, d, cell] += S.sketch[s, b, d, cell]
            S.sketch[s, b, d, cell] = 0
    panes[places + best] = panes[places + best + 1]
    rows = panes[3 * places + best + 1]
    panes[3 * places + best] += rows
    panes[4 * places + best] += panes[4 * places + best + 1]
    panes[4 * places + best] += rows * (panes[best + 1] - panes[best])
    remove_pane(S, s, best + 1)


@kernel
def enter_pane(S, s, t):
    """Which pane of the list takes a row, made if there is none."""
    places = S.sketch.shape[1]
    panes = S.sketch_pane[s]
    span = S.side[s].sketch_span
    start = t // span * span
    while True:
        i = panes_until(S, s, start + span - 1) - 1
        if i >= 0 and panes[places + i] >= start:
            if t < panes[i]:
                panes[4 * places + i] += panes[3 * places + i] * (panes[i] - t)
                panes[i] = t
            panes[places + i] = max(panes[places + i], t)
            panes[3 * places + i] += 1
            panes[4 * places + i] += t - panes[i]
            return i
        if S.side[s].sketch_live < places:
            break
        merge_panes(S, s)
    i += 1
    n = S.side[s].sketch_live
    place = panes[2 * places + n]
    for column in range(0, panes.size, places):
        for j in range(column + n, column + i, -1):
            panes[j] = panes[j - 1]
    panes[i] = t
    panes[places + i] = t
    panes[2 * places + i] = place
    panes[3 * places + i] = 1
    panes[4 * places + i] = 0
    S.side[s].sketch_live += 1
    return i


@kernel
def pane_until(S, s, i, edge):
    """Which share of the rows of pane i is not after the edge, if their density is linear in time.

    It is not even: while late rows are to come, there are fewer of the younger ones yet. Taken as
    even, 4 panes counted 1.0 % too many matches where rows lived 250 and 150 ticks and came up to
    1,500 late, and 2 panes 7.5 %; so it is within 0.05 %.
    """
    places = S.sketch.shape[1]
    panes = S.sketch_pane[s]
    length = panes[places + i] - panes[i]
    share = share_until(S, s, panes[i], panes[places + i] + 1, edge)
    lean = 6.0 * panes[4 * places + i] / (float(panes[3 * places + i]) * length) - 3.0
    return share - min(1.0, max(-1.0, lean)) * share * (1.0 - share)


@kernel
def pane_length(S, s, i):
    places = S.sketch.shape[1]
    return max(S.side[s].sketch_span, S.sketch_pane[s, places + i] - S.sketch_pane[s, i] + 1)


@kernel
def sketch_unordered(S, key, side, t):
    """As `sketch_arrival`, for two streams whose rows may come out of order.

    An arrival matches rows of the other side that are later than t - (their life) and earlier than
    t + (its own life). Both edges may cut a pane.
    """
    k, places, depth, width = S.sketch.shape
    for s in range(k):
        while (
            S.side[s].sketch_live > 0
            and S.sketch_pane[s, places] + S.side[s].lifetime <= S.side[s].clock
        ):
            clear_pane(S, s, S.sketch_pane[s, 2 * places])
            remove_pane(S, s, 0)
    note_grain(S, side, t)
    counts = t + S.side[side].lifetime > S.side[side].clock  # else none of its partners is to come
    own = np.int64(0)
    if counts:
        i = enter_pane(S, side, t)
        own = S.sketch_pane[side, 2 * places + i]
        own_length = pane_length(S, side, i)
    else:  # it has no pane; its side's rows of all panes stand for twice the earlier arrivals
        n = S.side[side].sketch_live
        own_length = np.int64(1 << 62)
        if n > 0:
            own_length = 2 * (S.sketch_pane[side, places + n - 1] - S.sketch_pane[side, 0] + 1)
    o = 1 - side
    panes = S.sketch_pane[o]
    n = S.side[o].sketch_live
    out_until = t - S.side[o].lifetime  # rows of this time and before are out
    in_until = t + S.side[side].lifetime - 1
    low = panes_until(S, o, out_until)
    if low > 0 and panes[places + low - 1] > out_until:
        low -= 1
    high = panes_until(S, o, in_until) - 1
    if low <= high:
        low_share = high_share = 1.0
        if panes[low] <= out_until:
            low_share -= pane_until(S, o, low, out_until)
        if panes[places + high] > in_until:
            high_share = pane_until(S, o, high, in_until)
        if low == high:
            low_share += high_share - 1.0
            high_share = low_share
        low_longer = pane_length(S, o, low) / own_length
        high_longer = pane_length(S, o, high) / own_length
        if low == high:  # windows that move about inside of a pane err to both sides
            low_longer = 0.0
        low_place, high_place = panes[2 * places + low], panes[2 * places + high]
        inside = high - low - 1 <= low + n - 1 - high  # which panes are fewer?
        for d in range(depth):
            h = sketch_hash(key, d * k + o)
            cell = h & (width - 1)
            at_low = float(S.sketch[o, low_place, d, cell])
            at_high = float(S.sketch[o, high_place, d, cell]) if low < high else 0.0
            if inside:
                whole = 0
                for i in range(low + 1, high):
                    whole += S.sketch[o, panes[2 * places + i], d, cell]
                estimate = whole + low_share * at_low + high_share * at_high
            else:
                whole = S.sketch_sum[o, d, cell]
                for i in range(low):
                    whole -= S.sketch[o, panes[2 * places + i], d, cell]
                for i in range(high + 1, n):
                    whole -= S.sketch[o, panes[2 * places + i], d, cell]
                estimate = whole - (1.0 - low_share) * at_low - (1.0 - high_share) * at_high
            S.sketch_out[d] += estimate * sign_of(h)
            g = sketch_hash(key, d * k + side)
            at = g & (width - 1)
            before = S.sketch[side, own, d, at] if counts else S.sketch_sum[side, d, at]
            before *= sign_of(g)
            added = low_share * (1.0 - low_share) * at_low * (1.0 + before * low_longer)
            added += high_share * (1.0 - high_share) * at_high * (1.0 + before * high_longer)
            S.sketch_out[depth + d] += added * sign_of(h)
    if counts:
        count_in_sketch(S, key, side, own)


# --- rows in and out (with hooks, so inlined) --------------------------------------------------
@inlined
def take_out(S, P, slot, t, on_remove, on_count):
    """Remove a held row from every list; its group stays."""
    k = S.reg[N_STREAMS]
    g = S.slot[slot].group
    s = np.int64(S.slot[slot].side)
    on_remove(S, P, slot, g, s, t)
    unchain(S.slot, S.cell, g * k + s, slot)
    unlink(S.slot, S.expiry, s, slot)
    S.cell[g * k + s].rows -= 1
    S.side[s].held -= 1
    S.pool[S.side[s].pool].used -= S.slot[slot].size
    S.slot[slot].row = NIL
    S.slot[slot].enext = np.int32(S.reg[FREE_SLOT])
    S.reg[FREE_SLOT] = slot
    S.reg[N_SLOTS] -= 1
    if S.reg[STATISTICS] == MEMORY:
        on_count(S, P, g, s, t, False)


@inlined
def expire(S, P, t, on_remove, on_count):
    """Forget rows, and logged arrivals, that no later row can match."""
    k = S.reg[N_STREAMS]
    for s in range(k):
        now = S.side[s].clock
        while S.expiry[s].head != NIL and S.slot[S.expiry[s].head].end <= now:
            slot = S.expiry[s].head
            g = S.slot[slot].group
            take_out(S, P, slot, t, on_remove, on_count)
            S.counters[s, C_EXPIRED] += 1
            release_group(S, g)
        while S.logs[s].head != NIL and S.log[S.logs[s].head].end <= now:
            g = unlog(S, S.logs[s].head, s)
            if S.reg[STATISTICS] == WINDOW:
                on_count(S, P, g, s, t, False)
            release_group(S, g)


@kernel
def pool_is_empty(S, pool):
    for s in range(S.side.size):
        if S.side[s].pool == pool and S.side[s].held > 0:
            return False
    return True


@kernel
def put_in(S, g, s, t, t_end, seq, row, size, imp):
    """Take a row in: it gets a slot and its places in the lists."""
    k = S.reg[N_STREAMS]
    slot = np.int32(S.reg[FREE_SLOT])
    S.reg[FREE_SLOT] = S.slot[slot].enext
    S.reg[N_SLOTS] += 1
    S.reg[PLACED] = slot
    S.slot[slot].ts = t
    S.slot[slot].end = t_end
    S.slot[slot].seq = seq
    S.slot[slot].row = row
    S.slot[slot].group = g
    S.slot[slot].side = s
    S.slot[slot].size = size
    S.slot[slot].mark = S.cell[g * k + s].hits
    if S.reg[COMBINE] != UNWEIGHED:
        S.slot_imp[slot] = imp
    chain_by_time(S.slot, S.cell, g * k + s, slot)
    link_by_time(S.slot, S.expiry, s, slot)
    S.cell[g * k + s].rows += 1
    S.side[s].held += 1
    S.pool[S.side[s].pool].used += size
    return slot


@kernel
def write_shed(shed, n, side, row, reason, matches):
    if shed.shape[0] > 0:
        shed[n, 0], shed[n, 1], shed[n, 2], shed[n, 3] = side, row, reason, matches
        n += 1
    return n


@inlined
def admit(
    S,
    P,
    g,
    s,
    t,
    t_end,
    seq,
    row,
    size,
    imp,
    wanted,
    shed,
    n_shed,
    on_count,
    on_insert,
    on_remove,
    victim,
):
    """Make room by the policy's choice and take the row in, or refuse it."""
    k = S.reg[N_STREAMS]
    pool = S.side[s].pool
    dead = (
        t_end <= S.side[s].clock and not S.reg[COUNT_WINDOW]
    )  # came after its partners' last chance
    refused = dead or not wanted or size > S.pool[pool].cap
    S.totals[IMP_ARRIVING] = imp
    # A refused row can still leave the pool too full: its log entry takes room, too.
    while S.pool[pool].used + (0 if refused else size) > S.pool[pool].cap:
        if pool_is_empty(S, pool):
            if refused:
                break
            refused = True
            continue
        out = victim(S, P, s, g, t, t_end, refused)
        if out == NOT_ADMITTED:
            if refused:  # a policy may not say so when it must name a row; `checks` tells
                break
            refused = True
            continue
        out_group = S.slot[out].group
        o = np.int64(S.slot[out].side)
        S.counters[o, C_EVICTED] += 1
        matches = S.cell[out_group * k + o].hits - S.slot[out].mark
        n_shed = write_shed(shed, n_shed, o, S.slot[out].row, EVICTED, matches)
        take_out(S, P, out, t, on_remove, on_count)
        release_group(S, out_group)
    if dead:
        S.counters[s, C_EXPIRED] += 1
    elif refused:
        S.counters[s, C_REFUSED] += 1
        n_shed = write_shed(shed, n_shed, s, row, REFUSED, 0)
    else:
        slot = put_in(S, g, s, t, t_end, seq, row, size, imp)
        on_insert(S, P, slot, g, s, t)
        if S.reg[STATISTICS] == MEMORY:
            on_count(S, P, g, s, t, False)
    return n_shed


@inlined
def probe(S, P, g, s, t, t_end, seq, row, imp, before_t, out, n_out, on_match):
    """Find the held partners of a row, credit them, and write the results."""
    k = S.reg[N_STREAMS]
    if k == 2:
        o = 1 - s
        cell = S.cell[g * k + o]
        n = np.int64(cell.rows)
        if n > 0:
            first = cell.head
            if before_t or not S.reg[ORDERED]:
                n, first = in_window(S.slot, first, cell.tail, n, t, t_end, before_t)
                if n > 0:
                    spare(S, cell, first, n)
            if n > 0:
                S.counters[s, C_MATCHED_ARRIVALS] += 1
                S.reg[N_OUT] += n
                cell.hits += 1
                if S.reg[COMBINE] != UNWEIGHED:
                    S.totals[IMP_OUT] += importance_of_matches(S, S.slot, S.slot_imp, first, n, imp)
                if out.shape[0] > 0:
                    at = first
                    for i in range(n_out, n_out + n):
                        out[i, s] = row
                        out[i, o] = S.slot[at].row
                        at = S.slot[at].knext
                    n_out += n
                on_match(S, P, g, o, t, seq, first, n)
    else:
        n = np.int64(1)
        for other in range(k):
            if other != s:
                n *= S.cell[g * k + other].rows
        if n > 0:
            if out.shape[0] > 0:
                n = combinations(S, g, s, t, t_end, row, imp, False, out, n_out) - n_out
                n_out += n
            elif not S.reg[ORDERED] or S.reg[COMBINE] != UNWEIGHED:
                n = combinations(S, g, s, t, t_end, row, imp, False, out, 0)
            if n > 0:
                S.counters[s, C_MATCHED_ARRIVALS] += 1
                S.reg[N_OUT] += n
                for other in range(k):
                    if other != s:
                        cell = S.cell[g * k + other]
                        cell.hits += 1
                        on_match(S, P, g, other, t, seq, cell.head, cell.rows)
    return n_out


@kernel
def spare(S, cell, first, n):
    """Rows of a chain outside the n matching ones were not hit: move their marks along."""
    at = cell.head
    before_first = 0
    while at != first:
        S.slot[at].mark += 1
        before_first += 1
        at = S.slot[at].knext
    at = cell.tail
    for _ in range(cell.rows - n - before_first):
        S.slot[at].mark += 1
        at = S.slot[at].kprev


@kernel
def most_results(S, batch, first, stop):
    """A bound on the results of an instant, found before anything is changed."""
    k = S.reg[N_STREAMS]
    bound = 0
    lefts = 0
    for r in range(first, stop):
        lefts += batch.side[r] == 0
        g = find_group(S, batch.key[r])
        if g != NIL:
            n = 1
            for s in range(k):
                if s != batch.side[r]:
                    n *= S.cell[g * k + s].rows
            bound += n
    return bound + lefts * (stop - first - lefts)


@inlined
def note(S, P, g, s, key, t, t_end, imp, action, on_count):
    """Statistics and accounting of an arrival, whatever becomes of it."""
    if S.reg[ACCOUNTING] == SKETCH:
        if S.reg[ORDERED]:
            sketch_arrival(S, key, s, t)
        else:
            sketch_unordered(S, key, s, t)
    if S.reg[KEEP_LOG]:
        if S.reg[ACCOUNTING] == EXACT:
            S.reg[N_EXACT] += exact_matches(S, g, s, t, t_end, imp)
        if t_end > S.side[s].clock or S.reg[COUNT_WINDOW]:
            log_arrival(S, g, s, t, t_end, imp)
    if action != 0:  # a row dropped ahead of the join is not seen by it
        S.cell[g * S.reg[N_STREAMS] + s].seen += 1
        S.side[s].seen += 1
        if S.reg[STATISTICS] != MEMORY:
            on_count(S, P, g, s, t, True)


@kernel
def move_clocks(S, s, t):
    """Time moves on with a row of side s.

    When rows come in order, every side's clock is this row's time. Otherwise a row can be forgotten
    once all *other* sides have passed its end, less their lateness. A count window's clock is the
    number of its own rows.
    """
    k = S.reg[N_STREAMS]
    S.reg[CLOCK] = max(S.reg[CLOCK], t)
    if S.reg[COUNT_WINDOW]:
        S.side[s].clock = S.side[s].arrived
    elif S.reg[ORDERED]:
        for other in range(k):
            S.side[other].clock = t
    else:
        S.side[s].seen_max = max(S.side[s].seen_max, t)
        for side in range(k):
            bound = np.iinfo(np.int64).max
            for other in range(k):
                if other != side:
                    bound = min(bound, S.side[other].seen_max - S.side[other].lateness)
            S.side[side].clock = max(S.side[side].clock, bound)


@kernel
def end_of(S, batch, r, s):
    """First time at which a row is dead; in a count window, the number of its own stream's row."""
    if S.reg[COUNT_WINDOW]:
        return S.side[s].arrived - 1 + S.side[s].lifetime
    return batch.end[r]


@kernel
def time_of(S, side):
    """The time by which a side's rows age: ticks, or its own rows in a count window."""
    return S.side[side].arrived if S.reg[COUNT_WINDOW] else S.reg[CLOCK]


@kernel
def remaining(S, side, end):
    """How long a held row of a side still has."""
    return end - time_of(S, side)


@inlined
def join_loop(S, P, batch, start, out, shed, on_count, on_match, on_insert, on_remove, victim):
    """Process a batch from row `start` on; returns the next row and the use made of out and shed.

    Rows come sorted by (ts, side, row). `out` takes results (row numbers, a column a stream),
    `shed` takes (side, row, reason, matches) of rows shed; either may have no rows and is then
    unused. When `out` might not hold the next row's results, the loop stops before it. An *instant*
    is all rows of one time in the two synchronous orders, and a single row in the sequential one.
    """
    S.reg[DIGEST] = ENGINE_DIGEST
    n = batch.ts.size
    order = S.reg[ORDER]
    weighed = S.reg[COMBINE] != UNWEIGHED
    n_out = 0
    n_shed = 0
    i = start
    while i < n:
        t = batch.ts[i]
        stop = i + 1
        if order != PROBE_FIRST:
            while stop < n and batch.ts[stop] == t:
                stop += 1
        if out.shape[0] > 0 and n_out + most_results(S, batch, i, stop) > out.shape[0]:
            S.reg[WANTED] = most_results(S, batch, i, stop)
            break
        move_clocks(S, np.int64(batch.side[i]), t)
        expire(S, P, t, on_remove, on_count)
        first_seq = S.reg[N_ARRIVALS]
        for r in range(i, stop):
            s = np.int64(batch.side[r])
            S.reg[N_ARRIVALS] += 1
            S.side[s].arrived += 1
            S.counters[s, C_IN] += 1
            g = enter_group(S, batch.key[r])
            batch.group[r] = g
            if order == PROBE_FIRST:
                S.reg[PINNED] = g
            else:
                cell = S.cell[g * S.reg[N_STREAMS] + s]
                batch.alike[r] = cell.instant
                cell.instant = r
            t_end = end_of(S, batch, r, s)
            imp = batch.imp[r] if weighed else 1.0
            note(S, P, g, s, batch.key[r], t, t_end, imp, batch.action[r], on_count)
        for phase in range(2):
            probing = (phase == 0) != (order == EVICT_FIRST)
            for r in range(i, stop):
                s = np.int64(batch.side[r])
                g = batch.group[r]
                seq = first_seq + r - i
                t_end = end_of(S, batch, r, s)
                row, size, action = batch.row[r], batch.size[r], batch.action[r]
                imp = batch.imp[r] if weighed else 1.0
                if not probing:
                    S.reg[PLACED] = NIL
                    n_shed = admit(
                        S, P, g, s, t, t_end, seq, row, size, imp, action & INSERTS, shed, n_shed,
                        on_count, on_insert, on_remove, victim,
                    )  # fmt: skip
                    if order == PROBE_FIRST:
                        batch.alike[r] = np.int32(S.reg[PLACED])
                elif action & PROBES:
                    n_out = probe(
                        S, P, g, s, t, t_end, seq, row, imp, order == EVICT_FIRST, out, n_out,
                        on_match,
                    )  # fmt: skip
                    if order != PROBE_FIRST and s == 0:
                        n_out = pairs_of_instant(S, batch, r, out, n_out)
        S.reg[PINNED] = NIL
        if order != PROBE_FIRST:
            for r in range(i, stop):
                S.cell[batch.group[r] * S.reg[N_STREAMS] + batch.side[r]].instant = NIL
        for r in range(i, stop):
            release_group(S, batch.group[r])
        i = stop
    return i, n_out, n_shed


@kernel
def pairs_of_instant(S, batch, r, out, n_out):
    """Rows of one instant that match each other, seen from the left one: each counts once."""
    other = S.cell[batch.group[r] * S.reg[N_STREAMS] + 1].instant
    while other != NIL:
        if batch.action[other] & PROBES:
            S.reg[N_OUT] += 1
            how = S.reg[COMBINE]
            if how != UNWEIGHED:
                worth = fold(how, batch.imp[r], batch.imp[other])
                S.totals[IMP_OUT] += worth / 2.0 if how == COMBINE_MEAN else worth
            if out.shape[0] > 0:
                out[n_out, 0] = batch.row[r]
                out[n_out, 1] = batch.row[other]
                n_out += 1
        other = batch.alike[other]
    return n_out
