"""The scripts of the trainers' pages run as shown, RLlib's in its own environment (see tests/integration/rllib)."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPETS = runpy.run_path(str(ROOT / "tests/test_docs_snippets.py"))


@pytest.mark.parametrize("trainer", ["pettingzoo", "sb3", "torchrl"])
def test_the_script_of_a_trainers_page_runs(trainer, tmp_path):
    page = ROOT / f"docs/trainers/{trainer}.md"
    SNIPPETS["run_script"](page, SNIPPETS["python_of"](page.read_text()), tmp_path)
    assert list((tmp_path / "videos").glob("*.mp4"))
