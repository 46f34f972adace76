"""The wordings that ask for a tool's work: the time, the weather, dice, looking up. Writers of calls fill them in.

Held out are wordings here, and values there.
"""

TIME = (
    "What time is it?", "What's the time?", "What is the time?", "Tell me the time.", "Can you tell me the time?", "What time is it now?", "Do you know the time?",
    "What is the time now?", "Time please.", "Do you have the time?", "Give me the time.", "What's the current time?", "What is the current time?", "Look at the clock.",
    "How late is it?", "What does the clock say?", "Check the time.", "I need to know the time.", "Could you tell me what time it is?", "What hour is it?",
    "Please check the clock.", "Which time is it?", "Read the clock.", "Can you check what time it is?", "Say the time.", "Is it late? What time is it?",
    "Tell me what time it is.", "The time, please.", "I have no watch. What time is it?", "What time do we have?",
    "Tell me how late it is.", "How late is it now?", "Do you know how late it is?", "Is it late now? How late is it?", "Could you tell me the time?", "What time is it right now?",
    "Could you say what time it is?", "What does your clock say?", "May I have the time?", "Do you know what time it is?",
    "Could you tell me how late it is?", "Could you tell me what the time is?", "Do you know what the time is?", "I'd like to know the time.", "I want to know the time.",
    "Please tell me the time.", "Please tell me what time it is.", "Would you tell me the time?", "Tell me what the time is.", "Can you say what time it is?", "Do you know what hour it is?",
)  # fmt: skip
WEATHER = (
    "What is the weather in {city}?", "What's the weather in {city}?", "Weather in {city}?", "How is the weather in {city}?", "What is the weather like in {city}?",
    "What's the weather like in {city}?", "Tell me the weather in {city}.", "Weather in {city}", "How's the weather in {city}?", "Is it raining in {city}?",
    "Is it warm in {city}?", "Is it cold in {city}?", "How warm is it in {city}?", "How cold is it in {city}?", "Check the weather in {city}.", "Get the weather for {city}.",
    "What is the weather in {city} today?", "What's the weather for {city}?", "Give me the weather in {city}.", "Can you check the weather in {city}?", "weather {city}",
    "I'm going to {city}. How is the weather?", "I travel to {city}. What is the weather there?", "Do I need an umbrella in {city}?", "Does it snow in {city}?",
    "Is the sun shining in {city}?", "What is the temperature in {city}?", "How many degrees is it in {city}?", "What is the weather in {city} now?", "{city}: how is the weather?",
    "How's the weather over in {city}?", "Please look up the weather in {city}.", "I want to know the weather in {city}.", "Do you know the weather in {city}?",
    "What is it like outside in {city}?", "Show me the weather in {city}.", "The weather in {city}, please.", "Could you tell me the weather in {city}?",
    "How is it outside in {city}?", "Is it nice outside in {city}?", "What is it like in {city} today?", "How is the weather outside in {city}?", "I'd like to know the weather in {city}.",
    "I want to hear about the weather in {city}.", "Can you look up the weather in {city}?", "How hot is it in {city}?", "Is it sunny in {city}?", "Tell me how the weather is in {city}.",
    "What's the weather like today in {city}?", "I want to know how the weather is in {city}.", "How sunny is it in {city}?", "Is it windy in {city}?", "Is it foggy in {city}?",
    "Is it cloudy in {city}?", "Is it hot in {city}?", "How is it in {city}?", "How is it outside in {city} today?", "I want the weather in {city}.", "Can you get the weather in {city}?",
    "How is the weather today in {city}?", "Will I need a coat in {city}?",
)  # fmt: skip
TWO_CITIES = (
    "What is the weather in {a} and {b}?", "Weather in {a} and {b}?", "What's the weather in {a} and in {b}?", "How is the weather in {a} and {b}?", "Weather in {a} and {b}",
    "Tell me the weather in {a} and {b}.", "What is the weather like in {a} and in {b}?", "Check the weather in {a} and {b}.", "Get the weather for {a} and {b}.",
    "Is it warmer in {a} or in {b}?", "Compare the weather in {a} and {b}.", "Give me the weather in {a} and in {b}.", "What is the weather in {a}, and what is it in {b}?",
    "I travel from {a} to {b}. How is the weather?", "How's the weather in {a} and in {b}?", "Show me the weather in {a} and {b}.", "Is it raining in {a} or in {b}?",
    "Please check the weather in {a} and also in {b}.", "Weather for {a} and {b}, please.", "Can you check the weather in {a} and {b}?", "What's the weather in both {a} and {b}?",
    "How warm is it in {a} and {b}?", "The weather in {a} and {b}, please.",
    "What's the weather in {a} and {b}?", "What is the weather in {a} and in {b}?", "How is the weather in {a}, and how is it in {b}?", "What is it like in {a} and in {b}?",
    "What is the weather like in {a} and {b}?", "Tell me the weather in {a}, and in {b}.",
)  # fmt: skip
WEATHER_AND_TIME = (
    "What is the weather in {city} and what time is it?", "Tell me the weather in {city} and the time.", "Weather in {city} and the time, please.",
    "What's the weather in {city}? And what time is it?", "How is the weather in {city}, and what's the time?", "Check the weather in {city} and the clock.",
    "Give me the weather in {city} and the time.", "I need the weather in {city} and the time.", "The weather in {city} and the time, please.",
    "What is the weather in {city} and what is the time?", "Can you tell me the weather in {city} and the time?", "How's the weather in {city} and how late is it?",
    "How is the weather in {city} and how late is it?", "Weather in {city}? And how late is it?", "What's the weather in {city}? And the time?", "What is the weather like in {city}? What time is it?",
    "How's the weather in {city} and what time is it?", "Tell me the weather in {city} and what time it is.",
)  # fmt: skip
DIE = (
    "Roll a die.", "Roll the dice.", "Roll a dice.", "Throw a die.", "Throw the dice.", "Can you roll a die?", "Please roll a die.", "Roll a die for me.", "Throw the die again.",
    "Cast the die.", "Roll dice.", "Could you throw a die?", "Let's roll a die.", "I want you to roll a die.", "Roll again.", "Give me a roll of the die.", "Toss a die.",
    "Please throw a die.", "Please roll the dice.", "Throw dice.", "Throw the dice again.", "Toss the dice.",
    "Roll one die.", "Let us throw a die.", "Roll a normal die.", "Can you throw the dice for me?",
    "Throw one die.", "Please roll dice.", "Please cast the die.", "Could you roll the dice?", "Roll the die.", "Throw the die.", "Please throw the dice.",
)  # fmt: skip
DIE_OF = (
    "Roll a d{n}.", "Roll a {n}-sided die.", "Roll a die with {n} sides.", "Throw a d{n}.", "Throw a {n}-sided die.", "Roll a dice with {n} sides.", "Can you roll a d{n}?",
    "Please roll a d{n}.", "Roll a {n} sided die.", "Throw a die of {n} sides.", "Roll one d{n}.", "Roll d{n}.", "Roll a die that has {n} sides.", "Could you roll a {n}-sided die?",
    "I want a d{n} rolled.", "Roll a d{n} for me.", "Give me a roll of a d{n}.", "Toss a {n}-sided die.", "Roll a die with {n} faces.", "Throw a dice with {n} faces.",
    "Please throw a d{n}.", "Please roll a {n}-sided die.", "Throw a {n} sided die.", "Please roll a {n} sided die.", "Throw a die that has {n} sides.", "Roll a dice that has {n} sides.",
    "Can you roll a {n} sided die?", "Can you roll a die that has {n} sides?",
    "Please toss a d{n}.", "Toss a {n} sided die.", "Could you roll a d{n}?", "Could you roll a die with {n} sides?", "Please throw a {n}-sided die.", "Please throw a die with {n} sides.",
    "Roll me a d{n}.", "Can you roll a {n}-sided die?", "Can you roll a die with {n} sides?", "Please throw a {n} sided die.", "Can you throw a {n} sided die?",
)  # fmt: skip
TWO_DICE = (
    "Roll a d{a} and a d{b}.", "Roll a {a}-sided die and a {b}-sided die.", "Throw a d{a} and a d{b}.", "Please roll a d{a} and also a d{b}.", "Roll one d{a} and one d{b}.",
    "Can you roll a d{a} and a d{b}?", "Roll a die with {a} sides and one with {b} sides.", "Throw a d{a} and then a d{b}.", "Roll a d{a}, and a d{b}.", "Roll a d{a} and a d{b} for me.",
    "Could you throw a d{a} and a d{b}?", "Roll both a d{a} and a d{b}.",
    "Roll a d{a} and one d{b}.", "Throw a die with {a} sides and one with {b} sides.", "Roll a die with {a} sides and a die with {b} sides.", "Throw a {a}-sided die and a {b}-sided die.",
    "Roll a {a} sided die and a {b} sided die.", "Please roll a d{a} and a d{b}.", "Roll a d{a} and then a d{b}.", "Roll one die with {a} sides and one with {b} sides.",
)  # fmt: skip
LOOK_UP = (
    "What is the {thing}?", "Tell me the {thing}.", "Get the {thing}.", "Find the {thing}.", "Look up the {thing}.", "Show me the {thing}.", "Give me the {thing}.",
    "Can you get the {thing}?", "Please find the {thing}.", "Do you know the {thing}?", "I need the {thing}.", "What's the {thing}?", "Check the {thing}.", "Fetch the {thing}.",
    "Could you look up the {thing}?", "The {thing}, please.", "I want to know the {thing}.", "Read me the {thing}.",
    "Could you get the {thing}?", "Can you find the {thing}?", "Can you look up the {thing}?", "Please show me the {thing}.", "Please get the {thing}.", "I'd like to know the {thing}.",
    "Please fetch the {thing}.", "Please read the {thing}.", "Can you show me the {thing}?", "Could you find the {thing}?", "Can you tell me the {thing}?",
)  # fmt: skip
LOOK_UP_OF = tuple(
    f"{wording[:-1]} {preposition} {{of}}{wording[-1]}"
    for wording in LOOK_UP if ", please" not in wording
    for preposition in ("of", "of", "for")
)  # fmt: skip
