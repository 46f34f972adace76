"""The imports that an operator's filter needs (deploy/midstream.toml)."""

from sessions.filters.chain import Filter, Passed, ReplyFilter

__all__ = ["Filter", "Passed", "ReplyFilter"]
