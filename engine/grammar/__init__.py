"""Grammars of replies: written from a spec, tried, and followed token by token. Knows no torch and no request."""
