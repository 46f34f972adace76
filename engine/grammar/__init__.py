"""What a reply may be, as a grammar: written from a spec, tried, followed token by token. Knows no torch and no request."""
