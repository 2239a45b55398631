"""iclflow: how a transformer acquires in-context learning during training."""

__version__ = "0.1.0"
