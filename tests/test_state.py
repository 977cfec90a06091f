"""A running join's arrays: what they take, and how they are saved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import joinweir as jw
from joinweir import layout as L
from joinweir import simulation
from joinweir.state import JoinConfig, JoinState, make_batch

POLICIES = [*(name for name in jw.policy_names() if name != "full"), "gdj:initial_rank=auto"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_in_bytes_covers_everything_that_is_allocated(policy, monkeypatch):
    seen = []
    finish = simulation._result

    def remember(state, *rest):
        seen.append(state)
        return finish(state, *rest)

    monkeypatch.setattr(simulation, "_result", remember)
    left, right = jw.streams.zipf_pair(50_000, domain=5_000, seed=1)
    memory = 8 * 2**20
    result = jw.simulate(
        left, right, on="key", time="ts", within=20_000, memory=memory, policy=policy,
        pairs=False, shed=False,
    )  # fmt: skip
    columns = 16 * sum(result.rows_held)  # ts and key, which a caller would keep
    assert seen[0].bytes_of_state() + columns <= memory
    assert result.bytes_held <= result.max_bytes <= memory
    assert result.bytes_held > 0.9 * result.max_bytes


def batch_of(config, rng, start, n, size):
    return make_batch(
        config,
        ts=np.arange(start, start + n),
        side=rng.integers(0, 2, n),
        key=rng.integers(0, 50, n),
        row=np.arange(start, start + n),
        size=np.full(n, size, np.int32),
    )


def test_small_rows_of_before_a_restart_leave_places_for_large_ones_after():
    config = JoinConfig(
        jw.policy("fifo"), (10_000, 10_000), (1000, 1000), unit="bytes", accounting="off"
    )
    state = JoinState(config)
    rng = np.random.default_rng(1)
    state.process(batch_of(config, rng, 0, 120, 10))
    state = JoinState.restore(config, state.snapshot())
    state.process(batch_of(config, rng, 120, 500, 30))
    assert (state.store.pool["used"] <= 1000).all()
    assert state.store.reg[L.N_SLOTS] == state.store.side["held"].sum()


def test_a_state_is_refused_when_it_is_damaged_or_belongs_elsewhere():
    config = JoinConfig(jw.policy("gdj"), (10, 10), (5, 5))
    state = JoinState(config)
    saved = state.snapshot()
    other = JoinConfig(jw.policy("gdj"), (10, 11), (5, 5))
    damaged = bytearray(saved)
    damaged[-1] ^= 1
    cases = {
        "no saved joinweir state": (config, b"PAR1" + saved),
        "damaged": (config, bytes(damaged)),
        "another configuration": (other, saved),
        "layout 9": (config, saved[:6] + b"\x09\x00" + saved[8:]),
    }
    for says, (wanted, data) in cases.items():
        with pytest.raises(jw.StateError, match=says):
            JoinState.restore(wanted, data)
    with pytest.raises(jw.StateError, match="damaged"):
        JoinState.restore(config, saved[:-5])


def test_compiled_code_of_another_engine_is_compiled_again(monkeypatch):
    from joinweir import state as module

    config = JoinConfig(jw.policy("fifo"), (10, 10), (5, 5))
    calls = []

    class Stale:
        """Answers once with the digest of older sources."""

        def __call__(self, store, *rest):
            store.reg[L.DIGEST] = module.DIGEST if calls else 7
            return 0, 0, 0

        def recompile(self):
            calls.append("recompiled")

    made = JoinState(config)
    made.compiled_run = Stale()
    module._verify_compiled(made)
    assert calls == ["recompiled"]


def test_an_instant_may_not_be_split_over_batches():
    config = JoinConfig(jw.policy("fifo"), (10, 10), (5, 5), order="evict_first")
    state = JoinState(config)
    state.process(make_batch(config, ts=[1], side=[0], key=[1], row=[0]))
    with pytest.raises(jw.JoinweirError, match="an instant must come whole"):
        state.process(make_batch(config, ts=[1], side=[1], key=[1], row=[0]))


def test_an_outside_policy_does_not_spoil_the_compiled_code_of_others(tmp_path):
    """It once did: a shared function's cache index named the outside policy's class."""
    folder = tmp_path / "outside"
    folder.mkdir()
    source = Path(jw.policies.fifo.__file__).read_text()
    source = source.replace("from ..", "from joinweir.").replace(
        "from . ", "from joinweir.policies "
    )
    (folder / "stranger.py").write_text(source)
    run = (
        "import joinweir as jw; {} row = dict(k=[1], t=[1]); print(jw.simulate(row, row,"
        " on='k', time='t', within=5, max_rows=2, policy='{}').n_out)"
    )
    cases = [
        (run.format("import stranger; jw.policies.register(stranger);", "stranger"), folder),
        (run.format("", "fifo"), tmp_path),
    ]
    for code, where in cases:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=where,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "1\n", done.stderr


def test_arrays_that_cannot_be_written_do_not_make_numba_compile_again():
    """Rows of a replayed log come from Arrow; a second compilation took 13 s in a micro-batch."""
    config = JoinConfig(jw.policy("fifo"), lifetimes=(10, 10), capacity=(2, 2))
    columns = {"ts": [1, 2], "side": [0, 1], "key": [7, 7], "row": [0, 0]}
    state = JoinState(config)
    state.process(make_batch(config, **columns))
    compiled = len(state.compiled_run.signatures)
    locked = {name: np.array(values, np.int64) for name, values in columns.items()}
    for values in locked.values():
        values.flags.writeable = False
    JoinState(config).process(make_batch(config, **locked))
    assert len(state.compiled_run.signatures) == compiled
