"""What the tests of documents borrow: a service, a browser, and a visitor in it."""

from __future__ import annotations

from tests.app.conftest import running
from tests.browser.conftest import chromium, complaints, context

__all__ = ["chromium", "complaints", "context", "running"]
