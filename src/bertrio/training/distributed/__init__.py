"""Several processes that train one model: how they are started, and how they talk."""
