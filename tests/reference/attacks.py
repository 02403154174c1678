"""Attacks on one example at a time in plain NumPy, written from the papers.

A network comes as ``look(point) -> (value, gradient, fooled)``: what the attacker raises, its gradient, and whether the
attack has succeeded there. Points are flat arrays; images `(channel, height, width)` for the square attack.
"""

import math
from fractions import Fraction

import numpy as np


def clip_to_ball_and_box(point, centre, norm, epsilon, low=0.0, high=1.0):
    delta = point - centre
    if norm == "linf":
        delta = np.maximum(np.minimum(delta, epsilon), -epsilon)
    elif np.linalg.norm(delta) > epsilon:
        delta = delta * epsilon / np.linalg.norm(delta)
    return np.clip(centre + delta, low, high)


def ascent(gradient, norm):
    return np.sign(gradient) if norm == "linf" else gradient / np.linalg.norm(gradient)


def fgsm(x, look, norm, epsilon):
    """Goodfellow et al. 2015."""
    return clip_to_ball_and_box(x + epsilon * ascent(look(x)[1], norm), x, norm, epsilon)


def pgd(x, start, look, norm, epsilon, steps, step_size):
    """Madry et al. 2018."""
    point = start
    for _ in range(steps):
        point = clip_to_ball_and_box(point + step_size * ascent(look(point)[1], norm), x, norm, epsilon)
    return point


def apgd(x, start, look, norm, epsilon, steps):
    """Croce and Hein 2020, algorithm 1: a list of the iterates, and the one with the largest value.

    At a checkpoint the restart takes effect before the next step, as in the authors' code, rather than after it.
    """
    p = [Fraction(0), Fraction(22, 100)]
    while p[-1] <= 1:
        p.append(p[-1] + max(p[-1] - p[-2] - Fraction(3, 100), Fraction(6, 100)))
    checkpoints = [math.ceil(share * steps) for share in p]

    eta = 2.0 * epsilon
    points, values, step_sizes = [start], [look(start)[0]], [eta]
    best_points, best_values = [start], [values[0]]
    here, here_value, previous = start, values[0], None
    rose = []
    j = 1
    for k in range(1, steps + 1):
        gradient = look(here)[1]
        z = clip_to_ball_and_box(here + eta * ascent(gradient, norm), x, norm, epsilon)
        if previous is None:
            new = z
        else:
            new = clip_to_ball_and_box(here + 0.75 * (z - here) + 0.25 * (here - previous), x, norm, epsilon)
        value = look(new)[0]
        rose.append(value > here_value)
        previous, here, here_value = here, new, value
        points.append(new)
        values.append(value)
        better = value > best_values[-1]
        best_values.append(value if better else best_values[-1])
        best_points.append(new if better else best_points[-1])
        if k == checkpoints[j] and k < steps:
            since = checkpoints[j - 1]
            first = sum(rose[since:k]) < 0.75 * (k - since)
            second = step_sizes[since] == eta and best_values[since] == best_values[k]
            step_sizes += [eta] * (k - len(step_sizes))
            if first or second:
                eta = eta / 2.0
                previous, here, here_value = new, best_points[-1], best_values[-1]
            step_sizes.append(eta)
            j += 1
    return points, best_points[-1]


def ddn(x, look, steps, gamma=0.05, low=0.0, high=1.0):
    """Rony et al. 2019, algorithm 1 without the rounding to 256 levels: the nearest point that fools, or None."""
    delta, epsilon, best = np.zeros_like(x), 1.0, None
    for k in range(steps + 1):
        _, gradient, fooled = look(x + delta)
        if fooled and (best is None or np.linalg.norm(delta) < np.linalg.norm(best - x)):
            best = x + delta
        alpha = 0.01 + (1.0 - 0.01) * (1.0 + math.cos(math.pi * k / steps)) / 2.0
        delta = delta + alpha * gradient / np.linalg.norm(gradient)
        epsilon = epsilon * (1.0 - gamma) if fooled else epsilon * (1.0 + gamma)
        delta = np.clip(x + epsilon * delta / np.linalg.norm(delta), low, high) - x
    return best


def fmn(x, look, norm, steps, gamma=0.05, last_gamma=0.001, low=0.0, high=1.0, inside=1.0 - 1e-6):
    """Pintor et al. 2021, algorithm 1, with a radius that also grows while nothing has been found.

    The value must be a margin: negative where the network is right. ``inside`` keeps a projection in L2 off the
    boundary of the ball.
    """
    order, dual = (np.inf, 1) if norm == "linf" else (2, 2)
    delta, epsilon, best = np.zeros_like(x), None, None
    for k in range(steps + 1):
        value, gradient, fooled = look(x + delta)
        size = np.linalg.norm(delta, order)
        wave = (1.0 + math.cos(math.pi * k / steps)) / 2.0
        rate = last_gamma + (gamma - last_gamma) * wave
        if fooled:
            if best is None or size < np.linalg.norm(best, order):
                best = delta
            shrunk = math.inf if epsilon is None else epsilon * (1.0 - rate)
            epsilon = min(shrunk, np.linalg.norm(best, order))
        elif best is None:
            reach = size + abs(value) / np.linalg.norm(gradient, dual)
            epsilon = max(reach, 0.0 if epsilon is None else epsilon) * (1.0 + rate)
        else:
            epsilon = epsilon * (1.0 + rate)
        alpha = 0.01 + (1.0 - 0.01) * wave
        delta = delta + alpha * gradient / np.linalg.norm(gradient)
        if norm == "linf":
            delta = np.clip(delta, -epsilon, epsilon)
        else:
            delta = delta * min(inside * epsilon / np.linalg.norm(delta), 1.0)
        delta = np.clip(x + delta, low, high) - x
    return None if best is None else x + best


def square_side(k, steps, share, height, width, smallest):
    """Side of the window at step k: the share of pixels is halved at given steps of 10,000."""
    for limit in (10, 50, 200, 1000, 2000, 4000, 6000, 8000):
        if k * 10_000 / steps > limit:
            share = share / 2.0
    return min(max(round(math.sqrt(share * height * width)), smallest), height, width)


def square_linf(x, look, epsilon, steps, share, stripes, numbers):
    """Andriushchenko et al. 2020, algorithms 1 and 2, with given random numbers.

    ``stripes`` are signs `(channel, 1, width)`; ``numbers`` one row for each step: two for the place, one for the sign
    of each channel, all uniform in [0, 1].
    """
    channels, height, width = x.shape
    point = np.clip(x + epsilon * stripes, 0.0, 1.0)
    value = look(point)[0]
    for k in range(steps):
        side = square_side(k, steps, share, height, width, 1)
        top, left = int(numbers[k][0] * (height - side + 1)), int(numbers[k][1] * (width - side + 1))
        new = point.copy()
        for channel in range(channels):
            sign = 1.0 if numbers[k][2 + channel] < 0.5 else -1.0
            for i in range(top, top + side):
                for j in range(left, left + side):
                    shifted = point[channel, i, j] + sign * 2.0 * epsilon
                    inside = min(max(shifted, x[channel, i, j] - epsilon), x[channel, i, j] + epsilon)
                    new[channel, i, j] = min(max(inside, 0.0), 1.0)
        new_value = look(new)[0]
        if new_value > value:
            point, value = new, new_value
    return point, value


def eta(height, width):
    """The bump of the L2 square attack: concentric squares about the middle of each half, one half up, one down."""

    def hill(rows, columns):
        found = np.zeros((rows, columns))
        middle = rows // 2, columns // 2
        for rank in range(max(rows, columns) // 2 + 1):
            for i in range(rows):
                for j in range(columns):
                    if abs(i - middle[0]) <= rank and abs(j - middle[1]) <= rank:
                        found[i, j] += 1.0 / (rank + 1.0) ** 2
        return found / np.linalg.norm(found) if found.size else found

    half = height // 2
    both = np.concatenate([hill(half, width), -hill(height - half, width)])
    return both / np.linalg.norm(both)


def square_l2_change(x, point, epsilon, side, numbers):
    """Algorithm 3 of the same paper: the next candidate, with given random numbers.

    Two each for the places of the window that is raised and of the one that is put back, one for the orientation of
    the bump, one for the sign of each channel.
    """
    channels, height, width = x.shape
    nu = point - x
    unused = epsilon**2 - np.sum(nu**2)
    places = [int(u * (length - side + 1)) for u, length in zip(numbers[:4], (height, width) * 2, strict=True)]
    window = np.s_[places[0] : places[0] + side, places[1] : places[1] + side]
    other = np.s_[places[2] : places[2] + side, places[3] : places[3] + side]
    both = np.zeros((height, width), dtype=bool)
    both[window] = both[other] = True
    bump = eta(side, side) if numbers[4] < 0.5 else eta(side, side).T
    for channel in range(channels):
        sign = 1.0 if numbers[5 + channel] < 0.5 else -1.0
        available = math.sqrt(np.sum(nu[channel][both] ** 2) + unused / channels)
        own = nu[channel][window]
        shape = sign * bump + (own / np.linalg.norm(own) if np.any(own) else 0.0)
        nu[channel][other] = 0.0
        nu[channel][window] = available * shape / np.linalg.norm(shape)
    return np.clip(x + nu, 0.0, 1.0)
