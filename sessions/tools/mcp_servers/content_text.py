"""Converts a server's result to text for the model. Other parts are described in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

import mcp_types
import msgspec

NAME_CHARS = 200
"""Characters of a name that a server gives a part."""


def text_of(result: mcp_types.CallToolResult) -> str:
    """Return the parts in order, then the structured content unless a text part says the same."""
    parts = [_part(block) for block in result.content]
    if result.structured_content is not None and not _is_repeated(result.structured_content, parts):
        parts.append(_json(result.structured_content))
    return "\n".join(part for part in parts if part) or "The tool gave no text."


def _part(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent(text=text):
            return text
        case mcp_types.ImageContent(mime_type=kind, data=data):
            return f"[An image, {_short(kind)}, {_bytes_of(data)} bytes. It can't be shown here.]"
        case mcp_types.AudioContent(mime_type=kind, data=data):
            return f"[A sound, {_short(kind)}, {_bytes_of(data)} bytes. It can't be played here.]"
        case mcp_types.ResourceLink(uri=uri, name=name):
            return f"[A link to {_short(name)}: {_short(str(uri))}]"
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case mcp_types.EmbeddedResource(resource=resource):
            return (
                f"[A file, {_short(resource.mime_type or 'of no known type')}: {_short(str(resource.uri))}]"
            )
    assert_never(block)


def _is_repeated(content: Any, parts: Sequence[str]) -> bool:
    """Return whether a part says the same as the structured content.

    Servers repeat it as JSON for older clients. A plain value, which libraries wrap into `result`, is its own text.
    """
    match content:
        case {"result": value, **more} if not more and (value in parts or _json(value) in parts):
            return True
    return any(part.lstrip()[:1] in {"{", "["} and _read(part) == content for part in parts)


def _read(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None


def _json(content: Any) -> str:
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARS else f"{name[:NAME_CHARS]}…"


def _bytes_of(data: str) -> int:
    """Return the number of bytes that base64 stands for."""
    return len(data) * 3 // 4 - data[-2:].count("=")
