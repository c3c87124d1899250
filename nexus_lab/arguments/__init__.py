"""The arguments room: how is the call filled in?"""
