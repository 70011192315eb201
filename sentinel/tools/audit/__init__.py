"""Read a training configuration, and list the known bugs that the configuration triggers."""
