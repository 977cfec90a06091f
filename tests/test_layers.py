"""The import rules of the package, read from its sources.

Imports go downward only, so that the oracles (`optimum`, `counting`, ...) share no code with the
engine and `import joinweir` stays light. A new module belongs in `MAY_IMPORT` below.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "joinweir"
TESTS = Path(__file__).resolve().parent
SOURCES = TESTS.parent / "src" / PACKAGE

# The unit of a layer is a module or package directly below joinweir; "" is joinweir/__init__.py.
LEAVES = {"errors", "units", "compiling"}
INDEPENDENT = {"optimum", "locality", "counting", "cpu", "streams", "metrics"}
ENGINE = {"layout", "structures", "engine", "workload_engine", "policies", "state"}
MEASURING = {"report", "summaries", "characterization", "profiling"}
MIDDLE = {"tables", "simulation", "workload", "checks", "semistream", "job"} | MEASURING
BELOW_TOP = LEAVES | INDEPENDENT | ENGINE | MIDDLE

# unit -> the units it may import (itself always).
MAY_IMPORT: dict[str, set[str]] = {
    # leaves
    "errors": set(),
    "units": {"errors"},
    "compiling": set(),
    # the engine and what ranks for it, bottom to top
    "layout": LEAVES,
    "structures": LEAVES | {"layout"},
    "engine": LEAVES | {"layout", "structures"},
    "workload_engine": LEAVES | {"layout", "structures", "engine"},
    "policies": LEAVES | {"layout", "structures", "engine", "workload_engine", "locality"},
    "state": LEAVES | {"layout", "structures", "engine", "policies"},
    # oracles and measures: no code shared with the engine, so a bug cannot agree with itself
    **{unit: LEAVES | {"layout"} for unit in sorted(INDEPENDENT)},
    "optimum": LEAVES | {"layout", "tables"},  # reads the same tables as the simulation
    # how pages look; characterizing streams builds on it and on measures, not on the engine
    "report": LEAVES,
    "summaries": LEAVES,
    "characterization": LEAVES | INDEPENDENT | {"report"},
    # what drives the engine
    "tables": LEAVES,
    "profiling": LEAVES | INDEPENDENT | {"summaries", "characterization", "tables"},
    "simulation": LEAVES | INDEPENDENT | ENGINE | {"tables"},
    "workload": LEAVES | INDEPENDENT | ENGINE | {"tables", "simulation"},
    "checks": LEAVES | INDEPENDENT | ENGINE | {"tables", "simulation", "workload"},
    "semistream": LEAVES | INDEPENDENT | ENGINE,
    "job": LEAVES | INDEPENDENT | ENGINE | {"simulation"},
    # what users meet; joinweir/__init__.py must not reach pyspark, so only the CLI builds on it
    "spark": BELOW_TOP,
    "bench": BELOW_TOP | {"report", "spark"},
    "": BELOW_TOP | {"bench", "report"},
    "cli": BELOW_TOP | {"", "bench", "report", "spark"},
    "__main__": {"cli"},
}

# third-party package -> the only units that may import it
FENCED: dict[str, set[str]] = {
    "pyspark": {"spark"},
    "plotly": {"report"},
    "matplotlib": {"report"},
    "seaborn": {"report"},
    "altair": {"report"},
    "bokeh": {"report"},
}

UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "shelve",
    "marshal",
}
UNSAFE_CALLS = {"eval", "exec"}


def unit_of(module: str) -> str:
    """`joinweir.policies.gdj` -> `policies`; `joinweir` -> ``."""
    return module.split(".")[1] if "." in module else ""


def module_name(path: Path) -> str:
    parts = [PACKAGE, *path.relative_to(SOURCES).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything imported anywhere in the module.

    `from a import b` yields `a.b`, since `b` may be a module; imports inside functions count.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                package = package[: len(package) - (node.level - 1)]
                base = ".".join([*package, base] if base else package)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            argument = node.args[0]
            if (
                name in {"import_module", "__import__"}
                and isinstance(argument, ast.Constant)
                and isinstance(argument.value, str)
                and not argument.value.startswith(".")
            ):
                yield node.lineno, argument.value


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What in this source breaks the rules, one line each."""
    tree = ast.parse(source)
    unit = unit_of(module)
    if unit not in MAY_IMPORT:
        return [f"{module}: not in a layer yet; add {unit!r} to MAY_IMPORT in tests/test_layers.py"]
    found = []
    for line, name in imported(tree, module, is_package):
        top = name.split(".")[0]
        if top == PACKAGE:
            target = unit_of(name)
            if target not in MAY_IMPORT and not unit_exists(target):
                target = ""  # a public name of joinweir/__init__.py, not a module
            if target != unit and target not in MAY_IMPORT[unit]:
                what = f"{PACKAGE}.{target}" if target else f"{PACKAGE} itself"
                found.append(f"{module}:{line}: may not import {what}")
        elif unit not in FENCED.get(top, {unit}):
            found.append(f"{module}:{line}: {top} only in {', '.join(sorted(FENCED[top]))}")
        elif top in UNSAFE_MODULES:
            found.append(f"{module}:{line}: {top} runs code from data")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
            found.append(f"{module}:{node.lineno}: {node.func.id}() runs code from data")
        for keyword in node.keywords:
            if keyword.arg == "allow_pickle" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                found.append(f"{module}:{node.lineno}: allow_pickle runs code from data")
    return found


def unit_exists(unit: str) -> bool:
    return (SOURCES / f"{unit}.py").exists() or (SOURCES / unit).is_dir()


MODULES = sorted(SOURCES.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_downward_only(path: Path) -> None:
    found = violations(
        path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py"
    )
    assert not found, "\n".join(["", *found])


def test_importing_joinweir_imports_no_dataframe_library() -> None:
    heavy = [
        "pyspark",
        "pandas",
        "polars",
        "plotly",
        "matplotlib",
        "ortools",
    ]  # numba imports scipy
    code = f"import sys, joinweir; print(*[m for m in {heavy!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


def test_the_naive_oracle_shares_no_code_with_the_package() -> None:
    tree = ast.parse((TESTS / "naive.py").read_text(encoding="utf-8"))
    shared = [name for _, name in imported(tree, "naive", False) if name.split(".")[0] == PACKAGE]
    assert shared == []


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        ("joinweir.layout", "import joinweir.engine", "may not import joinweir.engine"),
        ("joinweir.layout", "from . import engine", "may not import joinweir.engine"),
        ("joinweir.engine", "from joinweir import policies", "may not import joinweir.policies"),
        (
            "joinweir.policies.gdj",
            "from ..simulation import f",
            "may not import joinweir.simulation",
        ),
        (
            "joinweir.policies.gdj",
            "from joinweir import metrics",
            "may not import joinweir.metrics",
        ),
        ("joinweir.policies.gdj", "from ..state import f", "may not import joinweir.state"),
        ("joinweir.optimum.flow", "from ..engine import run", "may not import joinweir.engine"),
        ("joinweir.metrics", "from . import counting", "may not import joinweir.counting"),
        ("joinweir.simulation", "from . import checks", "may not import joinweir.checks"),
        ("joinweir.simulation", "from joinweir import simulate", "may not import joinweir itself"),
        ("joinweir.report", "def f():\n    from . import cli", "may not import joinweir.cli"),
        ("joinweir", "from joinweir.spark import enrich", "may not import joinweir.spark"),
        ("joinweir", "from joinweir.cli import main", "may not import joinweir.cli"),
        ("joinweir.cli", "def f():\n    import pyspark.sql", "pyspark only in spark"),
        ("joinweir.cli", "importlib.import_module('pyspark')", "pyspark only in spark"),
        ("joinweir.bench", "import plotly.graph_objects as go", "plotly only in report"),
        ("joinweir.checks", "import pickle", "pickle runs code from data"),
        ("joinweir.streams", "eval('1')", "eval() runs code from data"),
        ("joinweir.streams", "np.load(p, allow_pickle=True)", "allow_pickle runs code from data"),
        ("joinweir.misc", "", "add 'misc' to MAY_IMPORT"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str, message: str) -> None:
    found = violations(source, module, is_package=module == PACKAGE)
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("joinweir.units", "from .errors import InvalidInput"),
        ("joinweir.engine", "from . import layout, structures, units"),
        ("joinweir.policies.gdj", "from . import fifo\nfrom ..engine import loop"),
        ("joinweir.checks", "from joinweir import simulation, policies"),
        ("joinweir.optimum.flow", "from joinweir.optimum import graph\nimport ortools"),
        ("joinweir.cli", "import joinweir as jw\nfrom joinweir import simulate, bench, spark"),
        ("joinweir.spark.packets", "import pyspark\nfrom . import state\nfrom .. import engine"),
        ("joinweir", "from joinweir.simulation import simulate\nfrom .policies import policy"),
        ("joinweir.streams", "np.load(p, allow_pickle=False)\nmodel.eval()"),
    ],
)
def test_a_downward_import_is_allowed(module: str, source: str) -> None:
    assert violations(source, module, is_package=module == PACKAGE) == []


def test_the_layers_have_no_cycle() -> None:
    order: list[str] = []
    waiting = dict(MAY_IMPORT)
    while waiting:
        free = [unit for unit, below in waiting.items() if not (below - {unit}) - set(order)]
        assert free, f"a cycle among {sorted(waiting)}"
        order += free
        for unit in free:
            del waiting[unit]
