"""Merged key and query: one abrupt drop, and the network it is (Fig. 1)."""
