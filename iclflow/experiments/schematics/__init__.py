"""Schematics: data, claims, figure."""
