"""The command line ``deyo-sweep``: one module a verb, put together in ``orchestrator.cli.main``."""
