"""Conversion of whole networks: choose layers, replace them, prove, describe and export the result."""

from dubio.convert.describe import Description as Description, describe as describe
from dubio.convert.export import export as export
from dubio.convert.randomise import (
    ConversionWarning as ConversionWarning,
    Where as Where,
    check_where as check_where,
    chooses as chooses,
    classifier_of as classifier_of,
    consists_of as consists_of,
    insert_noise as insert_noise,
    is_norm as is_norm,
    make_mappable as make_mappable,
    own_parameters as own_parameters,
    parameter_names as parameter_names,
    plain_copy as plain_copy,
    random_names as random_names,
    randomise as randomise,
    randomise_dropout as randomise_dropout,
    refuse_unconvertible as refuse_unconvertible,
    replace_head as replace_head,
    to_mean as to_mean,
    visible_modules as visible_modules,
    with_activation_noise as with_activation_noise,
)
from dubio.convert.spec import (
    ModelSpec as ModelSpec,
    change_spec as change_spec,
    drop_decisions as drop_decisions,
    finish as finish,
    prove as prove,
    reset_decisions as reset_decisions,
    spec as spec,
    warn_of_probabilities as warn_of_probabilities,
)
