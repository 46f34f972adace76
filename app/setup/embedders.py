"""Embedding models, with the keys that their tables name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from app.setting_values import SettingsError
from app.settings import Settings
from app.setup.models import file_of
from app.setup.secrets import secret_of
from app.setup.upstreams import SETTING
from engine.api import Embedder
from engine.upstream.embedder import EmbedderOptions, UpstreamEmbedder


@asynccontextmanager
async def embedders_of(settings: Settings) -> AsyncIterator[Sequence[Embedder]]:
    """Yield the file's embedding models, in its order, while they serve. Raises SettingsError."""
    embedders = [_embedder(options) for options in file_of(settings).embedder]
    async with AsyncExitStack() as stack:
        for one in embedders:
            await stack.enter_async_context(one.running())
        yield embedders


def _embedder(options: EmbedderOptions) -> UpstreamEmbedder:
    named = options.key_variable
    key = None if named is None else secret_of(named, setting=f"{SETTING}: {options.name}")
    try:
        return UpstreamEmbedder(options, key=key)
    except OSError as error:
        raise SettingsError(f"{SETTING}: {options.name}: the ca_file can't be used: {error}.") from error
