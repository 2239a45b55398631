"""Key and query of rank R: plateaus at every R-th level (Figs 4, 8, 9)."""
