"""In-context algorithms as predictors, and their losses."""
