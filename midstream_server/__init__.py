"""What the service is called where it is installed: its command, and what functions of an operator's import.

In a wheel the floors lie in here too, as `midstream_server.app` and so on (`distributions/backend.py`).
"""
