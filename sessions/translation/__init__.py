"""Live translation at work: an engine decodes what a source has so far, and the source grows meanwhile."""
