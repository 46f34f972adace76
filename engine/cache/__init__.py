"""Keys and values: where they lie, who holds them, what is kept for later turns."""
