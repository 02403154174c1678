"""Area averaging: it keeps means, and is a pool where sizes divide."""

import pytest
import torch
import torch.nn.functional as F

from dubio import functional


def test_the_mean_of_every_image_is_kept_between_sizes_that_do_not_divide():
    images = torch.rand(3, 2, 105, 99, dtype=torch.float64)
    small = functional.corruption.area_resized(images, (28, 30))
    assert small.shape == (3, 2, 28, 30)
    torch.testing.assert_close(small.mean(dim=(-2, -1)), images.mean(dim=(-2, -1)), rtol=1e-12, atol=0)


def test_it_is_an_average_pool_where_sizes_divide():
    images = torch.rand(2, 12, 15)
    torch.testing.assert_close(functional.corruption.area_resized(images, (4, 3)), F.avg_pool2d(images, (3, 5)))


def test_a_pixel_is_shared_by_the_new_ones_that_cover_it():
    row = torch.tensor([[0.0, 3.0, 6.0]])  # two new pixels cover one and a half each
    torch.testing.assert_close(functional.corruption.area_resized(row, (1, 2)), torch.tensor([[1.0, 5.0]]))


def test_the_same_size_changes_nothing():
    images = torch.rand(5, 7)
    torch.testing.assert_close(functional.corruption.area_resized(images, (5, 7)), images)


@pytest.mark.parametrize("size", [(0, 4), (4, 8), (6, 4)])
def test_sizes_that_are_not_smaller_are_refused(size):
    with pytest.raises(ValueError, match=r"size must be from 1 pixel to that of the images, \(5, 7\), got"):
        functional.corruption.area_resized(torch.rand(5, 7), size)
