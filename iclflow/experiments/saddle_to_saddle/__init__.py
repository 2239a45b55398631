"""Saddle to saddle: data, claims, figure."""
