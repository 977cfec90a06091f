"""Golden numbers: what every policy gave on fixed streams when it was last looked at.

One file a policy in tests/golden. `make golden` writes them anew; read the difference before you
commit it.
"""

from __future__ import annotations

import json
from pathlib import Path

import joinweir as jw
from joinweir.policies import definition, read_policy

FOLDER = Path(__file__).parent / "golden"
VARIANTS = {
    "prob": ["prob:statistics=window", "prob:statistics=memory"],
    "life": ["life:statistics=window"],
    "rand": ["rand:competing=true"],
    "age": ["age:mode=row"],
    "lba": ["lba:h=20,warmup=1000,refit=2000", "lba:warmup=2000,horizon=50,statistics=window"],
    "elba": ["elba:h=20,warmup=1000,refit=2000"],
    "gdj": ["gdj:method=2", "gdj:initial_rank=0.7", "gdj:initial_rank=auto"],
    "simpprob": ["simpprob:statistics=window"],
    "dimpprob": ["dimpprob:statistics=window"],
    "dgl": ["dgl:statistics=window", "dgl:alpha=0.3,decay=0.95"],
}


def pairs() -> dict[str, tuple]:
    """The streams, by name."""
    return {
        "zipf_pair": jw.streams.zipf_pair(5000, domain=100, seed=11),
        "copy_pair shared": jw.streams.copy_pair(5000, domain=100, shared=True, seed=11),
        "gismo_pair bursty": jw.streams.gismo_pair(
            5000, domain=100, horizon=5000, burst=0.5, seed=11
        ),
    }


def numbers(policy: str) -> dict[str, dict]:
    """Counts of a policy on every pair of streams at 10 % memory."""
    found = {}
    weighs = definition(read_policy(policy).name).weighs
    for name, made in pairs().items():
        left, right = jw.streams.with_importance(made, seed=11)
        for allocation in ("even", "unified"):
            result = jw.simulate(
                left,
                right,
                on="key",
                time="ts",
                within=500,
                max_rows=100,
                allocation=allocation,
                policy=policy,
                pairs=False,
                shed=False,
                importance="imp" if weighs else None,
            )
            found[f"{name}, {allocation}"] = {
                key: getattr(result, key)
                for key in ("n_out", "n_exact", "n_evicted", "n_refused", "n_expired", "rows_held")
            }
            if weighs:
                found[f"{name}, {allocation}"]["importance"] = float(f"{result.importance:.9g}")
    return json.loads(json.dumps(found))


def golden(name: str) -> dict[str, dict]:
    """All numbers of a policy's file."""
    return {policy: numbers(policy) for policy in [name, *VARIANTS.get(name, [])]}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for name in jw.policy_names():
        text = json.dumps(golden(name), indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n")
        print(f"wrote tests/golden/{name}.json")
