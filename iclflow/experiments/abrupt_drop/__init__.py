"""Abrupt drop: data, claims, figure."""
