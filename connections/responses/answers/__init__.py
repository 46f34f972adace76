"""What they are told: responses, their items, and the events of a stream."""
