"""Parts of frames: common fields, features, formats of replies, facts about the server, the scopes of keys."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sessions.errors import Forbidden

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+\Z")]
Ref = Annotated[str, Meta(max_length=128)]
Id = Annotated[str, Meta(min_length=1, max_length=128)]

DEFAULT_CONVERSATION = "default"

MAX_FEATURES = 32
"""The most names in a `hello`; more are a `bad_frame`."""

Feature = Annotated[str, Meta(min_length=1, max_length=32, pattern=r"^[a-z0-9_.-]+\Z")]
Features = Annotated[tuple[Feature, ...], Meta(max_length=MAX_FEATURES)]

AUDIT_LOGGER = "midstream.audit"
"""The logger of operators' actions."""

REASONING = "reasoning"
TOOLS = "tools"
CONTINUE = "continue"
TITLES = "titles"
SHARE = "share"
INTERPRET = "interpret"
AUDIO = "audio"
SERVED: tuple[str, ...] = (REASONING, TOOLS, CONTINUE, TITLES, INTERPRET)
"""The features of every server, as in `ready`; `share` and `audio` follow if the operator allows them."""


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of clients' frames."""

    ref: Ref | None = None


class ServerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """The base of the server's frames, except events."""

    ref: str | None = None


def common_features(named: Iterable[str]) -> frozenset[str]:
    """Return those of the named features that servers know. Unknown names have no effect."""
    return frozenset((*SERVED, AUDIO)).intersection(named)


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True, tag="json_schema", tag_field="type"):
    """The reply is JSON that matches the schema, even if `strict` is false."""

    schema: dict[str, Any]
    strict: bool = True


class JsonObjectFormat(msgspec.Struct, frozen=True, kw_only=True, tag="json_object", tag_field="type"):
    """The reply is a JSON object."""


class RegexFormat(msgspec.Struct, frozen=True, kw_only=True, tag="regex", tag_field="type"):
    """The whole reply matches a regular expression."""

    pattern: Annotated[str, Meta(min_length=1)]


class GrammarFormat(msgspec.Struct, frozen=True, kw_only=True, tag="grammar", tag_field="type"):
    """The whole reply matches a grammar in Lark's notation."""

    lark: Annotated[str, Meta(min_length=1)]


Format = JsonSchemaFormat | JsonObjectFormat | RegexFormat | GrammarFormat


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits for clients; None: no limit. `max_images`: images per request; 0 if no model accepts images."""

    max_frame_bytes: int
    max_content_chars: int
    max_new_tokens: int
    context_tokens: int
    max_active_turns: int
    max_queued_turns: int
    messages_per_minute: int | None
    max_tool_rounds: int
    max_images: int = 0
    max_image_bytes: int = 0


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that requests may name. `context_tokens`: the model's context window; None until the model is loaded.

    `unsupported`: the `params` that the model does not support. `fallbacks`: the models to try, in order, if this one can't
    answer. `features`: what the model supports besides text: `tools`, `reasoning`, `format`, `continue`, `images`. A model with
    `translate` only translates.
    """

    name: str
    aliases: tuple[str, ...] = ()
    context_tokens: int | None = None
    unsupported: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


class ServerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the server runs."""

    name: str
    description: str
    approval: Literal["never", "always"]


class ServerFacts(msgspec.Struct, frozen=True):
    """The name and the version of the server."""

    name: str
    version: str


class KeyScope(StrEnum):
    """What a token allows. One without restrictions has all scopes."""

    CHAT = "chat"
    """Ask a model, stop its reply, answer its calls."""
    READ = "read"
    """Read conversations, lists and searches, live and stored."""
    MANAGE = "manage"
    """Change or remove what is stored: titles, shares, the active branch, conversations."""


ALL_SCOPES = frozenset(KeyScope)


class Grant(msgspec.Struct, frozen=True):
    """What a token may be used for. `models`: the names or aliases of its models; empty: all."""

    scopes: frozenset[KeyScope] = ALL_SCOPES
    models: frozenset[str] = frozenset()

    def check(self, scope: KeyScope | None) -> None:
        """Raise Forbidden if the token lacks the scope. None: no scope is needed."""
        if scope is not None and scope not in self.scopes:
            raise Forbidden(f"This key may not do that: it lacks the scope `{scope}`.")


EVERYTHING = Grant()
