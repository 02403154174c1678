"""What the papers claim, and whether it held: decided by records, claim by claim."""

from dubio_lab.claims import alpha_dropout, bayes_by_backprop, flows_and_embeddings, weight_sampling
from dubio_lab.claims.claim import Claim, Outcome, Records

__all__ = ["CLAIMS", "PAPERS", "Claim", "Outcome", "Records"]

PAPERS: dict[str, tuple[str, tuple[Claim, ...]]] = {
    "bws": ("Bayesian Weight Sampling", weight_sampling.CLAIMS),
    "bbb": ("Blundell et al. 2015", bayes_by_backprop.CLAIMS),
    "m3": ("Project Machine Learning, Milestone 3", bayes_by_backprop.PROJECT_CLAIMS),
    "alpha": ("Li and Gal 2017", alpha_dropout.CLAIMS),
    "flow": ("Normalizing-flow implicit networks", flows_and_embeddings.CLAIMS),
    "iwe": ("Inductive Wasserstein Embeddings", flows_and_embeddings.EMBEDDING_CLAIMS),
}
"""The claims of each paper, by a short name, with what the paper is called."""

CLAIMS: tuple[Claim, ...] = tuple(claim for _, claims in PAPERS.values() for claim in claims)
