"""Tools that the tests offer, and calls of them."""

from __future__ import annotations

from engine.messages import Tool
from engine.scripted import Call
from sessions.turn.message_request import OfferedTool

WEATHER = OfferedTool(tool=Tool("weather", "Tells the weather."))
PAY = OfferedTool(tool=Tool("pay", "Pays."), needs="approval")
CLOCK = OfferedTool(tool=Tool("clock", "Tells the time."), where="server")
WIPE = OfferedTool(tool=Tool("wipe", "Wipes the disk."), where="server", needs="approval")
TOOLS = (WEATHER, PAY)

BERN = Call("weather", '{"city": "Bern"}')
ROME = Call("weather", '{"city": "Rome"}')
FIFTY = Call("pay", '{"amount": 50}')
