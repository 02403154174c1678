"""A first posterior in twenty lines: a Bayesian network learns digits and is asked about noise.

The data are scikit-learn's 1797 handwritten digits of 8x8 pixels. Three lines are dubio's: convert, fit, predict.

Expect an accuracy above 0.93 on digits it has not seen, and on pure noise several times the entropy (all doubt
together) and the mutual information (what the draws disagree about, the mark of inputs unlike the training data).
Takes about ten seconds.
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
epochs = 2 if os.environ.get("DUBIO_TINY") else None  # None: the method's own number
run = dubio.fit(model, (inputs[train], targets[train]), epochs=epochs)

known = dubio.predict(model, inputs[test], num_samples=100, seed=0)
strange = dubio.predict(model, torch.rand(450, 64), num_samples=100, seed=0)
print(f"accuracy {(known.label == targets[test]).float().mean():.3f} after {run.seconds:.1f} s")
for name, found in {"digits": known, "noise": strange}.items():
    print(f"{name:<7}entropy {found.entropy.mean():.3f}  mutual information {found.mutual_information.mean():.3f}")
