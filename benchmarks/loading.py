"""Time of one shuffled pass over 60,000 images of 28x28 in batches of 128, scaled to [0, 1]: ours and torch's."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from timing import median_ms
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from dubio.data.batches import Loader
from dubio.data.examples import Examples

COUNT, BATCH = 60_000, 128


class Images(Dataset[tuple[Tensor, Tensor]]):
    """What most people write: one image at a time."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.images[row].float() / 255.0, self.labels[row]


def whole_pass(batches: Iterable[Any], scale: bool) -> Callable[[], None]:
    def run() -> None:
        for inputs, _ in batches:
            if scale:
                inputs.float().div_(255.0)

    return run


def measure(device: torch.device) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (COUNT, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (COUNT,), generator=generator)
    examples = Examples(images, labels, tuple(map(str, range(10))))
    contenders = {
        "dubio.data.Loader": whole_pass(Loader(examples, BATCH, device=device), scale=False),
        "DataLoader(TensorDataset)": whole_pass(DataLoader(TensorDataset(images, labels), BATCH, shuffle=True), True),
        "DataLoader(one image at a time)": whole_pass(DataLoader(Images(images, labels), BATCH, shuffle=True), False),
    }
    records = []
    print(f"one shuffled pass over {COUNT:,} images of 28x28, batches of {BATCH}, scaled")
    for name, work in contenders.items():
        seconds = median_ms(work, device, repetitions=3) / 1e3
        records.append({"what": "one pass over the data", "loader": name, "seconds": seconds})
        print(f"{name:<34} {seconds:8.3f} s   {seconds / records[0]['seconds']:5.1f}x", flush=True)
    return records
