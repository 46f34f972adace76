"""What the parts of a client's new item say and show. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from connections.images.headers import InvalidImage
from connections.images.validation import detail_of, image_from_url
from connections.openai.unsupported import unsupported_part
from connections.protocol.server_info import Limits
from connections.realtime.client_events import NewItem, Part
from connections.realtime.problems import InvalidEvent
from engine.vision.image import Image, Seen, joined
from sessions.turn.prompt import NO_IMAGES

IMAGE_PART = "input_image"


def has_images(item: NewItem, *, alone: bool = False) -> bool:
    """Whether any of its parts is an image. `alone`: and none is sound."""
    parts = item.content or ()
    return any(part.type == IMAGE_PART for part in parts) and not (
        alone and any(part.audio for part in parts)
    )


def inline_image_bytes(item: NewItem) -> int:
    """The bytes of the images that an item has in it, as they were sent."""
    return sum(len(part.image_url or "") for part in item.content or ())


def uploaded_image_ids(item: NewItem) -> Iterator[str]:
    """The ids of the images in it that were uploaded before."""
    for part in item.content or ():
        if part.type == IMAGE_PART and part.attachment_id is not None and part.image_url is None:
            yield part.attachment_id


def text_and_images(item: NewItem, limits: Limits, known: Mapping[str, Image]) -> Seen:
    """A user's text, and the images in it. `known`: those that were uploaded, by their ids. Raises InvalidEvent."""
    if item.type != "message":
        raise InvalidEvent(
            "must be message or function_call_output: calls are the model's own.", field="item.type"
        )
    if item.role == "system":
        raise InvalidEvent(
            "must be user. A system message is set by session.instructions.", field="item.role"
        )
    if item.role != "user":
        raise InvalidEvent("must be user: replies are the model's own.", field="item.role")
    _refuse_too_many(item, limits)
    text, images = joined(_parsed_parts(item, limits, known))
    if not (text or images):
        raise InvalidEvent("is empty.", field="item.content")
    return text, images


def _refuse_too_many(item: NewItem, limits: Limits) -> None:
    """Raise InvalidEvent for more images than may wait, before any is looked at: an event may hold thousands."""
    images = sum(part.type == IMAGE_PART for part in item.content or ())
    if images > limits.max_images > 0:
        why = f"shows {images} images; {limits.max_images} are allowed."
        raise InvalidEvent(why, field="item.content", code="too_many_images")


def _parsed_parts(item: NewItem, limits: Limits, known: Mapping[str, Image]) -> Iterator[Seen]:
    for number, part in enumerate(item.content or ()):
        where = f"item.content[{number}]"
        match part.type:
            case "input_text" if part.text is not None:
                yield part.text, ()
            case "input_text":
                raise InvalidEvent("is missing.", field=f"{where}.text")
            case "input_image":
                yield "", (_image(part, where, limits, known),)
            case _:
                raise InvalidEvent(unsupported_part(part.type), field=f"{where}.type")


def _image(part: Part, where: str, limits: Limits, known: Mapping[str, Image]) -> Image:
    """What a model does not take is not looked at. Raises InvalidEvent."""
    if not limits.max_images:
        raise InvalidEvent(NO_IMAGES, field=f"{where}.image_url", code="unsupported_parameter")
    if part.attachment_id is not None and part.image_url is None:
        return _uploaded_image(part.attachment_id, part.detail or "", where, known)
    if part.image_url is None:
        raise InvalidEvent("is missing.", field=f"{where}.image_url")
    try:
        return image_from_url(part.image_url, part.detail or "")
    except InvalidImage as why:
        raise InvalidEvent(str(why), field=f"{where}.image_url", code="invalid_image") from None


def _uploaded_image(digest: str, detail: str, where: str, known: Mapping[str, Image]) -> Image:
    if (image := known.get(digest)) is None:
        why = "names no image that was uploaded, or it has expired."
        raise InvalidEvent(why, field=f"{where}.attachment_id", code="not_found")
    try:
        return msgspec.structs.replace(image, at=0, detail=detail_of(detail))
    except InvalidImage as why:
        raise InvalidEvent(str(why), field=f"{where}.detail", code="invalid_image") from None
