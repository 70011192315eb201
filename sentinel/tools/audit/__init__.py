"""Read a training configuration, and list the known bugs that it triggers."""
