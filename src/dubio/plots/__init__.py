"""Pictures of networks; they need matplotlib, ``pip install 'dubio[plots]'``."""

from dubio.plots.bands import Bands, bands_of, draw_bands
from dubio.plots.classification import (
    Regions,
    UncertaintyMeasure,
    Votes,
    clouds_of,
    draw_embedding,
    draw_regions,
    draw_votes,
    regions_of,
    votes_of,
)
from dubio.plots.figures import blank_figure as blank_figure, class_colours as class_colours, write as write

__all__ = [
    "Bands",
    "UncertaintyMeasure",
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
