"""Every error that minllm raises on purpose. Each message says what was given, what is allowed and what to do."""


class MinLLMError(Exception):
    """The root of all errors of this package: catch it to catch every mistake that minllm explains."""


class KernelArgumentError(MinLLMError, ValueError):
    """A kernel's launcher was given shapes, dtypes or sizes that it does not take."""


class KernelCompilationError(MinLLMError):
    """A kernel could not be compiled or loaded; the message names the kernel and its argument types."""


class SimulationError(MinLLMError):
    """The simulator saw something that a GPU forbids or leaves undefined: out of bounds, divergence, deadlock, misalignment."""


class DeviceError(MinLLMError):
    """The GPU, its driver or its memory cannot do what was asked."""


class VirtualMemoryError(DeviceError):
    """Pages were mapped or unmapped against the rules: twice, or where none is, or outside of the reserved addresses."""


class CheckpointError(MinLLMError):
    """A model directory cannot be read: a file is missing, damaged, unsafe, or contradicts another."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint is readable, but its architecture or an option of it is not one that minllm runs."""


class InvalidRequestError(MinLLMError, ValueError):
    """A prompt or a sampling parameter is not acceptable; nothing was computed."""


class OutOfMemoryError(MinLLMError, MemoryError):
    """The request does not fit the memory that is left; the message says how much is needed and how much there is."""


class InvalidOptionError(MinLLMError, ValueError):
    """An option of LLM() is not one that minllm takes, or not with this model or machine."""


class EngineBusyError(MinLLMError):
    """A generation was started while another one of the same LLM is still open, or after it was closed."""


class CacheError(MinLLMError):
    """The KV cache was used against its rules: a sequence that reserves twice, or one that is freed and was never there."""


class ExerciseError(MinLLMError):
    """An exercise cannot be written or checked as asked: no such name, a file in the way, a reader's file that cannot be imported."""


class LessonError(MinLLMError):
    """A lesson asks for a recorded row, a piece of source or a prediction that is not there: the lesson is out of date."""
