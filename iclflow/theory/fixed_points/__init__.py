"""Fixed points: modes, levels, stability, what the flow conserves."""
