"""One file per model family: reads the keys of its config.json into a ModelConfig."""
