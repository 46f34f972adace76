"""Reads operators' requests: principal, page of a list, owner. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from connections.admin.replica_requests import SubjectFilter
from connections.authentication.identity import ANONYMOUS
from connections.http.query_params import parse_client_id
from connections.protocol.errors import BadParams
from sessions.records import Owner

MOST = 200
FEW = 50
_LONGEST = 4096
_PRINCIPAL = re.compile(r"key:[A-Za-z0-9._@-]{1,64}|jwt:[A-Za-z0-9._~@:|%-]{1,3060}|anonymous")
"""A principal as lists show it: unusual characters of a JWT's subject are percent-encoded."""

_NO_PRINCIPAL = "must be one as lists show it: key:NAME, jwt:SUBJECT or anonymous."

Query = Mapping[str, str]


def whose(query: Query, *, is_needed: bool = False) -> SubjectFilter:
    """Return the subject of a request. Raises BadParams."""
    found = SubjectFilter(
        _principal(query), None if (name := query.get("client_id")) is None else parse_client_id(name)
    )
    if is_needed and found.principal is None:
        raise BadParams("is missing: whose connections are to end?", field="principal")
    return found


def page(query: Query) -> tuple[int, str]:
    """Return the number of rows, and the row that they follow. Raises BadParams."""
    text = query.get("limit", str(FEW))
    if not (text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= MOST):  # noqa: PLR2004 - digits
        raise BadParams(f"must be a whole number from 1 to {MOST}.", field="limit")
    return int(text), _short(query, "after") or ""


def owner(query: Query, is_person: Callable[[str], bool | None]) -> Owner:
    """Return the owner of conversations. `is_person`: whether the principal is one; None: not known. Raises BadParams."""
    if (principal := _principal(query)) is None:
        raise BadParams(_NO_PRINCIPAL, field="principal")
    given = query.get("client_id")
    client_id = "" if given is None else parse_client_id(given)
    person = False if principal == ANONYMOUS.principal else is_person(principal)
    if person is False and not client_id:
        raise BadParams("is missing: this principal has many users.", field="client_id")
    if person and client_id:
        raise BadParams("may not be given: all devices of a person are one owner.", field="client_id")
    return Owner(principal, client_id)


def _principal(query: Query) -> str | None:
    """Return the principal that a request names. An invalid one, perhaps a key, is neither repeated nor logged. Raises BadParams."""
    principal = query.get("principal")
    if principal is not None and not _PRINCIPAL.fullmatch(principal):
        raise BadParams(_NO_PRINCIPAL, field="principal")
    return principal


def _short(query: Query, field: str) -> str | None:
    value = query.get(field)
    if value is not None and not 0 < len(value) <= _LONGEST:
        raise BadParams(f"must have 1 to {_LONGEST} characters.", field=field)
    return value
