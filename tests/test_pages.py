"""Where pages go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fleet_gym.evaluation import compare, evaluate, write_comparison
from fleet_gym.pages import page_path
from fleet_gym.video.gallery import write_gallery


def test_a_page_is_a_file_of_html_or_lies_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run.1").mkdir()
    assert page_path("out", tmp_path / "run.1", "x.html") == tmp_path / "run.1" / "x.html"
    assert page_path("out", tmp_path / "new", "x.html") == tmp_path / "new" / "x.html"
    assert page_path("out", tmp_path / "page.HTM", "x.html") == tmp_path / "page.HTM"


@pytest.mark.parametrize("name", ["results.json", "notes"])
def test_no_other_file_is_replaced_by_a_page(name: str, tmp_path: Path) -> None:
    other = tmp_path / name
    other.write_text("mine")
    with pytest.raises(ValueError, match=r"out: expected a page ending in \.html, or a folder, got"):
        page_path("out", other, "x.html")
    with pytest.raises(ValueError, match=r"output: expected a page ending in \.html"):
        write_gallery(tmp_path, other)
    assert other.read_text() == "mine"


def test_a_comparison_goes_into_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    from gymnasium.vector import AutoresetMode

    from fleet_gym.testing.coded_color_env import CodedColorVectorEnv

    env = CodedColorVectorEnv([2], {"front": (64, 64)}, AutoresetMode.DISABLED)
    run = evaluate(env, lambda observation: np.zeros((1, 1), np.float32), episodes=2, profile="off")
    assert write_comparison(compare(run, run), tmp_path / "pages") == tmp_path / "pages" / "compare.html"
