"""A study: an experiment stated in plain values, built, run and summarised."""
