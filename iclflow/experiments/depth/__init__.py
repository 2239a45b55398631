"""Several layers of linear attention: their least losses, their staircase, and what they cost."""
