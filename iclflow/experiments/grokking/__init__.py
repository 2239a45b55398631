"""Grokking: data, claims, figure."""
