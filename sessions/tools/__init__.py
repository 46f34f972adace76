"""Server tools: the operator's functions and tools of MCP servers, in one registry. Knows no turns, frames or store."""
