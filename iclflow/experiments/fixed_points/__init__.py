"""All 2^D fixed points: their losses, which are left and how, and the limit of long contexts."""
