"""``nn.PReLU`` that maps under autocast: ``vmap`` takes the function apart before autocast sees it."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["PReLU"]


class PReLU(nn.PReLU):
    """``nn.PReLU`` whose slope has the type of the input, as autocast would have it."""

    def forward(self, input: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The activation."""
        return F.prelu(input, self.weight.to(input.dtype))
