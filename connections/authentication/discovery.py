"""Where an OpenID Connect issuer has its keys: it says so itself, under a name that follows from its own.

Source: OpenID Connect Discovery 1.0, section 4.
"""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from connections.authentication.key_sets import download

WELL_KNOWN = "/.well-known/openid-configuration"


def key_set_of(issuer: str) -> bytes:
    """Download an issuer's key set, as its configuration says where. Raises OSError, HTTPException, ValueError.

    The configuration has to name the issuer letter by letter (section 4.3): whoever serves another's would put keys
    of his own under its name. Keys come over https, unless the issuer itself does not.
    """
    try:
        said = json.loads(download(issuer.rstrip("/") + WELL_KNOWN))
        named, keys = said["issuer"], said["jwks_uri"]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("its configuration names no issuer, or no jwks_uri") from error
    if named != issuer:
        raise ValueError(f"its configuration is another issuer's: {str(named)[:200]!r}")
    if not isinstance(keys, str) or urlsplit(keys).scheme not in {"https", urlsplit(issuer).scheme}:
        raise ValueError("its jwks_uri is no https URL")
    return download(keys)
