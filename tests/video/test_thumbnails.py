"""Contact sheets show a video from its first frame to its last, in pictures large enough to see something."""

import base64
import io

import av
import numpy as np
import pytest

from fleet_gym.video.thumbnails import COLUMNS, THUMBNAILS, contact_sheet

WIDTH, HEIGHT = 320, 240


def write_video(path, frames, key_frame_every):
    """A bar goes from the left to the right over a fine pattern."""
    pattern = np.where(np.indices((HEIGHT, WIDTH)).sum(axis=0) % 2, 120, 40).astype(np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"crf": "12"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.gop_size = key_frame_every
        for k in range(frames):
            image = np.repeat(pattern[..., None], 3, axis=2)
            left = round((WIDTH - 20) * k / max(frames - 1, 1))
            image[:, left : left + 20] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


def pictures_of(sheet):
    with av.open(io.BytesIO(base64.b64decode(sheet.image.partition(",")[2]))) as container:
        image = next(container.decode(video=0)).to_ndarray(format="rgb24").mean(axis=2)
    columns = min(COLUMNS, round(image.shape[1] / 120))
    rows = round(image.shape[0] / 90)
    return [part for row in np.array_split(image, rows) for part in np.array_split(row, columns, axis=1)]


@pytest.mark.parametrize(
    ("frames", "key_frame_every"), [(8, 30), (60, 30), (60, 1000), (201, 30), (400, 30), (400, 1000)]
)
def test_pictures_are_evenly_spaced_from_the_first_frame_to_the_last(tmp_path, frames, key_frame_every):
    write_video(tmp_path / "video.mp4", frames, key_frame_every)
    sheet = contact_sheet(tmp_path / "video.mp4")
    assert sheet.warning == ""
    assert sheet.size == (WIDTH, HEIGHT)
    pictures = pictures_of(sheet)
    assert len(pictures) == THUMBNAILS
    # Where the bar is, as a share of its way.
    places = [picture.mean(axis=0)[2:-2].argmax() / (picture.shape[1] - 5) for picture in pictures]
    assert places == pytest.approx(np.linspace(0, 1, THUMBNAILS), abs=0.13)
    assert places[0] < 0.07
    assert places[-1] > 0.93


@pytest.mark.parametrize(("frames", "shown"), [(1, 1), (3, 3), (6, 4)])
def test_short_videos_fill_one_row(tmp_path, frames, shown):
    write_video(tmp_path / "video.mp4", frames, 30)
    sheet = contact_sheet(tmp_path / "video.mp4")
    pictures = pictures_of(sheet)
    assert len(pictures) == shown
    assert pictures[0].shape[0] == 90


def test_fine_patterns_are_averaged(tmp_path):
    write_video(tmp_path / "video.mp4", 8, 30)
    first, *_ = pictures_of(contact_sheet(tmp_path / "video.mp4"))
    assert np.ptp(first[4:-4, 40:-4]) < 20  # single pixels would be 80 apart
