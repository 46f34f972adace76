"""The text of replies: decoding, formats, parsing, stop strings, log-probabilities."""
