"""`midstream restored`: prepares a store that was restored from a backup."""

from __future__ import annotations

from functools import partial

from app.settings import Settings
from app.setup.store import store_client, store_url
from sessions.store.owner_data import begin_epochs
from sessions.store.redis.server_config import retry_until_available


async def restored(settings: Settings) -> int:
    """Begin a new epoch in every conversation of the store; return their number.

    Raises SettingsError, EmbeddedStoreFailed, StoreDown.
    """
    async with store_url(settings) as url, store_client(url) as store:
        return await retry_until_available(partial(begin_epochs, store))
