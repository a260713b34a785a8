"""The parts of a step, each computed by a process of its own: threads wait for each other in Python.

Weights lie in memory that all of them see; a process gets a part of the samples and leaves its gradients where this one reads them.
"""
import signal
import time

import torch
import torch.multiprocessing


def alone(model, work, parts):
    """One after the other, here."""
    return [work(model, part) for part in parts]


class Workers:
    """`Workers(model, count)(model, work, parts)`, as `alone`: the first part here, each of the others in a process that was started beside this one."""

    def __init__(self, model, count):
        model.share_memory()
        self.spent = 0.0  # seconds of the others
        context = torch.multiprocessing.get_context("fork")
        self.others = []
        for _ in range(count - 1):
            here, there = context.Pipe()
            found = [torch.zeros_like(p).share_memory_() for p in model.parameters()]
            context.Process(target=_serve, args=(model, there, found), daemon=True).start()
            self.others.append((here, found))

    def __call__(self, model, work, parts):
        for (pipe, _), part in zip(self.others, parts[1:]):
            pipe.send((work, part))
        made = [work(model, parts[0])]
        for (pipe, found), _ in zip(self.others, parts[1:]):
            try:
                spent, *said = pipe.recv()
            except EOFError:
                raise SystemExit("a process that computes a part of each step has ended; the same command goes on from the last checkpoint") from None
            self.spent += spent
            made.append((found, *said))
        return made

    def seconds(self):
        """Of all processors that computed for this process so far."""
        return time.process_time() + self.spent


def _serve(model, pipe, found):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that has started this one ends it
    while True:
        work, part = pipe.recv()
        before = time.process_time()
        gradients, *said = work(model, part)
        for place, gradient in zip(found, gradients):
            place.copy_(gradient)
        pipe.send((time.process_time() - before, *said))
