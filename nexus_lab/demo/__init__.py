"""The demonstration: the whole job once, on the embedded defaults."""
