"""A pilot that decides nothing, for tests of what gradwire.torch's 'auto' hands it and does for it."""

from rank_processes import run_ranks

import gradwire
from gradwire.torch import auto


def check(world_size, body, folder, **options):
    """Runs body(world) on so many ranks of torch.distributed and returns what each returned."""
    ends = run_ranks("torch_world", world_size, body, folder=folder, deadline=240.0, **options)
    return [end.result() for end in ends]


class Scripted:
    """In place of _core.Pilot: a spec per window, whatever is measured, and what it was told."""

    script = ()
    steps_each = 4

    def __init__(self, parameters, world_size, *, specs, **how):
        assert world_size > 1
        self._shapes, self._how = parameters, how
        self.windows, self.costs = [], None
        self.window_steps = self.steps_each
        self.wants_norms, self.wants_costs, self.phase = True, False, "cruise"
        self.specs = ["bf16", *specs]

    def begins_slowly(self, link):
        self.first_link = link
        return False

    @property
    def spec(self):
        return self.script[min(len(self.windows), len(self.script) - 1)]

    @property
    def plan(self):
        words = {k: self._how[k] for k in ("dtype", "exempt_1d", "seed", "rules") if k in self._how}
        return gradwire.make_plan(self._shapes, self.spec, bucket_bytes=2000, **words)

    def end_window(self, step_s, **rest):
        before = self.spec
        self.windows.append((step_s, rest))
        self.wants_costs = len(self.windows) == 1
        return self.spec != before

    def set_costs(self, ready_s, link, codecs):
        self.costs, self.wants_costs = (ready_s, link, codecs), False
        return False

    def log(self):
        return [{"step": 4 * i + 5, "what": "choose", "from": "a", "to": "b", "reason": f"window {i}",
                 "numbers": {}} for i in range(len(self.windows))]


def scripted(*specs, steps=4):
    """Behind this every pilot of this process goes through these specs."""
    Scripted.script, Scripted.steps_each = specs, steps
    auto._core.Pilot = Scripted
