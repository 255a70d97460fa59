"""The evaluation's report and comparison in a real browser."""

import numpy as np
import pytest
from chromium import Browser
from gymnasium.vector import AutoresetMode

from fleet_gym.evaluation import compare, evaluate, write_comparison
from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
from fleet_gym.video.gallery import write_gallery

PHONE = 390


class WatchableEnv(CodedColorVectorEnv):
    """Long enough to be watched at 10 frames per second, and it moves."""

    def _images(self):
        picture = super()._images()
        for images in picture.values():
            column = int(self.steps.max()) % (images.shape[2] - 8)
            images[:, 8:24, column : column + 8] = np.array([255, 255, 255], dtype=np.uint8)
        return picture


def make_env(lengths):
    return WatchableEnv(lengths, {"front": (96, 128), "a/b <c>": (96, 128)}, AutoresetMode.DISABLED)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a folder with 100 % & odd #characters?")
    for name, lengths in (("one", [20, 30]), ("two", [20, 34])):

        def policy(observation):
            return np.zeros((2, 1))

        policy.__qualname__ = f"a_rather_long_name_of_a_policy_that_has_no_place_to_break_{name}"
        evaluate(make_env(lengths), policy, episodes=9, videos=5, out=folder / name)
    write_comparison(compare(folder / "one", folder / "two"), folder / "compare.html")
    return folder


@pytest.fixture
def browser(tmp_path):
    chromium = Browser(tmp_path / "profile")
    yield chromium
    chromium.close()


def visible_text(browser, selector):
    return browser.evaluate(f"Array.from(document.querySelectorAll('{selector}')).map((part) => part.innerText)")


def test_the_report_shows_metrics_and_charts(browser, runs):
    browser.open(runs / "one" / "report.html")
    cards = dict(zip(("success", "return", "length"), visible_text(browser, ".card"), strict=True))
    assert "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}9" in cards["success"]
    assert browser.evaluate("document.querySelectorAll('#spread svg').length") == 3
    assert browser.evaluate("document.querySelectorAll('#profiles svg').length") == 2
    # Bars, points and curves are really drawn: they have an extent on the screen.
    for shape in ("rect.fill", "path.fill", "path.curve", ".interval circle"):
        sizes = browser.evaluate(
            f"Array.from(document.querySelectorAll('svg {shape}')).map((part) => part.getBoundingClientRect())"
            ".map((box) => box.width + box.height)"
        )
        assert sizes
        assert min(sizes) > 0, shape
    assert browser.complaints == []


def test_videos_of_the_report_play(browser, runs):
    browser.open(runs / "one" / "report.html")
    assert browser.evaluate("document.querySelectorAll('video').length") == 10
    first = "document.querySelector('.episode').querySelectorAll('video')"
    browser.evaluate("document.querySelector('button.play').scrollIntoView()")
    browser.wait_for(f"Array.from({first}).every((video) => video.readyState >= 1)")
    browser.evaluate("document.querySelector('button.play').click()")
    browser.wait_for(f"Array.from({first}).every((video) => video.currentTime > 0.4)")
    assert browser.evaluate("Array.from(document.querySelectorAll('video')).every((video) => video.error === null)")
    assert browser.complaints == []


def test_episodes_of_the_report_are_filtered_and_sorted(browser, runs):
    browser.open(runs / "one" / "report.html")
    assert sorted(browser.shown()) == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]
    browser.set("env", "1")
    assert sorted(browser.shown()) == [[1, 0], [1, 1]]
    browser.set("success", "yes")
    assert browser.shown() == [[1, 0]]
    assert browser.evaluate("document.getElementById('shown').textContent") == "1 shown"
    browser.set("env", "7")
    assert browser.evaluate("!document.getElementById('nothing').hidden")
    browser.evaluate("document.querySelector('button[type=reset]').click()")
    browser.wait_for("document.getElementById('shown').textContent === '5 shown'")
    browser.set("sort", "steps")
    browser.set("descending", True)
    assert browser.shown()[0][0] == 1
    assert browser.complaints == []


@pytest.mark.parametrize("page", ["one/report.html", "compare.html"])
def test_pages_fit_a_phone(browser, runs, page):
    browser.resize(PHONE)
    browser.open(runs / page)
    browser.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    width, shown = browser.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert shown == PHONE
    assert width <= PHONE
    # Nothing sticks out, but what lies in a box that scrolls by itself.
    sticking = browser.evaluate(
        "Array.from(document.querySelectorAll('body *')).filter((part) => !part.closest('.wide')"
        f" && part.getBoundingClientRect().right > {PHONE} + 0.5).map((part) => part.outerHTML.slice(0, 80))"
    )
    assert sticking == []
    # Labels of charts, in pixels of the screen.
    heights = browser.evaluate(
        "Array.from(document.querySelectorAll('svg text')).map((part) => part.getBoundingClientRect().height)"
    )
    assert min(heights) >= 10
    assert browser.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(browser, runs, scheme):
    browser.prefer(scheme)
    browser.open(runs / "one" / "report.html")
    contrast = """(selector, background) => {
      const channels = (color) => color.match(/[\\d.]+/g).slice(0, 3).map((value) => value / 255)
        .map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
      const light = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
      const style = getComputedStyle(document.querySelector(selector));
      const color = selector.startsWith("svg") ? style.fill : style.color;
      const other = getComputedStyle(document.querySelector(background)).backgroundColor;
      const [a, b] = [light(channels(color)), light(channels(other))];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }"""
    on_cards = {".card p": ".card", "svg .tick": ".chart"}
    for selector in ("h1", ".lead", ".note", ".card p", "svg .tick", "a"):
        background = on_cards.get(selector, "body")
        ratio = browser.evaluate(f"({contrast})({selector!r}, {background!r})")
        assert ratio >= 4.5, (selector, ratio)


def test_the_comparison_shows_differences_and_its_links_work(browser, runs):
    browser.open(runs / "compare.html")
    assert [text.split("\n")[0] for text in visible_text(browser, ".card h3")] == [
        "Success, B - A", "Return, B - A", "Length, B - A",
    ]  # fmt: skip
    assert browser.evaluate("document.querySelectorAll('#spread svg').length") == 3
    assert browser.evaluate("document.querySelectorAll('svg circle.point').length") == 9
    links = browser.evaluate("Array.from(document.querySelectorAll('#pairs a')).map((link) => link.href)")
    assert len(links) == 20
    for link in links:
        playable = browser.evaluate(
            f"new Promise((done) => {{ const video = document.createElement('video'); video.src = {link!r};"
            " video.onloadedmetadata = () => done(video.videoWidth); video.onerror = () => done(0); })"
        )
        assert playable == 128
    assert browser.complaints == []


def test_pairs_without_videos_can_be_left_out(browser, runs):
    browser.open(runs / "compare.html")
    visible = "Array.from(document.querySelectorAll('#pairs tr')).filter((row) => row.offsetHeight > 0).length"
    assert browser.evaluate(visible) == 10  # and the heading
    browser.evaluate("document.getElementById('with-videos').click()")
    assert browser.evaluate(visible) == 6
    assert browser.complaints == []


def test_labels_of_charts_do_not_touch(browser, runs):
    for page in ("one/report.html", "compare.html"):
        browser.open(runs / page)
        overlapping = browser.evaluate("""Array.from(document.querySelectorAll('svg')).flatMap((chart) => {
          const texts = Array.from(chart.querySelectorAll('text'))
            .map((text) => [text.textContent, text.getBoundingClientRect()]);
          return texts.flatMap(([one, a], k) => texts.slice(k + 1).filter(([, b]) => a.left < b.right - 0.5
            && b.left < a.right - 0.5 && a.top < b.bottom - 3 && b.top < a.bottom - 3).map(([other]) => [one, other]));
        })""")
        assert overlapping == [], page


FAINT = """(() => {
  const channels = (color) => color.match(/[\\d.]+/g).slice(0, 3).map((value) => value / 255)
    .map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
  const behind = (part) => {
    const color = getComputedStyle(part).backgroundColor;
    return color.endsWith(", 0)") ? behind(part.parentElement) : color;
  };
  const written = Array.from(document.querySelectorAll("body *")).filter((part) => part.getClientRects().length
    && !part.closest("option, video") && Array.from(part.childNodes).some((n) => n.nodeType === 3 && n.data.trim()));
  return written.map((part) => {
    const style = getComputedStyle(part), [a, b] = [part.ownerSVGElement ? style.fill : style.color, behind(part)]
      .map((color) => light(channels(color)));
    return [part.outerHTML.slice(0, 60), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  }).filter(([, ratio]) => ratio < 4.5);
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_text_of_any_page_is_faint(browser, runs, scheme):
    browser.prefer(scheme)
    write_gallery(runs / "one")
    for page in ("compare.html", "one/report.html", "one/index.html"):
        browser.open(runs / page)
        browser.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        for word in ("better", "worse", "warning"):  # whatever these runs have of them
            browser.evaluate(
                f"document.querySelectorAll('.card p span').forEach((part) => {{ part.className = '{word}'; }})"
            )
            assert browser.evaluate(FAINT) == [], page
