"""Fresh, frozen, off, antithetic: what each means, and that settings come and go as they should."""

import pytest
import torch

import dubio
from dubio._engine.settings import STATE
from networks import Tied, mlp

INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model() -> torch.nn.Module:
    return dubio.Bayes(init_std=0.2).convert(mlp(5, 7, 4))


def test_plain_calls_draw_anew(model: torch.nn.Module) -> None:
    assert not torch.equal(model(INPUTS), model(INPUTS))


def test_fresh_noise_repeats_under_torchs_seed(model: torch.nn.Module) -> None:
    for num_samples in (1, 4):
        outputs = []
        for _ in range(3):  # the first run also plans
            torch.manual_seed(7)
            outputs.append(dubio.sample(model, INPUTS, num_samples))
        assert torch.equal(outputs[0], outputs[1])
        assert torch.equal(outputs[1], outputs[2])


def test_frozen_calls_repeat_and_seeds_differ(model: torch.nn.Module) -> None:
    with dubio.frozen(seed=3):
        first, second = model(INPUTS), model(INPUTS)
    with dubio.frozen(seed=4):
        other = model(INPUTS)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_frozen_noise_leaves_the_global_generator_alone(model: torch.nn.Module) -> None:
    dubio.sample(model, INPUTS, 4, seed=1)
    state = torch.get_rng_state()
    dubio.sample(model, INPUTS, 4, seed=1)
    assert torch.equal(state, torch.get_rng_state())


def test_noise_off_is_the_mean_network() -> None:
    net = mlp(5, 7, 4)
    model = dubio.Bayes(init_std=0.5).convert(net)
    with dubio.noise_off():
        assert torch.equal(model(INPUTS), net(INPUTS))
        assert torch.equal(dubio.sample(model, INPUTS, 3), net(INPUTS).expand(3, 6, 4))
        assert torch.equal(dubio.sample(model, INPUTS, 3, seed=1), net(INPUTS).expand(3, 6, 4))


def test_settings_nest_and_come_back_also_after_an_error(model: torch.nn.Module) -> None:
    before = STATE.own.settings
    with pytest.raises(ZeroDivisionError), dubio.frozen(seed=1), dubio.noise_off():
        assert STATE.own.settings.mode == "off"
        with dubio.fresh():
            assert not torch.equal(model(INPUTS), model(INPUTS))
        raise ZeroDivisionError
    assert STATE.own.settings is before


def test_one_context_object_can_be_entered_again(model: torch.nn.Module) -> None:
    context = dubio.frozen(seed=1)
    with context:
        first = model(INPUTS)
        with context:
            second = model(INPUTS)
    assert torch.equal(first, second)
    assert STATE.own.settings.mode == "fresh"


@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("seed", [None, 3])
def test_antithetic_draws_mirror_each_other(estimator: str, executor: str, seed: int | None) -> None:
    """A linear network's mirrored draws average to its mean, exactly."""
    net = torch.nn.Linear(5, 4)
    model = dubio.Bayes(estimator=estimator, init_std=0.3).convert(net)
    with dubio.antithetic():
        draws = dubio.sample(model, INPUTS, 6, seed=seed, executor=executor, chunk=4)
    assert draws[::2].std(dim=0).mean() > 0.05
    pairs = (draws[::2] + draws[1::2]) / 2
    torch.testing.assert_close(pairs, net(INPUTS).expand(3, 6, 4), rtol=0, atol=1e-6)


def test_tied_weights_share_their_draw() -> None:
    model = dubio.Bayes(estimator="weight", init_std=0.3).convert(Tied())
    assert model.encode.weight_posterior is model.decode.weight_posterior
    drawn = []
    model.encode.register_forward_hook(lambda module, args, output: drawn.append(module.weight))
    model.decode.register_forward_hook(lambda module, args, output: drawn.append(module.weight))
    model(INPUTS)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], model.encode.weight_posterior.mean)
    model(INPUTS)
    assert not torch.equal(drawn[0], drawn[2])


def test_a_layer_called_by_itself_draws_for_that_call(model: torch.nn.Module) -> None:
    assert not torch.equal(model[0](INPUTS), model[0](INPUTS))
    with dubio.frozen(seed=1):
        assert torch.equal(model[0](INPUTS), model[0](INPUTS))


def test_weights_outside_a_pass_are_the_means(model: torch.nn.Module) -> None:
    assert model[0].weight is model[0].weight_posterior.mean


def test_networks_put_together_get_names_of_their_own() -> None:
    part = dubio.Bayes(estimator="weight").convert(torch.nn.Linear(5, 5))
    twin = dubio.Bayes(estimator="weight").convert(torch.nn.Linear(5, 5))
    twin.load_state_dict(part.state_dict())
    both = dubio._engine.attach(torch.nn.ModuleList([part, twin]))
    assert len({module.dubio_noise_key for module in both.modules() if hasattr(module, "dubio_noise_key")}) == 6
    with dubio.frozen(seed=1):
        assert not torch.equal(part(INPUTS), twin(INPUTS))


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        (1.5, TypeError, r"seed must be an int, got 1\.5"),
        (True, TypeError, "seed must be an int, got True"),
        (2**63, ValueError, "seed must fit into 64 bits"),
        (torch.zeros(2), ValueError, r"seed must be an int or a 0-dimensional int64 tensor"),
    ],
)
def test_bad_seeds_are_refused(model: torch.nn.Module, seed: object, error: type[Exception], message: str) -> None:
    from dubio._engine.settings import seed_tensor

    unchecked = getattr(seed_tensor, "__wrapped__", seed_tensor)
    with pytest.raises(error, match=message):
        unchecked(seed)
