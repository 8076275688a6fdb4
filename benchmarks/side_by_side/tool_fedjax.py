"""FedJAX: its own federated averaging with its jit back-end (or pmap over host devices)."""

import os

from work import LEARNING_RATE, SIZES, finish, task, timed

job = task()
if job.variant == "pmap":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={job.threads}"

import jax  # noqa: E402

if not hasattr(jax, "tree_map"):  # FedJAX 0.0.17 calls it by its old name
    jax.tree_map = jax.tree.map

import fedjax  # noqa: E402
import haiku as hk  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402


def forward(batch: dict, dropout: float) -> jax.Array:
    z = batch["x"]
    for width in SIZES[1:-1]:
        z = jax.nn.relu(hk.Linear(width)(z))
        if dropout:
            z = hk.dropout(hk.next_rng_key(), dropout, z)
    return hk.Linear(1)(z)[:, 0]


def log_loss(batch: dict, logit: jax.Array) -> jax.Array:
    return jnp.logaddexp(0.0, logit) - batch["y"] * logit


names = ["linear"] + [f"linear_{k}" for k in range(1, len(SIZES) - 1)]
model = fedjax.create_model_from_haiku(
    hk.transform(forward),
    {"x": jnp.zeros((1, SIZES[0])), "y": jnp.zeros(1)},
    log_loss,
    train_kwargs={"dropout": job.dropout},
    eval_kwargs={"dropout": 0.0},
)
start = {
    name: {"w": jnp.asarray(job.start[2 * k]), "b": jnp.asarray(job.start[2 * k + 1])}
    for k, name in enumerate(names)
}
clients = [(str(i), fedjax.ClientDataset({"x": job.x[i], "y": job.y[i]})) for i in range(len(job.x))]
with fedjax.for_each_client_backend(job.variant or "jit"):
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.adam(LEARNING_RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=job.batch, num_epochs=job.epochs, seed=1),
    )
state = algorithm.init(start)
key = jax.random.PRNGKey(1)


def one(t: int) -> None:
    global state, key
    key, use = jax.random.split(key)
    keys = jax.random.split(use, len(clients))
    state, _ = algorithm.apply(state, [(c, d, k) for (c, d), k in zip(clients, keys)])
    if job.variant == "pmap":  # its results keep an axis of length one for the device
        params = jax.tree.map(lambda p, s: p.reshape(s.shape), state.params, start)
        state = fedjax.algorithms.fed_avg.ServerState(params, state.opt_state)
    jax.block_until_ready(state.params)


seconds = timed(job.rounds, one)
weights = [np.asarray(state.params[name][part]) for name in names for part in ("w", "b")]
finish(job, seconds, weights, "fedjax", "jax")
