"""A first posterior in twenty lines: a Bayesian network learns digits and is evaluated on noise.

The data are the 1797 handwritten digits of 8x8 pixels from scikit-learn. Three lines use dubio: convert, fit, predict.

Expect an accuracy above 0.93 on test digits. On pure noise, expect several times the entropy (the total uncertainty)
and the mutual information (the disagreement of the draws, which indicates inputs unlike the training data). The example
takes about ten seconds.
"""

import os

import torch
from sklearn.datasets import load_digits

import dubio

images, labels = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
torch.manual_seed(0)
test, train = torch.randperm(len(inputs)).split([450, len(inputs) - 450])

net = dubio.models.mlp(64, 100, 100, 10)  # any nn.Module, trained or not
model = dubio.Bayes().convert(net)  # a new nn.Module; net itself is untouched
epochs = 2 if os.environ.get("DUBIO_TINY") else None  # None: the default of the method
run = dubio.fit(model, (inputs[train], targets[train]), epochs=epochs)

pred = dubio.predict(model, inputs[test], num_samples=100, seed=0)
pred_noise = dubio.predict(model, torch.rand(450, 64), num_samples=100, seed=0)
print(f"accuracy {(pred.label == targets[test]).float().mean():.3f} after {run.seconds:.1f} s")
for name, each in {"digits": pred, "noise": pred_noise}.items():
    print(f"{name:<7}entropy {each.entropy.mean():.3f}  mutual information {each.mutual_information.mean():.3f}")
