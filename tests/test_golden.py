"""Every policy gives the numbers that were last looked at (`make golden` renews them)."""

from __future__ import annotations

import json

import pytest

import joinweir as jw
from make_golden import FOLDER, golden


def test_there_is_one_golden_file_a_policy():
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == jw.policy_names()


@pytest.mark.parametrize("name", jw.policy_names())
def test_counts_are_the_golden_ones(name):
    assert golden(name) == json.loads((FOLDER / f"{name}.json").read_text())
