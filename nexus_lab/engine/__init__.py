"""The engine room: how does llama.cpp run?"""
