"""Embeddings under a map over draws, and as random tables: the padding row stays what it is."""

import pytest
import torch
from torch import nn

import dubio
from dubio.nn.vmappable import MAPPABLE

OPTIONS = {
    "max_norm": {"max_norm": 1.0},
    "scale_grad_by_freq": {"scale_grad_by_freq": True},
    "sparse": {"sparse": True},
}


class Chooser(nn.Module):
    """Looks up what a noisy layer chooses: the indices differ from draw to draw."""

    def __init__(self, padding_idx: int | None, **options: object) -> None:
        super().__init__()
        self.choose = nn.Linear(5, 4)
        self.table = nn.Embedding(4, 3, padding_idx=padding_idx, **options)
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(self.choose(x).argmax(dim=-1)))


@pytest.mark.parametrize("padding_idx", [0, 2, -1, None])
def test_a_padding_row_gets_no_gradient_from_mapped_draws(padding_idx):
    net = Chooser(padding_idx).double()
    nn.init.normal_(net.table.weight)
    model = dubio.Bayes(init_std=1.0, where=nn.Linear).convert(net)
    inputs = torch.randn(20, 5).double()

    def outputs_and_gradients(executor: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model.zero_grad()
        outputs = dubio.sample(model, inputs, 6, seed=2, executor=executor)
        outputs.square().sum().backward()
        gradients = [parameter.grad for parameter in (model.table.weight, *model.head.parameters())]
        return outputs, [gradient.clone() for gradient in gradients]

    mapped, looped = outputs_and_gradients("vmap"), outputs_and_gradients("loop")

    torch.testing.assert_close(mapped, looped, rtol=1e-10, atol=1e-10)
    table = mapped[1][0]
    if padding_idx is None:
        assert (table != 0).all()
    else:
        assert (table[padding_idx] == 0).all()
        others = [row for row in range(4) if row != padding_idx % 4]
        assert (table[others] != 0).all()


def test_the_padding_row_is_looked_up_like_any_other():
    net = Chooser(0)
    nn.init.constant_(net.table.weight, 7.0)
    net.choose.weight.data.zero_()
    net.choose.bias.data.copy_(torch.tensor([100.0, 0.0, 0.0, 0.0]))
    model = dubio.Bayes(where="choose").convert(net)

    outputs = dubio.sample(model, torch.randn(3, 5), 2, executor="vmap")

    torch.testing.assert_close(outputs, net.head(torch.full((2, 3, 3), 7.0)))


def chooser(where: object, padding_idx: int | None = 0, **options: object) -> nn.Module:
    torch.manual_seed(0)
    net = Chooser(padding_idx, **options).double()
    nn.init.normal_(net.table.weight)
    return dubio.Bayes(where=where, estimator="weight", init_std=1.0).convert(net)


def outcome(model: nn.Module, inputs: torch.Tensor, executor: str) -> dict[str, torch.Tensor]:
    """Six draws, all gradients, and what the table is afterwards: ``max_norm`` changes it in place."""
    outputs = dubio.sample(model, inputs, 6, seed=2, executor=executor)
    outputs.square().sum().backward()
    gradients = {name: p.grad.to_dense() for name, p in model.named_parameters() if p.grad is not None}
    return {"outputs": outputs, "table": model.table.weight.detach().clone(), **gradients}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("padding_idx", [None, 0, -1])
def test_an_embedding_that_torch_cannot_map_is_looped_at_the_leaf(options, padding_idx):
    inputs = torch.randn(20, 5).double()
    models = {executor: chooser(nn.Linear, padding_idx, **options) for executor in ("vmap", "loop")}

    mapped, looped = (outcome(model, inputs, executor) for executor, model in models.items())

    assert mapped.keys() == looped.keys()
    torch.testing.assert_close(mapped, looped, rtol=1e-10, atol=1e-10)
    assert (mapped["outputs"][0] != mapped["outputs"][1]).any()
    assert models["vmap"].table.weight.grad.is_sparse == options.get("sparse", False)
    if padding_idx is not None:
        assert (mapped["table.weight"][padding_idx] == 0).all()
    assert (mapped["table.weight"] != 0).any()


@pytest.mark.parametrize("options", [{}, OPTIONS["max_norm"], OPTIONS["scale_grad_by_freq"]], ids=str)
@pytest.mark.parametrize("where", [None, "table"])
@pytest.mark.parametrize("padding_idx", [None, 0, -1])
def test_a_random_table_gives_the_same_draws_mapped_and_looped(options, where, padding_idx):
    inputs = torch.randn(20, 5).double()
    models = {executor: chooser(where, padding_idx, **options) for executor in ("vmap", "loop")}

    mapped, looped = (outcome(model, inputs, executor) for executor, model in models.items())

    assert mapped.keys() == looped.keys()
    torch.testing.assert_close(mapped, looped, rtol=1e-10, atol=1e-10)
    assert (mapped["outputs"][0] != mapped["outputs"][1]).any()
    assert (mapped["table.weight_posterior.rho"] != 0).any()


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_options_of_an_embedding_hold_for_every_draw(executor):
    inputs = torch.randn(20, 5).double()

    gradients = {}
    for name, options in {"plain": {}, **OPTIONS}.items():
        model = chooser("choose", None, **options)
        found = outcome(model, inputs, executor)
        gradients[name] = found["table.weight"]
        assert (found["table"].norm(dim=-1).max() <= 1.0 + 1e-6) == (name == "max_norm")

    torch.testing.assert_close(gradients["sparse"], gradients["plain"])
    # Rows that are looked up twice in a draw get less than their gradient.
    ratios = gradients["scale_grad_by_freq"].norm(dim=-1) / gradients["plain"].norm(dim=-1)
    assert (ratios < 0.5).all()
    assert (gradients["max_norm"] - gradients["plain"]).abs().max() > 0.1


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_drawn_vectors_keep_to_their_largest_norm(executor):
    model = dubio.Bayes(init_std=2.0).convert(nn.Embedding(7, 5, max_norm=1.0))

    norms = dubio.sample(model, torch.arange(7), 20, seed=1, executor=executor).norm(dim=-1)

    assert norms.max().item() == pytest.approx(1.0, abs=1e-4)
    assert (norms > 0.99).float().mean() > 0.9  # wide draws, all cut


@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
def test_the_padding_row_of_a_random_table_is_no_random_variable(make):
    net = make(7, 5, padding_idx=2)
    nn.init.normal_(net.weight)
    model = dubio.Bayes(init_std=0.3, prior=dubio.Normal(0.0, 0.5)).convert(net)
    posterior = model.weight_posterior

    with dubio.frozen(1), dubio._engine.joined_pass():
        drawn = model.weight.detach()
    others = [row for row in range(7) if row != 2]
    assert torch.equal(drawn[2], net.weight[2])
    assert (drawn[others] != net.weight[others]).all()
    assert posterior.num_random == dubio.describe(model).num_random == 6 * 5
    assert dubio.describe(model).num_fixed == 5

    own = torch.distributions.Normal(posterior.mean[others], posterior.std[others])
    expected = torch.distributions.kl_divergence(own, torch.distributions.Normal(0.0, 0.5)).sum()
    assert dubio.divergence(model).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_the_padding_row_of_a_random_table_gets_no_gradient(executor):
    model = dubio.Bayes(init_std=0.3).convert(nn.Embedding(7, 5, padding_idx=0))
    indices = torch.tensor([[0, 1, 2], [3, 0, 0]])

    (dubio.sample(model, indices, 4, seed=1, executor=executor) + 1.0).square().sum().backward()

    for gradient in (model.weight_posterior.mean.grad, model.weight_posterior.rho.grad):
        assert (gradient[0] == 0).all()
        assert (gradient[1:4] != 0).all()


@pytest.mark.parametrize("options", [{}, *OPTIONS.values()], ids=str)
@pytest.mark.parametrize("where", ["0", "1"])
def test_with_noise_off_an_embedding_is_the_plain_one_bit_by_bit(options, where):
    net = nn.Sequential(nn.Embedding(7, 5, padding_idx=0, **options), nn.Linear(5, 3))
    model = dubio.Bayes(where=where).convert(net)
    indices = torch.randint(7, (4, 3))
    assert isinstance(model[0], MAPPABLE[nn.Embedding])

    with dubio.noise_off():
        outputs = model(indices)
    torch.testing.assert_close(outputs, net(indices), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_random_sparse_table_learns_with_dense_gradients(kind, executor):
    """Torch gives a sparse gradient to a parameter only; a drawn table is computed from two."""
    torch.manual_seed(0)
    dense = kind(6, 4)
    sparse = kind(6, 4, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    gradients = []
    for table in (dense, sparse):
        model = dubio.Bayes(init_std=0.5).convert(table)
        dubio.sample(model, torch.tensor([[1, 2], [2, 5]]), 3, seed=4, executor=executor).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])
    back = dubio.to_mean(model)
    back(torch.tensor([[1, 2]])).sum().backward()
    assert back.weight.grad.is_sparse
