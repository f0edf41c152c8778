"""Where groups run: in this process, on a Ray cluster, or simulated in virtual time."""
