"""The state machine of a workload: several joins of several streams that share one buffer.

The paper's problem statement (chang2004 §1.1): queries Q_1 … Q_n, each an equi-join of some streams
over an attribute and a window of its own, all under one memory. A k-way join, joins on several
attributes of the same streams, and several queries are all workloads. A held row serves every query
that its stream is a *member* of: it hangs in one chain for each, and stays until the longest of its
windows is over.

Policies see rows one by one here, since rows of one key no longer share their fate:

``on_match(S, P, NIL, side, t, seq, slot, 1)``
    the row took part in a result of a query with arrival `seq` (once for each query);
``on_count(S, P, slot, side, t)``
    ``S.slot[slot].weight``, how often partners of the row occur over all its queries, has moved;
``on_insert``, ``on_remove`` and ``victim``
    as in `joinweir.engine`, with NIL for the group; the newcomer's weight is ``S.newcomer[0]``.

Rows come in order of time, and each probes first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiling import DIGEST as ENGINE_DIGEST
from .compiling import inlined, kernel, shared_hook
from .engine import (
    enter_group,
    find_group,
    link_by_time,
    pool_is_empty,
    release_group,
    unchain,
    unlink,
    write_shed,
)
from .layout import (
    ACCOUNTING,
    C_EVICTED,
    C_EXPIRED,
    C_IN,
    C_REFUSED,
    CLOCK,
    DIGEST,
    EVICTED,
    EXACT,
    FREE_LOG,
    FREE_SLOT,
    MAX_IDLE,
    N_ARRIVALS,
    N_EXACT,
    N_LOG,
    N_OUT,
    N_SLOTS,
    N_STREAMS,
    NIL,
    NOT_ADMITTED,
    REFUSED,
    SLOT,
    WANTED,
    Store,
    record,
)

MEMBER = record(  # a stream in a query
    query="i8",
    position="i8",  # among the query's members
    members="i8",  # how many the query has
    lifetime="i8",
    n_exact="i8",  # results of the exact join that this member completed
    n_out="i8",  # and results produced
)
WEIGHED_SLOT = np.dtype(
    [(name, SLOT.fields[name][0]) for name in SLOT.names] + [("weight", "f8")], align=True
)
LINK = record(  # a held row in one query, at slot * links + number of the query for its stream
    end="i8",  # when the row is dead for this query
    group="i4",
    dead="i4",  # 1: known to be
    knext="i4",  # chain of the key's rows of one member, by time; numbers of links
    kprev="i4",
)
ALIVE = record(first="i4", n="i4")  # of a chain, the part still in the query's window

WorkloadStore = NamedTuple(  # what `Store` has (its k: most members of a query), and
    "WorkloadStore",
    [(name, np.ndarray) for name in Store._fields]
    + [
        ("member", np.ndarray),  # MEMBER[n] in the order of streams
        ("members_of", np.ndarray),  # int64[streams + 1] where a stream's members begin
        ("link", np.ndarray),  # LINK[slots * links]
        ("alive", np.ndarray),  # ALIVE[groups * k]
        ("newcomer", np.ndarray),  # float64[1] weight of the arriving row
    ],
)


class WorkloadBatch(NamedTuple):
    """Rows in the order in which they are to be processed."""

    ts: np.ndarray  # int64[n]
    side: np.ndarray  # int8[n]
    row: np.ndarray  # int64[n]
    size: np.ndarray  # int32[n]
    key: np.ndarray  # int64[n, links] the row's key in each of its queries, NIL = null
    group: np.ndarray  # int32[n, links] filled in


@shared_hook
def ignore_weight(S, P, slot, side, t):
    pass


@kernel
def pass_dead(S, c, t):
    """How many rows of a chain are in the query's window at t; the others are passed for good."""
    a = S.alive[c]
    while a.first != NIL and S.link[a.first].end <= t:
        S.link[a.first].dead = 1
        a.first = S.link[a.first].knext
        a.n -= 1
    return np.int64(a.n)


@kernel
def hang(S, c, node):
    """Append a link to a chain."""
    cell = S.cell[c]
    link = S.link[node]
    link.kprev, link.knext, link.dead = cell.tail, NIL, 0
    if cell.tail == NIL:
        cell.head = node
    else:
        S.link[cell.tail].knext = node
    cell.tail = node
    cell.rows += 1
    if S.alive[c].first == NIL:
        S.alive[c].first = node
    S.alive[c].n += 1


@kernel
def unhang(S, c, node):
    """Take a link out of its chain."""
    a = S.alive[c]
    if not S.link[node].dead:
        a.n -= 1
        if a.first == node:
            a.first = S.link[node].knext
    unchain(S.link, S.cell, c, node)
    S.cell[c].rows -= 1


@kernel
def most_results(S, batch, r):
    """A bound on a row's results."""
    k = S.reg[N_STREAMS]
    bound = 0
    first = S.members_of[batch.side[r]]
    for j in range(S.members_of[batch.side[r] + 1] - first):
        if batch.key[r, j] != NIL:
            g = find_group(S, batch.key[r, j])
            if g != NIL:
                m = S.member[first + j]
                n = 1
                for position in range(m.members):
                    if position != m.position:
                        n *= S.cell[g * k + position].rows
                bound += n
    return bound


@kernel
def write_results(S, m, g, row, out, n):
    """All combinations of the chains' live rows with the arriving row of member m."""
    k = S.reg[N_STREAMS]
    links = S.link.size // S.slot.size
    at = S.scratch[0]
    for position in range(m.members):
        at[position] = NIL if position == m.position else S.alive[g * k + position].first
    while True:
        out[n, 0] = m.query
        for position in range(k):
            if position >= m.members:
                out[n, 1 + position] = NIL
            elif position == m.position:
                out[n, 1 + position] = row
            else:
                out[n, 1 + position] = S.slot[at[position] // links].row
        n += 1
        position = m.members - 1
        while position >= 0:  # the next combination: like an odometer
            if position != m.position:
                at[position] = S.link[at[position]].knext
                if at[position] != NIL:
                    break
                at[position] = S.alive[g * k + position].first
            position -= 1
        if position < 0:
            return n


@kernel
def log_member(S, member, g, t):
    """Remember an arrival for the exact join of a query."""
    entry = np.int32(S.reg[FREE_LOG])
    S.reg[FREE_LOG] = S.log[entry].enext
    S.reg[N_LOG] += 1
    S.log[entry].ts = t
    S.log[entry].end = t + S.member[member].lifetime
    S.log[entry].group = g
    link_by_time(S.log, S.logs, member, entry)


@inlined
def drop_row(S, P, slot, t, on_remove):
    """Remove a held row from everything; its groups may go with it."""
    k = S.reg[N_STREAMS]
    links = S.link.size // S.slot.size
    s = np.int64(S.slot[slot].side)
    on_remove(S, P, slot, NIL, s, t)
    unlink(S.slot, S.expiry, s, slot)
    S.side[s].held -= 1
    S.pool[S.side[s].pool].used -= S.slot[slot].size
    first = S.members_of[s]
    for j in range(S.members_of[s + 1] - first):
        node = slot * links + j
        g = S.link[node].group
        if g != NIL:
            unhang(S, g * k + S.member[first + j].position, node)
            release_group(S, g)
    S.slot[slot].enext = np.int32(S.reg[FREE_SLOT])
    S.reg[FREE_SLOT] = slot
    S.reg[N_SLOTS] -= 1


@kernel
def take_row(S, s, t, seq, row, size, keys):
    """Give a row a slot and a place in the chains of its queries."""
    k = S.reg[N_STREAMS]
    links = S.link.size // S.slot.size
    slot = np.int32(S.reg[FREE_SLOT])
    S.reg[FREE_SLOT] = S.slot[slot].enext
    S.reg[N_SLOTS] += 1
    new = S.slot[slot]
    new.ts, new.seq, new.row, new.side, new.size = t, seq, row, s, size
    new.end, new.group, new.mark, new.weight = t + S.side[s].lifetime, NIL, 0, S.newcomer[0]
    first = S.members_of[s]
    for j in range(S.members_of[s + 1] - first):
        node = slot * links + j
        S.link[node].group = keys[j]
        S.link[node].end = t + S.member[first + j].lifetime
        if keys[j] != NIL:
            hang(S, keys[j] * k + S.member[first + j].position, node)
    link_by_time(S.slot, S.expiry, s, slot)
    S.side[s].held += 1
    S.pool[S.side[s].pool].used += size
    return slot


@inlined
def workload_loop(S, P, batch, start, out, shed, on_count, on_match, on_insert, on_remove, victim):
    """Process a batch; as `joinweir.engine.join_loop`, with the query's number before the rows."""
    S.reg[DIGEST] = ENGINE_DIGEST
    k = S.reg[N_STREAMS]
    links = S.link.size // S.slot.size
    n = batch.ts.size
    n_out = 0
    n_shed = 0
    i = start
    while i < n:
        t = batch.ts[i]
        s = np.int64(batch.side[i])
        first = S.members_of[s]
        last = S.members_of[s + 1]
        if out.shape[0] > 0 and n_out + most_results(S, batch, i) > out.shape[0]:
            S.reg[WANTED] = most_results(S, batch, i)
            break
        S.reg[CLOCK] = t
        for other in range(S.side.size):
            while S.expiry[other].head != NIL and S.slot[S.expiry[other].head].end <= t:
                drop_row(S, P, S.expiry[other].head, t, on_remove)
                S.counters[other, C_EXPIRED] += 1
        for m in range(S.member.size):
            while S.logs[m].head != NIL and S.log[S.logs[m].head].end <= t:
                g = unlog_member(S, m)
                release_group(S, g)
        seq = S.reg[N_ARRIVALS]
        S.reg[N_ARRIVALS] += 1
        S.counters[s, C_IN] += 1
        # statistics and accounting: all queries first
        for m in range(first, last):
            batch.group[i, m - first] = NIL
            if batch.key[i, m - first] == NIL:
                continue
            g = enter_group(S, batch.key[i, m - first])
            batch.group[i, m - first] = g
            member = S.member[m]
            cell = S.cell[g * k + member.position]
            cell.instant = 1  # the group may not be given up under the row
            cell.seen += 1
            if S.reg[ACCOUNTING] == EXACT:
                results = 1
                for position in range(member.members):
                    if position != member.position:
                        results *= S.cell[g * k + position].live
                S.reg[N_EXACT] += results
                member.n_exact += results
                log_member(S, m, g, t)
                cell.live += 1
            if S.reg[MAX_IDLE] != 0:  # rows of the member before this one count these arrivals
                before = (member.position - 1) % member.members
                node = S.cell[g * k + before].head
                while node != NIL:
                    S.slot[node // links].weight += 1.0
                    on_count(S, P, node // links, np.int64(S.slot[node // links].side), t)
                    node = S.link[node].knext
        # probe
        S.newcomer[0] = 0.0
        for m in range(first, last):
            g = batch.group[i, m - first]
            if g == NIL:
                continue
            member = S.member[m]
            after = (member.position + 1) % member.members
            S.newcomer[0] += S.cell[g * k + after].seen
            results = 1
            for position in range(member.members):
                if position != member.position:
                    results *= pass_dead(S, g * k + position, t)
            if results > 0:
                S.reg[N_OUT] += results
                member.n_out += results
                if out.shape[0] > 0:
                    n_out = write_results(S, member, g, batch.row[i], out, n_out)
                for position in range(member.members):
                    if position != member.position:
                        node = S.alive[g * k + position].first
                        while node != NIL:
                            slot = np.int32(node // links)
                            S.slot[slot].mark += 1
                            side = np.int64(S.slot[slot].side)
                            on_match(S, P, NIL, side, t, seq, slot, 1)
                            node = S.link[node].knext
        # admit
        pool = S.side[s].pool
        size = batch.size[i]
        refused = size > S.pool[pool].cap
        while not refused and S.pool[pool].used + size > S.pool[pool].cap:
            if pool_is_empty(S, pool):
                refused = True
                break
            gone = victim(S, P, s, NIL, t, t + S.side[s].lifetime, False)
            if gone == NOT_ADMITTED:
                refused = True
                break
            old = S.slot[gone]
            S.counters[old.side, C_EVICTED] += 1
            n_shed = write_shed(shed, n_shed, old.side, old.row, EVICTED, old.mark)
            drop_row(S, P, gone, t, on_remove)
        if refused:
            S.counters[s, C_REFUSED] += 1
            n_shed = write_shed(shed, n_shed, s, batch.row[i], REFUSED, 0)
        else:
            slot = take_row(S, s, t, seq, batch.row[i], size, batch.group[i])
            on_insert(S, P, slot, NIL, s, t)
        for m in range(first, last):
            g = batch.group[i, m - first]
            if g != NIL:
                S.cell[g * k + S.member[m].position].instant = NIL
        for m in range(first, last):
            if batch.group[i, m - first] != NIL:
                release_group(S, batch.group[i, m - first])
        i += 1
    return i, n_out, n_shed


@kernel
def unlog_member(S, m):
    """Forget the oldest arrival that a member logged."""
    entry = S.logs[m].head
    g = S.log[entry].group
    unlink(S.log, S.logs, m, entry)
    S.cell[g * S.reg[N_STREAMS] + S.member[m].position].live -= 1
    S.log[entry].enext = np.int32(S.reg[FREE_LOG])
    S.reg[FREE_LOG] = entry
    S.reg[N_LOG] -= 1
    return g
