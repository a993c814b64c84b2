"""A function recorded and played back: PyTorch's operations alone, without what Python and autograd do around them.

No algorithm needs it to be understood. In an update with a batch of 100 that is a quarter of the time, spent on what is
the same every time: to call layers, to choose kernels, to note how to differentiate and to go back over the notes.
"""
import functools
import operator
import sys
import warnings
from collections import Counter
from types import BuiltinFunctionType, MethodDescriptorType, SimpleNamespace

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recorder:
    """A function or method that returns {name: tensor.item() or tensor.numpy()}; after many calls, a recording of it.

    Played back are its operations on tensors, those of backward() and of optimizers included, on the same tensors and
    with the same result to the last bit, but nothing that Python does: no branch is chosen, nothing is counted or
    printed, .grad stays as it was. So at every PERIOD-th call both are called, from the same state, and compared; if
    they differ, the function is called as it is from then on, as it always is under a debugger. There is a recording
    for each shape of the tensors and each value of other arguments. If an optimizer, an attribute of the method's
    object, has another learning rate or loads a state, recording starts anew; what else is replaced, a check finds.
    """
    PERIOD = 1000                               # a recording takes two seconds, which some 1500 calls make up for

    def __init__(self, function, enabled=True):
        self.function, self.owner = function, getattr(function, '__self__', SimpleNamespace())
        self.enabled, self.settings, self.calls, self.recordings = enabled, [], Counter(), {}

    def __call__(self, *args):
        if not self.enabled or debugging():
            return self.function(*args)
        settings = [x for part in vars(self.owner).values() if isinstance(part, torch.optim.Optimizer)
                    for x in (part.state, *[x for group in part.param_groups for x in group.values()])]
        if len(settings) != len(self.settings) or not all(map(operator.is_, settings, self.settings)):
            self.settings, self.calls, self.recordings = settings, Counter(), {}
        key = tuple([(x.shape, x.stride(), x.dtype) if isinstance(x, torch.Tensor) else x for x in args])
        self.calls[key] += 1
        if self.calls[key] % self.PERIOD == 0:
            return self.compare(key, args)
        if key in self.recordings:
            with torch.inference_mode():
                return self.recordings[key](*args)
        return self.function(*args)

    def compare(self, key, args):
        """Call the function; before that, record it unless it is, and see that the recording does the same."""
        problem, played = None, Changes(self.owner)
        try:
            if key not in self.recordings:
                with played:
                    self.recordings[key] = record(self.function, args)
                played.undo()
            with played, torch.inference_mode():
                outputs = self.recordings[key](*args)
            state = played.state(outputs)
        except Exception as error:
            problem = f'{type(error).__name__}: {error}'.splitlines()[0]
        played.undo()
        with Changes(self.owner) as called:
            outputs = self.function(*args)
        if not problem and called.state(outputs) != state:
            problem = f'it changes {", ".join(called.attributes()) or "tensors otherwise"}'
        if problem:
            self.enabled = False
            warnings.warn(f'{self.function.__qualname__} does what a recording cannot repeat, such as counting or '
                          f'branching on a Python number ({problem}). From here on it is called as it is, which is '
                          f'slower; but up to {self.PERIOD} calls before may have gone without what is new in it. To '
                          f'be sure, leave out its Recorder.', stacklevel=3)
        return outputs


def debugging():
    """Whether a debugger or another tracer wants to see every line."""
    monitoring = getattr(sys, 'monitoring', None)               # since Python 3.12
    return sys.gettrace() is not None or bool(monitoring and monitoring.get_tool(monitoring.DEBUGGER_ID))


def record(function, args):
    """A function that does what function(*args) does, for other tensors of the same shapes."""
    methods = {}

    def with_numbers_later(*args):
        with NumbersLater():
            outputs = function(*args)
        if not all(isinstance(output, NumberFromTensor) for output in outputs.values()):
            raise TypeError('it returns other things than .item() and .numpy() of tensors')
        methods.update({name: output.method for name, output in outputs.items()})
        return {name: output.tensor for name, output in outputs.items()}

    module = make_fx(with_numbers_later)(*args)
    graph = module.graph
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        if node.target is torch.ops.aten.detach.default:                            # the same memory
            node.replace_all_uses_with(source)
        elif node.target is torch.ops.aten.t.default and source.target is node.target:
            node.replace_all_uses_with(source.args[0])                              # transposed twice
        elif getattr(node.target, 'is_view', False) and source.op == 'get_attr':    # of a parameter: made once
            name = f'_{node.name}'
            setattr(module, name, node.target(getattr(module, source.target).detach(), *node.args[1:]))
            node.op, node.target, node.args = 'get_attr', name, ()
    graph.eliminate_dead_code()
    for node in graph.nodes:                                # torch.mm is faster to call than torch.ops.aten.mm.default;
        if isinstance(node.target, torch._ops.OpOverload) and 'reduction=' not in str(node.target._schema):
            for place in (torch, torch.Tensor):             # of a loss alone, it has another default
                plain = getattr(place, node.target.overloadpacket.__name__, None)
                if isinstance(plain, (BuiltinFunctionType, MethodDescriptorType)):
                    node.target = plain
                    break
    output = graph.output_node()
    with graph.inserting_before(output):
        output.args = ({name: graph.call_method(methods[name], (node,)) for name, node in output.args[0].items()},)
    module.recompile()
    constants = {node.target: getattr(module, node.target).detach() for node in graph.nodes if node.op == 'get_attr'}
    return functools.partial(type(module).forward, SimpleNamespace(**constants))    # a module finds them more slowly


class NumberFromTensor:
    """A number or an array that will be known when a recording is played; to use it now is an error."""

    def __init__(self, tensor, method):
        self.tensor, self.method = tensor, method

    def refuse(self, *_):
        raise TypeError('it takes a number out of a tensor, and uses it')
    __array__ = __bool__ = __eq__ = __float__ = __repr__ = refuse


class NumbersLater(TorchFunctionMode):
    """Inside of it, .item() and .numpy() give a NumberFromTensor."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.item, torch.Tensor.numpy):
            return NumberFromTensor(*args, function.__name__)
        return function(*args, **(kwargs or {}))


class Changes(TorchDispatchMode):
    """Notes what is changed inside of it: tensors, their .grad, PyTorch's random state, attributes of an object."""

    def __init__(self, owner):
        super().__init__()
        self.owner, self.random_state, self.before = owner, torch.get_rng_state(), dict(vars(owner))
        self.tensors, self.grads, self.made = {}, {}, set()         # before; before; memory that is made inside

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        named = dict(zip([argument.name for argument in function._schema.arguments], args), **(kwargs or {}))
        written = [named.get(argument.name) for argument in function._schema.arguments if argument.is_write]
        for x in tensors_in(written):
            if x.untyped_storage().data_ptr() not in self.made:
                self.tensors.setdefault((x.data_ptr(), x.shape, x.stride()), (x, x.clone()))
        for x in tensors_in(args):
            if x.is_leaf and x.requires_grad:
                self.grads.setdefault(id(x), (x, x.grad))
        outputs = function(*args, **(kwargs or {}))
        if not written and not function.is_view:
            self.made.update(x.untyped_storage().data_ptr() for x in tensors_in(outputs))
        return outputs

    def attributes(self):
        """The names of the attributes that have been changed."""
        return [name for name, value in vars(self.owner).items() if self.before.get(name, self) is not value]

    def state(self, outputs):
        """All that has been changed, .grad aside, and the outputs: to the last bit."""
        tensors = {place: x.detach().numpy().tobytes() for place, (x, _) in self.tensors.items()}
        outputs = {name: np.asarray(output).tobytes() for name, output in outputs.items()}
        return tensors, outputs, self.attributes(), torch.get_rng_state().tolist()

    @torch.no_grad()
    def undo(self):
        """Put back what has been changed."""
        for x, before in reversed(self.tensors.values()):           # of views of one memory, the first one last
            x.copy_(before)
        for x, grad in self.grads.values():
            x.grad = grad
        torch.set_rng_state(self.random_state)
        vars(self.owner).clear()
        vars(self.owner).update(self.before)


def tensors_in(tree):
    """The tensors in nested lists, without those of make_fx's own kinds."""
    return [x for x in tree_leaves(tree) if type(x) in (torch.Tensor, torch.nn.Parameter)]
