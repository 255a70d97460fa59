import re
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
from fleet_gym.video.gallery import write_gallery
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder


class Page(HTMLParser):
    """The tags of a page that matter."""

    def __init__(self, path):
        super().__init__()
        self.videos, self.links, self.images, self.rows, self.text = [], [], [], [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "video":
            self.videos.append(attributes)
        elif tag == "a":
            self.links.append(attributes["href"])
        elif tag == "img":
            self.images.append(attributes["src"])
        elif tag == "section":
            self.rows.append({name.removeprefix("data-"): value for name, value in attributes.items()})

    def handle_data(self, data):
        self.text.append(data)


class PictureEnv(CodedColorVectorEnv):
    """One camera that shows something, one that is black, one that never changes."""

    def __init__(self, length=4):
        super().__init__([length], {"a/b <i>": (64, 80), "black": (64, 80), "still": (64, 80)})

    def _images(self):
        moving = np.full((1, 64, 80, 3), 90, dtype=np.uint8)
        moving[:, 8:24, 8 + 8 * int(self.steps[0] % 6) : 24 + 8 * int(self.steps[0] % 6)] = 240
        still = np.full((1, 64, 80, 3), 90, dtype=np.uint8)
        return {"a/b <i>": moving, "black": np.zeros_like(moving), "still": still}


def record(folder, env, steps, **arguments):
    recorder = CameraObsVideoRecorder(env, folder, backend="pool", **arguments)
    recorder.reset(seed=3)
    for _ in range(steps):
        recorder.step(None)
    recorder.close()


def test_the_page_has_every_video_and_what_is_wrong_with_it(tmp_path):
    record(tmp_path, PictureEnv(), 9, episode_columns=lambda episode: {"<b>hard</b>": "<script>alert(1)</script>"})
    page_path = write_gallery(tmp_path)
    assert page_path == tmp_path / "index.html"
    page = Page(page_path)
    files = {path.name for path in tmp_path.glob("*.mp4")}
    assert len(files) == 6
    assert {unquote(video["src"]) for video in page.videos} == files
    assert {unquote(link) for link in page.links} == files
    assert all(video["preload"] == "none" for video in page.videos)
    assert [image[:23] for image in page.images] == ["data:image/jpeg;base64,"] * 6
    assert [(row["env"], row["episode"], row["steps"], row["return"], row["success"]) for row in page.rows] == [
        ("0", "0", "4", "10.0", "yes"), ("0", "1", "4", "10.0", "no"),
    ]  # fmt: skip
    text = " ".join(page.text)
    assert text.count("all black") == 2
    assert text.count("frozen") == 2
    assert "a/b <i>" in text
    source = page_path.read_text()
    assert "<script>alert(1)" not in source
    assert "<b>hard" not in source
    assert not re.search(r"""(src|href)="(https?:|/|file:)""", source)


def test_long_videos_are_judged_too(tmp_path):
    record(tmp_path, PictureEnv(100), 100)
    text = " ".join(Page(write_gallery(tmp_path)).text)
    assert text.count("all black") == text.count("frozen") == 1


def test_several_folders_and_another_place(tmp_path):
    for name in ("one", "two %20"):
        env = CodedColorVectorEnv([2, 3], autoreset_mode=AutoresetMode.SAME_STEP)
        record(tmp_path / "runs" / name, env, 3, save_partial_episodes=True)
    path = write_gallery([tmp_path / "runs" / "one", tmp_path / "runs" / "two %20"], tmp_path / "pages" / "all.html")
    assert path == tmp_path / "pages" / "all.html"
    page = Page(path)
    assert len(page.rows) == 6
    assert len(page.videos) == 6
    for video in page.videos:
        assert (path.parent / unquote(video["src"])).is_file()
    assert "interrupted" in " ".join(page.text)


def test_videos_without_a_log_are_shown_too(tmp_path):
    record(tmp_path, CodedColorVectorEnv([2], {"a": (16, 16), "b": (16, 16)}), 2)
    (tmp_path / "episodes.jsonl").unlink()
    page = Page(write_gallery(tmp_path))
    assert len(page.rows) == 1
    assert len(page.videos) == 2
    assert page.rows[0]["success"] == "unknown"


def test_a_file_that_is_no_video_is_told(tmp_path):
    (tmp_path / "p-env0-c-episode-0.mp4").write_bytes(b"not a video")
    assert "cannot be decoded" in " ".join(Page(write_gallery(tmp_path)).text)


def test_bad_folders(tmp_path):
    with pytest.raises(NotADirectoryError, match="nowhere"):
        write_gallery(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="folders"):
        write_gallery(tmp_path)
    with pytest.raises(ValueError, match="folders"):
        write_gallery([])
    assert list(tmp_path.iterdir()) == []
