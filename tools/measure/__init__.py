"""How large the code is, and how much of it one turn runs through: `python -m tools.measure`."""
