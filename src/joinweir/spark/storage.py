"""Where a shard's state lives: durable values in Spark's state store, working files at the worker.

Durable values are small (at most 4 MB), compressed, and carry a checksum. Working files are written
whole, renamed into place, memory-mapped and never changed; a name contains a random token that the
durable state knows, so a file of another attempt or another history is never taken for the right
one. Nothing here is pickled.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ..errors import StateError

PART_BYTES = (
    4 << 20
)  # Spark's state client takes 20 ns a byte, and its JVM side copies whole values
KEPT_SECONDS = 120.0  # unknown working files may belong to another attempt that is still running
_VALUE = struct.Struct("<4sIQ")  # magic, checksum of what follows, its length before compression
_FILE = struct.Struct("<8sQ")  # magic, length of the JSON that follows
_MAGIC, _FILE_MAGIC = b"JWv1", b"JWfile1\0"
_ALIGN = 64
_CODEC = "lz4"  # 0.5 GB/s and more; half the bytes are worth 10 ns a byte

DAMAGED = (
    "the join's state in the checkpoint is damaged ({what}); restore the checkpoint directory from "
    "a backup, or start the query with a new checkpointLocation"
)


class KeyValue(Protocol):
    """Spark's MapState of one shard, or a dict of bytes in tests."""

    def get(self, key: str) -> bytes | None:
        """The value, or None."""

    def put(self, key: str, value: bytes) -> None:
        """Store a value."""

    def delete(self, key: str) -> None:
        """Forget a value."""


# --- durable values -------------------------------------------------------------------------------
def sealed(data: Any) -> bytes:
    """Bytes compressed, with a checksum."""
    size = memoryview(data).nbytes
    packed = pa.compress(data, codec=_CODEC, asbytes=True) if size else b""
    return _VALUE.pack(_MAGIC, _checksum(packed, size), size) + packed


def _checksum(packed: Any, size: int) -> int:
    return zlib.crc32(packed, size & 0xFFFFFFFF) ^ size >> 32


def opened(value: bytes, what: str) -> pa.Buffer:
    """The bytes of `sealed`, or a clear error."""
    if len(value) < _VALUE.size or value[:4] != _MAGIC:
        raise StateError(DAMAGED.format(what=f"{what} has wrong first bytes"))
    _, checksum, size = _VALUE.unpack_from(value)
    packed = memoryview(value)[_VALUE.size :]
    if _checksum(packed, size) != checksum:
        raise StateError(DAMAGED.format(what=f"{what} has a wrong checksum"))
    return pa.decompress(packed, size, codec=_CODEC) if size else pa.py_buffer(b"")


def put_parts(kv: KeyValue, name: str, parts: Iterable[Any]) -> int:
    """Store values one by one; returns how many."""
    n = 0
    for part in parts:
        kv.put(f"{name}.{n}", sealed(part))
        n += 1
    return n


def get_part(kv: KeyValue, name: str, i: int) -> pa.Buffer:
    """One value of `put_parts`."""
    value = kv.get(f"{name}.{i}")
    if value is None:
        raise StateError(DAMAGED.format(what=f"{name}.{i} is missing"))
    return opened(value, f"{name}.{i}")


def delete_parts(kv: KeyValue, name: str, n: int) -> None:
    """Forget the values of `put_parts`."""
    for i in range(n):
        kv.delete(f"{name}.{i}")


# --- columns of numbers ---------------------------------------------------------------------------
def columns_to_bytes(told: dict[str, Any], columns: list[np.ndarray]) -> bytes:
    """Columns as planes of first bytes, second bytes, …, with something told in JSON before them.

    Small numbers leave planes of zeros, of which compression leaves nothing: 6 bytes of the 21 of a
    logged row instead of 11, in half the time.
    """
    text = json.dumps(told | {"rows": columns[0].size}).encode()
    planes = [c.view(np.uint8).reshape(c.size, c.itemsize).T.tobytes() for c in columns]
    return b"".join([struct.pack("<I", len(text)), text, *planes])


def columns_from_bytes(
    data: pa.Buffer, kinds: tuple[type, ...]
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """What `columns_to_bytes` was given."""
    view = memoryview(data)
    (length,) = struct.unpack_from("<I", view)
    told = json.loads(bytes(view[4 : 4 + length]))
    n, at, columns = told["rows"], 4 + length, []
    for kind in kinds:
        width = np.dtype(kind).itemsize
        planes = np.frombuffer(view[at : at + n * width], np.uint8).reshape(width, n)
        columns.append(np.ascontiguousarray(planes.T).view(kind).reshape(n))
        at += n * width
    return told, columns


# --- working files --------------------------------------------------------------------------------
def _aligned(at: int) -> int:
    return -(-at // _ALIGN) * _ALIGN


def write_file(path: Path, head: dict[str, Any], blocks: list[Any]) -> int:
    """Write blocks of bytes with a JSON header that says where they are; returns the size."""
    views = [memoryview(block).cast("B") if _nbytes(block) else memoryview(b"") for block in blocks]
    head = head | {"sizes": [view.nbytes for view in views]}
    text = json.dumps(head).encode()
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open(partial, "wb", buffering=0) as file:
        at = _write(file, _FILE.pack(_FILE_MAGIC, len(text)) + text)
        for view in views:
            at += _write(file, bytes(_aligned(at) - at))
            at += _write(file, view)
    os.replace(partial, path)
    return at


def _nbytes(block: Any) -> int:
    return memoryview(block).nbytes


def _write(file: Any, data: Any) -> int:
    view, done = memoryview(data), 0
    while done < view.nbytes:  # a single call writes 2 GB at most
        done += file.write(view[done:])
    return done


def read_file(path: Path) -> tuple[dict[str, Any], list[memoryview]] | None:
    """A file of `write_file`, mapped: what is written to the blocks stays in this process.

    None if there is no such file, or not a whole one.
    """
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError):
        return None
    view = memoryview(mapped)
    if len(view) < _FILE.size or view[:8] != _FILE_MAGIC:
        return None
    _, length = _FILE.unpack_from(view)
    try:
        head = json.loads(bytes(view[_FILE.size : _FILE.size + length]))
    except ValueError:
        return None
    blocks, at = [], _FILE.size + length
    for size in head["sizes"]:
        at = _aligned(at)
        blocks.append(view[at : at + size])
        at += size
    return (head, blocks) if len(view) == at else None


def array_block(array: np.ndarray) -> Any:
    """An array as a block of bytes, without a copy if possible."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class Folder:
    """Working files of one shard on this machine, readable by their owner alone."""

    def __init__(self, root: str | os.PathLike, state_id: str, shard: int) -> None:
        self.path = Path(root) / "joinweir" / state_id / str(shard)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def file(self, name: str) -> Path:
        """Path of a working file."""
        return self.path / name

    def size(self, name: str) -> int:
        """Bytes of a working file; -1 if it is not there."""
        with suppress(OSError):
            return os.stat(self.path / name).st_size
        return -1

    def keep_only(self, names: set[str]) -> None:
        """Remove files that no version of the state needs any more."""
        now = time.time()
        with suppress(OSError):
            for entry in os.scandir(self.path):
                if entry.name in names:
                    continue
                with suppress(OSError):
                    if now - entry.stat().st_mtime > KEPT_SECONDS:
                        os.unlink(entry.path)

    def remove(self, names: Iterable[str]) -> None:
        """Remove these files, if they are there."""
        for name in names:
            with suppress(OSError):
                os.unlink(self.path / name)
