"""Alignment: data, claims, figure."""
