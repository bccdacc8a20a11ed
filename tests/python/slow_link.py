"""A job whose exchanges take far longer than its steps, for tests of what 'auto' chooses there."""

import torch

from gradwire.torch import exchange as exchanges
from gradwire.torch.meeting import met


def wide():
    """Of 300 KB, nearly all in one matrix."""
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1024),
                               torch.nn.Tanh(), torch.nn.Linear(1024, 5))


def make_the_link_slow(bits_per_second=16e6):
    """Of all exchanges that this process makes from now on."""

    def join(group, carrier, timeout, device):
        return met("gloo", group, timeout, bits_per_second=bits_per_second)

    exchanges.join = join
