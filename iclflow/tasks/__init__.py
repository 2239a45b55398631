"""Tasks: what a prompt is drawn from."""
