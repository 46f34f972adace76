"""Embeds texts. While it runs, a request counts as a turn. Its texts are filtered, and not stored."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.api import Texts, Vectors
from engine.upstream.engine import UpstreamEmbedder
from sessions.filters.chain import Filters
from sessions.limits.shares import Admission, Subject
from sessions.records import Owner
from sessions.turn.prompt import as_refusals, client_key


class Embedding:
    """Knows the embedding models. `embedders`: the first is the default."""

    def __init__(
        self, embedders: Sequence[UpstreamEmbedder], *, admission: Admission, filters: Filters
    ) -> None:
        self.embedders = tuple(embedders)
        self._admission = admission
        self._filters = filters

    async def embed(self, owner: Owner, group: str, embedder: UpstreamEmbedder, texts: Texts) -> Vectors:
        """Embed texts for an owner. Raises Refused."""
        admitted = self._admission.enter(Subject(str(owner), group))
        try:
            await self._filters.check(*texts.texts)
            with as_refusals():
                return await embedder.embed(
                    msgspec.structs.replace(texts, client=client_key(str(owner), group))
                )
        finally:
            admitted.leave()
