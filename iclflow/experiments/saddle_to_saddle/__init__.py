"""Separate key and query of rank one: D drops, one eigenvector each (Figs 3, 7)."""
