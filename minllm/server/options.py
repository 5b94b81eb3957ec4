"""The options of the server, beside those of its engine."""

from dataclasses import dataclass

from minllm.errors import InvalidOptionError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where the server listens, who may use it, and how much of it. Raises InvalidOptionError."""

    host: str = "127.0.0.1"
    """The address to listen on: this machine alone by default. Give others an API key when you open it to them."""

    port: int = 8000
    """The port to listen on; 0 takes a free one."""

    served_model_name: str | None = None
    """The model's name in requests and answers; the last part of its path by default."""

    api_keys: tuple[str, ...] = ()
    """Keys of which a request must bring one; none are needed if there are none."""

    allowed_hosts: tuple[str, ...] = ()
    """Names that a request's Host header may have. By default those of this machine if the server listens on it alone, so that no web page
    reaches it through a name of its own, and all if it does not."""

    max_body_bytes: int = 8 << 20
    """The largest body of a request."""

    max_completions: int = 128
    """The most completions of one request: prompts times n, or best_of."""

    max_queued: int = 1024
    """The most completions that wait for a place beside the engine's max_num_seqs that run; further requests get status 429."""

    max_per_key: int | None = None
    """The most open completions per API key; further ones get status 429."""

    deadline: float | None = None
    """Seconds after which a request ends, unless its own deadline is sooner."""

    refuse_late: bool = False
    """Refuse a request at once, with status 429, if it would end after its deadline, judged by its place in the queue and by the time that
    completions took lately."""

    io_seconds: float = 60.0
    """Seconds that a client may take to send a body, or to read a part of its answer, before its request ends."""

    drain_seconds: float = 30.0
    """Seconds that open requests get to finish after SIGTERM or Ctrl-C."""

    restart_engine: bool = False
    """Start the engine's process again if it ends."""

    tool_parser: str | None = None
    """How the model writes calls of tools: "hermes" or "llama3_json"; by default its chat template tells."""

    trust_request_chat_template: bool = False
    """Take chat templates from requests. They run in a sandbox."""

    def __post_init__(self) -> None:
        from minllm.server.tool_calls.formats import FORMATS

        for name in ("max_body_bytes", "max_completions", "max_queued", "max_per_key"):
            value = getattr(self, name)
            if value is not None and value < (0 if name == "max_queued" else 1):
                raise InvalidOptionError(f"{name}={value} is not allowed: it is a positive number.")
        for name in ("deadline", "io_seconds", "drain_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidOptionError(f"{name}={value} is not allowed: it is a positive number of seconds.")
        if not 0 <= self.port < 65536:
            raise InvalidOptionError(f"port={self.port} is not allowed: a port is a number from 0 to 65535.")
        if any(not key.strip() for key in self.api_keys):
            raise InvalidOptionError("An API key is empty: give a text, or leave the option out.")
        if self.tool_parser is not None and self.tool_parser not in FORMATS:
            raise InvalidOptionError(f"tool_parser={self.tool_parser!r} is not allowed: give one of {', '.join(FORMATS)}.")

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """The names that a Host header may have; None for any."""
        return self.allowed_hosts or (LOOPBACK if self.host in LOOPBACK else None)
