"""A plain PyTorch loop."""

import torch
from torch_model import load, network, train, unload
from work import finish, task, timed

job = task()
torch.set_num_threads(job.threads)
torch.manual_seed(1)
model = network(job.dropout)
x, y = torch.from_numpy(job.x), torch.from_numpy(job.y)
load(model, job.start)
weights = [p.detach().clone() for p in model.parameters()]


def one(t: int) -> None:
    sums = [torch.zeros_like(w) for w in weights]
    for i in range(len(x)):
        with torch.no_grad():
            for p, w in zip(model.parameters(), weights):
                p.copy_(w)
        train(job, model, x[i], y[i])
        with torch.no_grad():
            for s, p in zip(sums, model.parameters()):
                s += p
    with torch.no_grad():
        for w, s in zip(weights, sums):
            w.copy_(s / len(x))


seconds = timed(job.rounds, one)
with torch.no_grad():
    for p, w in zip(model.parameters(), weights):
        p.copy_(w)
finish(job, seconds, unload(model), "torch")
