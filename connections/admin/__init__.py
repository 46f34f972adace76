"""The admin API below `/v1/admin/`: what an operator's key opens, and nothing else does."""
