"""vLLM as a process that the gateway starts, and uses like any upstream."""
