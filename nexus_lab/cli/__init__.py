"""The ``nexus-lab`` command."""
