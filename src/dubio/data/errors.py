"""What the readers raise when a file does not hold what it should."""

__all__ = ["DataError"]


class DataError(ValueError):
    """A file that is damaged, foreign or not what its name says; the message names it and what is wrong."""
