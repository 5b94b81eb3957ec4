"""Replaces habits of numba-cuda that take a quarter of a compilation and leave no trace in the machine code.

A compilation is mostly Numba's own Python, spread over the tens of device functions of a kernel. Each function here computes the same as
the one that it replaces, sooner. They fit one version of numba-cuda; with any other, Numba's own code runs. Importing this module replaces
them for all kernels of this process.
"""

import contextlib
import functools
from types import FunctionType

from numba.core import errors as numba_errors
from numba.cuda import types, utils
from numba.cuda.codegen import CUDACodeLibrary
from numba.cuda.core import errors, ir, postproc, transforms
from numba.cuda.core.targetconfig import TargetConfig
from numba.cuda.target import CUDATargetContext, CUDATypingContext
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


@functools.cache
def lister(kind):
    """The function that lists the variables in a value of this class; None if there are none in it."""
    if issubclass(kind, ir.var_types):
        return lambda variable: [variable]
    if issubclass(kind, ir.inst_types):
        return lambda instruction: instruction.list_vars()
    if issubclass(kind, dict):
        return lambda values: variables_among(values.values())
    return variables_among if issubclass(kind, list | tuple) else None


def variables_among(values):
    """The variables in values, in their order."""
    return [variable for value in values if (listed := lister(type(value))) for variable in listed(value)]


@replaces(ir.Inst, "_rec_list_vars")
def variables_in(instruction, value):
    """The variables in a value. Numba asks five times what each attribute of each instruction is an instance of."""
    return variables_among([value])


def load_what_is_new(load):
    """A context's method that loads registries, if one has grown. Numba asks all lists of all, some four times a device function."""

    def load_if_grown(context):
        if sizes_of(context) != vars(context).get("sizes"):
            load(context)
            context.sizes = sizes_of(context)

    return load_if_grown


def sizes_of(context):
    """The numbers of what is registered in the registries that a context knows."""
    return [len(getattr(registry, name)) for registry, loader in context._registries.items() for name in loader.registry_items]


for context in (CUDATypingContext, CUDATargetContext):
    replaces(context, "load_additional_registries")(load_what_is_new(context.load_additional_registries))

# Types are found by trial, with thousands of errors that nobody sees. Numba sets up the terminal twice to colour the text of each.
for module in (errors, numba_errors):
    if hasattr(module, "ColorShell"):
        replaces(module, "ColorShell")(contextlib.nullcontext)

SIGNATURES = {}  # {code object: inspect.Signature}
numba_signature = utils.pysignature


@replaces(utils, "pysignature")
def signature(function):
    """A function's signature. Numba inspects every device function twice, and the kernels of a family share the code of theirs."""
    if (
        type(function) is not FunctionType
        or function.__dict__
        or function.__defaults__
        or function.__kwdefaults__
        or function.__annotations__
    ):
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
