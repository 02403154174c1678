import torch, dubio, pytest, jaxtyping
from torch import nn


def test_compile():
    m = dubio.Bayes().convert(nn.Linear(5, 4)).eval()
    x = torch.randn(6, 5)
    c = torch.compile(m, fullgraph=True, backend="aot_eager")
    with dubio.frozen(3):
        torch.testing.assert_close(c(x), m(x), rtol=0, atol=0)
    a = c(x)
    b = c(x)
    assert not torch.equal(a, b)


def test_export():
    m = dubio.Bayes().convert(nn.Linear(5, 4)).eval()
    x = torch.randn(6, 5)
    B = torch.export.Dim("B")
    with dubio.noise_off():
        e = torch.export.export(m, (x,), dynamic_shapes=({0: B},))
    mod = e.module()
    print(mod(x) - m(x))
    with dubio.noise_off():
        print(mod(torch.randn(3, 5)).shape)


def test_list():
    dubio.predict(nn.Linear(3, 2), [1, 2])


def test_list2():
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        dubio.predict(nn.Linear(3, 2), [1, 2])
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
