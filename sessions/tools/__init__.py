"""Server tools: the operator's functions and tools of MCP servers, in one box. Knows no turns, frames or store."""
