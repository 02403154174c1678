"""Pictures of networks; they need matplotlib, ``pip install 'dubio[plots]'``."""

from dubio.pictures.embedding import clouds_of, draw_embedding

__all__ = ["clouds_of", "draw_embedding"]
