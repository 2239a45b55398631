"""Init scale: data, claims, figure."""
