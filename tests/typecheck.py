"""The checker that tests put on every signature: an int will do for a float, as PEP 484 has it.

It looks at a random item of a list. Its numbers are its own here: a network that draws from Python's random is told by
where that stands.
"""

import random

from beartype import BeartypeConf, beartype
from beartype._check.code import codemain

codemain.getrandbits = random.Random(0).getrandbits
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
