"""How the tables of each group are recomputed, a module per group."""
