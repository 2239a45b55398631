"""Softmax attention: one drop with merged key and query, several with separate ones."""
