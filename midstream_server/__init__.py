"""The service's package where it is installed: its command, and the imports for an operator's functions.

In a wheel the layers lie in here too, as `midstream_server.app` and so on (`distributions/gateway/backend.py`).
"""
