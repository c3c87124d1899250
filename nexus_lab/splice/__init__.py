"""The splice room: what a precompiled block costs in fidelity."""
