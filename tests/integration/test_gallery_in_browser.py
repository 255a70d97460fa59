"""The gallery in a real browser."""

import numpy as np
import pytest
from chromium import Browser
from gymnasium.vector import AutoresetMode

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
from fleet_gym.video.episode_log import append_episodes
from fleet_gym.video.gallery import write_gallery
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

MANY = 1000


@pytest.fixture
def browser(tmp_path):
    chromium = Browser(tmp_path / "profile")
    yield chromium
    chromium.close()


class LongEnv(CodedColorVectorEnv):
    """Long enough to be watched: at 10 frames per second."""

    def _images(self):
        picture = super()._images()
        for images in picture.values():
            column = int(self.steps.max()) % (images.shape[2] - 8)
            images[:, 8:24, column : column + 8] = np.array([255, 255, 255], dtype=np.uint8)
        return picture


@pytest.fixture
def recorded(tmp_path):
    folder = tmp_path / "a folder with 100 % & odd #characters?"
    cameras = {"front": (96, 128), "a/b <c>": (97, 129)}
    env = LongEnv([20, 30], cameras, AutoresetMode.SAME_STEP)
    recorder = CameraObsVideoRecorder(env, folder, backend="pool")
    recorder.reset()
    for _ in range(61):
        recorder.step(None)
    recorder.close()
    write_gallery(folder)
    return folder


def test_videos_play_together_and_nothing_complains(browser, recorded):
    browser.open(recorded / "index.html")
    assert browser.evaluate("document.querySelectorAll('video').length") == len(list(recorded.glob("*.mp4"))) == 10
    # Only what is near the screen is loaded, and it can be decoded: an odd size too.
    browser.wait_for("document.querySelector('video').readyState >= 1")
    first = "document.querySelector('.episode').querySelectorAll('video')"
    browser.wait_for(f"Array.from({first}).every((video) => video.readyState >= 1)")
    sizes = browser.evaluate(f"Array.from({first}).map((video) => [video.videoWidth, video.videoHeight])")
    assert sorted(sizes) == [[128, 96], [130, 98]]
    assert abs(browser.evaluate(f"{first}[0].duration") - 2.1) < 0.05
    browser.evaluate("document.querySelector('button.play').click()")
    browser.wait_for(f"Array.from({first}).every((video) => video.currentTime > 0.5)")
    times = browser.evaluate(f"Array.from({first}).map((video) => video.currentTime)")
    assert max(times) - min(times) < 0.3
    browser.wait_for(f"{first}[0].ended")
    assert browser.evaluate("document.querySelectorAll('img').length") == 10
    browser.evaluate("document.querySelector('img').scrollIntoView()")
    browser.wait_for("document.querySelector('img').naturalWidth > 100")
    assert browser.evaluate("Array.from(document.querySelectorAll('video')).every((video) => video.error === null)")
    assert browser.complaints == []


def test_every_video_can_be_loaded(browser, recorded):
    browser.open(recorded / "index.html")
    browser.evaluate("document.querySelectorAll('video').forEach((video) => { video.preload = 'auto'; video.load(); })")
    browser.wait_for("Array.from(document.querySelectorAll('video')).every((video) => video.readyState >= 2)")
    assert browser.complaints == []


def test_sorting_and_filtering(browser, recorded):
    browser.open(recorded / "index.html")
    everything = browser.shown()
    assert sorted(everything) == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]
    browser.set("success", "yes")
    assert sorted(browser.shown()) == [[0, 0], [0, 2], [1, 0]]
    browser.set("env", "1")
    assert browser.shown() == [[1, 0]]
    browser.set("success", "")
    browser.set("env", "")
    browser.set("steps-min", "25")
    assert sorted(browser.shown()) == [[1, 0], [1, 1]]
    browser.set("steps-min", "")
    browser.set("return-max", "300")
    assert sorted(browser.shown()) == [[0, 0], [0, 1], [0, 2]]
    browser.set("return-max", "100")
    assert browser.shown() == []
    assert browser.evaluate("!document.getElementById('nothing').hidden")
    browser.evaluate("document.querySelector('button[type=reset]').click()")
    browser.wait_for("document.getElementById('shown').textContent === '5 shown'")
    browser.set("sort", "return")
    browser.set("descending", True)
    assert browser.shown()[:2] == [[1, 0], [1, 1]]
    browser.set("descending", False)
    assert browser.shown()[-2:] == [[1, 0], [1, 1]]
    assert browser.complaints == []


def test_a_thousand_episodes_stay_usable(browser, recorded):
    source = next(recorded.glob("*-front-episode-0.mp4")).read_bytes()
    many = recorded.parent / "many"
    many.mkdir()
    for number in range(MANY):
        name = f"robot-cam-env{number % 8}-front-episode-{number // 8}.mp4"
        (many / name).write_bytes(source)
        row = {
            "env": number % 8,
            "episode": number // 8,
            "steps": 20,
            "return": float(number),
            "success": number % 3 == 0,
        }
        append_episodes(many, [{**row, "files": [{"camera": "front", "file": name, "frames": 21}]}])
    write_gallery(many)
    assert (many / "index.html").stat().st_size < 20e6
    browser.open(many / "index.html")
    assert len(browser.shown()) == MANY
    loaded = "Array.from(document.querySelectorAll('video')).filter((video) => video.preload !== 'none').length"
    browser.wait_for(f"{loaded} > 0")
    assert browser.evaluate(loaded) < 30
    browser.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    last = "document.querySelector('.episode:last-of-type video')"
    browser.wait_for(f"{last}.readyState >= 1")
    assert browser.evaluate(loaded) < 60  # those left behind gave their decoder back
    browser.set("success", "no")
    browser.set("sort", "return")
    browser.set("descending", True)
    shown = browser.shown()
    assert len(shown) == MANY - len(range(0, MANY, 3))
    assert shown[0] == [(MANY - 2) % 8, (MANY - 2) // 8]
    browser.evaluate("window.scrollTo(0, 0)")
    first = "Array.from(document.querySelectorAll('.episode')).find((row) => !row.hidden)"
    browser.wait_for(f"{first}.querySelector('video').readyState >= 1")
    browser.evaluate(f"{first}.querySelector('button.play').click()")
    browser.wait_for(f"{first}.querySelector('video').currentTime > 0.3")
    assert browser.complaints == []


@pytest.mark.parametrize("width", [390, 1280])
def test_pictures_use_the_width_there_is(browser, recorded, width):
    browser.resize(width)
    browser.open(recorded / "index.html")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    figures = browser.evaluate(
        "Array.from(document.querySelector('.episode').querySelectorAll('figure')).map((figure) =>"
        " ['video', 'img'].map((tag) => figure.querySelector(tag).getBoundingClientRect())"
        ".map((box) => [box.left, box.width, box.height]))"
    )
    assert len(figures) == 2
    for video, sheet in figures:
        assert video[:2] == sheet[:2]
        assert video[1] >= 340
        # The box of a video has its shape, so that nothing black surrounds it, and pictures are as wide as a thumb.
        assert video[1] / video[2] == pytest.approx(4 / 3, rel=0.02)
        assert sheet[1] / 4 >= 80
    # What filters does not cover what it filters.
    browser.evaluate("window.scrollTo(0, 2000)")
    assert browser.evaluate("document.getElementById('bar').getBoundingClientRect().bottom") < 200
    assert browser.complaints == []
