"""What starts jobs: the protocol, the schedulers that there are, and the scripts that they run."""
