"""When the drops come: the staircase of separate key and query, the one drop of merged."""
