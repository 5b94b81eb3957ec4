"""One file per family of models: from the keys of its config.json to a ModelConfig."""
