"""Numbers as they are shown."""

import pytest

from dubio.evaluation.records import figure


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.0000"),
        (0.12345, "0.1235"),
        (-0.00006, "-0.0001"),
        (3.456e-9, "3.46e-09"),  # an error in the units of a small target
        (-4e-5, "-4.00e-05"),
        (12345.6, "12346"),
        (1.5e9, "1.500e+09"),
    ],
)
def test_no_number_but_zero_is_shown_as_zero(value: float, shown: str) -> None:
    assert figure(value) == shown
