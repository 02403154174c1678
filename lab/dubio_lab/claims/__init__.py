"""What the papers say, and whether it was reproduced: decided by records, statement by statement."""

from dubio_lab.claims import alpha_dropout, bayes_by_backprop, embeddings, flows, weight_sampling
from dubio_lab.claims.claim import Claim, Outcome
from dubio_lab.claims.estimate import EARLIER_FILE, Earlier, Estimate, Records, read_earlier
from dubio_lab.claims.verdict import Verdict

__all__ = [
    "CLAIMS",
    "EARLIER_FILE",
    "PAPERS",
    "Claim",
    "Earlier",
    "Estimate",
    "Outcome",
    "Records",
    "Verdict",
    "read_earlier",
]

PAPERS: dict[str, tuple[str, tuple[Claim, ...]]] = {
    "bws": ("Bayesian Weight Sampling", weight_sampling.CLAIMS),
    "bbb": ("Blundell et al. 2015", bayes_by_backprop.CLAIMS),
    "m3": ("Project Machine Learning, Milestone 3", bayes_by_backprop.PROJECT_CLAIMS),
    "alpha": ("Li and Gal 2017", alpha_dropout.CLAIMS),
    "flow": ("Normalizing-flow implicit networks", flows.CLAIMS),
    "iwe": ("Inductive Wasserstein Embeddings", embeddings.CLAIMS),
}
"""The claims of each paper, by a short name, with what the paper is called."""

CLAIMS: tuple[Claim, ...] = tuple(claim for _, claims in PAPERS.values() for claim in claims)
