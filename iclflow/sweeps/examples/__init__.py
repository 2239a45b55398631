"""Questions that a sweep answers: a design that ships, what theory says of it, and a picture."""
