"""How fast the engine is, and how much of the exact join each policy keeps.

Time per arrival, by policy and number of rows held:

Two streams of Zipf keys (0.75 over a million) are interleaved at random, one arrival a tick. The
window is ten times as long as the budget B, so that B is 10 % of what the exact join holds. A join
is first fed one whole window; then the next arrivals are timed in three slices, and the best of
them counts, since other programs disturb. Once the results are only counted, once they are written
out as pairs. Nothing is accounted. `full`, the exact join, runs on the same arrivals. Policies that
rank by importance get it, and sum up that of the results.

Each policy has a process of its own, as it has on a cluster: code that is loaded after another
policy's can be slower for it (fifo after full: 245 instead of 108 ns per arrival).

Policies that learn from the input ahead of the join run here as they are made, without learning.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from . import layout as L
from . import optimum, streams
from .errors import JoinweirError
from .policies import Parameters, definition, policy, policy_names, read_policy
from .profiling import characterize, peak_memory
from .simulation import rows_in_window, simulate
from .state import JoinConfig, JoinState, make_batch

DOMAIN, SKEW = 1_000_000, 0.75
SHARE = 0.1  # of the window's rows that can be held
ROWS, QUICK_ROWS = (1_000, 10_000, 100_000, 1_000_000), (1_000, 10_000)
ARRIVALS, QUICK_ARRIVALS = 1_000_000, 200_000
PAIRS_UP_TO = 100_000  # at B = 10^6 an arrival has some 800 results in the exact join
MAX_PAIRS = 50_000_000
SLICES = 3
PAIRS_AT_ONCE = 2_000_000  # 32 MB
# A policy that is too slow for a million arrivals gets as many as fit into these times.
WARM_SECONDS, TIMED_SECONDS = 60.0, 15.0
EXTRA = ("gdj:method=2",)  # costs more than the policy's default, so it has figures of its own

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Timing:
    """One figure.

    Attributes
    ----------
    policy, rows
        Who held how many rows (B).
    pairs
        Whether results were written out or only counted.
    window, warmed, arrivals
        Length of the window, arrivals before the clock started (less than the window if the policy
        is too slow for a whole one), arrivals timed.
    ns_per_arrival
        Of the best slice.
    matches_per_arrival
        Results per timed arrival.
    ratio_to_full
        Time of this over time of the exact join on the same stream.
    """

    policy: str
    rows: int
    pairs: bool
    window: int
    warmed: int
    arrivals: int
    ns_per_arrival: float
    matches_per_arrival: float
    ratio_to_full: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        return asdict(self)


def machine() -> dict[str, Any]:
    """What the figures were taken on, and its load: ask before, since timing is a load itself."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def default_policies() -> list[str]:
    """Every policy of the registry, the exact join first, and the variants with another cost."""
    return ["full", *(name for name in policy_names() if name != "full"), *EXTRA]


def time_engine(
    policies: Iterable[str | Parameters] | None = None,
    rows: Sequence[int] = ROWS,
    *,
    arrivals: int = ARRIVALS,
    pairs_up_to: int = PAIRS_UP_TO,
    seed: int = 1,
    apart: bool = True,
    progress: Progress | None = None,
) -> list[Timing]:
    """Time policies at several budgets.

    Parameters
    ----------
    policies
        Policies or their texts; default all. The exact join is added for comparison.
    rows
        Budgets B in rows.
    arrivals
        How many to time, at most.
    pairs_up_to
        The largest B at which results are also written out.
    seed
        Of the streams.
    apart
        Whether each policy has a process of its own, which is slower to start. A policy that
        `joinweir.policies.register` added is known in this process only.
    progress
        Called with what comes next and with the share of the work (0 to 1) that is done.

    Returns
    -------
    list of Timing
        By B, then by policy as given, counted before written out.

    Examples
    --------
    >>> timings = time_engine(["fifo"], rows=[100], arrivals=300, apart=False)
    >>> [(t.policy, t.rows, t.pairs, t.arrivals) for t in timings]  # doctest: +NORMALIZE_WHITESPACE
    [('full', 100, False, 300), ('full', 100, True, 300), ('fifo', 100, False, 300),
     ('fifo', 100, True, 300)]
    """
    chosen = [read_policy(p) for p in (default_policies() if policies is None else policies)]
    names = list(dict.fromkeys(str(p) for p in [policy("full"), *chosen]))
    rows = sorted(set(rows))
    for budget in rows:
        if budget < 2:
            raise JoinweirError(f"rows must be at least 2, one for each stream, not {budget}")
    if arrivals < SLICES:
        raise JoinweirError(f"arrivals must be at least {SLICES}, not {arrivals}")
    work = len(names) * sum(_window(b) + arrivals for b in rows)
    done = 0
    found: dict[tuple[int, str, bool], Timing] = {}
    for name in names:
        told = {"rows": rows, "arrivals": arrivals, "pairs_up_to": pairs_up_to, "seed": seed}
        for step in (_apart if apart else _time_policy)(name, **told):
            if isinstance(step, Timing):
                found[step.rows, name, step.pairs] = step
            else:
                if progress:
                    progress(f"{name}, B = {step:,}", done / work)
                done += _window(step) + arrivals
    timings = []
    for budget, name, pairs in sorted(found, key=lambda key: (key[0], names.index(key[1]), key[2])):
        t = found[budget, name, pairs]
        ratio = t.ns_per_arrival / found[budget, names[0], pairs].ns_per_arrival
        timings.append(replace(t, ratio_to_full=ratio))
    return timings


def growth(timings: Iterable[Timing]) -> dict[str, dict[str, Any]]:
    """For each policy: time at its largest B over time at its smallest, results only counted.

    Without a ``whole_window`` to warm up there are fewer matches at the large B than there would
    be, so the true ratio is higher.
    """
    by_policy: dict[str, list[Timing]] = {}
    for timing in timings:
        if not timing.pairs:
            by_policy.setdefault(timing.policy, []).append(timing)
    found = {}
    for name, own in by_policy.items():
        small, large = min(own, key=lambda t: t.rows), max(own, key=lambda t: t.rows)
        if large.rows > small.rows:
            found[name] = {
                "from_rows": small.rows,
                "to_rows": large.rows,
                "ratio": large.ns_per_arrival / small.ns_per_arrival,
                "whole_window": all(t.warmed == t.window for t in (small, large)),
            }
    return found


# --- recall --------------------------------------------------------------------------------------
RECALL_ROWS, RECALL_KEYS, RECALL_WINDOW = 40_000, 500, 1_000
RECALL_SHARES = (0.05, 0.1, 0.2, 0.5)
RECALL_POLICIES = (
    "fifo",
    "rand",
    "age",
    "lru",
    "lfu",
    "prob",
    "prob:statistics=window",
    "life:statistics=window",
    "gdj",
    "gdj:method=2",
    "gdj:initial_rank=auto",
    "lba",
    "lba:horizon=50",
    "lba:statistics=window,horizon=50",
    "elba",
)


def recall_streams() -> dict[str, tuple]:
    """Pairs of streams that differ in what there is to know about the future, by name."""
    n, domain = RECALL_ROWS, RECALL_KEYS
    return {
        "same keys popular, independent": streams.zipf_pair(n, domain=domain, seed=1),
        "other keys popular, independent": streams.zipf_pair(
            n, domain=domain, correlation="inverse", seed=1
        ),
        "own bursts, independent": streams.gismo_pair(n, domain=domain, horizon=n, seed=1),
        "own locality, independent": streams.copy_pair(n, domain=domain, seed=1),
        "shared bursts": streams.gismo_pair(n, domain=domain, horizon=n, shared=True, seed=1),
        "shared locality": streams.copy_pair(n, domain=domain, shared=True, seed=1),
        "joint drift": streams.drift_pair(n, domain=domain, period=RECALL_WINDOW // 2, seed=1),
        "joint random walk": streams.random_walk_pair(n, domain=domain, seed=1),
    }


# File, the two values of its `stream` column, window. Described in the data folder's README.
REAL_STREAMS = {
    "mathoverflow a2q × c2a, 14 days": ("mathoverflow.parquet", "a2q", "c2a", "14 days"),
    "pnw_dewpoint R × S, 6 hours": ("pnw_dewpoint.parquet", "R", "S", "6 hours"),
    "xetra × eurex, 10 minutes": ("xetra_eurex.parquet", "xetra", "eurex", "10 minutes"),
    "online_retail sale × cancel, 7 days": ("online_retail.parquet", "sale", "cancel", "7 days"),
}


def real_streams(folder: str) -> tuple[dict[str, tuple], list[str]]:
    """Pairs of real streams from a folder of Parquet files, and the names of absent files."""
    found, absent = {}, []
    for name, (file, left, right, within) in REAL_STREAMS.items():
        path = os.path.join(folder, file)
        if not os.path.exists(path):
            absent.append(file)
            continue
        table = pq.read_table(path, columns=["ts", "key", "stream"])
        sides = (table.filter(pc.equal(table["stream"], side)) for side in (left, right))
        found[name] = (*sides, within)
    return found, absent


def measure_recall(
    policies: Sequence[str] = RECALL_POLICIES,
    shares: Sequence[float] = RECALL_SHARES,
    *,
    pairs: dict[str, tuple] | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Recall of every policy on every pair of streams, at several shares of the window's rows.

    Returns
    -------
    list of dict
        stream, share, policy, n_out, n_exact, recall; no clock enters, so always the same.
    """
    found = []
    pairs = recall_streams() if pairs is None else pairs
    for number, (name, (left, right, *window)) in enumerate(pairs.items()):
        within = window[0] if window else RECALL_WINDOW
        held = rows_in_window(left, right, time="ts", within=within)
        for share in shares:
            if progress:
                done = (number + shares.index(share) / len(shares)) / len(pairs)
                progress(f"{name}, {share:.0%}", done)
            for chosen in policies:
                result = simulate(
                    left,
                    right,
                    on="key",
                    time="ts",
                    within=within,
                    max_rows=tuple(max(1, round(share * n)) for n in held),
                    policy=chosen,
                    pairs=False,
                    shed=False,
                )
                found.append(
                    {
                        "stream": name,
                        "share": share,
                        "policy": chosen,
                        "n_out": result.n_out,
                        "n_exact": result.n_exact,
                        "recall": result.recall,
                    }
                )
    return found


# --- characterize --------------------------------------------------------------------------------
CHARACTERIZE_ROWS, CHARACTERIZE_ON_SPARK, CHARACTERIZE_KEYS = 1_000_000, 10_000_000, 1_000_000
# Name: file, key, the column that tells the streams apart and its values on either side, windows.
REAL_PAIRS = {
    "mathoverflow a2q × c2a": ("mathoverflow", "key", "stream", ["a2q"], ["c2a"], ["1 day"]),
    "mathoverflow a2q.dst × c2q.dst": (
        "mathoverflow", "dst", "stream", ["a2q"], ["c2q"], ["1 day"]
    ),
    "pnw_dewpoint R × S": ("pnw_dewpoint", "key", "stream", ["R"], ["S"], ["10 minutes", "1 hour"]),
    "xetra × eurex": ("xetra_eurex", "key", "stream", ["xetra"], ["eurex"], ["10 minutes"]),
    "online_retail sale × cancel": (
        "online_retail", "key", "stream", ["sale"], ["cancel"], ["7 days"]
    ),
    "nycflights13 EWR × JFK, LGA": (
        "nycflights13", "key", "origin", ["EWR"], ["JFK", "LGA"], ["30 minutes"]
    ),
    "twitter_c52 even × odd rows": ("twitter_c52", "key", None, [0], [1], [5000]),
}  # fmt: skip


def characterize_real(
    folder: str, progress: Progress | None = None
) -> tuple[list[dict], list[str]]:
    """Measures of the real streams in a folder, a dict a pair and window; and absent files."""
    found, absent = [], []
    for number, (name, (file, key, column, left, right, windows)) in enumerate(REAL_PAIRS.items()):
        path = os.path.join(folder, f"{file}.parquet")
        if not os.path.exists(path):
            absent.append(f"{file}.parquet")
            continue
        if progress:
            progress(name, number / len(REAL_PAIRS))
        table = pq.read_table(path)
        if file == "nycflights13":  # its other stream is the weather
            table = table.filter(pc.equal(table["stream"], "flight"))
        time = "ts"
        if column is None:  # every other row, and rows are the clock
            odd = np.arange(table.num_rows) % 2
            sides, time = [table.filter(pa.array(odd == s)) for s in (0, 1)], None
        else:
            sides = [
                table.filter(pc.is_in(table[column], pa.array(side))) for side in (left, right)
            ]
        result = characterize(*sides, key=key, time=time, within=windows)
        p, q = result.profiles
        for window in result.windows:
            found.append(
                {
                    "streams": name,
                    "rows": [p.n_rows, q.n_rows],
                    "keys": [p.n_distinct, q.n_distinct],
                    "zipf_least_squares": [p.zipf.exponent, q.zipf.exponent],
                    "zipf_likelihood": [p.zipf.mle, q.zipf.mle],
                    "skew": [p.skew, q.skew],
                    "locality": [p.locality, q.locality],
                    "b": [p.model_b, q.model_b],
                    "drift": [p.excess_drift, q.excess_drift],
                    "window": str(window.within),
                    "pairs": window.n_pairs,
                    "lift": window.lift,
                    "kept_by_recency": window.kept_by_recency,
                    "kept_by_popularity": window.kept_by_popularity,
                    "favoured": list(result.favoured),
                }
            )
    return found, absent


def time_characterize(
    rows: int = CHARACTERIZE_ROWS,
    spark_rows: int | None = CHARACTERIZE_ON_SPARK,
    *,
    cores: int = 2,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """How long `characterize` takes, and how much memory, each in a process of its own.

    In process one stream of `rows`, and two of half as many; on Spark two streams that together
    have a tenth of `spark_rows`, and then all, so that what grows can be told from what does not.
    None leaves Spark out. Keys repeat those of the last 50 rows, over a million, Zipf 0.75.
    """
    say = progress or (lambda text, done: None)
    found = []
    for streams_used in (1, 2):
        say(f"in process, {streams_used} stream(s)", 0.05 * streams_used)
        told = {"rows": rows // streams_used, "streams": streams_used}
        process = start_beside(
            "bench.characterize_for_another", told, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with process:
            out, complaints = process.stdout.read(), process.stderr.read()
        if process.returncode:
            reason = (complaints.strip().splitlines() or ["no reason given"])[-1]
            raise JoinweirError(f"timing characterize failed: {reason}")
        found.append(json.loads(out))
    if spark_rows is None:
        return found
    from .spark import profiling as on_spark

    with tempfile.TemporaryDirectory(prefix="joinweir-bench-") as folder:
        for part in (10, 1):
            say(f"Spark, {spark_rows // part:,} rows", 0.2 if part > 1 else 0.4)
            files = []
            for name, stream in zip("lr", _to_characterize(spark_rows // part // 2, 2)):
                files.append(os.path.join(folder, f"{name}{part}.parquet"))
                times = pa.array(stream["ts"] * 1000, pa.timestamp("us", "UTC"))
                pq.write_table(
                    pa.table({"key": stream["key"], "ts": times}), files[-1], row_group_size=500_000
                )
            asked = {"key": "key", "time": "ts", "names": ["left", "right"]}
            figures = on_spark.measured(files, ["parquet"] * 2, None, cores, "2g", asked)
            result = json.loads(figures.pop("found"))
            found.append(
                {
                    "engine": "spark",
                    "rows": sum(p["n_rows"] for p in result["profiles"]),
                    "streams": 2,
                    "windows": len(result["windows"]),
                    "bytes_of_result": len(json.dumps(result)),
                    **{name: value for name, value in figures.items() if name != "text"},
                }
            )
    return found


def _to_characterize(n: int, k: int) -> list[dict[str, np.ndarray]]:
    return list(streams.copy_pair(n, domain=CHARACTERIZE_KEYS, shared=True, seed=1))[:k]


def characterize_for_another() -> None:
    """In a process of its own: time `characterize` on what stdin says, and print the figures."""
    told = json.load(sys.stdin)
    tables = _to_characterize(told["rows"], told["streams"])
    small = [{name: values[:1000] for name, values in table.items()} for table in tables]
    characterize(*small, key="key", time="ts")  # compiles, if that was not done before
    before = peak_memory()
    begin = perf_counter()
    result = characterize(*tables, key="key", time="ts")
    seconds = perf_counter() - begin
    figures = {
        "engine": "process",
        "rows": told["rows"] * told["streams"],
        "streams": told["streams"],
        "windows": len(result.windows),
        "bytes_of_result": len(result.to_json()),
        "seconds": seconds,
        "driver_bytes": peak_memory(),
        "driver_bytes_before": before,
    }
    print(json.dumps(figures))


# --- importance ----------------------------------------------------------------------------------
# As the paper orders them; its PROB fixes the number of partners at arrival, as lfu does here.
IMPORTANCE_POLICIES = ("dgl", "dimpprob", "simpprob", "lfu:statistics=memory", "simp", "rand")
WINDOW_POLICIES = tuple(f"{name}:statistics=window" for name in ("dgl", "dimpprob", "simpprob"))
IMPORTANCE_CLAIMS = {
    "Lifetime": "The paper (§5.2.1): DGL > DIMPPROB > SIMPPROB > PROB, SIMP > RAND for every w.",
    "Memory": "The paper (§5.2.2), at M = 100: DGL ahead of DIMPPROB by 3.2 %, SIMPPROB 20.6 %, "
    "PROB 47.6 %, SIMP 52.9 %, RAND 77.8 %.",
    "Domain": "The paper (§5.2.3): all fall as the domain grows; the same order.",
    "Correlated skew": "The paper (§5.2.4): DIMPPROB and SIMPPROB 2.1 % ahead of DGL on average.",
    "Large": "The paper (Table 1): DGL 6.93, SIMPPROB 5.99, PROB 5.99, DIMPPROB 5.78, SIMP 4.59 "
    "million; its text has DIMPPROB second.",
    "High importances of 500 to 1000": "Not in the paper's sweeps: rare rows matter even more.",
    "Gain and loss": "Not in the paper, which gives no values: alpha, and decay = exp(-c / w).",
}


@dataclass(frozen=True)
class ImportanceSetting:
    """Streams of one row a tick and a join of them, as in ojewole2006 §5.2."""

    title: str
    rows: int = 5_600
    lifetime: int = 400
    memory: int = 200
    domain: int = 100
    skew: tuple[float, float] = (1.0, 0.0)
    high: tuple[float, float] = (50.0, 100.0)
    policies: tuple[str, ...] = (*IMPORTANCE_POLICIES, *WINDOW_POLICIES)


def importance_settings() -> dict[str, list[ImportanceSetting]]:
    """The paper's sweeps, by name."""
    usual = ImportanceSetting("")
    gains = [
        (c, tuple(f"dgl:alpha={a},decay={np.exp(-c / usual.lifetime):.6f}" for a in GAINS))
        for c in LOSSES
    ]
    return {
        "Lifetime": [replace(usual, title=f"w = {w}", lifetime=w) for w in (200, 400, 600, 800)],
        "Memory": [replace(usual, title=f"M = {m}", memory=m) for m in (100, 200, 400, 600)],
        "Domain": [replace(usual, title=f"D = {d}", domain=d) for d in (50, 100, 200, 400)],
        "Correlated skew": [
            replace(usual, title=f"z = {z}", skew=(z, z)) for z in (0.0, 0.5, 0.75, 1.0)
        ],
        "Large": [
            ImportanceSetting("N = 56,000", 56_000, lifetime=2_000, memory=800, domain=2_000)
        ],
        "High importances of 500 to 1000": [
            replace(usual, title=f"M = {m}", memory=m, high=(500.0, 1000.0)) for m in (100, 200)
        ],
        "Gain and loss": [replace(usual, title=f"c = {c}", policies=own) for c, own in gains],
    }


GAINS, LOSSES = (0.1, 0.3, 1.0, 3.0, 10.0), (1, 2, 5, 10, 20)


def measure_importance(progress: Progress | None = None, seed: int = 1) -> list[dict[str, Any]]:
    """Share of the exact join's importance that each policy keeps, from time 2w on.

    Returns
    -------
    list of dict
        sweep, setting, policy, importance_recall; no clock enters, so always the same.
    """
    sweeps = importance_settings()
    found = []
    for number, (sweep, settings) in enumerate(sweeps.items()):
        for setting in settings:
            if progress:
                progress(f"{sweep}, {setting.title}", number / len(sweeps))
            exact = importance_after_warmup(setting, "full", seed)
            for chosen in setting.policies:
                kept = importance_after_warmup(setting, chosen, seed)
                # A sweep of a parameter has the setting's title for what is common to its rows.
                label = chosen.partition(",decay=")[0]
                share = kept / exact
                found.append(
                    {
                        "sweep": sweep,
                        "setting": setting.title,
                        "policy": label,
                        "importance_recall": share,
                    }
                )
    return found


def importance_after_warmup(setting: ImportanceSetting, chosen: str, seed: int) -> float:
    """Importance of the results, but for those of the first two lifetimes."""
    left, right = streams.with_importance(
        streams.zipf_pair(
            setting.rows, domain=setting.domain, skew=setting.skew, correlation="direct", seed=seed
        ),
        high=setting.high,
        seed=seed,
    )
    result = simulate(
        left,
        right,
        on="key",
        time="ts",
        within=setting.lifetime,
        max_rows=None if chosen == "full" else setting.memory,
        policy=chosen,
        order="evict_first",
        importance="imp",
        accounting="off",
        shed=False,
    )
    later = np.maximum(left["ts"][result.pairs[0]], right["ts"][result.pairs[1]])
    return float(result.pair_importance[later >= 2 * setting.lifetime].sum())


# --- one figure --------------------------------------------------------------------------------
def _window(budget: int) -> int:
    return round(budget / SHARE)


def _config(params: Parameters, budget: int) -> JoinConfig:
    halves = (budget // 2, budget - budget // 2)
    weighed = "min" if definition(params.name).weighs else None
    return JoinConfig(params, (_window(budget),) * 2, halves, accounting="off", importance=weighed)


def _stream(params: Parameters, n: int, budget: int, seed: int) -> L.Batch:
    """n arrivals; the same for every policy, with importances for those that look at them."""
    side = np.random.default_rng([seed, 0x51DE]).random(n) < 0.5
    key = streams.zipf(n, domain=DOMAIN, skew=SKEW, seed=seed)["key"]
    ticks = np.arange(n)
    imp = streams.importance(n, seed=seed)
    return make_batch(_config(params, budget), ts=ticks, side=side, key=key, row=ticks, imp=imp)


def _time_policy(
    name: str, rows: Sequence[int], arrivals: int, pairs_up_to: int, seed: int
) -> Iterator[Timing | int]:
    """Each budget when its turn comes, and then its figures."""
    for budget in rows:
        yield budget
        with_pairs = budget <= pairs_up_to
        params = read_policy(name)
        stream = _stream(params, _window(budget) + (1 + with_pairs) * arrivals, budget, seed)
        yield from _time_budget(params, budget, stream, arrivals, with_pairs)


def _time_budget(
    params: Parameters, budget: int, stream: L.Batch, arrivals: int, with_pairs: bool
) -> Iterator[Timing]:
    known = None
    if params.source_of_frequencies() == "oracle":
        known = {"key": stream.key, "side": stream.side}
    state = JoinState(_config(params, budget), known)
    warmed, pace = _warm_up(state, stream, _window(budget))
    matches, at = 1.0, warmed
    for pairs in (False, True)[: 1 + with_pairs]:
        n = min(arrivals, stream.ts.size - at, max(SLICES * 100, int(TIMED_SECONDS / pace)))
        piece = n
        if pairs:
            n = min(n, max(SLICES, int(MAX_PAIRS / max(matches, 1e-9))))
            piece = max(1, int(PAIRS_AT_ONCE / max(matches, 1.0)))
        before = int(state.store.reg[L.N_OUT])
        cuts = np.linspace(at, at + n, SLICES + 1).astype(int).tolist()
        best = min(
            _seconds(state, stream, start, stop, piece, pairs) / (stop - start)
            for start, stop in pairwise(cuts)
        )
        at += n
        matches = (int(state.store.reg[L.N_OUT]) - before) / n
        yield Timing(str(params), budget, pairs, _window(budget), warmed, n, best * 1e9, matches)


def _warm_up(state: JoinState, stream: L.Batch, window: int) -> tuple[int, float]:
    """Feed a window of arrivals, or fewer if that takes too long but the memory is full.

    Returns how many they were, and the seconds that each of the last took.
    """
    at, piece, begin, pace = 0, 1024, perf_counter(), 1e-9
    while at < window:
        stop = min(at + piece, window)
        took = _seconds(state, stream, at, stop, piece, False)
        pace, at = max(took / (stop - at), 1e-9), stop
        piece = min(1 << 18, max(256, int(0.25 / pace)), 2 * piece)
        full = state.bounded and (state.store.pool["used"] >= state.store.pool["cap"]).all()
        if full and perf_counter() - begin > WARM_SECONDS:
            break
    return at, pace


def _seconds(
    state: JoinState, stream: L.Batch, start: int, stop: int, piece: int, pairs: bool
) -> float:
    """Time to process arrivals start … stop-1, in pieces lest the pairs take too much memory."""
    took = 0.0
    for at in range(start, stop, piece):
        batch = L.Batch(*(column[at : min(at + piece, stop)] for column in stream))
        begin = perf_counter()
        state.process(batch, results=pairs)
        took += perf_counter() - begin
    return took


# --- a process for each policy -----------------------------------------------------------------
def start_beside(call: str, told: dict[str, Any], **files: Any) -> subprocess.Popen:
    """Start a process that calls a function of joinweir, which reads what it is told from stdin.

    It must be ended by who started it: Ctrl-C does not reach it.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", f"from joinweir import bench, cli; {call}()"],
        stdin=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        start_new_session=True,
        text=True,
        **files,
    )
    try:
        process.stdin.write(json.dumps(told))
        process.stdin.close()
    except OSError:  # it failed to start; who waits for it will see
        pass
    return process


def _apart(name: str, **told: Any) -> Iterator[Timing | int]:
    """`_time_policy` in a process of its own."""
    with tempfile.TemporaryFile("w+") as complaints:
        process = start_beside(
            "bench.time_for_another",
            {"name": name, **told},
            stdout=subprocess.PIPE,
            stderr=complaints,
        )
        try:
            for line in process.stdout:
                step = json.loads(line)
                yield Timing(**step) if isinstance(step, dict) else step
            if process.wait():
                complaints.seek(0)
                last = (complaints.read().strip().splitlines() or ["no reason given"])[-1]
                raise JoinweirError(f"timing {name} failed: {last}")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def time_for_another() -> None:
    """In a process of its own: do what stdin says, and print a line of JSON for each step."""
    for step in _time_policy(**json.load(sys.stdin)):
        print(json.dumps(step.to_dict() if isinstance(step, Timing) else step), flush=True)


# --- the optimum -------------------------------------------------------------------------------
WAYS = ("odja", "paths", "ortools", "bound", "pieces")
OPTIMUM_DOMAIN = 100  # ojewole2006 §5.2; §5.1 does not say


@dataclass(frozen=True)
class OptimumCase:
    """A pair of streams of n rows each, one a tick, with Zipf keys, and a memory.

    `slots` is a stream's half of it, the paper's M/2.
    """

    n: int
    window: int
    slots: int
    domain: int = OPTIMUM_DOMAIN
    skew: tuple[float, float] = (1.0, 0.0)


def optimum_cases(quick: bool = False) -> list[OptimumCase]:
    """The grid of ojewole2006 §5.1, its largest streams (§5.2.6), and what goes beyond."""
    lengths = (800, 5600) if quick else (800, 1600, 3200, 5600)
    windows = (100,) if quick else (100, 200, 400, 800)
    cases = [OptimumCase(n, 400, 1) for n in lengths]
    cases += [OptimumCase(5600, w, 1) for w in windows if w != 400]
    cases += [OptimumCase(n, 50, 49) for n in lengths]
    cases += [OptimumCase(5600, w, w - 1) for w in (10, 100)[: 1 if quick else 2]]
    cases += [OptimumCase(5600, 10, 5), OptimumCase(5600, 400, 200)]
    if not quick:
        cases.append(OptimumCase(56_000, 2000, 400, 2000))
        cases.append(OptimumCase(56_000, 2000, 400, 2000, (1.0, 1.0)))
        cases.append(OptimumCase(560_000, 20_000, 4000, 20_000))
    return cases


def measure_optimum(
    cases: Iterable[OptimumCase],
    ways: Sequence[str] = WAYS,
    *,
    seed: int = 1,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Time and memory of each way to the optimum, each figure in a process of its own.

    A way that cannot do a case says why in `refused`. ``odja`` finds the value alone, with two
    layers, as in the paper.
    """
    found = []
    runs = [(case, way) for case in cases for way in ways]
    for x, (case, way) in enumerate(runs):
        if progress:
            progress(
                f"{way}, N = {case.n:,}, w = {case.window:,}, M/2 = {case.slots:,}", x / len(runs)
            )
        with tempfile.TemporaryFile("w+") as complaints:
            process = start_beside(
                "bench.solve_for_another",
                {"case": asdict(case), "way": way, "seed": seed},
                stdout=subprocess.PIPE,
                stderr=complaints,
            )
            try:
                answer = process.stdout.read()
                if process.wait():
                    complaints.seek(0)
                    last = (complaints.read().strip().splitlines() or ["no reason given"])[-1]
                    raise JoinweirError(f"measuring {way} failed: {last}")
            finally:
                process.kill()
                process.wait()
                process.stdout.close()
        found.append(asdict(case) | {"way": way} | json.loads(answer))
    return found


def optimum_streams(case: OptimumCase, seed: int) -> tuple[dict, dict]:
    """The streams of a case: whole importances, a twentieth of them high."""
    pair = streams.zipf_pair(case.n, domain=case.domain, skew=tuple(case.skew), seed=seed)
    for s, table in enumerate(pair):
        table["importance"] = np.rint(streams.importance(case.n, seed=seed + s))
    return pair


def solve_for_another() -> None:
    """In a process of its own: do what stdin says, and print a line of JSON."""
    told = json.load(sys.stdin)
    case, way = OptimumCase(**told["case"]), told["way"]
    small = OptimumCase(300, 30, 5, 10)
    _solve_case(small, way, told["seed"])  # compile
    print(json.dumps(_solve_case(case, way, told["seed"])))


def _solve_case(case: OptimumCase, way: str, seed: int) -> dict[str, Any]:
    left, right = optimum_streams(case, seed)
    join = {
        "on": "key",
        "time": "ts",
        "within": case.window,
        "order": "evict_first",  # as in the paper
        "objective": "importance",
        "importance": "importance",
        "max_rows": (case.slots, case.slots),
    }
    if way in optimum.SOLVERS:
        join |= {"method": "flow", "solver": way}
    else:
        join |= {"method": way, "retained": way != "odja"}
    before, cpu = _restart_peak_memory(), process_time()
    try:
        best = optimum.solve(left, right, **join)
    except JoinweirError as error:
        return {"refused": str(error)}
    return {
        "seconds": best.seconds,
        "cpu_seconds": process_time() - cpu,  # what other programs on the machine disturb less
        "memory_mb": peak_memory_mb() - before,
        "value": best.value,
        "upper_bound": best.upper_bound,
        "gap": best.gap,
        "n_exact": best.n_exact,
        "n_options": best.n_options,
    }


def _restart_peak_memory() -> float:
    """Let the peak count from now on, where the system can; MB in use now."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
        return peak_memory_mb()
    except OSError:
        return 0.0


def peak_memory_mb() -> float:
    """The most memory that this process has had, in MB of 1024 · 1024 bytes."""
    return peak_memory() / 2**20
