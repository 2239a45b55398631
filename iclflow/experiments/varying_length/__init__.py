"""Varying length: data, claims, figure."""
