"""The lab room: what does the user see?"""
