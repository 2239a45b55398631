"""How fast training is here: per level, model and engine, against the machine's peak."""
