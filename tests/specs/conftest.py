"""The service that the specifications are held against."""

from __future__ import annotations

from tests.app.conftest import running

__all__ = ["running"]
