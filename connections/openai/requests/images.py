"""Images in requests, for endpoints that refuse in OpenAI's terms. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from connections.images.headers import InvalidImage
from connections.images.validation import image_from_base64, image_from_url
from connections.openai.problems import Problem, invalid
from connections.protocol.errors import field_message
from connections.protocol.server_info import Limits
from engine.messages import Message
from engine.vision.image import Image
from sessions.turn.prompt import NO_IMAGES

ONLY_USER_IMAGES = "Images belong to messages of the role user alone."
IMAGES = ("image_url", "input_image", "image")
"""Types of message parts that are images."""


def image_at(url: str | None, where: str, limits: Limits, *, detail: str | None = None) -> Image:
    """Return the image in a `data:` URL. `where`: its part of the request. Raises Problem."""
    return _read(lambda: image_from_url(_required(url, where), detail or ""), where, limits)


def image_of(data: str | None, media_type: str, where: str, limits: Limits) -> Image:
    """Return the image in base64. Raises Problem."""
    return _read(lambda: image_from_base64(_required(data, where), media_type), where, limits)


def check_images(messages: Sequence[Message], field: str, limits: Limits) -> None:
    """Raise Problem if a request has too many images. Stored ones without their bytes are not counted."""
    if sum(bool(image.data) for message in messages for image in message.images) > limits.max_images:
        raise invalid(field, f"A request may have at most {limits.max_images} images.")


def _read(read: Callable[[], Image], where: str, limits: Limits) -> Image:
    """Read an image, but only for a model that takes images."""
    if not limits.max_images:
        raise invalid(where, NO_IMAGES, code="unsupported_parameter")
    try:
        return read()
    except InvalidImage as why:
        raise invalid(where, str(why), code="invalid_image") from None


def _required(text: str | None, where: str) -> str:
    if text is None:
        raise invalid(where, field_message(where, "is missing."))
    return text


def image_not_allowed(where: str, limits: Limits) -> Problem:
    """Return the refusal of an image in a message that may have none."""
    return invalid(where, ONLY_USER_IMAGES if limits.max_images else NO_IMAGES)
