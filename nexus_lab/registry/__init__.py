"""The registry room: which tools exist?"""
