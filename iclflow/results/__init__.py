"""Results: what a run returns, where it came from, and how it goes to disk."""
