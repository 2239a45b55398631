"""Softmax drops: data, claims, figure."""
