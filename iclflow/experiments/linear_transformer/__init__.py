"""Linear transformer: data, claims, figure."""
