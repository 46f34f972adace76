"""All that a filter of an operator's own needs to import (deploy/filters.toml)."""

from sessions.filters.filter_hook import Filter, Passed, ReplyFilter

__all__ = ["Filter", "Passed", "ReplyFilter"]
