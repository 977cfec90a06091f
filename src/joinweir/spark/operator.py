"""The stateful operator: Spark's `StatefulProcessor` around a `Shard`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark import SparkFiles
from pyspark.sql.streaming import StatefulProcessor

from .shard import Shard
from .spec import JoinSpec, shard_ids

# A row of the operator's output: a packet of results or shed rows, or, last, the counts.
OUTPUT = "packet binary, counts array<bigint>, exact array<double>"


class _MapState:
    """Spark's map state as `storage.KeyValue`."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def get(self, key: str) -> bytes | None:
        found = self.state.getValue((key,))
        return None if found is None else bytes(found[0])

    def put(self, key: str, value: bytes) -> None:
        self.state.updateValue((key,), (value,))

    def delete(self, key: str) -> None:
        self.state.removeKey((key,))


class JoinProcessor(StatefulProcessor):
    """One call of `handleInputRows` is one shard's micro-batch."""

    def __init__(self, spec_json: str) -> None:
        self.spec_json = spec_json

    def init(self, handle: Any) -> None:
        """Declare the state: a small head, and parts of at most 4 MB by name."""
        self.head = handle.getValueState("head", "value binary")
        self.parts = _MapState(handle.getMapState("parts", "name string", "value binary"))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any):
        """Packets of a shard in, packets of results and one row of counts out."""
        spec = JoinSpec.from_json(self.spec_json)
        number = shard_ids(spec.shards).index(int(key[0]))
        saved = self.head.get()
        root = _local_directory()
        head = None if saved is None else bytes(saved[0])
        shard = Shard(spec, number, head, self.parts, root)
        packets = (packet for frame in rows for packet in frame["packet"])
        for packet in shard.run(packets):
            yield pd.DataFrame({"packet": [packet], "counts": [None], "exact": [None]})
        self.head.update((shard.saved_head(),))
        counts, exact = shard.metrics()
        yield pd.DataFrame({"packet": [None], "counts": [counts], "exact": [exact]})

    def close(self) -> None:
        """Nothing to close."""


def _local_directory() -> str:
    """A directory at the worker that Spark removes with the application."""
    try:
        return SparkFiles.getRootDirectory()
    except Exception:  # no files directory: batch frames in unusual deployments
        return tempfile.gettempdir()
