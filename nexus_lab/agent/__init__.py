"""The agent room: how does a turn go?"""
