"""The splice room: what does a precompiled block cost in fidelity?"""
