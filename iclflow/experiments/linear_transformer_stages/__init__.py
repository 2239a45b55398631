"""Linear transformer stages: data, claims, figure."""
