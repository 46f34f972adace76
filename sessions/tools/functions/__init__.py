"""Functions of the operator, as tools: what their signatures say, where they are found, and how they are run."""
