"""The admin API below `/v1/admin/`, for operators' keys only."""
