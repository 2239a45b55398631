"""Low rank: data, claims, figure."""
