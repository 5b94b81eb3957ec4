"""Replaces habits of numba-cuda that take a quarter of a compilation and leave no trace in the machine code.

A compilation is mostly Numba's own Python, spread over the tens of device functions of a kernel. Each function here computes the same as
the one that it replaces, sooner. They fit one version of numba-cuda; with any other, Numba's own code runs. Importing this module replaces
them for all kernels of this process.
"""

from types import FunctionType

from numba.cuda import types, utils
from numba.cuda.codegen import CUDACodeLibrary
from numba.cuda.core import postproc, transforms
from numba.cuda.core.targetconfig import TargetConfig
from numba.cuda.types import BaseFunction
from numba_cuda import __version__

VERSION = "0.30.4"
REPLACED = []  # (class or module, name, Numba's own, the one here)


def replaces(owner, name):
    """A decorator: the function replaces the attribute `name` of a class or module of Numba."""

    def register(function):
        REPLACED.append((owner, name, getattr(owner, name), function))
        return function

    return register


def use(replacements):
    """Make Numba use the functions here, or its own."""
    for owner, name, own, replacement in REPLACED:
        setattr(owner, name, replacement if replacements else own)


@replaces(TargetConfig, "values")
def all_options(flags):
    """All options by name. Flags are part of the keys of Numba's caches; it compares them option by option, through properties."""
    return _defaults(type(flags)) | flags._values


def _defaults(kind):
    """The defaults of a class of flags, computed once."""
    if "defaults" not in vars(kind):
        kind.defaults = {name: option.default for name, option in kind.options.items()}
    return kind.defaults


@replaces(TargetConfig, "__hash__")
def one_hash(flags):
    """One number for all flags, as with Numba, which sorts and hashes the names of all options: flags may change while they are a key."""
    return hash(type(flags))


CALL_TYPES = {}  # {(typing context, function type, types of the arguments): signature}
numba_call_type = BaseFunction.get_call_type


@replaces(BaseFunction, "get_call_type")
def call_type(function, context, arguments, keywords):
    """The signature of a call. Numba tries all templates of an operator, those for arrays, strings and sets too, at every call.

    For numbers the same template is always chosen. A signature is kept if Numba's own code, rather than a compiled overload, implements it.
    """
    if keywords or not all(isinstance(argument, (types.Number, types.Boolean, types.Literal)) for argument in arguments):
        return numba_call_type(function, context, arguments, keywords)
    call = context, function, tuple(arguments)
    if call not in CALL_TYPES:
        signature = numba_call_type(function, context, arguments, keywords)
        if function.get_impl_key(signature) is not function.typing_key:
            return signature
        CALL_TYPES[call] = signature
    signature = CALL_TYPES[call]
    function._impl_keys[signature.args] = function.typing_key
    return signature


numba_run = postproc.PostProcessor.run


@replaces(postproc.PostProcessor, "run")
def run(processor, emit_dels=False, extend_lifetimes=False):
    """Forget what was computed of a function's blocks. After each of nine passes, Numba also finds the live variables, for generators."""
    function = processor.func_ir
    if function.is_generator:
        return numba_run(processor, emit_dels, extend_lifetimes)
    function.blocks = transforms.canonicalize_cfg(function.blocks)
    function.variable_lifetime = postproc.VariableLifetime(function.blocks)
    function.generator_info = None
    if emit_dels:
        processor._insert_var_dels(extend_lifetimes=extend_lifetimes)


SIGNATURES = {}  # {code object: inspect.Signature}
numba_signature = utils.pysignature


@replaces(utils, "pysignature")
def signature(function):
    """A function's signature. Numba inspects every device function twice, and the kernels of a family share the code of theirs."""
    more = ("__dict__", "__defaults__", "__kwdefaults__", "__annotations__")  # what else it may depend on
    if type(function) is not FunctionType or any(getattr(function, name) for name in more):
        return numba_signature(function)
    code = function.__code__
    if code not in SIGNATURES:
        SIGNATURES[code] = numba_signature(function)
    return SIGNATURES[code]


@replaces(CUDACodeLibrary, "modules")
@property
def modules(library):
    """A library's module and those of all that it calls, each once. Numba walks a tree, and lists a module once per path to it."""
    found = [library._module, *(module for linked in library._linking_libraries for module in linked.modules)]
    return list(dict.fromkeys(found))


if __version__ == VERSION:
    use(replacements=True)
