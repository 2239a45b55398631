"""In context emergence: data, claims, figure."""
