"""What every task of a join on Spark must know: plain data that travels as JSON.

It is made once, where `window_join` is called, and read in the workers. `identity` is what a
checkpoint is tied to; the rest may differ from one start of a query to the next.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import JoinweirError
from ..policies import Parameters, definition, policy_names, read_policy, register
from ..simulation import ALLOCATIONS

EMITS = ("matches", "shed", "both")


@dataclass(frozen=True)
class JoinSpec:
    """A join on Spark.

    Attributes
    ----------
    sides
        Names of the streams: left and right, or 1 … k.
    lifetimes, landmark, lateness
        In microseconds or plain ticks, per stream; `landmark` is (every, origin) or None.
    budget, unit, allocation
        Over all shards: one number, or one a stream, in rows or bytes; None is unbounded.
    payload
        Per stream, the columns that are kept: [name, type as JSON, whether it may be null]. Their
        names in packets are c0, c1, …, since users' names may collide with ours and each other.
    hidden
        Per stream, how many key columns stand before these, kept only to compare them.
    keys
        Per stream, which columns of a packet hold the key, to be compared after a match of hashes;
        empty if the 64 bits that the engine compares are the key itself.
    output
        Columns of a result: [stream, column of its packet].
    schemas
        Per stream, the Arrow schema of its columns in a packet, serialised, in hexadecimal.
    identity
        What a checkpoint is tied to, by name.
    known
        Per stream what is known of it before the first start, or nothing: rows, keys as the engine
        has them, their counts, a and b of the locality model, rows per tick.
    """

    sides: tuple[str, ...]
    lifetimes: tuple[int, ...]
    landmark: tuple[int, int] | None
    lateness: tuple[int, ...]
    policy: str
    policy_module: str
    budget: tuple[int, ...] | None
    unit: str
    allocation: str
    accounting: str
    seed: int
    shards: int
    emit: str
    payload: tuple[tuple[tuple[str, str, bool], ...], ...]
    hidden: tuple[int, ...]
    keys: tuple[tuple[int, ...], ...]
    output: tuple[tuple[int, int], ...]
    schemas: tuple[str, ...]
    identity: dict[str, Any]
    known: tuple[Any, ...] = ()

    @property
    def streams(self) -> int:
        """How many streams are joined."""
        return len(self.sides)

    def parameters(self) -> Parameters:
        """The policy; one that lives outside of joinweir is imported and registered."""
        name = self.policy.partition(":")[0]
        if name not in policy_names():
            register(importlib.import_module(self.policy_module))
        return read_policy(self.policy)

    def to_json(self) -> str:
        """As text for the workers."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JoinSpec:
        """From `to_json`'s text."""
        values = json.loads(text)
        values = {f.name: values[f.name] for f in fields(cls)}
        identity = values.pop("identity")
        return cls(**{name: _tuples(value) for name, value in values.items()}, identity=identity)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def module_of(policy: Parameters) -> str:
    """Where workers find a policy's file."""
    return definition(policy.name).module.__name__


def shard_ids(shards: int) -> list[int]:
    """Numbers by which Spark groups, one a shard, that fall into different partitions.

    Spark puts a row into partition ``pmod(murmur3(number), partitions)``. With as many partitions
    as shards (or a multiple) every shard gets one of its own. They depend on nothing but the number
    of shards, and the first is always 0: a restart with another number meets the old state there.

    >>> shard_ids(2)
    [0, 2]
    """
    found: dict[int, int] = {}
    number = 0
    while len(found) < shards:
        found.setdefault(murmur3(number) % shards, number)
        number += 1
    return sorted(found.values())


def murmur3(number: int, seed: int = 42) -> int:
    """Spark's hash of an int; ``%`` of it is Spark's pmod.

    >>> murmur3(0), murmur3(1)
    (933211791, -559580957)
    """
    mask = 0xFFFFFFFF

    def rotated(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & mask

    k = rotated(number * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    h = (rotated(seed ^ k, 13) * 5 + 0xE6546B64) & mask
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    h ^= h >> 16
    return h if h < 2**31 else h - 2**32


def check_emit(emit: str) -> str:
    """Refuse what cannot be emitted."""
    if emit not in EMITS:
        raise JoinweirError(f"emit must be one of {', '.join(EMITS)}, not {emit!r}")
    return emit


def check_allocation(allocation: str | None) -> None:
    """Refuse an allocation that does not exist."""
    if allocation is not None and allocation not in ALLOCATIONS:
        raise JoinweirError(
            f"allocation must be one of {', '.join(ALLOCATIONS)}, not {allocation!r}"
        )
