"""Every policy against every law of the contract, and every law against a policy that breaks it."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
import sys
import types
from pathlib import Path

import pytest

import joinweir as jw
from joinweir import checks, policies
from joinweir.policies import read_policy

VARIANTS = [
    *jw.policy_names(),
    "prob:statistics=window",
    "prob:statistics=memory",
    "prob:statistics=oracle",
    "life:statistics=window",
    "gdj:method=2",
    "gdj:initial_rank=auto",
    "age:mode=row",
    "rand:competing=true",
    "lba:h=4,warmup=30,refit=20",
    "elba:h=4,warmup=30,refit=20",
    "simpprob:statistics=window",
    "dimpprob:statistics=window",
    "dgl:decay=0.9,alpha=0.5",
]
COMPILES = "check_compiles_once_for_all_processes"


@pytest.mark.parametrize("policy", VARIANTS)
@pytest.mark.parametrize("name", [name for name in checks.CHECKS if name != COMPILES])
def test_policy_keeps_the_law(policy, name):
    checks.CHECKS[name](read_policy(policy))


@pytest.mark.parametrize("policy", ["fifo", "gdj"])  # each takes two fresh processes
def test_policy_compiles_once_for_all_processes(policy):
    checks.CHECKS[COMPILES](read_policy(policy))


def test_every_check_is_in_the_list_and_states_its_law():
    named = [name for name in vars(checks) if name.startswith("check_") and name != "check_policy"]
    assert list(checks.CHECKS) == named
    for check in checks.CHECKS.values():
        assert check.__doc__ and len(check.__doc__.splitlines()) == 1


def test_the_joins_it_is_tried_on_shed_expire_and_keep_rows():
    """A law that is tried only where nothing happens says nothing."""
    n_expiring = 0
    for case in checks._cases(read_policy("fifo")):
        counts = checks._run(case).counts
        assert 0 < counts["results"][0] < counts["exact results"][0], str(case)
        assert sum(counts["rows evicted"]) > 0
        n_expiring += sum(counts["rows expired"]) > 0
    assert n_expiring > 10


# --- an outside policy, and how it can be broken ----------------------------------------------
SOURCE = '''"""The oldest row goes, unless told to do wrong."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joinweir.compiling import kernel
from joinweir.engine import ignore_count, ignore_match, ignore_remove, join_loop
from joinweir.layout import C_EXPIRED, N_EXACT, NIL, NOT_ADMITTED
from joinweir.policies import Parameters, Policy
from joinweir.structures import before

FAULTS = (
    "none", "other pool", "never", "budget", "long life", "short life", "same row", "count",
    "exact", "key", "clock", "batches", "process", "hidden", "raises",
)
(
    NONE, OTHER_POOL, NEVER, BUDGET, LONG_LIFE, SHORT_LIFE, SAME_ROW, COUNT,
    EXACT, KEY, CLOCK, BATCHES, PROCESS, HIDDEN, RAISES,
) = range(15)


@dataclass(frozen=True)
class Params(Parameters):
    fault: str = "none"


class FaultyState(NamedTuple):
    fault: np.ndarray
    salt: np.ndarray


outside = {"batches": 0, "hidden": 0}  # what a policy must not have: memory outside of its arrays


def init(params, sizes, as_one):
    outside["hidden"] = 0
    return FaultyState(np.full(1, FAULTS.index(params.fault), np.int64), np.zeros(1, np.int64))


def before_batch(S, P, n):
    outside["batches"] += 1
    if P.fault[0] == BATCHES:
        P.salt[0] += 1
    if P.fault[0] == PROCESS:
        P.salt[0] = outside["batches"]
    if P.fault[0] == RAISES:
        raise KeyError("a mistake in the policy's own code")
    return P


@kernel
def on_insert(S, P, slot, group, side, t):
    fault = P.fault[0]
    row = S.slot[slot]
    if fault == BUDGET and row.seq % 5 == 0:
        S.pool[S.side[side].pool].used -= row.size
    elif fault == LONG_LIFE:
        row.end += 3
    elif fault == SHORT_LIFE:
        row.end -= 3
    elif fault == SAME_ROW:
        row.row -= row.row % 2
    elif fault == COUNT:
        S.counters[side, C_EXPIRED] += row.seq == 5
    elif fault == EXACT:
        S.reg[N_EXACT] += row.seq == 5


@kernel
def victim(S, P, side, group, t, end, must):
    fault = P.fault[0]
    best = np.int32(NIL)
    if fault == NEVER and S.side[side].held % 3:
        return np.int32(NOT_ADMITTED)
    for s in range(S.side.size):
        slot = S.expiry[s].head
        own = S.side[s].pool == S.side[side].pool
        if own != (fault == OTHER_POOL and S.pool.size > 1) and slot != NIL:
            a, b = S.slot[slot], S.slot[best]
            if best == NIL or before(0, a.ts, a.seq, 0, b.ts, b.seq):
                best = slot
    second = (fault >= BATCHES and P.salt[0] % 2) or (fault == CLOCK and t % 2)
    second = second or (fault == KEY and S.group[group].key % 2)
    if best != NIL and second and S.slot[best].enext != NIL:
        best = S.slot[best].enext
    if fault == HIDDEN:
        P.salt[0] += 1
    return best


@kernel
def run(S, P, batch, start, out, shed):
    return join_loop(
        S, P, batch, start, out, shed,
        ignore_count, ignore_match, on_insert, ignore_remove, victim,
    )  # fmt: skip


def run_with_hidden_memory(S, P, batch, start, out, shed):
    P.salt[0] = outside["hidden"]
    done = run(S, P, batch, start, out, shed)
    outside["hidden"] = int(P.salt[0])
    P.salt[0] = 0
    return done


def choose_run(params, as_one):
    return run_with_hidden_memory if params.fault == "hidden" else run


POLICY = Policy(
    params=Params, init=init, run=run, before_batch=before_batch, choose_run=choose_run,
    paper="none", cost="O(1)",
)  # fmt: skip
'''


@pytest.fixture(scope="module")
def faulty():
    """The module above, beside numba's cache: the next run of the tests does not compile it."""
    path = Path(os.environ["NUMBA_CACHE_DIR"]) / "faulty.py"
    if not path.exists() or path.read_text() != SOURCE:
        path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("faulty", path)
    module = sys.modules["faulty"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    policies.register(module)
    yield module
    del sys.modules["faulty"], policies._EXTRA["faulty"]


def test_an_outside_policy_without_fault_passes(faulty):
    passed = jw.check_policy(faulty, compile=False)
    assert passed == [name for name in checks.CHECKS if name != COMPILES]
    assert jw.check_policy("faulty:fault=none", compile=False) == passed
    assert jw.check_policy(jw.policy("faulty"), compile=False) == passed


@pytest.mark.parametrize(
    ("fault", "name", "facts"),
    [
        ("other pool", "check_sheds_only_from_the_newcomers_full_pool", "from another pool"),
        ("budget", "check_keeps_to_the_budget", "holds"),
        ("count", "check_accounts_for_every_row", "rows, accounts for"),
        ("long life", "check_results_belong_to_the_exact_join", "is not in the exact join"),
        ("same row", "check_no_result_comes_twice", "came twice"),
        ("short life", "check_enough_memory_gives_the_exact_join", "results instead of"),
        ("exact", "check_counts_the_exact_join", "n_exact is"),
        ("process", "check_same_seed_gives_the_same_output", "in a second run"),
        ("hidden", "check_same_seed_gives_the_same_output", "beside another join"),
        ("batches", "check_cuts_into_batches_change_nothing", "cut into"),
        ("hidden", "check_a_restored_snapshot_goes_on_alike", "restored before rows"),
        ("key", "check_keys_are_only_names", "with other keys"),
        ("clock", "check_time_has_no_origin", "ticks later"),
    ],
)
def test_a_broken_policy_is_told_which_law_it_breaks(faulty, fault, name, facts):
    params = jw.policy("faulty", fault=fault)
    with pytest.raises(AssertionError) as caught:
        checks.CHECKS[name](params)
    message = str(caught.value)
    assert message.startswith(f"policy faulty:fault={fault} breaks {name}: ")
    assert facts in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("other pool", "check_sheds_only_from_the_newcomers_full_pool"),
        ("budget", "check_sheds_only_from_the_newcomers_full_pool"),
        ("batches", "check_cuts_into_batches_change_nothing"),
        ("clock", "check_time_has_no_origin"),
        ("key", "check_keys_are_only_names"),
        ("exact", "check_counts_the_exact_join"),
    ],
)
def test_check_policy_stops_at_the_first_broken_law(faulty, fault, name):
    with pytest.raises(AssertionError, match=f"^policy faulty:fault={fault} breaks {name}: "):
        jw.check_policy(jw.policy("faulty", fault=fault), compile=False)


def test_a_policy_that_never_gives_way_is_caught_and_does_not_hang(faulty):
    with pytest.raises(AssertionError, match="names_a_victim_when_it_must: a pool of"):
        jw.check_policy(jw.policy("faulty", fault="never"), compile=False)


def test_compiled_code_that_crashes_is_reported():
    case = next(checks._cases(read_policy("fifo")))
    with pytest.raises(AssertionError, match="crashed with signal 9, in two streams"):
        checks._in_a_child(lambda: os.kill(os.getpid(), signal.SIGKILL), case)


def test_an_error_in_the_policys_own_code_becomes_one_line(faulty):
    for check in (jw.check_policy, checks.check_keeps_to_the_budget):
        with pytest.raises(AssertionError, match=r"KeyError: .a mistake in the policy's own") as e:
            check(jw.policy("faulty", fault="raises"))
        assert "\n" not in str(e.value)
    assert isinstance(e.value.__cause__, KeyError)


def test_a_text_that_cannot_be_read_back_is_found(faulty):
    @dataclasses.dataclass(frozen=True)
    class Params(faulty.Params):
        label: str = ""

    module = types.ModuleType("labelled", "A policy.")
    module.POLICY = dataclasses.replace(faulty.POLICY, params=Params)
    policies.register(module)
    try:
        checks.check_text_says_everything(jw.policy("labelled", label="a"))
        with pytest.raises(AssertionError, match="breaks check_text_says_everything"):
            checks.check_text_says_everything(jw.policy("labelled", label="1"))
        with pytest.raises(AssertionError, match="breaks check_text_says_everything"):
            checks.check_text_says_everything(jw.policy("labelled", label="a,b"))
    finally:
        del policies._EXTRA["labelled"]


@pytest.mark.parametrize(
    ("doc", "changes", "facts"),
    [
        ("", {}, "no docstring"),
        ("A policy.", {"paper": ""}, "names no paper"),
        ("A policy.", {"cost": ""}, "names no cost"),
    ],
)
def test_a_policy_that_does_not_describe_itself_is_found(faulty, doc, changes, facts):
    own = type("Params", (faulty.Params,), {})
    module = types.ModuleType("taciturn", doc)
    module.POLICY = dataclasses.replace(faulty.POLICY, params=own, **changes)
    try:
        with pytest.raises(
            AssertionError, match=f"taciturn breaks check_describes_itself: .*{facts}"
        ):
            jw.check_policy(module, compile=False)
    finally:
        del policies._EXTRA["taciturn"]


INTERPRETED = '''"""Does nothing, and in Python."""

from collections import namedtuple
from types import SimpleNamespace

import numpy as np

from joinweir.compiling import DIGEST
from joinweir.layout import DIGEST as AT
from joinweir.policies import Parameters, Policy

class Params(Parameters):
    pass

IdleState = namedtuple("IdleState", "unused")

def init(params, sizes, as_one):
    return IdleState(np.zeros(1))

def run(S, P, batch, start, out, shed):
    S.reg[AT] = DIGEST
    return batch.ts.size, 0, 0

run.stats = STATS
POLICY = Policy(params=Params, init=init, run=run, paper="none", cost="none")
'''


@pytest.mark.parametrize(
    ("stats", "facts"),
    [
        ("None", "run is not compiled by numba"),
        (
            "SimpleNamespace(cache_hits={}, cache_misses={1: 1})",
            "a second process found run 0 times and compiled it 1 times",
        ),
    ],
)
def test_code_that_the_next_process_cannot_find_is_reported(tmp_path, stats, facts):
    path = tmp_path / "interpreted.py"
    path.write_text(INTERPRETED.replace("STATS", stats))
    spec = importlib.util.spec_from_file_location("interpreted", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    policies.register(module)
    try:
        with pytest.raises(AssertionError, match=f"interpreted breaks {COMPILES}: {facts}"):
            checks.CHECKS[COMPILES](jw.policy("interpreted"))
    finally:
        del policies._EXTRA["interpreted"]


def test_a_policy_without_a_file_cannot_be_compiled_for_others(faulty):
    own = type("Params", (faulty.Params,), {})
    module = types.ModuleType("homeless", "A policy.")
    module.POLICY = dataclasses.replace(faulty.POLICY, params=own)
    policies.register(module)
    try:
        with pytest.raises(AssertionError, match=f"{COMPILES}: its module has no file"):
            checks.CHECKS[COMPILES](jw.policy("homeless"))
    finally:
        del policies._EXTRA["homeless"]


def test_a_module_that_is_no_policy_is_refused():
    with pytest.raises(jw.JoinweirError, match="is no policy: it has no POLICY"):
        jw.check_policy(types.ModuleType("nothing"))
    with pytest.raises(jw.JoinweirError, match="unknown policy 'gjd'; did you mean 'gdj'"):
        jw.check_policy("gjd")
