"""The command line: `joinweir policies`, `characterize`, `simulate`, `optimum`, `run`, `bench`, …

Results go to stdout, as tables or with ``--json`` as one JSON object; progress goes to stderr, and
only if that is a terminal. Bad input ends with one line on stderr and exit code 2 (a job file: a
line for each thing that is wrong in it).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, get_args, get_origin

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import joinweir as jw

from . import bench, layout, optimum, profiling, report, streams
from .errors import JoinweirError, unknown
from .job import JobError, read_job
from .policies import Parameters, definition, policy_names, read_policy
from .simulation import ALLOCATIONS, COMBINATIONS, SIDES, JoinResult
from .state import JoinConfig, JoinState
from .tables import read_file

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
PROGRESS_AFTER = 1.0  # seconds
LARGEST = 2**53  # whole number; a float such as 1e16 is not exact beyond
PLAIN_WIDTH = 110  # columns of a table that goes to a file or a pipe
OPTIMUM = "optimum"  # in a comparison, the best that any policy could do


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    with contextlib.suppress(AttributeError, ValueError):  # a sign that a terminal cannot show
        sys.stdout.reconfigure(errors="replace")
    code = 0
    try:
        options = _parser().parse_args(argv)
        with _no_interrupt_is_lost():
            code = options.run(options) or 0
            sys.stdout.flush()
    except SystemExit as done:  # --help, --version
        return int(done.code or 0)
    except KeyboardInterrupt:
        print("joinweir: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except JobError as error:
        for problem in error.problems:
            print(f"joinweir: {problem}", file=sys.stderr)
        return BAD_INPUT
    except (JoinweirError, OSError, pa.ArrowException, MemoryError) as error:
        print(f"joinweir: {_one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    return code


@contextlib.contextmanager
def _no_interrupt_is_lost() -> Iterator[None]:
    """See to it that Ctrl-C while a policy is being compiled ends the program, and quietly.

    Python drops exceptions in callbacks from LLVM, and reports them to a hook. After a dropped
    interrupt the compiler either fails, or goes on as if nothing was; so it is sent again. The
    compiler's half-made objects complain to the same hook when they are deleted.
    """
    usual, again, ending = sys.unraisablehook, [], False

    def hook(dropped: Any) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            main_thread = threading.main_thread().ident
            again.append(threading.Timer(0.05, signal.pthread_kill, (main_thread, signal.SIGINT)))
            again[-1].start()
        elif not ending and not again:
            usual(dropped)

    sys.unraisablehook = hook
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if not again and not isinstance(error, KeyboardInterrupt):
            raise
        ending = True
        traceback.clear_frames(error.__traceback__)
        raise KeyboardInterrupt from None
    finally:
        for timer in again:
            timer.cancel()
            timer.join()
        sys.unraisablehook = usual


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return " ".join(f"not enough memory: {error}".split())
    return " ".join(str(error).split())


# --- the commands and their options ------------------------------------------------------------
class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, and which takes no abbreviations."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **({"allow_abbrev": False} | options))

    def error(self, message: str) -> None:
        raise JoinweirError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="joinweir",
        description="Stream joins that keep to a memory budget and report what was left out.",
    )
    parser.add_argument("--version", action="version", version=f"joinweir {jw.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in (
        _add_demo,
        _add_policies,
        _add_characterize,
        _add_simulate,
        _add_optimum,
        _add_run,
        _add_generate,
        _add_bench,
    ):
        add(commands)
    return parser


def _command(commands: Any, name: str, run: Callable, summary: str, more: str = "") -> _Parser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.{more}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)
    return parser


def _add_policies(commands: Any) -> None:
    parser = _command(commands, "policies", _policies, "list the policies, or explain one")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the policy to explain")


def _add_characterize(commands: Any) -> None:
    parser = _command(
        commands,
        "characterize",
        _characterize,
        "measure what one stream or two are like, and say which policies that favours",
        " Files are Parquet, CSV or JSON (an object a line), or directories of them. docs/"
        "characterize.md explains the measures.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="one stream, or two to join")
    parser.add_argument(
        "--key",
        metavar="COLUMN",
        action="append",
        required=True,
        help="key column; several for a composite key (repeat, or separate by commas); "
        "left_name=right_name where names differ",
    )
    parser.add_argument(
        "--time",
        metavar="COLUMN",
        help="time column; left_name=right_name where names differ. Default: rows as they stand",
    )
    parser.add_argument(
        "--within",
        metavar="LENGTH",
        action="append",
        help="window of the join: 100 or '10 minutes'; several (repeat, or separate by commas)",
    )
    parser.add_argument(
        "--where",
        metavar="COLUMN=VALUE[,VALUE]",
        help="only rows with this value; with two values one file holds both streams",
    )
    parser.add_argument("--h", metavar="N", type=_whole, default=profiling.H, help="longest lag")
    parser.add_argument(
        "--top", metavar="N", type=_whole, default=profiling.TOP, help="frequent keys to keep"
    )
    parser.add_argument("--seed", metavar="N", type=_whole, default=0)
    parser.add_argument("--spark", action="store_true", help="on local Spark, for large input")
    parser.add_argument("--html", metavar="FILE", help="write a page with charts, too")
    parser.add_argument("-o", "--output", metavar="FILE", help="save the result as JSON")


def _add_simulate(commands: Any) -> None:
    parser = _command(
        commands,
        "simulate",
        _simulate,
        "join Parquet files under a memory limit and compare policies",
        " Time columns may hold integers, floats, timestamps or dates; durations such as"
        " '10 minutes' go with timestamps and dates, plain numbers with all (seconds, for"
        " timestamps).",
    )
    join = _add_join_options(parser)
    _add_simulate_options(parser, join)


def _add_join_options(parser: _Parser) -> Any:
    """The streams and the join; returns the join's group of options."""
    files = parser.add_argument_group("streams")
    files.add_argument("--left", metavar="FILE", help="Parquet file or directory of them")
    files.add_argument("--right", metavar="FILE")
    files.add_argument(
        "--stream", metavar="FILE", action="append", help="instead, repeated: two or more streams"
    )
    join = parser.add_argument_group("join")
    join.add_argument(
        "--on",
        metavar="COLUMN",
        action="append",
        required=True,
        help="key column; several for a composite key (repeat, or separate by commas); "
        "left_name=right_name where names differ",
    )
    join.add_argument(
        "--time",
        metavar="COLUMN",
        required=True,
        help="time column; left_name=right_name where names differ",
    )
    join.add_argument(
        "--within",
        metavar="LENGTH",
        required=True,
        help="how far apart matching rows may be: 100 or '10 minutes'; A,B per stream; rows:1000 "
        "for a window of rows; landmark:'1 day' for all since the last landmark",
    )
    join.add_argument("--closed", choices=("left", "both"), default="left", help="which ends match")
    join.add_argument("--order", choices=layout.ORDERS, default="probe_first")
    return join


def _add_simulate_options(parser: _Parser, join: Any) -> None:
    join.add_argument("--lateness", metavar="LENGTH", help="take rows as they stand in the files")
    join.add_argument(
        "--importance",
        metavar="COLUMN",
        help="column of the rows' importances; A,B where names differ, and A, if only one has any",
    )
    join.add_argument(
        "--combine",
        choices=COMBINATIONS,
        help="importance of a result from those of its rows; default: min",
    )
    budget = parser.add_argument_group("budget")
    amount = budget.add_mutually_exclusive_group()
    amount.add_argument(
        "--max-rows", metavar="N", type=_several(_whole), help="over all streams; N,M per stream"
    )
    amount.add_argument("--memory", metavar="SIZE", help="such as '64 MB'")
    budget.add_argument("--allocation", choices=ALLOCATIONS, help="default: even")
    parser.add_argument(
        "--policy",
        metavar="P",
        action="append",
        help="such as prob or gdj:initial_rank=0.2; repeat to compare. Default: every policy that "
        f"keeps to a budget ({', '.join(_default_policies())}). 'optimum' beside others adds the "
        "best that any policy could do, and each one's share of it",
    )
    parser.add_argument(
        "--accounting",
        choices=layout.ACCOUNTINGS,
        help="how the exact join's size is found; default: exact with --max-rows, sketch with "
        "--memory",
    )
    parser.add_argument("--seed", metavar="N", type=_whole, default=0)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="with a single policy: write the row numbers of the results, as Parquet",
    )


def _add_optimum(commands: Any) -> None:
    parser = _command(
        commands,
        "optimum",
        _optimum,
        "find the best result that a memory allows, with hindsight",
        " No policy can do better on these files. Which rows must be held for it goes to a file.",
    )
    join = _add_join_options(parser)
    join.add_argument(
        "--importance",
        metavar="COLUMN",
        help="importance of a row, above 0; left_name=right_name where names differ",
    )
    join.add_argument(
        "--combine",
        choices=optimum.COMBINE,
        default="min",
        help="importance of a result from those of its rows; default: %(default)s",
    )
    parser.add_argument(
        "--objective",
        choices=optimum.OBJECTIVES,
        help="what is to be as large as possible; default: importance if it is given, else count",
    )
    parser.add_argument(
        "--max-rows", metavar="N", type=_several(_whole), help="over all streams; N,M per stream"
    )
    parser.add_argument("--allocation", choices=ALLOCATIONS, help="default: even")
    parser.add_argument(
        "--method",
        choices=optimum.METHODS,
        default="auto",
        help="bound and pieces are for what is too large for the exact ones: they tell how far "
        "from the optimum they may be; default: %(default)s",
    )
    parser.add_argument("--solver", choices=optimum.SOLVERS, help="of the flow; default: by size")
    parser.add_argument(
        "--piece-gaps", metavar="N", type=_whole, help="length of the pieces of --method pieces"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the rows to hold, as Parquet")


def _add_run(commands: Any) -> None:
    parser = _command(
        commands,
        "run",
        _run,
        "join streams on Spark as a job file says, and show what is lost meanwhile",
        " Ctrl-C or SIGTERM ends it in order; it goes on from its checkpoint when it is started"
        " again. Exit codes: 0 at the end of the input and after SIGTERM, 130 after Ctrl-C, 1 if"
        " the query failed, 2 if it could not start. docs/jobs.md explains job files.",
    )
    parser.add_argument("job", metavar="JOB.toml", help="the job file")
    parser.add_argument("--check", action="store_true", help="only check the file")
    parser.add_argument(
        "--once", action="store_true", help="stop when the input that is there now is processed"
    )


def _add_generate(commands: Any) -> None:
    parser = _command(commands, "generate", _generate, "write a synthetic stream, or a pair")
    parser.add_argument("--list", action="store_true", help="list the kinds of streams")
    parser.set_defaults(kind=None)
    kinds = parser.add_subparsers(metavar="KIND")
    for kind in streams.GENERATORS:
        own = kinds.add_parser(kind, help=streams.summary(kind), description=streams.summary(kind))
        own.set_defaults(kind=kind)
        own.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
        own.add_argument(
            "-o", "--output", metavar="FILE", required=True, help="Parquet file to write"
            + (": its name with _left and with _right" if _is_pair(kind) else "")
        )  # fmt: skip
        count = inspect.signature(streams.GENERATORS[kind]).parameters["n"]
        own.add_argument(
            "--rows",
            metavar="N",
            required=True,
            type=_reader(count.annotation),
            help="rows of each stream" if _is_pair(kind) else "rows",
        )
        meanings = _meanings(streams.GENERATORS[kind].__doc__)
        for name, option in streams.options(kind).items():
            _add_stream_option(own, name, option, meanings.get(name, ""))
        own.add_argument(
            "--importance",
            metavar="LOW,HIGH",
            nargs="?",
            const=(50.0, 100.0),
            type=_several(_real),
            help="add a column imp: 1 to 10, and for 5 %% of the rows LOW to HIGH (default 50,100)",
        )
        own.add_argument(
            "--importance-by-key",
            action="store_true",
            help="the same, with high importance for 5 %% of the keys instead of the rows",
        )


def _add_stream_option(parser: _Parser, name: str, option: inspect.Parameter, meaning: str) -> None:
    default = "" if option.default in (option.empty, None) else f" (default: {option.default})"
    settings: dict[str, Any] = {
        "dest": f"option_{name}",
        "default": argparse.SUPPRESS,  # the generator knows its own
        "required": option.default is option.empty,
        "help": f"{meaning}{default}".replace("%", "%%").strip() or None,
    }
    if option.annotation is bool:
        settings["action"] = argparse.BooleanOptionalAction
    else:
        settings |= {"type": _reader(option.annotation), "metavar": "VALUE"}
    parser.add_argument(f"--{name.replace('_', '-')}", **settings)


def _add_bench(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure speed", description="Measure speed.")
    things = parser.add_subparsers(metavar="WHAT", required=True)
    engine = _command(
        things,
        "engine",
        _bench_engine,
        "time each policy per arrival, by number of rows held",
        " Two streams of Zipf keys, one arrival a tick, a window of which the budget B is 10 %;"
        " the best of three slices counts.",
    )
    engine.add_argument(
        "--quick",
        action="store_true",
        help=f"B = {_numbers(bench.QUICK_ROWS)} only, {bench.QUICK_ARRIVALS:,} arrivals",
    )
    engine.add_argument(
        "--policy", metavar="P", nargs="+", action="extend", help="default: all of them"
    )
    engine.add_argument(
        "--rows",
        metavar="B",
        nargs="+",
        type=_whole,
        help=f"rows held; default: {_numbers(bench.ROWS)}",
    )
    engine.add_argument(
        "--arrivals", metavar="N", type=_whole, help=f"to time; default: {bench.ARRIVALS:,}"
    )
    engine.add_argument(
        "--pairs-up-to",
        metavar="B",
        type=_whole,
        default=bench.PAIRS_UP_TO,
        help="largest B at which results are also written out; default: %(default)s",
    )
    kept = _command(
        things,
        "recall",
        _bench_recall,
        "compare how much of the exact join each policy keeps on made-up streams",
        f" {bench.RECALL_ROWS:,} rows a stream over {bench.RECALL_KEYS} keys.",
    )
    kept.add_argument("--policy", metavar="P", nargs="+", action="extend")
    kept.add_argument(
        "--share",
        metavar="S",
        nargs="+",
        type=_real,
        help=f"of the window's rows held; default: {' '.join(map(str, bench.RECALL_SHARES))}",
    )
    kept.add_argument(
        "--data",
        metavar="DIR",
        nargs="?",
        const=os.environ.get("JOINWEIR_DATA", ""),
        help="real streams from this folder instead; default: that named by JOINWEIR_DATA",
    )
    kept.add_argument("--markdown", action="store_true", help="print tables as in docs/choosing.md")
    _add_bench_optimum(things)
    _add_bench_characterize(things)
    weighed = _command(
        things,
        "importance",
        _bench_importance,
        "compare the importance of what each policy keeps, in the settings of ojewole2006",
    )
    weighed.add_argument(
        "--markdown", action="store_true", help="print tables as in docs/importance.md"
    )
    _add_bench_spark(things)
    _add_bench_soak(things)


def _add_bench_optimum(things: Any) -> None:
    parser = _command(
        things,
        "optimum",
        _bench_optimum,
        "time the ways to the offline optimum, and the memory they take",
        " Two streams of Zipf keys, a row of each a tick; streams, windows and memories as in"
        " ojewole2006, and larger ones. Each figure is taken in a process of its own.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases")
    parser.add_argument(
        "--way", choices=bench.WAYS, nargs="+", action="extend", help="default: all of them"
    )
    parser.add_argument(
        "--case",
        metavar="N,W,SLOTS,DOMAIN",
        type=_several(_whole),
        action="append",
        help="instead: rows, window, rows held of each stream, keys; repeat for several",
    )
    parser.add_argument(
        "--skew",
        metavar="Z,Z",
        type=_several(_real),
        default=(1.0, 0.0),
        help="of each --case's streams; default: 1,0",
    )


def _add_bench_characterize(things: Any) -> None:
    parser = _command(
        things,
        "characterize",
        _bench_characterize,
        "time characterize in process and on Spark, and measure its memory",
        " On Spark at two sizes, so that what grows with the stream can be seen.",
    )
    parser.add_argument(
        "--rows", metavar="N", type=_whole, default=bench.CHARACTERIZE_ROWS, help="in process"
    )
    parser.add_argument(
        "--spark-rows", metavar="N", type=_whole, default=bench.CHARACTERIZE_ON_SPARK,
        help="of both streams; 0: without Spark",
    )  # fmt: skip
    parser.add_argument("--cores", metavar="N", type=_whole, default=2, help="default: 2")
    parser.add_argument(
        "--data",
        metavar="DIR",
        nargs="?",
        const=os.environ.get("JOINWEIR_DATA", ""),
        help="instead: what the real streams of this folder are like; default: JOINWEIR_DATA",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print tables as in docs/characterize.md"
    )


def _add_bench_spark(things: Any) -> None:
    parser = _command(
        things,
        "spark",
        _bench_spark,
        "time window_join beside Spark's own stream-stream join",
        " Same data, same sink, same session settings; each run in a process of its own. Spark's"
        " join holds state in three ways, each at the fastest of several settings, and takes most"
        " of the time: more than an hour with the defaults. Exits with 1 if exact joins differ in"
        " their number of results.",
    )
    parser.add_argument(
        "--rows-per-batch",
        metavar="N[,M]",
        type=_several(_whole),
        help="rows of both streams in a micro-batch; default: 200000,1000000",
    )
    parser.add_argument(
        "--batches", metavar="N", type=_whole, help="default: as many as fill the window, and 5"
    )
    parser.add_argument(
        "--window-rows", metavar="N", type=_whole, help="in the window; default: 200000"
    )
    parser.add_argument(
        "--payload", metavar="BYTES", type=_whole, help="of a row's text; default: 50 (--held: 200)"
    )
    parser.add_argument(
        "--partitions",
        metavar="N[,M]",
        type=_several(_whole),
        help="spark.sql.shuffle.partitions to try for Spark's join; default: 2,1,4",
    )
    parser.add_argument("--limit", metavar="SECONDS", type=_real, help="for a run; default: 600")
    parser.add_argument("--heap", metavar="SIZE", default="4g", help="of the JVM; default: 4g")
    parser.add_argument("--cores", metavar="N", type=_whole, default=2, help="default: 2")
    parser.add_argument(
        "--floor", action="store_true", help="instead: micro-batches of 20 rows, all joins"
    )
    parser.add_argument(
        "--held",
        metavar="N[,M]",
        nargs="?",
        const=(),
        type=_several(_whole),
        help="instead: window_join with so many rows held; default: 10000,1000000",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print tables as in docs/benchmarks.md"
    )


def _add_bench_soak(things: Any) -> None:
    parser = _command(
        things,
        "soak",
        _bench_soak,
        "run window_join for long with little memory, and watch the memory",
        " Exits with 1 if more bytes were ever held than the budget allows.",
    )
    parser.add_argument("--minutes", metavar="N", type=_real, default=10.0, help="default: 10")
    parser.add_argument("--memory", metavar="SIZE", default="64 MB", help="default: 64 MB")
    parser.add_argument(
        "--need", metavar="SIZE", default="1 GB", help="of the rows in the window; default: 1 GB"
    )
    parser.add_argument("--policy", metavar="P", default="gdj", help="default: gdj")
    parser.add_argument(
        "--rows-per-batch", metavar="N", type=_whole, default=100_000, help="default: 100000"
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with charts, too")
    parser.add_argument("-o", "--output", metavar="FILE", help="write all figures as JSON")


def _add_demo(commands: Any) -> None:
    parser = _command(
        commands,
        "demo",
        _demo,
        "show on made-up streams what a memory limit costs, on local Spark",
        " Takes two minutes on two cores, and a minute more the first time, while policies are"
        " compiled. Without pyspark or Java it runs in this process (--no-spark).",
    )
    parser.add_argument("--html", metavar="FILE", help="where the page with charts goes")
    parser.add_argument("--rows", metavar="N", type=_whole, help="of each stream, on Spark")
    parser.add_argument(
        "--no-spark", action="store_true", help="compare policies in this process, without Spark"
    )


# --- reading options ---------------------------------------------------------------------------
def _whole(text: str) -> int:
    """A whole number; 1e6 and 1_000_000 are fine."""
    try:
        number: float = int(text)
    except ValueError:
        number = _real(text)
    if not np.isfinite(number) or number != int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    if abs(number) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is too large")
    return int(number)


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _several(read: Callable) -> Callable:
    """One value, or a tuple of those between commas."""

    def read_several(text: str) -> Any:
        values = tuple(read(part.strip()) for part in text.split(","))
        return values if len(values) > 1 else values[0]

    return read_several


def _reader(annotation: Any) -> Callable:
    """How text becomes a value of an annotated type."""
    kinds = get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    inner = [part for kind in kinds for part in (get_args(kind) or (kind,))]
    read = _real if float in inner else _whole if int in inner else str
    if any(get_origin(kind) is tuple for kind in kinds):
        return _several(read)
    if any(get_origin(kind) is not None for kind in kinds):  # a sequence, even of one
        return lambda text: [read(part.strip()) for part in text.split(",")]
    return read


def _length(text: str) -> Any:
    """A number if it is one; else a duration, which is checked beside the time column."""
    text = text.strip()
    try:
        return int(text)
    except ValueError:
        pass
    return float(text) if re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", text.lower()) else text


def _window(text: str) -> Any:
    """What --within says."""
    kind, colon, amount = text.partition(":")
    if not colon:
        return _several(_length)(text)
    try:
        if kind.strip() == "rows":
            return jw.rows(_length(amount))
        if kind.strip() == "landmark":
            return jw.landmark(_length(amount))
    except JoinweirError as error:
        raise JoinweirError(f"--within {text}: {error}") from None
    raise unknown("window of --within", kind.strip(), ("rows:N", "landmark:LENGTH"))


def _names(text: str, option: str) -> str | tuple[str, ...]:
    """A column name, or one a stream: left_name=right_name."""
    names = tuple(name.strip() for name in text.split("="))
    if not all(names):
        raise JoinweirError(f"{option} {text!r}: a column's name is missing")
    return names if len(names) > 1 else names[0]


# --- showing -----------------------------------------------------------------------------------
def _console() -> Console:
    plain = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(
        file=sys.stdout,
        width=PLAIN_WIDTH if plain else None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def _table(*columns: str, left: Sequence[str] = ()) -> Table:
    """An empty table; columns are flushed right unless they are named in `left`."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        text = name in left
        table.add_column(
            name, justify="left" if text else "right", no_wrap=not text, overflow="fold"
        )
    return table


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.1%}"


class _Steps:
    """A progress bar on stderr, once the work has taken a second, and only on a terminal."""

    def __init__(self, total: float) -> None:
        self.total = total
        self.bar: Progress | None = None

    def __enter__(self) -> _Steps:
        if sys.stderr.isatty():
            self.bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
                console=Console(file=sys.stderr, emoji=False),
                transient=True,
            )
            self.task = self.bar.add_task("", total=self.total)
            self.timer = threading.Timer(PROGRESS_AFTER, self.bar.start)
            self.timer.daemon = True
            self.timer.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bar:
            self.timer.cancel()
            self.timer.join()
            self.bar.stop()

    def at(self, done: float, text: str) -> None:
        """So much is done, and this comes next."""
        if self.bar:
            self.bar.update(self.task, completed=done, description=text)


# --- compiling ---------------------------------------------------------------------------------
SLOW_TO_COMPILE = 2.0  # seconds; loading compiled code from disk takes a tenth of that


class _Ready:
    """Gets policies ready: loads or compiles their code, so that it is not timed with the join.

    A policy takes 5 to 13 s to compile, once a machine. When the first shows that nothing is
    compiled yet, the last of the others are left to processes beside this one, as many as there
    are cores; they put the code where this process finds it.
    """

    def __init__(self, policies: Sequence[Parameters], k: int = 2, **how: Any) -> None:
        self.policies, self.k, self.how = list(policies), k, how
        self.beside: dict[Parameters, subprocess.Popen] = {}

    def __enter__(self) -> _Ready:
        return self

    def __exit__(self, *error: Any) -> None:
        for process in set(self.beside.values()):
            process.kill()
            process.wait()

    def get(self, policy: Parameters) -> None:
        """Return when the policy can run without compiling."""
        if policy in self.beside:
            self.beside[policy].wait()
        begin = perf_counter()
        _compile(policy, self.k, **self.how)
        if policy == self.policies[0] and perf_counter() - begin > SLOW_TO_COMPILE:
            self._start_others()

    def _start_others(self) -> None:
        others = self.policies[1:]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        own = -(-len(others) // max(1, cores))
        helpers = min(cores - 1, len(others) - own)
        for i in range(helpers):
            share = others[own + i :: helpers]
            told = {"policies": [str(p) for p in share], "k": self.k, "how": self.how}
            nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            process = bench.start_beside("cli.compile_for_another", told, **nowhere)
            self.beside |= dict.fromkeys(share, process)


def compile_for_another() -> None:
    """In a process beside a command: compile what stdin says."""
    told = json.load(sys.stdin)
    for text in told["policies"]:
        with contextlib.suppress(JoinweirError):  # the command itself will meet it
            _compile(read_policy(text), told["k"], **told["how"])


def _compile(policy: Parameters, k: int, order: str = "probe_first", ordered: bool = True) -> None:
    config = JoinConfig(
        policy,
        lifetimes=(1,) * k,
        capacity=(1,) * k,
        order=order,
        ordered=ordered,
        lateness=() if ordered else (0,) * k,
    )
    nothing = {"key": np.empty(0, np.int64), "side": np.empty(0, np.int8)}
    JoinState(config, nothing)


# --- policies ----------------------------------------------------------------------------------
def _meanings(*docstrings: str | None) -> dict[str, str]:
    """Parameter → what it means, from numpydoc sections."""
    found: dict[str, str] = {}
    for text in docstrings:
        names: list[str] = []
        _, _, section = inspect.cleandoc(text or "").partition("Parameters\n----------\n")
        lines = section.splitlines()
        for line, following in zip(lines, [*lines[1:], ""]):
            if following.startswith("---"):  # the next section's title
                break
            if line and not line.startswith(" "):
                names = [name.strip(" *") for name in line.partition(":")[0].split(",")]
            elif line.strip():
                for name in names:
                    found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return found


def _parameters(name: str) -> list[dict[str, Any]]:
    params = definition(name).params
    meanings = _meanings(*(kind.__doc__ for kind in reversed(params.__mro__)))
    return [
        {"name": f.name, "default": f.default, "meaning": meanings.get(f.name, "")}
        for f in dataclasses.fields(params)
    ]


def _described_policy(name: str) -> dict[str, Any]:
    declared = definition(name)
    return {
        "name": name,
        "summary": declared.summary,
        "cost": declared.cost,
        "paper": declared.paper,
        "bounded": declared.bounded,
        "importance": declared.weighs,
        "parameters": _parameters(name),
    }


def _policies(options: argparse.Namespace) -> None:
    if options.name is not None:
        _one_policy(options.name, options.json)
        return
    found = [_described_policy(name) for name in policy_names()]
    if options.json:
        _print_json({"policies": found})
        return
    columns = ("policy", "what goes when memory is full", "cost per arrival", "paper", "parameters")
    table = _table(*columns, left=columns)
    table.columns[0].no_wrap = True
    for p in found:
        told = ", ".join(f"{q['name']}={q['default']}" for q in p["parameters"])
        table.add_row(p["name"], p["summary"], p["cost"], p["paper"], told)
    _console().print(table)
    print("joinweir policies NAME explains one.")


def _one_policy(name: str, as_json: bool) -> None:
    found = _described_policy(name)
    text = inspect.cleandoc(definition(name).module.__doc__ or "")
    if as_json:
        _print_json(found | {"text": text})
        return
    print(f"{name}\n\n{text}\n\nPaper: {found['paper']}. Cost per arrival: {found['cost']}.")
    table = _table("parameter", "default", "meaning", left=("parameter", "default", "meaning"))
    table.columns[0].no_wrap = True
    for p in found["parameters"]:
        table.add_row(p["name"], str(p["default"]), p["meaning"].replace("``", ""))
    _console().print(table)
    names = ",".join(f"{p['name']}=…" for p in found["parameters"][-2:])
    print(f"On the command line: --policy {name}:{names}")


# --- generate ----------------------------------------------------------------------------------
def _is_pair(kind: str) -> bool:
    return kind.endswith("_pair")


def _generate(options: argparse.Namespace) -> None:
    if options.list:
        _list_generators(options.json)
        return
    if options.kind is None:
        kinds = ", ".join(streams.GENERATORS)
        raise JoinweirError(f"give the kind of stream, or --list; choices: {kinds}")
    chosen = {
        name: getattr(options, f"option_{name}")
        for name in streams.options(options.kind)
        if hasattr(options, f"option_{name}")
    }
    files = [Path(options.output)]
    if _is_pair(options.kind):
        files = [files[0].with_name(f"{files[0].stem}_{s}{files[0].suffix}") for s in SIDES]
    for file in files:
        _check_output(file)
    try:
        made = streams.generate(options.kind, options.rows, **chosen)
        if options.importance is not None or options.importance_by_key:
            high = (50.0, 100.0) if options.importance is None else options.importance
            made = streams.with_importance(
                made, high=high, by_key=options.importance_by_key, seed=chosen.get("seed", 0)
            )
    except ValueError as error:
        raise JoinweirError(str(error)) from None
    made = made if isinstance(made, tuple) else (made,)
    for file, stream in zip(files, made):
        pq.write_table(pa.table(stream), file)
    if options.json:
        written = [
            {"file": str(file), "rows": int(stream["ts"].size), "columns": list(stream)}
            for file, stream in zip(files, made)
        ]
        _print_json({"kind": options.kind, "options": chosen, "files": written})
        return
    for file, stream in zip(files, made):
        print(f"{file}: {stream['ts'].size:,} rows of {', '.join(stream)}")


def _list_generators(as_json: bool) -> None:
    found = [
        {
            "name": kind,
            "summary": streams.summary(kind),
            "options": {
                name: None if option.default is option.empty else option.default
                for name, option in streams.options(kind).items()
            },
        }
        for kind in streams.GENERATORS
    ]
    if as_json:
        _print_json({"kinds": found})
        return
    columns = ("kind", "what it makes", "options")
    table = _table(*columns, left=columns)
    table.columns[0].no_wrap = True
    for kind in found:
        told = ", ".join(
            name if default is None else f"{name}={default}"
            for name, default in kind["options"].items()
        )
        table.add_row(kind["name"], kind["summary"], told)
    _console().print(table)
    print("joinweir generate KIND --help explains the options of one.")


def _check_output(path: str | Path) -> None:
    """Complain about a place that cannot be written to before the work, not after it."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise JoinweirError(f"{path}: there is no directory {folder}")
    if Path(path).is_dir():
        raise JoinweirError(f"{path}: is a directory, not a file to write")


# --- characterize ------------------------------------------------------------------------------
def _characterize(options: argparse.Namespace) -> None:
    files, asked = _asked_streams(options)
    for file in (options.html, options.output):
        if file:
            _check_output(file)
    if options.html:
        report.require_plotly()
    profiling.check_settings(options.h, options.top, options.seed, 0)
    with _Steps(1.0) as steps:
        asked["progress"] = lambda text, done: steps.at(done, text)
        if options.spark:
            _need_spark("characterize --spark")
            from .spark import profiling as on_spark

            found = on_spark.characterize_files(files, **asked)
        else:
            tables = [_read_stream(file, asked, s, len(files)) for s, file in enumerate(files)]
            asked.pop("where")
            found = jw.characterize(*tables, **asked)
    if options.output:
        found.save(options.output)
    if options.html:
        Path(options.html).write_text(found.to_html(), encoding="utf-8")
    if options.json:
        print(found.to_json())
        return
    for sentence in found.verdict():
        print(_filled(sentence))
    tables = [found.measures(), *([found.window_table()] if found.windows else [])]
    for head, lines in tables:
        table = _table(*head, left=head[:1])
        for line in lines:
            table.add_row(*line)
        _console().print(table)
    for note in (f"{p.name}: {note}" for p in found.profiles for note in p.notes):
        print(_filled(note))
    for file in (options.html, options.output):
        if file:
            print(file)


def _asked_streams(options: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """The file of each stream, and the arguments for `characterize`."""
    files, where = list(options.files), None
    if options.where:
        name, equals, values = options.where.partition("=")
        where = (name.strip(), [value.strip() for value in values.split(",")])
        if not equals or not all([name, *where[1]]) or len(where[1]) > 2:
            raise JoinweirError(f"--where {options.where}: write COLUMN=VALUE or COLUMN=A,B")
        if len(where[1]) == 2 and len(files) == 1:
            files *= 2
    if len(files) > 2:
        raise JoinweirError(f"give one file or two, not {len(files)}")
    names = [Path(file).stem.partition(".")[0] for file in files]
    if where and len(where[1]) == 2:
        names = where[1]
    elif len(set(names)) < len(names):
        names = list(SIDES)
    within = [part for text in options.within or () for part in text.split(",")]
    key = [_names(name, "--key") for part in options.key for name in part.split(",")]
    asked = {
        "key": key,
        "time": None if options.time is None else _names(options.time, "--time"),
        "within": [_length(part) for part in within] or None,
        "h": options.h,
        "top": options.top,
        "seed": options.seed,
        "names": names,
        "where": where,
    }
    for name in [*key, asked["time"]]:
        if isinstance(name, tuple) and len(name) != len(files):
            raise JoinweirError(
                f"{'='.join(name)} names {len(name)} columns for {len(files)} stream(s)"
            )
    return files, asked


def _read_stream(file: str, asked: dict[str, Any], s: int, k: int) -> pa.Table:
    """A stream's columns that are needed, and its rows that are asked for."""
    wanted = [*asked["key"], *([asked["time"]] if asked["time"] else [])]
    names = [name[s] if isinstance(name, tuple) else name for name in wanted]
    if asked["where"] is None:
        return read_file(file, names)
    column, values = asked["where"]
    table = read_file(file, [*names, column])
    kept = pc.equal(pc.cast(table[column], pa.string()), values[s if len(values) == k else 0])
    return table.filter(kept).select(list(dict.fromkeys(names)))


# --- simulate ----------------------------------------------------------------------------------
def _default_policies() -> list[str]:
    """Every policy that keeps to a budget."""
    return [name for name in policy_names() if definition(name).bounded]


def _simulate(options: argparse.Namespace) -> None:
    files = _input_files(options)
    named = options.policy or _default_policies()
    chosen = [read_policy(text) for text in named if text != OPTIMUM]
    if not chosen:
        raise JoinweirError(
            f"--policy {OPTIMUM} is there to compare with: name another one too, or use "
            "joinweir optimum"
        )
    if OPTIMUM in named and (options.lateness is not None or options.max_rows is None):
        raise JoinweirError(f"--policy {OPTIMUM} goes with --max-rows, and without --lateness")
    chosen = list(dict.fromkeys(chosen))
    bounded = any(definition(p.name).bounded for p in chosen)
    if options.max_rows is None and options.memory is None and bounded:
        raise JoinweirError("give a budget: --max-rows N or --memory SIZE")
    if options.output:
        if len(chosen) != 1:
            raise JoinweirError(f"-o {options.output} needs a single --policy, not {len(chosen)}")
        _check_output(options.output)
    on = [_names(name, "--on") for part in options.on for name in part.split(",")]
    time = _names(options.time, "--time")
    arguments = {
        "on": on,
        "time": time,
        "within": _window(options.within),
        "max_rows": options.max_rows,
        "memory": _several(str)(options.memory) if options.memory is not None else None,
        "allocation": options.allocation,
        "order": options.order,
        "closed": options.closed,
        "lateness": None if options.lateness is None else _several(_length)(options.lateness),
        "accounting": options.accounting,
        "seed": options.seed,
    }
    imp = None
    if options.importance is not None:
        imp = _several(lambda name: name or None)(options.importance)
        arguments |= {"importance": imp, "combine": options.combine or COMBINATIONS[0]}
    elif options.combine is not None:
        raise JoinweirError("--combine needs --importance COLUMN")
    tables = _read_streams(files, on, time, imp, whole=options.memory is not None)
    found: list[tuple[JoinResult, float]] = []
    skipped: dict[str, str] = {}
    how = {"order": options.order, "ordered": options.lateness is None}
    with _Steps(len(chosen)) as steps, _Ready(chosen, len(tables), **how) as ready:
        for i, policy in enumerate(chosen):
            steps.at(i, str(policy))
            try:
                ready.get(policy)
                found.append(_timed(tables, policy, arguments, bool(options.output)))
            except JoinweirError as error:
                # Who names no policy wants those that can do this join; the others say why not.
                if options.policy:
                    raise
                skipped[str(policy)] = str(error)
    if not found:
        raise JoinweirError(next(iter(skipped.values())))
    weighed = options.importance is not None
    found.sort(key=lambda pair: -(pair[0].importance if weighed else pair[0].n_out))
    best = None
    if OPTIMUM in named:
        about = ["on", "time", "within", "max_rows", "memory", "allocation", "order", "closed"]
        asked = {name: arguments[name] for name in about}
        if weighed:
            asked |= {name: arguments[name] for name in ("importance", "combine")}
            asked["objective"] = "importance"
        best = _solved(tables, asked)
    if options.output:
        _write_pairs(found[0][0], options.output)
    if options.json:
        _print_json(_comparison(found, files, options, skipped, best))
    else:
        _show_comparison(found, files, options, skipped, best)


def _input_files(options: argparse.Namespace) -> list[str]:
    if options.stream:
        if options.left or options.right:
            raise JoinweirError("give --left and --right, or --stream twice or more, not both")
        if len(options.stream) < 2:
            raise JoinweirError("give --stream twice or more")
        return options.stream
    for side in SIDES:
        if not getattr(options, side):
            raise JoinweirError(f"--{side} FILE is missing (or give --stream twice or more)")
    return [options.left, options.right]


def _read_streams(
    files: Sequence[str], on: list, time: Any, imp: Any, *, whole: bool
) -> list[pa.Table]:
    """The files' columns that the join needs; all of them if bytes count."""
    tables = []
    for s, file in enumerate(files):
        names = []
        for name, option in [*((n, "--on") for n in on), (time, "--time"), (imp, "--importance")]:
            if isinstance(name, tuple) and len(name) != len(files):
                told = "=".join(part or "" for part in name)
                raise JoinweirError(
                    f"{option} {told} names {len(name)} columns for {len(files)} streams"
                )
            wanted = name[s] if isinstance(name, tuple) else name
            if wanted is not None:
                names.append(wanted)
        tables.append(_read_parquet(file, names, whole))
    return tables


def _read_parquet(file: str, names: Sequence[str], whole: bool) -> pa.Table:
    if not Path(file).exists():
        raise JoinweirError(f"{file}: no such file")
    try:
        data = ds.dataset(file, format="parquet", partitioning="hive")
        if not data.files:
            raise JoinweirError(f"{file}: a directory without Parquet files")
        for name in names:
            if name not in data.schema.names:
                raise unknown(f"column of {file}", name, data.schema.names)
        return data.to_table(columns=None if whole else list(dict.fromkeys(names)))
    except pa.ArrowException as error:
        reason = _first_line(error).rpartition(": ")[2]  # Arrow tells what it was doing first
        raise JoinweirError(f"{file}: not readable as Parquet: {reason}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _timed(
    tables: list[pa.Table], policy: Parameters, arguments: dict[str, Any], pairs: bool
) -> tuple[JoinResult, float]:
    begin = perf_counter()
    try:
        result = jw.simulate(tables, **arguments, policy=policy, pairs=pairs, shed=False)
    except pa.ArrowException as error:
        raise JoinweirError(f"cannot read the columns: {_first_line(error)}") from None
    return result, perf_counter() - begin


def _write_pairs(result: JoinResult, file: str) -> None:
    names = (
        [f"{side}_row" for side in SIDES]
        if len(result.pairs) == 2
        else [f"stream{i + 1}_row" for i in range(len(result.pairs))]
    )
    columns = dict(zip(names, result.pairs))
    if result.pair_importance is not None:
        columns["importance"] = result.pair_importance
    pq.write_table(pa.table(columns), file)


def _share(result: JoinResult, best: optimum.Optimum) -> float:
    """Of the most that is possible: if the optimum is not known exactly, of its upper bound."""
    got = result.n_out if best.objective == "count" else result.importance
    return got / best.upper_bound if best.upper_bound else 1.0


def _comparison(found, files, options, skipped, best=None) -> dict[str, Any]:
    first = found[0][0]
    more = {} if best is None else {"optimum": best.to_dict()}
    return {
        "files": list(files),
        "within": options.within,
        "max_rows": options.max_rows,
        "memory": options.memory,
        "n_exact": first.n_exact,
        "n_exact_error": first.n_exact_error,
        "n_in": list(first.n_in),
        "policies": [
            result.to_dict()
            | {"seconds": seconds}
            | ({} if best is None else {"share_of_optimum": _share(result, best)})
            for result, seconds in found
        ],
        **more,
        "skipped": skipped,
        "output": options.output,
    }


def _show_comparison(found, files, options, skipped, best=None) -> None:
    first = found[0][0]
    streams_read = " and ".join(f"{n:,} rows of {f}" for n, f in zip(first.n_in, files))
    print(f"{streams_read}, within {options.within}")
    for name, what in (("n_null", "have a null key"), ("n_late", "are late")):
        if any(getattr(first, name)):
            print(f"{_numbers(getattr(first, name))} rows {what}")
    if first.n_exact is None:
        print("Exact join: not counted (--accounting off)")
    elif first.n_exact_error:
        print(f"Exact join: about {first.n_exact:,.0f} ± {first.n_exact_error:,.0f} results")
    else:
        print(f"Exact join: {first.n_exact:,} results")
    if first.importance_exact is not None:
        print(f"Importance of the exact join: {first.importance_exact:,.6g}")
    if options.memory:
        print(f"Memory: {options.memory} for rows, index, policy and accounting")
    elif options.max_rows:
        rows = options.max_rows if isinstance(options.max_rows, tuple) else (options.max_rows,)
        print(f"Memory: {_numbers(rows)} rows")
    weighed = first.importance is not None
    columns = ("results", "recall", "shed", "not admitted", "held", "seconds")
    worth = ("importance", "importance\nrecall") if weighed else ()
    more = () if best is None else ("of optimum",)
    table = _table("policy", *worth, *columns, *more, left=("policy",))
    table.columns[0].no_wrap = True
    if best is not None:
        shown = (f"{best.importance:,.6g}", _percent(best.recall)) if weighed else ()
        recall = _percent(best.n_out / best.n_exact if best.n_exact else 1.0)
        whole = recall, "", "", "", f"{best.seconds:.2f}", _percent(1.0)
        table.add_row(OPTIMUM, *shown, f"{best.n_out:,}", *whole)
    for result, seconds in found:
        shown = (f"{result.importance:,.6g}", _percent(result.importance_recall)) if weighed else ()
        table.add_row(
            str(result.policy),
            *shown,
            f"{result.n_out:,}",
            _percent(result.recall),
            f"{sum(result.n_evicted):,}",
            f"{sum(result.n_refused):,}",
            f"{sum(result.rows_held):,}",
            f"{seconds:.2f}",
            *([] if best is None else [_percent(_share(result, best))]),
        )
    _console().print(table)
    if best is not None and best.gap:
        unit = "results" if best.objective == "count" else "of importance"
        print(f"The optimum is between {best.value:,} and {best.upper_bound:,} {unit}")
    for name, reason in skipped.items():
        print(f"left out {name}: {reason}")
    if options.output:
        print(f"{options.output}: {first.n_out:,} results")


# --- optimum -----------------------------------------------------------------------------------
def _solved(tables: list[pa.Table], arguments: dict[str, Any]) -> optimum.Optimum:
    if len(tables) != 2:
        raise JoinweirError(f"the optimum is for two streams, not {len(tables)}")
    with _Steps(1.0) as steps:
        return jw.optimum.solve(
            *tables, **arguments, progress=lambda share, what: steps.at(share, f"optimum, {what}")
        )


def _optimum(options: argparse.Namespace) -> None:
    files = _input_files(options)
    if options.output:
        _check_output(options.output)
    on = [_names(name, "--on") for part in options.on for name in part.split(",")]
    time = _names(options.time, "--time")
    importance = None if options.importance is None else _names(options.importance, "--importance")
    tables = _read_streams(files, on, time, importance, whole=False)
    objective = options.objective or ("count" if importance is None else "importance")
    arguments = {
        "on": on,
        "time": time,
        "within": _window(options.within),
        "max_rows": options.max_rows,
        "allocation": options.allocation,
        "order": options.order,
        "closed": options.closed,
        "objective": objective,
        "importance": importance,
        "combine": options.combine,
        "method": options.method,
        "solver": options.solver,
    }
    if options.piece_gaps is not None:
        arguments["piece_gaps"] = options.piece_gaps
    best = _solved(tables, arguments)
    memory_mb = bench.peak_memory_mb()
    if options.output:
        pq.write_table(pa.table(best.retained._asdict()), options.output)
    if options.json:
        more = {"files": list(files), "memory_mb": memory_mb, "output": options.output}
        _print_json(best.to_dict() | more)
        return
    streams_read = " and ".join(f"{n:,} rows of {f}" for n, f in zip(best.n_in, files))
    print(f"{streams_read}, within {options.within}")
    if any(best.n_null):
        print(f"{_numbers(best.n_null)} rows have a null key")
    worth = "" if best.importance is None else f", importance {best.exact_importance:,.6g}"
    print(f"Exact join: {best.n_exact:,} results{worth}")
    if best.slots is not None:
        print(f"Memory: {_numbers(best.slots)} rows")
    worth = "" if best.importance is None else f", importance {best.importance:,.6g}"
    share = f"{_percent(best.recall)} of the exact join"
    print(f"Optimum: {best.n_out:,} results{worth} ({share}), {best.retained.row.size:,} rows held")
    if best.gap:
        print(f"No policy gets more than {best.upper_bound:,.6g}: {best.gap:.2%} above this")
    print(
        f"{', '.join(dict.fromkeys(best.solver))}: {best.seconds:.2f} s, {memory_mb:,.0f} MB; "
        f"{best.n_options:,} choices for {best.n_rows:,} rows in {best.n_gaps:,} gaps"
    )
    if options.output:
        print(f"{options.output}: {best.retained.row.size:,} rows to hold")


# --- run ---------------------------------------------------------------------------------------
def _run(options: argparse.Namespace) -> int:
    try:
        from .spark import running
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("joinweir"):
            raise
        raise JoinweirError(
            f"joinweir run needs {error.name or 'pyspark'}: pip install 'joinweir[spark]'"
        ) from None
    job = read_job(options.job, check_generator=running.check_generator)
    if options.check:
        if options.json:
            _print_json({"job": options.job, "ok": True})
        else:
            print(f"{options.job}: ok")
        return 0
    try:
        return running.run_job(job, as_json=options.json, once=options.once)
    except running.QueryFailed as error:
        print(f"joinweir: the query failed: {error}", file=sys.stderr)
        return FAILED


# --- bench -------------------------------------------------------------------------------------
def _bench_engine(options: argparse.Namespace) -> None:
    rows = options.rows or (bench.QUICK_ROWS if options.quick else bench.ROWS)
    arrivals = bench.QUICK_ARRIVALS if options.quick else bench.ARRIVALS
    if options.arrivals is not None:
        arrivals = options.arrivals
    machine = bench.machine() | {"joinweir": jw.__version__}
    with _Steps(1.0) as steps:
        timings = bench.time_engine(
            options.policy,
            rows,
            arrivals=arrivals,
            pairs_up_to=options.pairs_up_to,
            progress=lambda text, done: steps.at(done, text),
        )
    growth = bench.growth(timings)
    if options.json:
        parameters = {
            "domain": bench.DOMAIN,
            "skew": bench.SKEW,
            "share": bench.SHARE,
            "rows": list(rows),
            "arrivals": arrivals,
            "pairs_up_to": options.pairs_up_to,
            "max_pairs": bench.MAX_PAIRS,
            "slices": bench.SLICES,
        }
        _print_json(
            {
                "machine": machine,
                "parameters": parameters,
                "rows": [t.to_dict() for t in timings],
                "growth": growth,
            }
        )
        return
    _show_timings(timings, growth, arrivals, machine)


def _bench_recall(options: argparse.Namespace) -> None:
    policies = options.policy or list(bench.RECALL_POLICIES)
    shares = options.share or list(bench.RECALL_SHARES)
    for share in shares:
        if not 0 < share <= 1:
            raise JoinweirError(f"--share must be more than 0 and at most 1, not {share}")
    pairs, absent = None, []
    if options.data is not None:
        pairs, absent = bench.real_streams(options.data)
        for file in absent:
            print(f"joinweir: {file} is not in {options.data!r}", file=sys.stderr)
        if not pairs:
            raise JoinweirError(
                f"no data in {options.data!r}; set JOINWEIR_DATA or give --data DIR"
            )
    with _Steps(1.0) as steps:
        found = bench.measure_recall(
            policies, shares, pairs=pairs, progress=lambda text, done: steps.at(done, text)
        )
    if options.json:
        _print_json({"rows": found, "absent": absent})
        return
    names = list(dict.fromkeys(row["stream"] for row in found))
    for share in shares:
        own = {(r["policy"], r["stream"]): r["recall"] for r in found if r["share"] == share}
        best = {name: max(own[policy, name] for policy in policies) for name in names}
        table = _table("policy", *names, left=["policy"])
        lines = [f"| policy | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
        for policy in policies:
            shown = [
                (f"{own[policy, name]:.3f}", own[policy, name] == best[name]) for name in names
            ]
            table.add_row(policy, *(text for text, _ in shown))
            marked = (f"**{text}**" if is_best else text for text, is_best in shown)
            lines.append(f"| {policy} | {' | '.join(marked)} |")
        if options.markdown:
            print(f"Memory for {share:.0%} of the window:\n", *lines, "", sep="\n")
        else:
            _console().print(f"memory for {share:.0%} of the window", table)


def _bench_optimum(options: argparse.Namespace) -> None:
    cases = bench.optimum_cases(options.quick)
    if options.case:
        skew = options.skew if isinstance(options.skew, tuple) else (options.skew, options.skew)
        for case in options.case:
            if not isinstance(case, tuple) or len(case) != 4 or len(skew) != 2:
                raise JoinweirError("--case takes four numbers N,W,SLOTS,DOMAIN, and --skew two")
        cases = [bench.OptimumCase(*case, skew) for case in options.case]
    machine = bench.machine()
    with _Steps(1.0) as steps:
        found = bench.measure_optimum(
            cases, options.way or bench.WAYS, progress=lambda text, share: steps.at(share, text)
        )
    if options.json:
        _print_json({"machine": machine, "cases": found})
        return
    columns = (
        "N",
        "w",
        "M/2",
        "keys",
        "skew",
        "way",
        "seconds",
        "CPU s",
        "MB",
        "importance",
        "gap",
    )
    table = _table(*columns, left=("way",))
    for case in found:
        about = [f"{case[name]:,}" for name in ("n", "window", "slots", "domain")]
        about += [", ".join(f"{z:g}" for z in case["skew"]), case["way"]]
        if "refused" in case:
            table.add_row(*about, *"-----")
            continue
        took = f"{case['seconds']:.2f}", f"{case['cpu_seconds']:.2f}", f"{case['memory_mb']:.0f}"
        table.add_row(*about, *took, f"{case['value']:,.0f}", f"{case['gap']:.2%}")
    _console().print(table)
    for reason in dict.fromkeys(case["refused"] for case in found if "refused" in case):
        print(f"- {reason}")
    _show_load(machine)


def _bench_characterize(options: argparse.Namespace) -> None:
    machine = bench.machine() | {"joinweir": jw.__version__}
    absent: list[str] = []
    if options.spark_rows and options.data is None:
        _need_spark("bench characterize (--spark-rows 0: without Spark)")
    for name in ("rows", "spark_rows"):
        least = 0 if name == "spark_rows" else 1000
        if 0 < getattr(options, name) < 1000 or getattr(options, name) < least:
            raise JoinweirError(f"--{name.replace('_', '-')} must be at least 1000")
    with _Steps(1.0) as steps:

        def progress(text: str, done: float) -> None:
            steps.at(done, text)

        if options.data is not None:
            found, absent = bench.characterize_real(options.data, progress)
        else:
            found = bench.time_characterize(
                options.rows, options.spark_rows or None, cores=options.cores, progress=progress
            )
    for file in absent:
        print(f"joinweir: {file} is not in {options.data!r}", file=sys.stderr)
    if not found:
        raise JoinweirError(f"no data in {options.data!r}; set JOINWEIR_DATA or give --data DIR")
    if options.json:
        _print_json({"machine": machine, "rows": found, "absent": absent})
        return
    if options.data is None and not options.markdown:
        _show_load(machine)
    show = _real_line if options.data is not None else _speed_line
    lines = [show(row) for row in found]
    if options.markdown:
        print(f"| {' | '.join(lines[0])} |", "|---" * len(lines[0]) + "|", sep="\n")
        print(*(f"| {' | '.join(line.values())} |" for line in lines), sep="\n")
        return
    table = _table(*lines[0], left=list(lines[0])[:1])
    for line in lines:
        table.add_row(*line.values())
    _console().print(table)


def _speed_line(row: dict[str, Any]) -> dict[str, str]:
    cpu, peaks = row.get("cpu_seconds"), row.get("peaks")
    return {
        "engine": row["engine"],
        "streams": str(row["streams"]),
        "rows": f"{row['rows']:,}",
        "seconds": f"{row['seconds']:.1f}",
        "CPU seconds, JVM + Python": f"{cpu['jvm']:.0f} + {cpu['python']:.0f}" if cpu else "",
        "MB of the driver's Python": f"{row['driver_bytes'] / 2**20:,.0f}",
        "MB of a worker": f"{peaks['python_largest'] / 2**20:,.0f}" if peaks else "",
        "KB of the result": f"{row['bytes_of_result'] / 1024:,.0f}",
    }


def _real_line(row: dict[str, Any]) -> dict[str, str]:
    def both(name: str, form: str) -> str:
        return " / ".join(format(value, form) for value in row[name])

    return {
        "streams": row["streams"],
        "rows": both("rows", ","),
        "keys": both("keys", ","),
        "Zipf, least squares": both("zipf_least_squares", ".2f"),
        "Zipf, likelihood": both("zipf_likelihood", ".2f"),
        "locality": both("locality", ".2f"),
        "b": both("b", ".2f"),
        "window": row["window"],
        "pairs": f"{row['pairs']:,}",
        "lift": f"{row['lift']:.2f}",
        "newest / popular tenth": f"{row['kept_by_recency']:.2f} / {row['kept_by_popularity']:.2f}",
        "favours": ", ".join(row["favoured"]),
    }


def _bench_importance(options: argparse.Namespace) -> None:
    with _Steps(1.0) as steps:
        found = bench.measure_importance(progress=lambda text, done: steps.at(done, text))
    if options.json:
        _print_json({"rows": found})
        return
    for sweep, claim in bench.IMPORTANCE_CLAIMS.items():
        own = [row for row in found if row["sweep"] == sweep]
        settings = list(dict.fromkeys(row["setting"] for row in own))
        policies = list(dict.fromkeys(row["policy"] for row in own))
        share = {(row["policy"], row["setting"]): row["importance_recall"] for row in own}
        best = {setting: max(share[p, setting] for p in policies) for setting in settings}
        table = _table("policy", *settings, left=["policy"])
        lines = [f"| policy | {' | '.join(settings)} |", "|---" * (1 + len(settings)) + "|"]
        for policy in policies:
            shown = [(f"{share[policy, s]:.3f}", share[policy, s] == best[s]) for s in settings]
            table.add_row(policy, *(text for text, _ in shown))
            marked = (f"**{text}**" if is_best else text for text, is_best in shown)
            lines.append(f"| {policy} | {' | '.join(marked)} |")
        if options.markdown:
            print(f"### {sweep}\n\n{claim}\n", *lines, "", sep="\n")
        else:
            _console().print(f"{sweep}. {claim}", table)


def _show_timings(
    timings: list[bench.Timing], growth: dict, arrivals: int, machine: dict[str, Any]
) -> None:
    print(
        f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}, "
        f"numba {machine['numba']}\n"
        f"Zipf {bench.SKEW} over {bench.DOMAIN:,} keys; B rows held, {bench.SHARE:.0%} of the "
        f"window; one window to warm up, then {arrivals:,} arrivals, best of {bench.SLICES} slices"
    )
    if machine["load"] is not None and machine["load"] > machine["cores"] / 2:
        print(
            f"Other programs kept this machine busy (load {machine['load']} on {machine['cores']} "
            "cores): the times are too long, and the ratios unsure."
        )
    numbers = ("ns per\narrival", "M arrivals\n/ second", "matches\n/ arrival", "time\n/ full")
    table = _table("policy", "B", "results", *numbers, left=("policy", "results"))
    table.columns[0].no_wrap = table.columns[2].no_wrap = True
    short = []
    for t, following in zip(timings, [*timings[1:], None]):
        mark = ""
        if t.warmed < t.window or t.arrivals < arrivals:
            short.append(t)
            mark = " *"
        table.add_row(
            t.policy + mark,
            f"{t.rows:,}",
            "written" if t.pairs else "counted",
            f"{t.ns_per_arrival:,.0f}",
            f"{1e3 / t.ns_per_arrival:.2f}",
            f"{t.matches_per_arrival:,.2f}",
            f"{t.ratio_to_full:.2f}",
            end_section=following is not None and following.rows != t.rows,
        )
    _console().print(table)
    for t in short:
        how = "written" if t.pairs else "counted"
        print(
            f"* {t.policy}, B = {t.rows:,}, {how}: {t.arrivals:,} arrivals timed after "
            f"{t.warmed:,} of {t.window:,} to warm up"
        )
    if growth:
        print("\nTime per arrival as B grows, results counted:")
        table = _table("policy", "B from", "to", "time", left=("policy",))
        table.columns[0].no_wrap = True
        for name, g in growth.items():
            sign = "×" if g["whole_window"] else "more than ×"
            amount = f"{sign} {g['ratio']:.2f}"
            table.add_row(name, f"{g['from_rows']:,}", f"{g['to_rows']:,}", amount)
        _console().print(table)


def _spark_missing() -> str | None:
    """Why Spark cannot run here, or None."""
    for package in ("pyspark", "pandas"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (pip install 'joinweir[spark]')"
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    try:
        told = subprocess.run([java or "java", "-version"], capture_output=True, text=True)
    except OSError:
        return "there is no Java (install 17 or 21, or set JAVA_HOME)"
    version = re.search(r'version "(\d+)', told.stderr + told.stdout)
    if version is None or int(version[1]) < 17:
        return f"Java 17 or 21 is needed (set JAVA_HOME), and {java} is another"
    return None


def _need_spark(command: str) -> None:
    missing = _spark_missing()
    if missing:
        raise JoinweirError(f"{command} needs Spark: {missing}")


def _tuple(values: Any) -> tuple:
    return values if isinstance(values, tuple) else (values,)


def _bench_spark(options: argparse.Namespace) -> None:
    _need_spark("bench spark")
    from .spark import benchmark

    where = {"cores": options.cores, "heap": options.heap}
    where["limit"] = benchmark.LIMIT if options.limit is None else options.limit
    sizes = benchmark.SIZES if options.rows_per_batch is None else _tuple(options.rows_per_batch)
    machine = bench.machine() | {"joinweir": jw.__version__}
    with _Steps(1.0) as steps:
        where["progress"] = lambda text, done: steps.at(done, text)
        if options.floor:
            batches = options.batches or benchmark.FLOOR_BATCHES
            found: Any = benchmark.measure_floor(batches=batches, **where)
            sheets = [benchmark.comparison_sheet(found), benchmark.breakdown_sheet(found)]
        elif options.held is not None:
            found = benchmark.measure_held(
                _tuple(options.held) or benchmark.HELD,
                rows_per_batch=sizes[0],
                payload=options.payload or benchmark.LARGE_PAYLOAD,
                **where,
            )
            sheets = [benchmark.held_sheet(found)]
        else:
            found = benchmark.compare_joins(
                sizes,
                batches=options.batches,
                window_rows=options.window_rows or benchmark.WINDOW_ROWS,
                payload=options.payload or benchmark.PAYLOAD,
                partitions=_tuple(options.partitions or benchmark.TRIED_PARTITIONS),
                **where,
            )
            sheets = [
                sheet(each)
                for each in found
                for sheet in (benchmark.comparison_sheet, benchmark.breakdown_sheet)
            ]
    if options.json:
        _print_json({"machine": machine, "found": found})
    else:
        _show_load(machine)
        for sheet in sheets:
            _show_sheet(sheet, options.markdown)
    if not all(each.get("equal", True) for each in (found if isinstance(found, list) else [found])):
        print("joinweir: the exact joins differ in their number of results", file=sys.stderr)
        raise SystemExit(1)


def _show_load(machine: dict[str, Any]) -> None:
    if machine["load"] is not None and machine["load"] > machine["cores"] / 2:
        print(
            f"Other programs kept this machine busy (load {machine['load']} on {machine['cores']} "
            "cores): the times are too long, and the ratios unsure."
        )


def _show_sheet(sheet: Any, markdown: bool = False) -> None:
    if markdown:
        print(sheet.markdown(), end="\n\n")
        return
    table = _table(*sheet.columns, left=sheet.columns[:1])
    table.columns[0].no_wrap = True
    for row in sheet.rows:
        table.add_row(*row)
    print(_filled(sheet.title))
    _console().print(table)
    for note in sheet.notes:
        print(_filled(note))
    print()


def _bench_soak(options: argparse.Namespace) -> None:
    _need_spark("bench soak")
    from .spark import benchmark

    for file in (options.html, options.output):
        if file:
            _check_output(file)
    if options.html:
        report.require_plotly()
    machine = bench.machine() | {"joinweir": jw.__version__}
    read_policy(options.policy)
    with _Steps(1.0) as steps:
        found = benchmark.soak(
            minutes=options.minutes,
            memory=options.memory,
            need=options.need,
            policy=options.policy,
            rows_per_batch=options.rows_per_batch,
            progress=lambda text, done: steps.at(done, text),
        )
    found = {"machine": machine} | found
    sheet = benchmark.soak_sheet(found)
    if options.output:
        Path(options.output).write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    if options.html:
        Path(options.html).write_text(_soak_page(found, sheet), encoding="utf-8")
    if options.json:
        _print_json(found)
    else:
        _show_sheet(sheet)
        verdict = "never exceeded" if not found["exceeded"] else "EXCEEDED"
        print(f"The budget was {verdict} ({found['exceeded']} of {len(found['batches'])} times).")
        for file in (options.html, options.output):
            if file:
                print(file)
    if found["exceeded"]:
        raise SystemExit(1)


def _soak_page(found: dict[str, Any], sheet: Any) -> str:
    batches, resident = found["batches"], found["resident"]

    def over_time(points: Sequence[dict[str, Any]], unit: float, **names: str) -> dict:
        return {
            label: [(p["at"] / 60, p[name] / unit) for p in points if p[name] is not None]
            for name, label in names.items()
        }

    budget = ("budget", found["parameters"]["memory"] / 2**20)
    held = over_time(batches, 2**20, bytes_held="held by the join")
    resident_mb = over_time(
        resident,
        2**20,
        python="Python workers",
        python_anonymous="Python workers, not mapped files",
        jvm="JVM",
    )
    minutes = "minutes"
    parts = [
        report.paragraph(sheet.title),
        report.table(sheet.columns, sheet.rows),
        *map(report.paragraph, sheet.notes),
        report.heading("Bytes held by the join"),
        report.line_chart(held, x=minutes, y="MB", first=True, limit=budget),
        report.heading("Resident memory"),
        report.line_chart(resident_mb, x=minutes, y="MB", first=False),
        report.heading("Recall of each micro-batch"),
        report.line_chart(
            over_time(batches, 1.0, recall="recall"), x=minutes, y="", first=False, percent=True
        ),
        report.heading("Time of a micro-batch"),
        report.line_chart(
            over_time(batches, 1.0, seconds="micro-batch"), x=minutes, y="seconds", first=False
        ),
    ]
    return report.page("window_join over a long run", parts)


# --- demo --------------------------------------------------------------------------------------
DEMO_POLICIES = ("full", "fifo", "prob", "gdj", "rand")  # so two cores compile equally long
DEMO_ROWS, DEMO_KEYS, DEMO_WITHIN, DEMO_SHARE = 20_000, 1000, 1000, 0.10
DEMO_SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclasses.dataclass(frozen=True)
class _Situation:
    """Two streams to show, and what there is to say about them."""

    title: str
    about: str
    why: dict[str, str]  # policy → why it does as it does here
    make: Callable[[], Any]


DEMO = (
    _Situation(
        "Popular keys stay popular",
        "Some keys come far more often than others, always the same ones, and the streams are "
        "otherwise independent. Think of orders and price changes of a shop's articles.",
        {
            "prob": "it counts keys and forgets the rows whose key is rare on the other side",
            "gdj": "it keeps rows that have matched before, and has to find them out first",
            "fifo": "the oldest row is as likely to match as any other",
        },
        lambda: streams.zipf_pair(DEMO_ROWS, domain=DEMO_KEYS, skew=0.9, seed=1),
    ),
    _Situation(
        "Keys come in bursts, on both streams at once",
        "A key that was seen a moment ago, on either stream, is likely to come again soon; later "
        "it is quiet. Think of page views and clicks of the visitors who are there now.",
        {
            "gdj": "it sees from recent matches which keys are active now",
            "fifo": "the oldest row belongs to a burst that is probably over",
            "prob": "its counts say which keys were popular so far, not which are now",
        },
        lambda: streams.copy_pair(DEMO_ROWS, domain=DEMO_KEYS, shared=True, seed=1),
    ),
)
ADVICE = (
    "Which to choose: prob if popular keys stay popular; gdj if both streams turn to the same "
    "keys for a while; fifo and rand only as a yardstick. If you do not know, compare them on "
    "your own streams."
)


def _demo(options: argparse.Namespace) -> None:
    if options.html:
        report.require_plotly()
        _check_output(options.html)
    missing = None if options.no_spark else _spark_missing()
    if missing:
        print(f"joinweir: without Spark, since {missing}", file=sys.stderr)
    if options.no_spark or missing:
        _demo_in_process(options)
    else:
        _demo_on_spark(options)


def _demo_in_process(options: argparse.Namespace) -> None:
    shown = []
    policies = [read_policy(name) for name in DEMO_POLICIES]
    with _Steps(len(DEMO_POLICIES) + len(DEMO)) as steps, _Ready(policies) as ready:
        for i, policy in enumerate(policies):
            steps.at(i, f"getting {policy} ready (compiled on first use)")
            ready.get(policy)
        for i, situation in enumerate(DEMO):
            steps.at(len(DEMO_POLICIES) + i, situation.title)
            shown.append(_show_situation(situation, curves=bool(options.html)))
    if options.html:
        Path(options.html).write_text(_demo_page(shown), encoding="utf-8")
    if options.json:
        _print_json({"situations": shown, "advice": ADVICE, "html": options.html})
        return
    print(f"{_demo_introduction(shown)}\n")
    for row in sorted(shown[0]["policies"], key=lambda row: row["policy"]):
        print(f"   {row['policy']:<6}{row['summary']}")
    for i, found in enumerate(shown, 1):
        print(f"\n{i}. {found['title']}\n\n{_filled(found['about'], 3)}")
        print(_filled(f"The exact join has {found['n_exact']:,} results.", 3))
        _console().print(_recall_table(found["policies"]))
        for line in found["lost"]:
            print(_filled(line, 3))
    print(f"\n{_filled(ADVICE)}")
    if options.html:
        print(f"\nThe same with charts: {options.html}")
    print(
        "\nTry it on your own streams:  joinweir simulate --help\n"
        "What the policies do:        joinweir policies\n"
        "Streams to play with:        joinweir generate --list"
    )


def _show_situation(situation: _Situation, *, curves: bool) -> dict[str, Any]:
    left, right = situation.make()

    def run(policy: str, max_rows: int) -> JoinResult:
        return jw.simulate(
            left,
            right,
            on="key",
            time="ts",
            within=DEMO_WITHIN,
            max_rows=max_rows,
            policy=policy,
            pairs=False,
            shed=False,
        )

    needed = sum(run("full", 2).rows_held)
    budget = round(DEMO_SHARE * needed)
    results = sorted((run(name, budget) for name in DEMO_POLICIES), key=lambda r: -r.n_out)
    found = {
        "title": situation.title,
        "about": situation.about,
        "rows": [int(left["ts"].size), int(right["ts"].size)],
        "within": DEMO_WITHIN,
        "rows_needed": needed,
        "max_rows": budget,
        "n_exact": results[0].n_exact,
        "policies": [r.to_dict() | {"summary": definition(r.policy.name).summary} for r in results],
        "lost": list(_losses(situation, results)),
    }
    if curves:
        found["curves"] = {
            name: [(share, run(name, round(share * needed)).recall) for share in DEMO_SHARES]
            for name in (str(r.policy) for r in results)
            if definition(name).bounded
        }
    return found


def _losses(situation: _Situation, results: Sequence[JoinResult]) -> Iterator[str]:
    """What each policy lost and why, best first."""
    for r in results:
        reason = situation.why.get(r.policy.name)
        if reason:
            yield (
                f"{r.policy} forgot {r.n_shed / sum(r.n_in):.1%} of the rows early and lost "
                f"{1 - r.recall:.1%} of the results: {reason}."
            )


def _demo_introduction(shown: Sequence[dict[str, Any]]) -> str:
    first = shown[0]
    return _filled(
        "Two endless streams are joined: a row of one matches each row of the other that has the "
        f"same key and came less than {first['within']:,} ticks earlier or later. Each stream "
        f"brings one row a tick, so the exact join has to remember {first['rows_needed']:,} rows "
        f"all the time. Here there is memory for {first['max_rows']:,}, or {DEMO_SHARE:.0%}. So "
        "rows must be forgotten before their time, and each result that they would still have "
        "produced is lost. A policy decides which row goes; recall is the share of the exact "
        "join's results that is left."
    )


def _filled(text: str, indent: int = 0) -> str:
    """Text in lines of at most 88 characters."""
    margin = " " * indent
    return textwrap.fill(text, 88, initial_indent=margin, subsequent_indent=margin)


def _recall_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = _table("policy", "recall", "", "results", "rows held", "rows shed", left=("policy", ""))
    table.columns[0].no_wrap = table.columns[2].no_wrap = True
    for row in rows:
        filled = round(20 * min(1.0, row["recall"]))
        table.add_row(
            row["policy"],
            _percent(row["recall"]),
            "█" * filled + "░" * (20 - filled),
            f"{row['n_out']:,}",
            f"{sum(row['rows_held']):,}",
            f"{row['n_shed']:,}",
        )
    return table


def _demo_page(shown: Sequence[dict[str, Any]]) -> str:
    parts = [report.paragraph(" ".join(_demo_introduction(shown).split()))]
    for i, found in enumerate(shown):
        parts += [
            report.heading(f"{i + 1}. {found['title']}"),
            report.paragraph(found["about"]),
            report.paragraph(
                f"The exact join has {found['n_exact']:,} results. With {DEMO_SHARE:.0%} of the "
                "memory that it needs:"
            ),
            report.recall_table(found["policies"]),
            *(report.paragraph(line) for line in found["lost"]),
            report.paragraph("With less or more memory:"),
            report.recall_chart(found["curves"], first=i == 0),
        ]
    parts += [report.heading("Which to choose"), report.paragraph(ADVICE)]
    return report.page("What a memory limit costs a stream join", parts)


# --- demo on Spark -----------------------------------------------------------------------------
DEMO_PAGE = "joinweir-demo.html"


def _demo_on_spark(options: argparse.Namespace) -> None:
    from .spark import demo

    page = options.html
    if page is None and importlib.util.find_spec("plotly") is not None:
        page = DEMO_PAGE
        _check_output(page)
    policies = [read_policy(name) for name in demo.POLICIES]
    # Compiled here, not in Spark's workers, each of which would do it at the same time.
    with _Steps(1.0) as steps, _Ready(policies, ordered=False) as ready:
        for policy in policies:
            steps.at(0.0, f"getting {policy} ready (compiled on first use)")
            ready.get(policy)
        found = demo.tour(
            demo.ROWS if options.rows is None else options.rows,
            progress=lambda text, done: steps.at(done, text),
        )
    if page:
        Path(page).write_text(_tour_page(found), encoding="utf-8")
    if options.json:
        _print_json(found | {"html": page})
        return
    print(f"{_filled(_tour_introduction(found))}\n")
    columns, rows = _tour_rows(found)
    table = _table(*columns, left=columns[:1])
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*row)
    _console().print(table)
    print(_filled(_tour_verdict(found)))
    if page:
        print(f"\nThe same over time, with charts: {page}")
    print(
        "\nMore policies, without Spark: joinweir demo --no-spark\n"
        "On your own files:            joinweir simulate --help\n"
        "In your own Spark program:    from joinweir.spark import window_join\n"
        "How fast, measured well:      joinweir bench spark --help"
    )


def _tour_introduction(found: dict[str, Any]) -> str:
    return (
        f"Two streams of {found['rows']:,} rows each came in {found['batches']} micro-batches to "
        "Spark Structured Streaming on this machine. A row matches each row of the other stream "
        f"that has the same key and is less than {found['within_seconds']:g} s apart; keys come in "
        "bursts, on both streams at once, and some far more often than others. Spark's own "
        f"stream-stream join keeps every row of the window, {found['window_rows']:,} of them, and "
        f"more. window_join was allowed {found['max_rows']:,} rows, 10% of the window; its policy "
        "decides which rows give way."
    )


def _tour_rows(found: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    columns = ("join", "recall", "results", "rows/s", "rows held,\nat most", "MB held,\nat most",
               "rows shed")  # fmt: skip
    rows = [
        (
            join["name"],
            _percent(join["recall"]),
            f"{join['n_out']:,}",
            f"{join['rows_per_second']:,.0f}",
            f"{join['rows_held']:,}",
            f"{join['bytes_held'] / 2**20:,.1f}",
            f"{join['n_shed']:,}",
        )
        for join in found["joins"]
    ]
    return columns, rows


def _tour_verdict(found: dict[str, Any]) -> str:
    exact, *bounded = found["joins"]
    best, other = sorted(bounded, key=lambda join: -join["recall"])
    return (
        f"With 10% of the window's rows, policy {best['policy']} returned {best['recall']:.0%} of "
        f"the exact join's results and {other['policy']} {other['recall']:.0%}, at "
        f"{best['rows_per_second'] / exact['rows_per_second']:.1f} times the rows per second of "
        "Spark's join in this run. What was lost is counted in every micro-batch: "
        "query.lastProgress['observedMetrics'], or joinweir.spark.loss_report(query)."
    )


def _tour_page(found: dict[str, Any]) -> str:
    def each(read: Callable[[dict[str, Any]], float], joins: Sequence[dict[str, Any]]) -> dict:
        return {
            join["policy"] or "Spark, exact": [(b["batch"] + 1, read(b)) for b in join["batches"]]
            for join in joins
        }

    joins = found["joins"]
    batch = "micro-batch"
    columns, rows = _tour_rows(found)
    parts = [
        report.paragraph(_tour_introduction(found)),
        report.table(columns, rows),
        report.paragraph(_tour_verdict(found)),
        report.heading("Recall"),
        report.line_chart(
            each(lambda b: b["recall"], joins[1:]), x=batch, y="", first=True, percent=True
        ),
        report.heading("Throughput"),
        report.line_chart(
            each(lambda b: b["rows"] / max(b["seconds"], 1e-3), joins),
            x=batch,
            y="rows per second",
            first=False,
        ),
        report.heading("Rows held"),
        report.line_chart(
            each(lambda b: b.get("rows_held", b.get("state_rows", 0)), joins),
            x=batch,
            y="rows",
            first=False,
            limit=("budget", found["max_rows"]),
        ),
        report.heading("Memory held"),
        report.line_chart(
            each(lambda b: b.get("bytes_held", b.get("state_bytes", 0)) / 2**20, joins),
            x=batch,
            y="MB",
            first=False,
        ),
    ]
    return report.page("Spark's exact join and window_join with 10% of the rows", parts)
