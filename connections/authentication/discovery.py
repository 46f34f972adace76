"""Finds the keys of an OpenID Connect issuer through its published configuration.

Source: OpenID Connect Discovery 1.0, section 4.
"""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from connections.authentication.jwk_sets import download

WELL_KNOWN = "/.well-known/openid-configuration"


def fetch_jwk_set(issuer: str) -> bytes:
    """Download an issuer's key set from the address in its configuration. Raises OSError, HTTPException, ValueError.

    The configuration must name exactly this issuer (section 4.3), or somebody else's keys could pass for its own. Keys come
    over https, unless the issuer itself does not use it.
    """
    try:
        config = json.loads(download(issuer.rstrip("/") + WELL_KNOWN))
        named, keys = config["issuer"], config["jwks_uri"]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("its configuration names no issuer, or no jwks_uri") from error
    if named != issuer:
        raise ValueError(f"its configuration belongs to another issuer: {str(named)[:200]!r}")
    if not isinstance(keys, str) or urlsplit(keys).scheme not in {"https", urlsplit(issuer).scheme}:
        raise ValueError("its jwks_uri is no https URL")
    return download(keys)
