"""`midstream restored`: makes a store that was put back from a backup ready to be served from."""

from __future__ import annotations

from functools import partial

from app.settings import Settings
from app.setup.store import store_client, store_url
from sessions.store.redis.waiting import patiently
from sessions.store.restoring import begin_epochs


async def restored(settings: Settings) -> int:
    """Begin another epoch in every conversation of the store; return how many there are.

    Raises SettingsError, EmbeddedStoreFailed, StoreDown.
    """
    async with store_url(settings) as url, store_client(url) as store:
        return await patiently(partial(begin_epochs, store))
