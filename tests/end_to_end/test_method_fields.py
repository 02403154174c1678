"""Fields of methods as options: what is written for every type, and what is refused."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import pytest
import typer

import dubio
from dubio.cli.commands import app
from dubio.cli.fields import Field, fields_of, make_method, spell
from dubio.cli.options import METHOD_OPTIONS
from dubio.flows import NormalAffine, NormalInvConv, NormalPlanar1d
from dubio.methods import METHODS
from dubio.methods.bayes import Bayes
from dubio.methods.dropout import Dropout
from dubio.methods.flow import Flow
from dubio.methods.input_noise import InputNoise
from dubio.methods.method import Method, NoiseOff, Recipe

FIELDS = [(name, value) for name, kind in METHODS.items() for value in fields_of(kind).values()]
IDS = [f"{name}-{value.name}" for name, value in FIELDS]


@dataclass(frozen=True)
class Imagined:
    """A method with fields of every kind.

    Args:
        members: how many.
        std: a number, or ``"learned"``
            from the data.
        widths: of layers.
    """

    members: int
    std: float | Literal["learned"] = 0.1
    widths: tuple[int, ...] = (3, 4)
    label: str | None = None
    sure: bool | None = None
    scales: tuple[float, ...] = field(default_factory=lambda: (0.5,))
    table: dict[str, int] | None = None
    inner: Dropout = field(default_factory=Dropout)
    where: dubio.Where = None
    recipe: ClassVar[Recipe] = Recipe()

    def objective(self, num_data: int | None = None) -> Any: ...

    def convert(self, net: Any, likelihood: Any = None, *, strict: bool = True, example: Any = None) -> Any: ...


@pytest.fixture
def imagined(monkeypatch: pytest.MonkeyPatch) -> dict[str, Field]:
    monkeypatch.setitem(METHODS, "imagined", Imagined)
    return fields_of(Imagined)


def test_the_table_of_options_is_what_the_methods_say() -> None:
    said = {
        name: {field.option: field.default if field.is_flag else spell(field.default) for field in fields.values()}
        for name, fields in ((name, fields_of(kind)) for name, kind in METHODS.items())
    }
    assert said == METHOD_OPTIONS  # METHOD_OPTIONS in dubio/cli/options.py is to be what is on the right
    assert list(METHOD_OPTIONS) == list(said)
    assert [list(options) for options in METHOD_OPTIONS.values()] == [list(options) for options in said.values()]


@pytest.mark.parametrize(("name", "value"), FIELDS, ids=IDS)
def test_every_default_is_read_back_from_what_is_shown_of_it(name: str, value: Field) -> None:
    assert value.read(spell(value.default)) == value.default
    assert make_method(name, {value.name: spell(value.default)}) == METHODS[name]()


@pytest.mark.parametrize(("name", "value"), FIELDS, ids=IDS)
def test_every_field_is_an_option_with_a_meaning_and_a_rule(name: str, value: Field) -> None:
    assert value.readings
    assert value.meaning.endswith(".")
    assert "`" not in value.meaning


def test_no_field_is_called_like_an_option_of_train_and_flags_are_flags_everywhere() -> None:
    train = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    own = {spelling for parameter in train.params if not parameter.hidden for spelling in parameter.opts}
    flags = {value.option for _, value in FIELDS if value.is_flag}
    assert "--model" in own
    assert own.isdisjoint({value.option for _, value in FIELDS} | {f"--no-{flag[2:]}" for flag in flags})
    assert flags.isdisjoint(value.option for _, value in FIELDS if not value.is_flag)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_declares_what_it_is_with_noise_off(name: str) -> None:
    assert METHODS[name].noise_off in get_args(NoiseOff)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "given", "method"),
    [
        ("bayes", {"prior": "mixture", "norms": True}, Bayes(dubio.ScaleMixture(), norms=True)),
        ("bayes", {"prior": "mixture:0.25,1,0.5"}, Bayes(dubio.ScaleMixture(0.25, 1.0, 0.5))),
        (
            "bayes",
            {"prior": "centred:0.2", "bayesian_bias": False},
            Bayes(dubio.CentredNormal(0.2), bayesian_bias=False),
        ),
        ("bayes", {"where": "fc*"}, Bayes(where="fc*")),
        ("bayes", {"where": "fc*,head"}, Bayes(where=("fc*", "head"))),
        ("bayes", {"where": "none"}, Bayes()),
        ("dropout", {"p": "0.3", "alpha": "0.5", "l2": "0"}, Dropout(0.3, 0.5, 0.0)),
        ("dropout", {"p": "none"}, Dropout()),
        (
            "input-noise",
            {"components": "8", "kl": "bound", "per": "position", "prior": "normal:1,0.2"},
            InputNoise(dubio.Normal(1.0, 0.2), components=8, kl="bound", per="position"),
        ),
        ("flow", {"blocks": "planar1d:4"}, Flow(NormalPlanar1d(4))),
        (
            "flow",
            {"blocks": "affine,invconv:1,2,affine,planar1d,invconv"},
            Flow((NormalAffine(), NormalInvConv(1, 2), NormalAffine(), NormalPlanar1d(), NormalInvConv())),
        ),
        ("flow", {"base": "normal:1,0.1", "gamma": "5e-1"}, Flow(base=dubio.Normal(1.0, 0.1), gamma=0.5)),
    ],
)
def test_texts_stand_for_values(name: str, given: dict[str, str | bool], method: Method) -> None:
    assert make_method(name, given) == method


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("input-noise", {"kl": "x"}, "--kl must be mc, bound or averaged, got 'x'"),
        ("input-noise", {"components": "2.5"}, "--components must be a whole number, got '2.5'"),
        ("input-noise", {"components": "0"}, "components must be a whole number of at least 1, got 0"),
        ("input-noise", {"prior": "centred:1"}, "--prior must be normal:MEAN,STD, got 'centred:1'"),
        ("dropout", {"components": "3"}, "--components is an option of input-noise, not of dropout"),
        ("dropout", {"init_std": "3"}, "--init-std is an option of bayes and input-noise, not of dropout"),
        ("dropout", {"wings": "2"}, "--wings is an option of no method; dubio methods dropout lists those of it"),
        ("dropout", {"p": "half"}, "--p must be a number or none, got 'half'"),
        ("bayes", {"where": "fc,"}, "--where must be a glob of layers' names, several with commas or none, got 'fc,'"),
        (
            "flow",
            {"blocks": "invconv:2"},
            "--blocks must be affine, planar1d:NUM_PLANAR, invconv:NUM_PLANAR,NUM_MIXING",
        ),
        ("flow", {"blocks": "planar1d:2.5"}, "--blocks must be affine, planar1d:NUM_PLANAR"),
        ("flow", {"blocks": "planar1d:-1"}, "num_planar of NormalPlanar1d must be at least 0, got -1"),
        ("magic", {}, "--method must be bayes, dropout, input-noise"),
    ],
)
def test_bad_texts_are_refused_with_option_rule_and_value(
    name: str, given: dict[str, str | bool], message: str
) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        make_method(name, given)
    assert message in str(refused.value)


def test_fields_of_any_type_are_read_by_their_type(imagined: dict[str, Field]) -> None:
    given = {"members": "5", "std": "learned", "widths": "8,16", "label": "a,b", "sure": "yes", "scales": "0.5,1"}
    expected = Imagined(5, "learned", (8, 16), "a,b", True, (0.5, 1.0))
    assert make_method("imagined", dict(given)) == expected
    assert make_method("imagined", {"members": "5", "std": "0.2", "widths": "8", "label": "none"}) == Imagined(
        5, 0.2, (8,)
    )
    assert imagined["std"].rule == "a number or learned"
    assert imagined["widths"].rule == "a whole number, several with commas"
    assert imagined["std"].meaning == "a number, or learned from the data."
    assert imagined["scales"].default == (0.5,)


def test_a_field_without_default_must_be_given_and_one_without_text_is_no_option(imagined: dict[str, Field]) -> None:
    assert imagined["members"].default is dataclasses.MISSING
    assert not imagined["inner"].readings
    with pytest.raises(ValueError, match="--members must be given for imagined"):
        make_method("imagined", {})
    with pytest.raises(ValueError, match="--inner is an option of no method"):
        make_method("imagined", {"members": "2", "inner": "dropout"})


@pytest.mark.parametrize("value", [1e-6, 0.1, 1 / 3, 12345678.9, 7, 1_000_000, True])
def test_no_digit_of_a_number_is_lost_in_what_is_shown(value: Any) -> None:
    shown = spell(value)
    assert (shown == "yes") if value is True else (type(value)(shown) == value)
