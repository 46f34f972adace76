"""vLLM as a process of the gateway's own, in front of which the gateway stands as in front of any upstream."""
