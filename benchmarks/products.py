"""The bare matrix products of an update: what remains of it when everything but torch.mm is left out.

No update in torch that does this mathematics can be faster on the same core. One in another framework can, where its
matrix products are: on an AMD EPYC, TensorFlow's were 2.3 times as fast as torch's. Each function below reads as the
update of its algorithm, reduced to which network runs forward and which backward. A layer with weight W (out, in) on
a batch x (batch, in), with the gradient g (batch, out) of its output, has up to three products:
    forward          x W^T       (batch, out)
    weight gradient  g^T x       (out, in)
    input gradient   g W         (batch, in),   which a network's first layer does not need, unless asked for
"""
import time

import torch


class Network:
    """The weights of a perceptron, (out, in) as in torch.nn.Linear."""
    def __init__(self, *sizes):
        self.weights = [torch.randn(n_out, n_in) for n_in, n_out in zip(sizes, sizes[1:])]


class Products:
    """A list of products a b -> out, on memory that is there beforehand."""
    def __init__(self, batch):
        self.batch, self.list = batch, []

    def add(self, a, b):
        out = torch.empty(a.shape[0], b.shape[1])
        self.list.append((a, b, out))
        return out

    def input_of(self, network):
        return torch.randn(self.batch, network.weights[0].shape[1])

    def forward(self, network):
        """Returns the input of every layer, which the weight gradients need."""
        inputs = [self.input_of(network)]
        for weight in network.weights:
            inputs.append(self.add(inputs[-1], weight.t()))
        return inputs[:-1]

    def backward(self, network, inputs):
        """The gradient of every weight."""
        grad = torch.randn(self.batch, len(network.weights[-1]))
        for i in reversed(range(len(network.weights))):
            self.add(grad.t(), inputs[i])
            if i > 0:
                grad = self.add(grad, network.weights[i])

    def input_gradient(self, network, columns):
        """The gradient of the last `columns` columns of the input; the weights are frozen."""
        grad = torch.randn(self.batch, len(network.weights[-1]))
        for weight in reversed(network.weights[1:]):
            grad = self.add(grad, weight)
        self.add(grad, network.weights[0][:, -columns:])

    def tangent(self, network, inputs):
        """How the output changes along a direction of the weights: x dW^T + dx W^T in every layer, dx = 0 at first."""
        for i, (weight, x) in enumerate(zip(network.weights, inputs)):
            self.add(x, torch.randn_like(weight).t())
            if i > 0:
                self.add(torch.randn_like(x), weight.t())

    def run(self):
        for a, b, out in self.list:
            torch.mm(a, b, out=out)

    def seconds(self, at_least):
        """Of one run, repeated for `at_least` seconds after a warm-up of a fifth of that."""
        self.repeat(at_least / 5)
        return self.repeat(at_least)

    def repeat(self, at_least):
        runs, start = 0, time.perf_counter()
        while time.perf_counter() - start < at_least:
            self.run()
            runs += 1
        return (time.perf_counter() - start) / runs

    def flops(self):
        return sum(2 * a.shape[0] * a.shape[1] * b.shape[1] for a, b, _ in self.list)


# ---- Off-policy: one update; td3's of the policy is every other time, so its list has two updates of q

def networks(obs_dim, act_dim, pi_outputs, hidden=(256, 256)):
    """pi, q1, q2, and the targets of q1 and q2."""
    return Network(obs_dim, *hidden, pi_outputs), *[Network(obs_dim + act_dim, *hidden, 1) for _ in range(4)]


def sac(batch, obs_dim, act_dim):
    products, (pi, q1, q2, q1_targ, q2_targ) = Products(batch), networks(obs_dim, act_dim, 2 * act_dim)
    for network in pi, q1_targ, q2_targ:                            # the backup
        products.forward(network)
    for q in q1, q2:                                                # the step of the q's
        products.backward(q, products.forward(q))
    inputs = products.forward(pi)                                   # the policy's, through both q's to the action
    for q in q1, q2:
        products.forward(q)
        products.input_gradient(q, columns=act_dim)
    products.backward(pi, inputs)
    return products, 1


def td3(batch, obs_dim, act_dim):
    products, (pi, q1, q2, q1_targ, q2_targ) = Products(batch), networks(obs_dim, act_dim, act_dim)
    pi_targ = Network(obs_dim, 256, 256, act_dim)
    for _ in range(2):
        for network in pi_targ, q1_targ, q2_targ:                   # the backup
            products.forward(network)
        for q in q1, q2:                                            # the step of the q's
            products.backward(q, products.forward(q))
    deterministic_policy_step(products, pi, q1, act_dim)
    return products, 2


def ddpg(batch, obs_dim, act_dim):
    products, (pi, q, q_targ, *_) = Products(batch), networks(obs_dim, act_dim, act_dim)
    for network in Network(obs_dim, 256, 256, act_dim), q_targ:     # the backup; the target policy has its own weights
        products.forward(network)
    products.backward(q, products.forward(q))                       # the step of q
    deterministic_policy_step(products, pi, q, act_dim)
    return products, 1


def deterministic_policy_step(products, pi, q, act_dim):
    inputs = products.forward(pi)
    products.forward(q)
    products.input_gradient(q, columns=act_dim)
    products.backward(pi, inputs)


# ---- On-policy: one gradient of the policy, and one of the value function, on a whole epoch

def gradient(batch, *sizes):
    products, network = Products(batch), Network(*sizes)
    products.backward(network, products.forward(network))
    return products


def natural_gradient(batch, *sizes, fisher_products=11):
    """trpo's: a gradient, then 10 products of conjugate gradient with the Fisher matrix and one for the step's length.

    A product with J^T M J goes forward along a direction, and backward; the line search's first try is one forward.
    """
    products, network = Products(batch), Network(*sizes)
    inputs = products.forward(network)
    products.backward(network, inputs)
    for _ in range(fisher_products):
        products.tangent(network, inputs)
        products.backward(network, inputs)
    products.forward(network)
    return products
