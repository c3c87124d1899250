"""
Native kernels of nexus_lab.
"""
from __future__ import annotations
__all__: list[str] = ['core_version']
def core_version() -> str:
    """
    Version of the native core.
    """
