"""Experiments: one phenomenon each, settings first; data out, no drawing."""
