"""What goes to an upstream and comes from it, in the words of OpenAI's API."""
