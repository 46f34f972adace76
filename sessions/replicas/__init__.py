"""Messages and requests between replicas."""
