import io
import logging

import numpy as np
import pytest
from PIL import Image

from fleet_gym.rendering.assets import TextureStore


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # what TIFF's reader says before it gives up
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", ["PNG", "JPEG", "TIFF", "DDS"])
def test_a_texture_with_broken_bytes_is_a_warning_whatever_its_reader_makes_of_it(tmp_path, monkeypatch, caplog, name):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)  # broken sizes are not to take memory and time
    rng = np.random.default_rng(5)
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(buffer, name)
    whole = np.frombuffer(buffer.getvalue(), dtype=np.uint8)
    unreadable = 0
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        for number in range(100):
            broken = whole.copy()
            broken[rng.integers(0, min(128, len(broken)), 4)] = rng.integers(0, 256, 4)  # where headers are
            path = tmp_path / f"{number}.{name.lower()}"
            path.write_bytes(broken.tobytes()[: rng.integers(1, len(broken) + 1) if number % 4 == 0 else None])
            unreadable += TextureStore().add_file(str(path)) == -1
    assert unreadable > 0
    assert len([record for record in caplog.records if str(tmp_path) in record.getMessage()]) == unreadable


def test_an_image_too_large_to_open_is_a_warning(tmp_path, monkeypatch, caplog):
    Image.new("RGB", (64, 64)).save(tmp_path / "huge.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        assert TextureStore().add_file(str(tmp_path / "huge.png")) == -1
    assert "huge.png" in caplog.text
