"""The script of RLlib's page runs as shown."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]
SNIPPETS = runpy.run_path(str(ROOT / "tests/test_docs_snippets.py"))


def test_the_script_of_rllibs_page_runs(tmp_path):
    page = ROOT / "docs/trainers/rllib.md"
    SNIPPETS["run_script"](page, SNIPPETS["python_of"](page.read_text()), tmp_path)
    assert list((tmp_path / "videos").glob("*.mp4"))
