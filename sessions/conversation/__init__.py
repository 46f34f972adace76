"""Live conversations of this replica, their attached connections, and reading them."""
