"""Images for a checkpoint: whether its model takes any, how its processor cuts them, and the pixels of each tile.

Knows no torch, since the process that makes prompts decodes images without it. The endpoint that took an image checked its
size; before decoding, this module checks that the file has that size: a few bytes can't become more pixels.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoConfig, PreTrainedConfig

from engine.errors import ModelNotUsable, install_command
from engine.vision.image import Image, Tiling

VISION_MODEL_TYPES = ("smolvlm", "idefics3")
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF"}
"""The media types that are decoded, and the only Pillow format that may decode each."""

DAMAGED = "The image can't be decoded: it is cut off or damaged."

_ORIENTATION = 0x0112
_TURNED = frozenset({5, 6, 7, 8})
TURNING = frozenset({"image/jpeg", "image/webp"})
"""The media types that cameras write, with an orientation in their Exif data."""

Points = NDArray[np.uint8]


class ImageNotDecodable(ValueError):
    """An image can't be decoded. The message is a sentence for its sender."""


def takes_images(config: PreTrainedConfig) -> bool:
    """Whether a configuration belongs to a family that is served with images."""
    return config.model_type in VISION_MODEL_TYPES


class ImageProcessor:
    """Decodes images for one model and cuts them into tiles, with transformers' image processor for Pillow."""

    def __init__(self, processor: Any, config: PreTrainedConfig) -> None:
        """Take a model's image processor and configuration. Raises ModelNotUsable if the processor is not supported."""
        self._processor = processor
        self.tiling = _tiling(processor, config)

    @classmethod
    def of(cls, model: str) -> ImageProcessor:
        """Return the decoder of the model in a hub repository or folder. Raises ModelNotUsable."""
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        try:
            return cls(_kind(config).from_pretrained(model), config)
        except ImportError as error:
            raise ModelNotUsable(
                f"The model {model!r} takes images, which need Pillow: {install_command('images')}"
            ) from error
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ModelNotUsable(
                f"The model {model!r} takes images, and its image processor can't be read."
            ) from error

    def size(self, image: Image) -> tuple[int, int]:
        """Return an image's width and height as it is meant to be viewed. Raises ImageNotDecodable.

        Without the image's bytes, they are as its header gave them.
        """
        if not image.data:
            return image.width, image.height
        with _opened(image) as opened:
            turned = _orientation(opened, image.media_type) in _TURNED
        return (image.height, image.width) if turned else (image.width, image.height)

    def tiles(self, image: Image) -> Points:
        """Return the pixels of an image's tiles, (tiles, 3, side, side) of uint8. Raises ImageNotDecodable."""
        with _opened(image) as opened:
            upright = _upright(opened, image.media_type)
        made = self._processor(
            [upright], do_rescale=False, do_normalize=False, return_row_col_info=True, return_tensors="np"
        )
        points: Points = np.ascontiguousarray(made["pixel_values"][0])
        if points.dtype != np.uint8 or len(points) != self.tiling.tiles(self.tiling.grid(*upright.size)):
            raise RuntimeError(f"an image became {points.shape} of {points.dtype}")
        return points

    def scale(self) -> NDArray[np.float32]:
        """Return the model's input for each of the 256 values of each colour channel, (3, 256)."""
        processor = self._processor
        values = np.tile(np.arange(256, dtype=np.uint8), (3, 1, 1))
        if processor.do_rescale:
            values = processor.rescale(values, processor.rescale_factor)
        if processor.do_normalize:
            values = processor.normalize(values, processor.image_mean, processor.image_std)
        return np.asarray(values[:, 0], dtype=np.float32)


def _kind(config: PreTrainedConfig) -> Any:
    """Return an image processor class that needs neither torch nor torchvision. Raises ImportError without Pillow."""
    if config.model_type == "smolvlm":
        from transformers.models.smolvlm.image_processing_pil_smolvlm import (  # noqa: PLC0415 - Pillow is optional
            SmolVLMImageProcessorPil,
        )

        return SmolVLMImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import (  # noqa: PLC0415 - as above
        Idefics3ImageProcessorPil,
    )

    return Idefics3ImageProcessorPil


def _tiling(processor: Any, config: Any) -> Tiling:
    """Return how a processor cuts images into tiles. Raises ModelNotUsable."""
    longest, side = processor.size["longest_edge"], processor.max_image_size["longest_edge"]
    if not (processor.do_resize and longest and side):
        raise ModelNotUsable("The model's image processor does not scale images, which is not served.")
    across = side // config.vision_config.patch_size
    tokens = across**2 // config.scale_factor**2
    return Tiling(side, longest, tokens, splits=bool(processor.do_image_splitting))


@contextmanager
def _as_not_decodable() -> Iterator[None]:
    """Turn whatever a decoder raises into ImageNotDecodable, except for a lack of memory: the image is at fault."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise ImageNotDecodable(DAMAGED) from error


def _opened(image: Image) -> Any:
    """Return an image whose header was read, and nothing else. Raises ImageNotDecodable."""
    from PIL import Image as Pillow  # noqa: PLC0415 - it is optional

    with _as_not_decodable():
        opened = Pillow.open(io.BytesIO(image.data), formats=(FORMATS[image.media_type],))
    if opened.size != (image.width, image.height):
        raise ImageNotDecodable("The image can't be decoded: its parts give different sizes.")
    return opened


def _orientation(opened: Any, media_type: str) -> int:
    """Return how a camera was held (Exif 2.3, tag 274): 1 if the tag is missing or malformed. Decodes no pixels.

    The media type decides, not Pillow's format: Pillow calls a JPEG of several pictures MPO.
    """
    if media_type not in TURNING:
        return 1
    from PIL import Image as Pillow  # noqa: PLC0415 - as above

    exif = Pillow.Exif()
    with suppress(Exception):
        exif.load(opened.info.get("exif"))
        return int(exif.get(_ORIENTATION, 1))
    return 1


def _upright(opened: Any, media_type: str) -> Any:
    """Return an opened image in RGB as it is meant to be viewed, and close it. Raises ImageNotDecodable."""
    from PIL import Image as Pillow  # noqa: PLC0415 - as above

    turn = Pillow.Transpose
    turns = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }
    orientation = _orientation(opened, media_type)
    with _as_not_decodable():
        coloured = opened.convert("RGB")
    opened.close()  # frees its pixels: a small file may hold many
    if orientation in turns:
        coloured = coloured.transpose(turns[orientation])
    coloured.info = {}  # without Exif data, which would turn it once more
    return coloured
