"""Trainings of many small models as one loop without arrays."""
