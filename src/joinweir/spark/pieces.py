"""The offline optimum of a long stream with its pieces solved as tasks of a Spark job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import JoinweirError
from ..optimum.pieces import Piece, Runner, solve_piece

ARRAYS = {"start": "<i4", "at": "<i8", "gap": "<i4", "value": "<i8"}
NUMBERS = ("before", "own", "n_gaps", "slots")
ANSWER = "piece long, price binary"


def run_pieces(spark: Any) -> Runner:
    """What `joinweir.optimum.solve` takes as `run_pieces` to have each piece solved as a task.

    The stream itself stays in this process; a piece that travels has the rows that may have to
    give way in it, 12 bytes for each choice.

    Parameters
    ----------
    spark
        A session, classic or Connect.

    Examples
    --------
    >>> from joinweir.spark import run_pieces
    >>> jw.optimum.solve(left, right, on="k", time="ts", within="1 hour", max_rows=100_000,
    ...                  method="pieces", run_pieces=run_pieces(spark))  # doctest: +SKIP
    """
    if not hasattr(spark, "createDataFrame"):
        raise JoinweirError(f"run_pieces takes a Spark session, not {type(spark).__name__}")

    def run(solve: Callable[[Piece], np.ndarray], pieces: Iterable[Piece]) -> Iterator[np.ndarray]:
        table = to_table(pieces)  # the workers know how to `solve`
        if not table.num_rows:
            return
        frame = spark.createDataFrame(table).repartition(table.num_rows, "piece")
        answers = frame.mapInArrow(_solving(), ANSWER).toArrow().sort_by("piece")
        for price in answers["price"]:
            yield np.frombuffer(price.as_buffer(), "<i8")

    return run


def to_table(pieces: Iterable[Piece]) -> pa.Table:
    """A row for each piece; arrays as plain bytes."""
    rows = [
        {"piece": number}
        | {name: getattr(piece, name) for name in NUMBERS}
        | {name: getattr(piece, name).astype(kind).tobytes() for name, kind in ARRAYS.items()}
        for number, piece in enumerate(pieces)
    ]
    numbers = [(name, pa.int64()) for name in ("piece", *NUMBERS)]
    schema = pa.schema([*numbers, *((name, pa.binary()) for name in ARRAYS)])
    return pa.Table.from_pylist(rows, schema)


def solve_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The prices of the pieces in a batch of `to_table`'s rows."""
    numbers, prices = [], []
    for row in batch.to_pylist():
        arrays = {name: np.frombuffer(row[name], kind) for name, kind in ARRAYS.items()}
        piece = Piece(**{name: row[name] for name in NUMBERS}, **arrays)
        numbers.append(row["piece"])
        prices.append(solve_piece(piece).astype("<i8").tobytes())
    return pa.RecordBatch.from_pydict(
        {"piece": pa.array(numbers, pa.int64()), "price": pa.array(prices, pa.binary())}
    )


def _solving():
    """A function that Spark ships by value; it imports joinweir inside, so that it can say so."""

    def solve_pieces(batches):
        try:
            from joinweir.spark.pieces import solve_rows
        except ImportError as error:
            raise ImportError(
                f"a Spark worker cannot import joinweir ({error}); install it in the workers' "
                "Python, set PYSPARK_PYTHON to one that has it, or ship an environment with "
                "spark.archives"
            ) from error
        for batch in batches:
            yield solve_rows(batch)

    return solve_pieces
