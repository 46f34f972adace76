"""Tools of MCP servers over Streamable HTTP. The library `mcp` is imported where a server is named, and nowhere before."""
