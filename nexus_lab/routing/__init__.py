"""The routing room: which tool fits this request?"""
