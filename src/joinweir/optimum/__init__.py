"""The offline optimum: the most that any policy could have got out of a memory, with hindsight.

`solve` takes the arguments of `joinweir.simulate` and answers with the best result that memory
allows, the rows that had to be held for it, and how sure that is. `exact` is the join without a
limit.

>>> left = {"k": [1, 2, 1, 3], "ts": [0, 1, 2, 3]}
>>> right = {"k": [1, 1, 2, 3], "ts": [1, 2, 3, 9]}
>>> best = solve(left, right, on="k", time="ts", within=5, max_rows=2)
>>> best.n_out, best.n_exact
(3, 5)
>>> best.retained.stream.tolist(), best.retained.row.tolist(), best.retained.n_out.tolist()
([0, 1], [0, 0], [2, 1])

Shares no code with the engine, so that neither can hide the other's errors. docs/optimum.md has
the problem, the solvers, and what they cost.
"""

from __future__ import annotations

from .flow import SOLVERS
from .solving import METHODS, Exact, Optimum, Retained, exact, solve
from .weights import COMBINE, OBJECTIVES

__all__ = [
    "COMBINE",
    "METHODS",
    "OBJECTIVES",
    "SOLVERS",
    "Exact",
    "Optimum",
    "Retained",
    "exact",
    "solve",
]
