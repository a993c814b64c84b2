"""Layers and an optimizer that do what PyTorch's own do, in less time on a CPU.

No algorithm needs them to be understood. An update of small networks is hundreds of short operations, so that what
surrounds each of them counts.
"""
import operator

import torch
import torch.nn.functional as F
from torch import nn, optim

STATE = operator.itemgetter('step', 'exp_avg', 'exp_avg_sq')        # of a parameter in Adam
SLOW_TANH = torch.backends.cpu.get_cpu_capability() != 'AVX512'     # where it takes four times as long as sigmoid


class Adam(optim.Adam):
    """optim.Adam(fused=True), without its preparations for everything else, which take longer than the step itself."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr, fused=True)

    @torch.no_grad()
    def step(self):
        group, = self.param_groups
        params, (beta1, beta2) = group['params'], group['betas']
        grads = [p.grad for p in params]
        if len(self.state) < len(params) or any(grad is None for grad in grads):
            super().step()                                          # the first step, or a part of a network unused
            return
        if self.state[params[0]]['step']._base is None:             # as PyTorch makes and loads them: each a tensor
            for p, step in zip(params, torch.stack([self.state[p]['step'] for p in params])):
                self.state[p]['step'] = step                        # parts of one tensor, counted on in one operation
        steps, averages, squares = zip(*[STATE(self.state[p]) for p in params])
        steps[0]._base.add_(1)
        torch._fused_adam_(params, grads, averages, squares, [], steps, lr=group['lr'], beta1=beta1, beta2=beta2,
                           eps=group['eps'], weight_decay=group['weight_decay'], amsgrad=False, maximize=False)
    step.hooked = True                                              # or PyTorch wraps it, for profiler and hooks


class Sequential(nn.Sequential):
    """nn.Sequential that calls no hooks of its layers, for which every call of a layer would look."""

    def forward(self, x):
        for layer in self._modules.values():
            x = layer.forward(x)
        return x


class ReLU(nn.ReLU):
    """nn.ReLU(inplace=True): it overwrites its input, while that is in the cache. Nothing else may need the input."""

    def forward(self, x):
        return torch.relu_(x)


class Linear(nn.Linear):
    """nn.Linear, with a faster gradient for a large batch of few inputs: an epoch of observations.

    With x (batch, in) and the gradient g of the output (batch, out), that of the weight is g^T x, for which BLAS may
    take several times as long as for x^T g when x is long and narrow. Autograd chooses by the order of the weight in
    memory.
    """

    def forward(self, x):
        if self.in_features < self.out_features and x.shape[0] > 500:
            return torch.addmm(self.bias, x, self.weight.t().contiguous())
        return F.linear(x, self.weight, self.bias)


class TanhFunction(torch.autograd.Function):
    """tanh(x) = 2 sigmoid(2x) - 1"""
    generate_vmap_rule = True                                       # for torch.func, as is jvp

    @staticmethod
    def forward(x):
        return (2 * x).sigmoid_().mul_(2).sub_(1)

    @staticmethod
    def setup_context(ctx, inputs, y):
        ctx.save_for_backward(y)
        ctx.save_for_forward(y)

    @staticmethod
    def backward(ctx, grad):
        y, = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grad, y)                # grad (1 - y^2), in one pass

    jvp = backward                                                  # the derivative is diagonal: the same both ways


class Tanh(nn.Tanh):
    """nn.Tanh, but faster; like ReLU, it may overwrite its input. It can be differentiated twice, as TRPO does."""

    def forward(self, x):
        return TanhFunction.apply(x) if SLOW_TANH else torch.tanh_(x)
