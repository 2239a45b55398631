"""In weight: data, claims, figure."""
