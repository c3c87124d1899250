"""The bench room: how well does it do?"""
