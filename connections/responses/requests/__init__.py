"""What clients of the Responses API ask for, read and checked."""
