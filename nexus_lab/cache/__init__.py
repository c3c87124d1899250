"""The cache room: what is in the KV cache, and why?"""
