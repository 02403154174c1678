"""Pictures of networks; they need matplotlib, ``pip install 'dubio[plots]'``."""

from dubio.pictures.bands import Bands, bands_of, draw_bands
from dubio.pictures.embedding import clouds_of, draw_embedding
from dubio.pictures.figures import blank_figure as blank_figure, class_colours as class_colours, write as write
from dubio.pictures.regions import Doubt, Regions, draw_regions, regions_of
from dubio.pictures.votes import Votes, draw_votes, votes_of

__all__ = [
    "Bands",
    "Doubt",
    "Regions",
    "Votes",
    "bands_of",
    "clouds_of",
    "draw_bands",
    "draw_embedding",
    "draw_regions",
    "draw_votes",
    "regions_of",
    "votes_of",
]
