"""The contract of a policy as plain functions: the docstring of each is one law.

`check_policy` holds a policy to all of them, one of joinweir's own or one from outside. Each can
also be called by itself with the policy's parameters. They try the policy on small random joins of
every kind (`SHAPES`: pools, orders, windows, late rows, three streams) and compare with a join that
compares all rows with all, not with the engine. Whatever breaks a law raises an `AssertionError`
of one line that names policy, law and the facts.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from . import layout as L
from .policies import Parameters, definition, read_policy, register
from .simulation import Problem, _read, _streams, landmark, rows, simulate, start
from .state import JoinConfig, JoinState, log_entry_bytes, make_batch, rows_of_batch

Check = Callable[[Parameters], None]
CHECKS: dict[str, Check] = {}  # every law by its name, in the order in which they are tried


def law(check: Check) -> Check:
    """Enter a check into `CHECKS`; whatever it raises becomes one line."""

    @functools.wraps(check)
    def checked(params: Parameters) -> None:
        try:
            check(params)
        except Exception as error:
            facts = (str(error).strip() or "no message").splitlines()[0]
            broken = isinstance(error, AssertionError)
            what = facts if broken else f"{type(error).__name__}: {facts}"
            line = f"policy {params} breaks {check.__name__}: {what}"
            raise AssertionError(line) from (None if broken else error)

    CHECKS[check.__name__] = checked
    return checked


def check_policy(policy: str | Parameters | ModuleType, *, compile: bool = True) -> list[str]:
    """Hold a policy to every law of the contract.

    Parameters
    ----------
    policy
        A name or text such as ``"gdj:method=2"``, ``jw.policy(...)``, or the module of a policy
        that lives outside of joinweir; the module is registered under its file's name.
    compile
        Whether to try that compiled code is found again by the next process. It takes two fresh
        processes, about 20 seconds.

    Returns
    -------
    list of str
        Names of the laws, all of which hold.

    Raises
    ------
    AssertionError
        On the first law that does not: one line with policy, law and the facts.

    Examples
    --------
    >>> import joinweir as jw
    >>> len(jw.check_policy("fifo", compile=False)) > 10
    True
    """
    params = register(policy).params() if isinstance(policy, ModuleType) else read_policy(policy)
    passed = []
    for name, check in CHECKS.items():
        if compile or name != check_compiles_once_for_all_processes.__name__:
            check(params)
            passed.append(name)
    return passed


# --- small joins to try a policy on ----------------------------------------------------------
@dataclass(frozen=True)
class Shape:
    """A kind of join."""

    title: str
    rows: int = 40  # a stream
    within: tuple[int, ...] = (9, 12)
    unified: bool = False
    unit: str = "rows"
    order: str = "probe_first"
    lateness: int | None = None
    window: str = "time"
    seeds: int = 2  # inputs to try

    @property
    def streams(self) -> int:
        return len(self.within)

    @property
    def given_window(self) -> Any:
        """As `simulate` takes it."""
        return {"time": self.within, "landmark": landmark(10), "rows": rows(7)}[self.window]


SHAPES = (
    Shape("two streams", rows=8),
    Shape("two streams"),
    Shape("one pool", unified=True),
    Shape("simultaneous rows", order="simultaneous"),
    Shape("eviction before probing", order="evict_first"),
    Shape("a budget in bytes", unit="bytes"),
    Shape("one pool in bytes", unit="bytes", unified=True),
    Shape("late rows", lateness=5),
    Shape("landmarks", window="landmark"),
    Shape("count windows", window="rows"),
    Shape("three streams", within=(9, 12, 15)),
    Shape("three streams in one pool", within=(12, 12, 12), unified=True),
    Shape("three streams with late rows", within=(9, 12, 15), lateness=4),
    Shape("many rows", rows=400, within=(50, 50), seeds=1),  # some policies tune themselves
)


@dataclass(frozen=True)
class Input:
    """Streams for a shape: skewed keys, equal times, some nulls; and what each row weighs."""

    shape: Shape
    tables: tuple[dict[str, Any], ...]
    problem: Problem
    size: np.ndarray
    scarcity: float

    @cached_property
    def lives(self) -> tuple[np.ndarray, np.ndarray]:
        """First and first dead instant of each row; rows match iff max first < min dead.

        In a count window instants are arrivals: a row dies with the n-th of its stream after it.
        """
        p = self.problem
        if not p.count_window:
            lifetimes = np.asarray(p.lifetimes, np.int64)[p.side]
            return p.ts, p.ts + lifetimes if p.end is None else p.end
        born = np.arange(p.ts.size)
        dead = np.full(p.ts.size, p.ts.size)
        for s, n in enumerate(p.lifetimes):
            mine = born[p.side == s]
            dead[mine[:-n]] = mine[n:]
        return born, dead

    @cached_property
    def exact_join(self) -> list[tuple[int, ...]]:
        """Row numbers of all results of the exact join, found by comparing all with all."""
        p = self.problem
        born, dead = self.lives
        first = np.flatnonzero(p.side == 0)
        found, keys, latest, earliest = p.row[first, None], p.key[first], born[first], dead[first]
        for s in range(1, p.streams):
            mine = np.flatnonzero(p.side == s)
            after = np.maximum(latest[:, None], born[mine])
            until = np.minimum(earliest[:, None], dead[mine])
            a, b = np.nonzero((keys[:, None] == p.key[mine]) & (after < until))
            found = np.column_stack([found[a], p.row[mine[b]]])
            keys, latest, earliest = keys[a], after[a, b], until[a, b]
        return sorted(map(tuple, found.tolist()))

    @cached_property
    def ample(self) -> tuple[int, ...]:
        """A budget that is just enough for all rows that are alive at a time."""
        return self._budget(1)

    @cached_property
    def tight(self) -> tuple[int, ...]:
        """A budget for fewer."""
        return self._budget(1 / self.scarcity)

    def _budget(self, share: float) -> tuple[int, ...]:
        born, dead = self.lives
        if share == 1 and self.shape.lateness is not None:
            dead = np.full(dead.size, born.max() + 1)  # late rows keep others alive for longer
        alive = np.tril(born[:, None] < dead).astype(np.int64)  # at arrival i: rows j <= i
        weighed = self.problem.imps is not None
        logged = 0
        if self.shape.unit == "bytes":
            logged = log_entry_bytes(self.shape.streams, weighed)
        room = []
        for pool in range(1 if self.shape.unified else self.shape.streams):
            mine = (self.problem.side == pool) | self.shape.unified
            most = int((alive @ (self.size * mine)).max())
            least = int(self.size[mine].max())
            room.append(max(least, round(share * most)) + logged * int((alive @ mine).max()))
        return tuple(room)


@functools.cache
def _input(shape: Shape, seed: int) -> Input:
    generator = np.random.default_rng([seed, *shape.title.encode()])
    tables = []
    for _ in shape.within:
        ts = np.sort(generator.integers(0, shape.rows, shape.rows))
        if shape.lateness is not None:
            ts = ts - generator.integers(0, 2 * shape.lateness, ts.size)
        key = np.minimum(generator.geometric(0.3, ts.size), 12) * 7919 - 40_000
        null = generator.random(ts.size) < 0.04
        tables.append({"ts": ts, "key": [None if n else int(v) for v, n in zip(key, null)]})
    options = {"within": shape.given_window, "closed": "left", "lateness": shape.lateness}
    if seed % 2:
        imps = np.random.default_rng([seed, 0x1777])
        for table in tables:
            table["imp"] = imps.integers(1, 9, shape.rows).astype(np.float64)
        options["importance"] = "imp"
    problem = _read(*_streams(tables, None), on="key", time="ts", **options)
    size = np.ones(problem.ts.size, np.int32)
    if shape.unit == "bytes":
        size = generator.integers(60, 180, size.size).astype(np.int32)
    return Input(shape, tuple(tables), problem, size, scarcity=(3.0, 1.5)[seed % 2])


@dataclass(frozen=True)
class Case:
    """A policy on an input with a budget."""

    input: Input
    config: JoinConfig

    @property
    def shape(self) -> Shape:
        return self.input.shape

    @property
    def problem(self) -> Problem:
        return self.input.problem

    def __str__(self) -> str:
        unit, capacity = self.shape.unit, self.config.capacity
        budget = "no budget" if capacity is None else f"a budget of {capacity} {unit}"
        return f"in {self.shape.title} of {self.shape.rows} rows with {budget}"

    def with_capacity(self, capacity: tuple[int, ...] | None) -> Case:
        return replace(self, config=replace(self.config, capacity=capacity))

    def with_problem(self, **changes: Any) -> Case:
        problem = replace(self.problem, **changes)
        return replace(self, input=replace(self.input, problem=problem))

    def instants(self) -> np.ndarray:
        """Where a batch may end: after any row, or only between instants."""
        if self.shape.order == "probe_first":
            return np.arange(1, self.problem.ts.size)
        return 1 + np.flatnonzero(np.diff(self.problem.ts) > 0)

    def parts(self, cuts: Any = ()) -> Iterator[L.Batch]:
        """The input in batches that end at the cuts."""
        p = self.problem
        batch = make_batch(
            self.config, ts=p.ts, side=p.side, key=p.key, row=p.row, end=p.end,
            size=self.input.size, imp=p.imp,
        )  # fmt: skip
        bounds = [0, *sorted(cuts), p.ts.size]
        for a, b in pairwise(bounds):
            yield rows_of_batch(batch, slice(a, b))


def _cases(params: Parameters, **wanted: Any) -> Iterator[Case]:
    """The joins to try a policy on; `wanted` narrows the shapes, e.g. ``unit="rows"``."""
    declared = definition(params.name)
    for shape in SHAPES:
        if declared.learn and shape.window == "rows":
            continue  # there are no ages to learn in a count window
        if any(getattr(shape, name) != value for name, value in wanted.items()):
            continue
        for seed in range(shape.seeds):
            given = _input(shape, seed)
            p = given.problem
            config = JoinConfig(
                policy=params,
                lifetimes=p.lifetimes,
                capacity=given.tight,
                unit=shape.unit,
                order=shape.order,
                ordered=shape.lateness is None,
                lateness=p.lateness,
                count_window=p.count_window,
                landmarks=p.landmarks,
                importance=None if p.imps is None else "min",
                seed=seed,
            )
            yield Case(given, config)


# --- running them ----------------------------------------------------------------------------
class Ran(NamedTuple):
    """All that a join says of itself."""

    results: np.ndarray
    shed: np.ndarray
    counts: dict[str, list[float]]


def _fresh(case: Case) -> JoinState:
    return start(case.config, case.problem)


def _run(case: Case, cuts: Any = (), *, save: bool = False) -> Ran:
    """Process a case in parts; with `save` it is saved and restored between them."""
    state = _fresh(case)
    outcomes = []
    for part in case.parts(cuts):
        if save and outcomes:
            state = JoinState.restore(case.config, state.snapshot())
        outcomes.append(state.process(part, shed=True))
    return _ran(state, outcomes)


def _ran(state: JoinState, outcomes: list) -> Ran:
    store = state.store
    counts = {
        "results": [int(store.reg[L.N_OUT])],
        "exact results": [int(store.reg[L.N_EXACT])],
        "rows in": store.counters[:, L.C_IN].tolist(),
        "rows evicted": store.counters[:, L.C_EVICTED].tolist(),
        "rows refused": store.counters[:, L.C_REFUSED].tolist(),
        "rows expired": store.counters[:, L.C_EXPIRED].tolist(),
        "rows held": store.side["held"].tolist(),
        "importance": store.totals[[L.IMP_OUT, L.IMP_EXACT]].tolist(),
    }
    results, shed = (np.concatenate([o[i] for o in outcomes]) for i in range(2))
    return Ran(results, shed, counts)


def _require(condition: Any, facts: str) -> None:
    if not condition:
        raise AssertionError(facts)


def _require_same(a: Ran, b: Ran, case: Case, how: str) -> None:
    """Assert that two runs agree in everything, else tell the first difference."""
    for what, x, y in (("result", a.results, b.results), ("shed row", a.shed, b.shed)):
        n = min(len(x), len(y))
        differ = np.flatnonzero((x[:n] != y[:n]).any(axis=1))
        if differ.size:
            i = differ[0]
            one, other = tuple(x[i].tolist()), tuple(y[i].tolist())
            raise AssertionError(f"{what} number {i} is {one}, but {how} {other}, {case}")
        _require(len(x) == len(y), f"{len(x)} {what}s, but {how} {len(y)}, {case}")
    for what, x in a.counts.items():
        y = b.counts[what]
        _require(x == y, f"{what} per stream: {x}, but {how} {y}, {case}")


def _held(state: JoinState) -> list[tuple[int, int]]:
    """(side, slot) of every held row, from the lists by age."""
    held = []
    for side in range(state.config.streams):
        slot = int(state.store.expiry[side]["head"])
        while slot != L.NIL:
            held.append((side, slot))
            slot = int(state.store.slot[slot]["enext"])
    return held


PATIENCE = 20.0  # seconds for what takes milliseconds


def _in_a_child(function: Callable[[], Any], case: Case) -> None:
    """Run a function in a copy of this process: compiled code that hangs or crashes is reported."""
    if not hasattr(os, "fork"):
        function()
        return
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child starts no threads
        child = os.fork()
    if child == 0:
        said = b""
        try:
            function()
        except BaseException as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            said = f"{kind}{error}".encode()
        finally:
            os.write(writes, said[:4000])
            os._exit(1 if said else 0)
    os.close(writes)
    ready, _, _ = select.select([reads], [], [], PATIENCE)
    if not ready:
        os.kill(child, signal.SIGKILL)
    said = os.read(reads, 4000).decode(errors="replace")
    os.close(reads)
    _, status = os.waitpid(child, 0)
    _require(ready, f"no end after {PATIENCE:g} s, {case}")
    _require(not os.WIFSIGNALED(status), f"crashed with signal {os.WTERMSIG(status)}, {case}")
    _require(not said, said)


# --- the laws: what a policy says ------------------------------------------------------------
@law
def check_describes_itself(params: Parameters) -> None:
    """A policy's file says what it does, whose idea that was, and what it costs."""
    declared = definition(params.name)
    _require(declared.module is not None and declared.module.__doc__, "its file has no docstring")
    _require(declared.summary, "its file's docstring has no first line")
    _require(declared.paper, "POLICY names no paper")
    _require(declared.cost, "POLICY names no cost")


@law
def check_text_says_everything(params: Parameters) -> None:
    """The text of a policy, as on the command line, is read back as the same policy."""
    _require(read_policy(str(params)) == params, f"{str(params)!r} is read as another policy")


# --- the laws: what a policy decides ---------------------------------------------------------
@law
def check_sheds_only_from_the_newcomers_full_pool(params: Parameters) -> None:
    """When the newcomer's pool is full, one row is shed: of that pool, or itself; else none is."""
    if not definition(params.name).bounded:
        return
    for case in _cases(params, unit="rows", order="probe_first", lateness=None):
        _in_a_child(functools.partial(_watch_victims, case, _fresh(case)), case)


def _watch_victims(case: Case, state: JoinState) -> None:
    p = case.problem
    pool = np.asarray(case.config.pools)[p.side]
    _, dead = case.input.lives
    held: dict[tuple[int, int], int] = {}  # (side, row) → its place in the input
    for i, part in enumerate(case.parts(case.instants())):
        now = i if p.count_window else int(p.ts[i])
        held = {row: j for row, j in held.items() if dead[j] > now}
        newcomer = (int(p.side[i]), int(p.row[i]))
        rivals = sum(pool[j] == pool[i] for j in held.values())
        shed = [tuple(row) for row in state.process(part, shed=True).shed[:, :2].tolist()]
        facts = f"at row {newcomer[1]} of stream {newcomer[0]}, {case}"
        full = rivals >= case.config.capacity[pool[i]]
        _require(full or not shed, f"shed {shed} though there was room {facts}")
        for row in shed:
            known = row == newcomer or row in held
            _require(known, f"evicted row {row[1]} of stream {row[0]}, which was not held, {facts}")
            same = row == newcomer or pool[held[row]] == pool[i]
            _require(same, f"evicted row {row[1]} of stream {row[0]} from another pool {facts}")
        _require(not full or len(shed) == 1, f"shed {shed or 'nothing'} for one row {facts}")
        held[newcomer] = i
        for row in shed:
            del held[row]


@law
def check_names_a_victim_when_it_must(params: Parameters) -> None:
    """Asked for a victim with `must`, a policy names one: the log alone can want room."""
    if not definition(params.name).bounded:
        return
    for case in _cases(params, unit="bytes"):
        (batch,) = case.parts()
        batch.action[::2] = L.PROBES  # never admitted, but logged
        state = _fresh(case)
        step = 1 if state.config.order == "probe_first" else batch.ts.size
        for at in range(0, batch.ts.size, step):
            state.process(rows_of_batch(batch, slice(at, at + step)))
            for number, pool in enumerate(state.store.pool):
                held = state.store.side["held"][state.store.side["pool"] == number].sum()
                assert pool["used"] <= pool["cap"] or held == 0, (
                    f"a pool of {pool['cap']} bytes stays at {pool['used']}, though {held} rows "
                    f"are held, {case}"
                )


@law
def check_keeps_to_the_budget(params: Parameters) -> None:
    """What is held never exceeds the budget, in rows or bytes, whatever pools there are."""
    if not definition(params.name).bounded:
        return
    for case in _cases(params):
        state = _fresh(case)
        pools, capacity = case.config.pools, case.config.capacity
        logged = int(state.store.reg[L.LOG_BYTES])
        for part in case.parts(case.instants()[::3]):
            state.process(part)
            used = [0] * len(capacity)
            for side, slot in _held(state):
                used[pools[side]] += int(state.store.slot[slot]["size"])
            for side in range(case.config.streams):
                entry = int(state.store.logs[side]["head"]) if logged else L.NIL
                while entry != L.NIL:
                    used[pools[side]] += logged
                    entry = int(state.store.log[entry]["enext"])
            facts = f"holds {used} at time {state.store.reg[L.CLOCK]}, {case}"
            _require(all(u <= c for u, c in zip(used, capacity)), facts)


@law
def check_accounts_for_every_row(params: Parameters) -> None:
    """Every row was null, late, evicted, refused or expired, or is held; none is shed twice."""
    for case in _cases(params, unit="rows"):
        shape = case.shape
        r = simulate(
            case.input.tables,
            on="key",
            time="ts",
            within=shape.given_window,
            max_rows=case.config.capacity[0] if shape.unified else case.config.capacity,
            allocation="unified" if shape.unified else None,
            policy=params,
            order=shape.order,
            lateness=shape.lateness,
            pairs=False,
        )
        ways = (r.n_null, r.n_late, r.n_evicted, r.n_refused, r.n_expired, r.rows_held)
        told = tuple(sum(n) for n in zip(*ways))
        _require(told == r.n_in, f"read {r.n_in} rows, accounts for {told}, {case}")
        n_shed = r.shed.row.size
        _require(n_shed == r.n_shed, f"{r.n_shed} rows shed, but {n_shed} listed, {case}")
        n_distinct = len(set(zip(r.shed.stream.tolist(), r.shed.row.tolist())))
        _require(n_shed == n_distinct, f"{n_shed - n_distinct} rows were shed twice, {case}")


# --- the laws: what comes out ----------------------------------------------------------------
@law
def check_results_belong_to_the_exact_join(params: Parameters) -> None:
    """Every result is one of the exact join's."""
    for case in _cases(params):
        exact = set(case.input.exact_join)
        for result in map(tuple, _run(case).results.tolist()):
            _require(result in exact, f"result {result} is not in the exact join {case}")


@law
def check_no_result_comes_twice(params: Parameters) -> None:
    """No result comes twice."""
    for case in _cases(params):
        seen = set()
        for result in map(tuple, _run(case).results.tolist()):
            _require(result not in seen, f"result {result} came twice {case}")
            seen.add(result)


@law
def check_enough_memory_gives_the_exact_join(params: Parameters) -> None:
    """With just enough memory for all rows that are alive, or no limit, the join is exact."""
    for case in _cases(params):
        exact = case.input.exact_join
        for capacity in (case.input.ample, None):
            roomy = case.with_capacity(capacity)
            found = sorted(map(tuple, _run(roomy).results.tolist()))
            lost = sorted(set(exact) - set(found))[:1]
            facts = f"{len(found)} results instead of {len(exact)}, without {lost}, {roomy}"
            _require(found == exact, facts)


@law
def check_counts_the_exact_join(params: Parameters) -> None:
    """The size of the exact join is known however little was held."""
    for case in _cases(params):
        counted = _run(case).counts["exact results"][0]
        exact = len(case.input.exact_join)
        _require(counted == exact, f"n_exact is {counted} instead of {exact}, {case}")


# --- the laws: what must not matter ----------------------------------------------------------
@law
def check_same_seed_gives_the_same_output(params: Parameters) -> None:
    """The same input and seed give the same output, also beside another join at work."""
    for case in _cases(params):
        _require_same(_run(case), _run(case), case, "in a second run")
        cuts = case.instants()[::7]
        alone = _run(case, cuts)
        one, other = _fresh(case), _fresh(case)
        outcomes: tuple[list, list] = ([], [])
        for first, second in zip(case.parts(cuts), case.parts(cuts)):
            outcomes[0].append(one.process(first, shed=True))
            outcomes[1].append(other.process(second, shed=True))
        for state, done in zip((one, other), outcomes):
            _require_same(alone, _ran(state, done), case, "beside another join")


@law
def check_cuts_into_batches_change_nothing(params: Parameters) -> None:
    """However the input is cut into batches, down to single rows, the output is the same."""
    generator = np.random.default_rng(7)
    for case in _cases(params):
        whole = _run(case)
        everywhere = case.instants()
        for cuts in (everywhere, generator.choice(everywhere, 6)):
            how = f"cut into {len(cuts) + 1} batches"
            _require_same(whole, _run(case, cuts), case, how)


@law
def check_a_restored_snapshot_goes_on_alike(params: Parameters) -> None:
    """A join that is saved and restored somewhere goes on as if nothing had happened."""
    generator = np.random.default_rng(8)
    for case in _cases(params):
        cuts = generator.choice(case.instants(), 3)
        whole = _run(case)
        how = f"restored before rows {sorted(cuts.tolist())}"
        _require_same(whole, _run(case, cuts, save=True), case, how)


@law
def check_keys_are_only_names(params: Parameters) -> None:
    """Other keys that are equal where the old ones were give the same output."""
    for case in _cases(params):
        names, which = np.unique(case.problem.key, return_inverse=True)
        others = np.random.default_rng(9).permutation(names.size * 3)[: names.size] - names.size
        renamed = _run(case.with_problem(key=(others * 1_000_003)[which]))
        _require_same(_run(case), renamed, case, "with other keys")


@law
def check_time_has_no_origin(params: Parameters) -> None:
    """A constant added to all times changes nothing."""
    for case in _cases(params):
        for shift in (-1_000_003, 1_700_000_000_000_000):
            p = case.problem
            end = None if p.end is None else p.end + shift
            shifted = _run(case.with_problem(ts=p.ts + shift, end=end))
            _require_same(_run(case), shifted, case, f"{shift} ticks later")


# --- the laws: how it is compiled ------------------------------------------------------------
@law
def check_compiles_once_for_all_processes(params: Parameters) -> None:
    """A second process finds the code that the first one compiled, and compiles nothing."""
    module = definition(params.name).module
    file = getattr(module, "__file__", None)
    _require(file, "its module has no file")
    where = (module.__name__, file, str(params))
    code = f"from {__name__} import _tell_what_was_compiled as tell; tell(*{where!r})"
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | {"NUMBA_CACHE_DIR": folder, "PYTHONPATH": path}
        for process in ("first", "second"):
            ended = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True
            )
            said = (ended.stderr.strip() or "no message").splitlines()[-1]
            _require(ended.returncode == 0, f"the {process} process failed: {said}")
    for loop, stats in json.loads(ended.stdout.splitlines()[-1]).items():
        _require(stats, f"{loop} is not compiled by numba")
        hits, misses = stats
        facts = f"a second process found {loop} {hits} times and compiled it {misses} times"
        _require(hits and not misses, facts)


def _tell_what_was_compiled(name: str, file: str, text: str) -> None:
    """In a fresh process: run a policy, and print how often its loops were found and compiled."""
    if not name.startswith(f"{__package__}."):
        try:
            module = importlib.import_module(name)
        except ImportError:
            spec = importlib.util.spec_from_file_location(name, file)
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        register(module)
    told = {}
    for order in ("probe_first", "simultaneous"):
        case = next(_cases(read_policy(text), order=order))
        run = _fresh(case).compiled_run
        _run(case)
        stats = getattr(run, "stats", None)
        found = [sum(n.values()) for n in (stats.cache_hits, stats.cache_misses)] if stats else None
        told[run.__name__] = found
    print(json.dumps(told))
