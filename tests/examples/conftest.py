"""The browser that the examples' pages are shown in."""

from tests.browser.conftest import chromium, complaints, context

__all__ = ["chromium", "complaints", "context"]
