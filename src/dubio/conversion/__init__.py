"""Whole networks: choosing layers, replacing them, and saying what became of each."""

from dubio.conversion.choice import (
    ConversionWarning,
    Where,
    check_where as check_where,
    chooses,
    consists_of as consists_of,
)
from dubio.conversion.copying import (
    is_norm as is_norm,
    make_mappable,
    own_parameters as own_parameters,
    plain_copy,
    random_names as random_names,
    visible_modules as visible_modules,
)
from dubio.conversion.description import Description, describe
from dubio.conversion.exporting import export
from dubio.conversion.heads import classifier_of, replace_head, with_activation_noise
from dubio.conversion.insertion import insert_noise, randomise_dropout
from dubio.conversion.proof import prove
from dubio.conversion.recording import finish, warn_of_probabilities
from dubio.conversion.replacement import (
    parameter_names,
    randomise,
    refuse_unconvertible as refuse_unconvertible,
    to_mean,
)
from dubio.conversion.spec import Spec, change_spec, drop_decisions, forget_decisions, spec
from dubio.nn import (
    BATCH_NORMS as BATCH_NORMS,
    RESIZABLE_CONVOLUTIONS as CONVOLUTIONS,
    Removed,
    keep_units,
    rebuild,
    removed_from,
)

__all__ = [
    "ConversionWarning",
    "Description",
    "Removed",
    "Spec",
    "Where",
    "change_spec",
    "chooses",
    "classifier_of",
    "describe",
    "drop_decisions",
    "export",
    "finish",
    "forget_decisions",
    "insert_noise",
    "keep_units",
    "make_mappable",
    "parameter_names",
    "plain_copy",
    "prove",
    "randomise",
    "randomise_dropout",
    "rebuild",
    "removed_from",
    "replace_head",
    "spec",
    "to_mean",
    "warn_of_probabilities",
    "with_activation_noise",
]
