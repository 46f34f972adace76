"""The operator's functions as tools: their signatures, where they are found, and how they are run."""
