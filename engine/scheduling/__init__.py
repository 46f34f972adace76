"""What each step computes, and for whom."""
