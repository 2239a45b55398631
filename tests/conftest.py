"""Strict JAX, double precision and runtime shape checks for the whole package."""

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
