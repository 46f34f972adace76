"""The rights of a token: scopes, and the models that it may ask. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from sessions.errors import Forbidden


class KeyScope(StrEnum):
    """One kind of right. A token without restrictions has all of them."""

    CHAT = "chat"
    """Ask a model, stop its reply, answer its calls."""
    READ = "read"
    """Read conversations, lists and searches, live and stored."""
    MANAGE = "manage"
    """Change or remove what is stored: titles, shares, the active branch, conversations."""


ALL_SCOPES = frozenset(KeyScope)


class Grant(msgspec.Struct, frozen=True):
    """The rights of a token. `models`: names or aliases that it may ask; empty: all."""

    scopes: frozenset[KeyScope] = ALL_SCOPES
    models: frozenset[str] = frozenset()

    def check(self, scope: KeyScope | None) -> None:
        """Raise Forbidden if it lacks the scope. None: no scope is needed."""
        if scope is not None and scope not in self.scopes:
            raise Forbidden(f"This key may not do that: it lacks the scope `{scope}`.")


EVERYTHING = Grant()
