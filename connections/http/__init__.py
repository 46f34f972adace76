"""What doors over HTTP share: requests, answers, refusals."""
