"""Flows are values: their steps in order, and what they refuse."""

import pytest

from dubio.flows import (
    Actnorm,
    Affine,
    AffineCoupling,
    Block,
    GlowStep,
    InvertibleConv,
    NormalAffine,
    NormalInvConv,
    NormalPlanar1d,
    Planar,
)

NAN = float("nan")


def test_named_blocks_are_composed_as_published() -> None:
    assert NormalAffine().steps == (Affine(),)
    assert NormalPlanar1d().steps == (Affine(), Planar(), Planar())
    planar, mixing = (Planar(),), (InvertibleConv("lu"),)
    assert NormalInvConv().steps == (Affine(), *planar * 2, *mixing * 3, *planar * 2)
    assert NormalInvConv(num_planar=1, num_mixing=2).steps == (Affine(), *planar, *mixing * 2, *planar)
    assert NormalPlanar1d(0).steps == NormalAffine().steps


def test_a_block_takes_glow_steps_apart_and_keeps_their_settings() -> None:
    block = Block((Affine(), GlowStep(hidden=8, bound=1.0, parametrisation="full"), Planar()))

    glow = (Actnorm(), InvertibleConv("full"), AffineCoupling(8, 1.0))
    assert block.steps == (Affine(), *glow, Planar())
    assert block == Block((Affine(), *glow, Planar()))
    assert Block([Affine()]) == Block((Affine(),))
    assert Block(block.steps) == block


def test_steps_and_blocks_are_values_that_compare_hash_and_print() -> None:
    assert len({Planar(), Planar(False, 0.01), Planar(shifted=True)}) == 2
    assert len({Block((Affine(),)), Block((Affine(),)), NormalAffine(), NormalInvConv(), NormalInvConv(2, 3)}) == 3
    assert str(Block((Affine(), AffineCoupling()))) == "Block(steps=(Affine(), AffineCoupling(hidden=16, bound=2.0)))"
    with pytest.raises(AttributeError):
        Planar().init_std = 1.0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Planar(init_std=0.0), ValueError, r"^init_std of Planar must be positive and finite, got 0.0$"),
        (lambda: Planar(init_std=NAN), ValueError, r"^init_std of Planar must be positive and finite, got nan$"),
        (lambda: Planar(init_std="a"), TypeError, r"^init_std of Planar must be a number, got 'a'$"),
        (lambda: Planar(shifted=1), TypeError, r"^shifted of Planar must be True or False, got 1$"),
        (
            lambda: AffineCoupling(hidden=0),
            ValueError,
            r"^hidden of AffineCoupling must be a whole number of at least 1, got 0$",
        ),
        (
            lambda: AffineCoupling(hidden=1.5),
            ValueError,
            r"^hidden of AffineCoupling must be a whole number of at least 1, got 1.5",
        ),
        (lambda: AffineCoupling(bound=-1.0), ValueError, r"^bound of AffineCoupling must be positive and finite, got"),
        (
            lambda: GlowStep(hidden=True),
            ValueError,
            r"^hidden of GlowStep must be a whole number of at least 1, got True$",
        ),
        (lambda: GlowStep(bound=float("inf")), ValueError, r"^bound of GlowStep must be positive and finite, got inf$"),
        (lambda: GlowStep(parametrisation="qr"), ValueError, r"^parametrisation of GlowStep must be 'lu' or 'full'"),
        (lambda: InvertibleConv("qr"), ValueError, r"^parametrisation of InvertibleConv must be 'lu' or 'full', got"),
        (
            lambda: NormalPlanar1d(-1),
            ValueError,
            r"^num_planar of NormalPlanar1d must be a whole number of at least 0, got -1$",
        ),
        (
            lambda: NormalInvConv(num_planar=-1),
            ValueError,
            r"^num_planar of NormalInvConv must be a whole number of at least 0, got -1$",
        ),
        (lambda: NormalInvConv(num_mixing=2.0), ValueError, r"^num_mixing of NormalInvConv must be a whole number"),
        (lambda: Block(()), ValueError, r"^steps of Block must hold one step at least, got none; NormalAffine\(\)"),
        (lambda: Block(Affine()), TypeError, r"^steps of Block must be a tuple of steps, got Affine\(\); did you mean"),
        (
            lambda: Block((Affine(), "planar")),
            TypeError,
            r"^steps of Block must be values of dubio.flows, got 'planar'; the steps are "
            r"Actnorm, Affine, AffineCoupling, GlowStep, InvertibleConv, Planar$",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, error, message, monkeypatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(error, match=message):
        make()
