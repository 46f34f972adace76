"""Images are decoded as transformers decodes them, upright, and never beyond what their headers said."""

from __future__ import annotations

import io
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageOps
from transformers import AutoConfig

from connections.images import image_from_bytes
from engine.errors import ModelNotUsable
from engine.loading.loader import load
from engine.loading.tokenizer import read_config, read_tokenizer
from engine.machine import EngineOptions
from engine.messages import Message
from engine.prompts.jobs import DecodeImage, Rejected
from engine.prompts.prompt import PromptImages
from engine.vision.image import NOT_SEEN, Image
from engine.vision.processor import ImageNotDecodable, ImageProcessor
from tests.engine.vision_models import KINDS, TEMPLATE, folder_of, image, picture


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(request.param, tmp_path_factory.mktemp("seeing") / request.param)


def processed(folder: Path, shown: Any) -> Any:
    kind = next(kind for kind in KINDS if kind in str(folder))
    return KINDS[kind][2].from_pretrained(folder)([shown], return_tensors="np")["pixel_values"][0]


def meant(image_processor: ImageProcessor, shown: Image) -> Any:
    """The model's input for an image."""
    scale, points = image_processor.scale(), image_processor.tiles(shown)
    return np.stack([scale[channel][points[:, channel]] for channel in range(3)], axis=1)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_points_and_what_they_mean_are_those_of_the_processor(kind: str, folder: Path) -> None:
    shown = image(3, 50, 31, kind)
    expected = processed(folder, Pillow.open(io.BytesIO(shown.data)))
    assert np.array_equal(meant(ImageProcessor.of(str(folder)), shown), expected)


def turned(orientation: int, *more: Any) -> Image:
    """A photo; with `more` pictures in it."""
    out, exif = io.BytesIO(), Pillow.Exif()
    exif[0x0112] = orientation
    how: dict[str, Any] = {"format": "MPO", "save_all": True, "append_images": more} if more else {}
    Pillow.open(io.BytesIO(picture(2, 40, 18))).save(out, **{"format": "JPEG", "exif": exif, **how})
    return image_from_bytes(out.getvalue())


@pytest.mark.parametrize("more", [(), (Pillow.new("RGB", (40, 18)),)], ids=["JPEG", "MPO"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_looked_at_upright(orientation: int, more: tuple[Any, ...], folder: Path) -> None:
    image_processor, shown = ImageProcessor.of(str(folder)), turned(orientation, *more)
    upright = ImageOps.exif_transpose(Pillow.open(io.BytesIO(shown.data)))
    assert image_processor.size(shown) == upright.size
    expected = processed(folder, Pillow.fromarray(np.asarray(upright)))
    assert np.array_equal(meant(image_processor, shown), expected)


def test_a_photo_that_was_held_in_no_way_at_all_is_looked_at_as_it_is(folder: Path) -> None:
    """Its orientation is a number without an end."""
    entry = struct.pack("<HHIf", 0x0112, 11, 1, float("inf"))
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)
    out = io.BytesIO()
    Pillow.open(io.BytesIO(picture(2, 40, 18))).save(out, "JPEG", exif=exif)
    image_processor, shown = ImageProcessor.of(str(folder)), image_from_bytes(out.getvalue())
    assert image_processor.size(shown) == (40, 18)
    assert len(image_processor.tiles(shown)) == len(image_processor.tiles(turned(1)))


def test_an_image_whose_bytes_are_missing_is_not_taken_for_broken(folder: Path) -> None:
    """Somebody else may have them; what was broken is known by its digest, for all."""
    prompt_images, shown = PromptImages(ImageProcessor.of(str(folder))), image(7)
    torn = msgspec.structs.replace(shown, data=shown.data[:60])
    messages = [Message("user", "What?", images=(shown,))]
    assert isinstance(prompt_images.tiles(DecodeImage("r", 0, shown.named())), Rejected)
    assert prompt_images.known(messages) == messages
    assert isinstance(prompt_images.tiles(DecodeImage("r", 0, torn)), Rejected)
    assert prompt_images.known(messages) == (Message("user", f"{NOT_SEEN}\nWhat?"),)


def test_an_image_with_other_sizes_than_were_said_is_not_decoded(folder: Path) -> None:
    mislabeled = Image("", "image/png", 31, 20, data=picture(1, 30, 20))
    with pytest.raises(ImageNotDecodable, match="different sizes"):
        ImageProcessor.of(str(folder)).tiles(mislabeled)
    other = Image("", "image/jpeg", 30, 20, data=picture(1, 30, 20))
    with pytest.raises(ImageNotDecodable, match="damaged"):
        ImageProcessor.of(str(folder)).size(other)


def test_what_was_not_run_is_refused(folder: Path) -> None:
    with pytest.raises(ModelNotUsable, match="--quantize is not offered"):
        load(EngineOptions(model=str(folder), device="cpu", quantize="int8", dtype="float32"))
    image_processor = ImageProcessor.of(str(folder))
    image_processor._processor.do_resize = False
    with pytest.raises(ModelNotUsable, match="does not scale"):
        ImageProcessor(image_processor._processor, AutoConfig.from_pretrained(folder))


def test_the_template_of_an_older_processor_is_found(folder: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(folder, older)
    (older / "chat_template.jinja").unlink()
    with pytest.raises(ModelNotUsable, match="no chat template"):
        read_tokenizer(str(older), read_config(str(older)))
    (older / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    assert read_tokenizer(str(older), read_config(str(older))).chat_template == TEMPLATE


PEAK = """
import io, re
from pathlib import Path
from PIL import Image as Pillow
from engine.vision.image import Image
from engine.vision import processor as image_processor

def now(name): return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

file = io.BytesIO()
Pillow.new("RGB", (2000, 2000)).save(file, "PNG")
image = Image("0" * 64, "image/png", 2000, 2000, data=file.getvalue())
Path("/proc/self/clear_refs").write_text("5")
before = now("VmRSS")
with image_processor._opened(image) as opened:
    upright = image_processor._upright(opened, image.media_type)
print((now("VmHWM") - before) / 2000**2)
"""


def test_a_small_file_of_many_pixels_is_in_memory_twice_at_most() -> None:
    """Pillow takes four bytes for a pixel in RGB: once as it is decoded, and once as it is viewed."""
    ran = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 3 * 4
