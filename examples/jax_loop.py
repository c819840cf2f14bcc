#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network with jax, on batches that Millrace prepares.

arrays="jax" hands over jax arrays that are the memory into which a batch was received. They come with the same shape at every step
(tail="drop"), so the step is compiled once. Six epochs of 400 photographs reach 60% (guessing: 10%).

    pip install jax
    python3 examples/jax_loop.py
"""
import sys

import local
import jax
import jax.numpy as jnp
import millrace

SIZE = 32  # of a picture's side


def make_parameters(key, width=16):
    def weights(key, *shape):
        return jax.random.normal(key, shape) * (2 / (shape[0] * shape[1] * shape[2] if len(shape) == 4 else shape[0])) ** 0.5
    first, second, last = jax.random.split(key, 3)
    return {"first": weights(first, 3, 3, 3, width), "second": weights(second, 3, 3, width, 2 * width),
            "last": weights(last, 8 * width, 10), "bias": jnp.zeros(10)}


def scores(parameters, images):
    """Of each class. `images`: NHWC, as jax likes it."""
    for name in ("first", "second"):
        images = jax.lax.conv_general_dilated(images, parameters[name], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        images = jax.nn.relu(images)
    quarters = images.reshape(images.shape[0], 2, SIZE // 8, 2, SIZE // 8, -1).mean((2, 4))
    return quarters.reshape(images.shape[0], -1) @ parameters["last"] + parameters["bias"]


def loss_of(parameters, images, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(parameters, images)), labels[:, None], 1).mean()


@jax.jit
def step(parameters, moments, count, images, labels):
    """One step of Adam."""
    loss, slope = jax.value_and_grad(loss_of)(parameters, images, labels)
    first = jax.tree_util.tree_map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], slope)
    second = jax.tree_util.tree_map(lambda m, g: 0.999 * m + 0.001 * g * g, moments[1], slope)
    rate = 3e-3 * jnp.sqrt(1 - 0.999 ** count) / (1 - 0.9 ** count)
    parameters = jax.tree_util.tree_map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), parameters, first, second)
    return parameters, (first, second), loss


@jax.jit
def count_right(parameters, images, labels, valid):
    return ((scores(parameters, images).argmax(1) == labels) & valid).sum()


def main():
    parser = local.parser(__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--reach", type=float, default=0, metavar="SHARE", help="fail if the last accuracy is lower")
    args = parser.parse_args()
    parameters = make_parameters(jax.random.PRNGKey(0))
    moments, count = (jax.tree_util.tree_map(jnp.zeros_like, parameters),) * 2, 0
    common = dict(batch_size=args.batch_size, options={"size": SIZE}, layout="NHWC", arrays="jax")
    with local.cluster(args) as cluster, \
            millrace.Loader(cluster.address, dataset=args.train, epochs=args.epochs, **common) as train, \
            millrace.Loader(cluster.address, dataset=args.valid, transforms="imagenet_eval", tail="pad", **common) as check:
        for epoch in range(args.epochs):
            for images, labels in train:
                count += 1
                parameters, moments, loss = step(parameters, moments, count, images, labels)
            right = total = 0
            for batch in check:  # tail="pad": full batches, so nothing is compiled again; .valid says which rows count
                right += int(count_right(parameters, *batch, batch.valid))
                total += batch.valid_rows
            print(f"epoch {epoch}: loss {float(loss):.3f}, accuracy {right / total:.0%} of {total}", flush=True)
    return right / total < args.reach


if __name__ == "__main__":
    sys.exit(main())
