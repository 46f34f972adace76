"""What clients and keys may take, counted over all replicas."""
