"""Zero blocks: data, claims, figure."""
