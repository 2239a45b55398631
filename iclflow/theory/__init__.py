"""Formulas of the theory: no simulation, no randomness."""
