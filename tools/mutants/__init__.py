"""Small faults, put into the product one at a time, and whether the tests find them: `python -m tools.mutants`."""
