"""The trace room: what happened?"""
