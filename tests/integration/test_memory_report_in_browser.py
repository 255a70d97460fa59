"""The page of a run's memory in a real browser."""

import itertools

import pytest
from chromium import Browser

from fleet_gym.profiling.intervals import MemoryRecord
from fleet_gym.profiling.plots import write_html

COUNT = 137
PLOT = "document.getElementById('plot')"
POINTS = (
    f"Array.from({PLOT}.querySelectorAll('path')).map((path) =>"
    " [path.dataset.name, path.getAttribute('d').split('L').length, path.getTotalLength()])"
)
Y_TICKS = f"Array.from({PLOT}.querySelectorAll('text.y')).map((text) => text.textContent)"
X_TICKS = f"Array.from({PLOT}.querySelectorAll('text.x')).map((text) => text.textContent)"


def record(number: int) -> MemoryRecord:
    """Grows by half a MB an interval; USS is read in every tenth."""
    level = 211.3 + 0.5 * number
    return MemoryRecord(
        step=100 * number,
        steps=100,
        time_s=0.5 * number,
        source="rss",
        current_mb=level,
        min_mb=level - 1,
        max_mb=level + 1,
        peak_mb=level,
        peak_max_mb=level + 2,
        growth_mb=0.5,
        rss_mb=level,
        uss_mb=150.0 + number - number % 10 if number >= 10 else None,
        native_mb=90.0,
        python_blocks=100_000,
        resets=1,
        step_native_bytes=0,
        reset_native_bytes=0,
        num_workers=0,
        workers_mb=0.0,
        num_encoders=0,
        encoders_mb=0.0,
        limit_mb=24_000.0,
        steps_per_second=200.0,
        verdicts={"rss": "leak", "native": "stable"},
        uss_step=100 * (number - number % 10) if number >= 10 else None,
    )


@pytest.fixture
def browser(tmp_path):
    chromium = Browser(tmp_path / "profile")
    yield chromium
    chromium.close()


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "run 1 & 2.html"
    write_html([record(number) for number in range(1, COUNT + 1)], path, "Memory of run 1 & 2.jsonl")
    return path


def point(browser, kind, share, target=PLOT):
    """A pointer event at this share of the plot's width."""
    browser.evaluate(
        f"(() => {{ const box = {PLOT}.getBoundingClientRect();"
        f" {target}.dispatchEvent(new PointerEvent('{kind}', {{bubbles: true,"
        f" clientX: box.left + {share} * box.width, clientY: box.top + 50}})); }})()"
    )


def test_no_label_is_cut_off(browser, tmp_path):
    page = tmp_path / "run.html"
    write_html([record(1000 * number) for number in range(1, 101)], page, "Up to a label at the very end")
    browser.open(page)
    assert browser.evaluate(X_TICKS)[-1] == "10000000"
    edges = f"Array.from({PLOT}.querySelectorAll('text')).map((text) => text.getBoundingClientRect())"
    right = browser.evaluate(f"Math.max(...{edges}.map((box) => box.right))")
    left = browser.evaluate(f"Math.min(...{edges}.map((box) => box.left))")
    assert left >= browser.evaluate(f"{PLOT}.getBoundingClientRect().left")
    assert right <= browser.evaluate(f"{PLOT}.getBoundingClientRect().right")


def test_every_signal_is_a_line_through_its_readings(browser, page):
    browser.open(page)
    points = {name: (count, length) for name, count, length in browser.evaluate(POINTS)}
    assert {name: count for name, (count, _) in points.items()} == {
        "current (mean)": COUNT,
        "peak": COUNT,
        "RSS": COUNT,
        "USS": 13,
        "native heap": COUNT,
    }
    assert all(length > 500 for _, length in points.values())
    assert browser.evaluate("document.querySelector('.leak').textContent").strip() == "rss: leak"
    assert "Dotted: USS" in browser.evaluate("document.body.textContent")
    assert browser.evaluate("document.title") == "Memory of run 1 & 2.jsonl"
    assert browser.complaints == []


def test_ticks_are_round(browser, page):
    browser.open(page)
    assert browser.evaluate(Y_TICKS) == [str(level) for level in range(0, 301, 50)]
    assert browser.evaluate(X_TICKS) == [str(step) for step in range(2000, 13_701, 2000)]
    assert browser.complaints == []


def test_pointing_hiding_and_zooming(browser, page):
    browser.open(page)
    point(browser, "pointermove", 0.999)
    values = browser.evaluate("document.getElementById('values').textContent")
    assert values.startswith(f"step {100 * COUNT}: growth 0.50 MiB, current (mean) 279.80, ")
    assert "USS 280.00 (as of step 13000)" in values
    browser.evaluate("document.querySelector('#legend button:nth-child(4)').click()")
    assert "USS" not in [name for name, *_ in browser.evaluate(POINTS)]
    point(browser, "pointerdown", 0.5)
    point(browser, "pointermove", 0.7)
    assert browser.evaluate(f"{PLOT}.querySelectorAll('rect.mark').length") == 1
    point(browser, "pointerup", 0.7, "window")
    counts = {name: count for name, count, _ in browser.evaluate(POINTS)}
    assert 20 < counts["RSS"] < 40
    assert all(int(step) % 500 == 0 for step in browser.evaluate(X_TICKS))
    browser.evaluate(f"{PLOT}.dispatchEvent(new MouseEvent('dblclick', {{bubbles: true}}))")
    assert {name: count for name, count, _ in browser.evaluate(POINTS)}["RSS"] == COUNT
    assert browser.complaints == []


def test_a_telephone_shows_it_readably(browser, page):
    browser.resize(375, 700)
    browser.open(page)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 375
    texts = f"Array.from({PLOT}.querySelectorAll('text')).map((text) => text.getBoundingClientRect())"
    assert min(browser.evaluate(f"{texts}.map((box) => box.height)")) >= 11
    ticks = f"Array.from({PLOT}.querySelectorAll('text.x')).map((text) => text.getBoundingClientRect())"
    boxes = sorted(browser.evaluate(f"{ticks}.map((box) => [box.left, box.right])"))
    assert len(boxes) >= 2
    assert all(left > right for (_, right), (left, _) in itertools.pairwise(boxes))
    assert browser.evaluate(f"{texts}.every((box) => box.left >= 0 && box.right <= 375)")
    assert browser.evaluate(f"{PLOT}.getBoundingClientRect().height") >= 250
    assert browser.complaints == []


def test_a_single_interval_shows_as_points(browser, tmp_path):
    write_html([record(1)], tmp_path / "one.html", "one")
    browser.open(tmp_path / "one.html")
    assert browser.evaluate(f"{PLOT}.querySelectorAll('circle').length") == 4
    assert browser.complaints == []
