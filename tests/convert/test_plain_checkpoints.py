"""A plain network's checkpoint loads into its converted twin: weights become means, scales stay."""

import torch
from torch import nn

import dubio
from networks import Residual, Tied


def test_a_plain_checkpoint_becomes_the_means() -> None:
    trained, fresh = Residual(), Residual()
    model = dubio.Bayes(init_std=0.2).convert(fresh)
    scales = model.head.weight_posterior.rho.clone()
    model.load_state_dict(trained.state_dict())
    with dubio.noise_off():
        torch.testing.assert_close(model.eval()(torch.ones(2, 3, 8, 8)), trained.eval()(torch.ones(2, 3, 8, 8)))
    assert torch.equal(model.head.weight_posterior.rho, scales)


def test_its_own_checkpoint_still_loads_and_ties_hold() -> None:
    model, twin = (dubio.Bayes(init_std=std).convert(Tied()) for std in (0.2, 0.3))
    twin.load_state_dict(model.state_dict())
    with dubio.frozen(seed=1):
        assert torch.equal(twin(torch.ones(2, 5)), model(torch.ones(2, 5)))
    twin.load_state_dict(Tied().state_dict())
    assert twin.encode.weight_posterior is twin.decode.weight_posterior


def test_recurrent_layers_made_plain_again_use_the_loaded_weights() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = nn.LSTM(5, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.memory(x)[0]

    model, trained = dubio.Bayes().convert(Net()), Net()
    model.load_state_dict(trained.state_dict(), assign=True)
    inputs = torch.randn(2, 3, 5)
    torch.testing.assert_close(dubio.to_mean(model)(inputs), trained(inputs))
