"""The scale of the initial weights."""
