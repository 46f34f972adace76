"""What each may have: bounds, rates, shares, quotas and leases, and in which order what waits is served."""
