"""The exceptions of minllm. Each message says what was given, what is allowed and what to do."""

from contextlib import ContextDecorator

LONGEST_SHOWN = 200  # characters of a wrong value in a message


def shown(value: object, longest: int = LONGEST_SHOWN) -> str:
    """repr(value) for a message, cut after `longest` characters; its type's name if repr fails, as for an int of more than 4,300 digits."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= longest else f"{text[:longest]}..."


class MinLLMError(Exception):
    """The base class of all errors of this package."""


class ForeignError(MinLLMError):
    """A library, or a function that a request brought, raised what no caller expects: `__cause__`.

    That is a class that is no Exception, such as a panic of Rust code, or StopIteration, which would end a loop over a stream in silence.
    """


def as_exception(error: BaseException) -> Exception:
    """The Exception to report for an error of any class: the error itself, or a ForeignError for one that callers would misunderstand.

    Those are classes that are no Exception, among them asyncio's CancelledError, and the ends of iterators. KeyboardInterrupt and
    SystemExit, which are to end the program, are raised again.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    reported = ForeignError(
        f"A library, or a function that the request brought, failed with {type(error).__name__}: {shown(error)}. It ends this "
        "request alone: mend the function, or give another text."
    )
    reported.__cause__ = error
    return reported


class Contained(ContextDecorator):
    """A context, or a decorator, for calls of foreign code: what is raised inside leaves it as as_exception reports it."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        if error is not None and (reported := as_exception(error)) is not error:
            raise reported


class KernelArgumentError(MinLLMError, ValueError):
    """A kernel's launcher was given shapes, dtypes or sizes that it does not support."""


class KernelCompilationError(MinLLMError):
    """A kernel could not be compiled or loaded; the message names the kernel and its argument types."""


class SimulationError(MinLLMError):
    """A simulated kernel did what a GPU forbids or leaves undefined: out of bounds, divergence, deadlock, misalignment."""


class DeviceError(MinLLMError):
    """The GPU or its driver failed, or there is none."""


class CaptureError(MinLLMError):
    """A CUDA graph cannot be captured yet, because its kernels or arrays must be loaded or made first: call the function once."""


class VirtualMemoryError(DeviceError):
    """Pages were mapped or unmapped wrongly: twice, without being mapped, or outside the reserved addresses."""


class CheckpointError(MinLLMError):
    """A model cannot be read: a file is missing, damaged, unsafe, or contradicts itself or another file."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint is readable, but minllm does not support its architecture or one of its options."""


class InvalidRequestError(MinLLMError, ValueError):
    """A prompt or a sampling parameter is invalid; nothing was computed."""


class ContextLengthError(InvalidRequestError):
    """A prompt that is longer than the context."""


class SamplingError(MinLLMError, ValueError):
    """No next token can be chosen for a request: its options exclude all, or its logits hold NaN or infinity. Other requests go on."""


class OutOfMemoryError(MinLLMError, MemoryError):
    """The request does not fit into the free memory; the message says how much is needed and how much is free."""


class PreemptedError(OutOfMemoryError):
    """A running request ended because others needed its memory, with preemption="drop"; later it may succeed."""


class InvalidOptionError(MinLLMError, ValueError):
    """An option is invalid, or minllm does not support it with this model or on this machine."""


class EngineBusyError(MinLLMError):
    """An engine was used by a second thread at a time, after it was closed, in a forked process or within its own step, or copied."""


class EngineDeadError(MinLLMError):
    """The engine's threads have ended, because of an error or because it was shut down; the message says which."""


class DeadlineError(MinLLMError, TimeoutError):
    """A request was not finished before its deadline."""


class CacheError(MinLLMError):
    """The KV cache was used wrongly: a sequence reserved twice, or an unknown sequence was freed."""


class ExerciseError(MinLLMError):
    """An exercise cannot be written or checked: unknown name, a file in the way, or the reader's file cannot be imported."""


class LessonError(MinLLMError):
    """A lesson is out of date: a recorded row, a piece of source or a prediction that it uses does not exist."""
