"""Server tools: functions of the operator's, and tools of MCP servers, behind one box. Knows no turn, no frame, no store."""
