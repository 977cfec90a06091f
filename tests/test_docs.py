"""The pages' examples run as printed."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import joinweir

DOCS = Path(__file__).parent.parent / "docs"


def code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def test_the_readmes_example_prints_what_the_readme_shows(capsys):
    page = (DOCS.parent / "README.md").read_text().partition("## In Python, without Spark")[2]
    example, shown = re.search(r"```python\n(.*?)```\n```\n(.*?)```", page, re.DOTALL).groups()
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_the_example_of_characterize_prints_what_the_page_shows(capsys):
    page = (DOCS / "characterize.md").read_text()
    example, shown = re.search(r"```python\n(.*?)```\n```\n(.*?)```", page, re.DOTALL).groups()
    exec(compile(example, "characterize.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_links_between_pages_lead_somewhere():
    for page in [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_example_of_adding_a_policy_passes_the_contract_and_runs(tmp_path):
    policy, use = code_blocks("adding-a-policy.md")
    (tmp_path / "newest.py").write_text(policy)
    (tmp_path / "use.py").write_text(use)
    done = subprocess.run(
        [sys.executable, "use.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    passed, result = done.stdout.splitlines()
    assert "budget" in passed
    assert result.startswith("<newest: ")


def modules() -> list[str]:
    names = ["joinweir"]
    for info in pkgutil.walk_packages(joinweir.__path__, "joinweir."):
        if "spark" not in info.name and "__main__" not in info.name:
            names.append(info.name)
    return names


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_give_what_they_print(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
