"""Runs: one (`simulate`) or many (`sweep`), what they record, and the labels it travels under."""
