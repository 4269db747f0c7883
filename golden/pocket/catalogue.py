"""The first commands of the pocket ladder, and what no tool serves.

Each intent can be offered under more than one form (tool name, description, parameter names), so
that a right call has to be read off the offered schema rather than remembered.
"""

from __future__ import annotations

from golden.pocket.intents import Intent, Param, ToolForm, say

__all__ = ["FIRST", "OFF_TOPIC"]

FIRST: tuple[Intent, ...] = (
    Intent(
        "timer",
        (("minutes", "minutes"),),
        (
            ToolForm("set_timer", "Start a countdown", (Param("minutes", "minutes", "integer"),)),
            ToolForm("countdown", "Run a timer", (Param("minutes", "length", "integer"),)),
        ),
        say(
            "set a timer for {minutes} minutes",
            "start a {minutes} minute timer",
            "count down {minutes} minutes",
            "timer for {minutes} minutes",
            "let me know when {minutes} minutes are over",
        ),
    ),
    Intent(
        "alarm",
        (("time", "clock"),),
        (
            ToolForm("set_alarm", "Set an alarm", (Param("time", "time"),)),
            ToolForm("wake_up", "Wake the user", (Param("time", "at"),)),
        ),
        say(
            "wake me up at {time}",
            "set an alarm for {time}",
            "i need to get up at {time}",
            "alarm at {time}",
            "ring at {time} tomorrow",
        ),
    ),
    Intent(
        "lights",
        (("room", "room"),),
        (
            ToolForm("set_lights", "Switch lights", (Param("room", "room"), Param("on", "state"))),
            ToolForm("lamp", "Lights on or off", (Param("room", "where"), Param("on", "power"))),
        ),
        (
            *say(
                "turn on the lights in the {room}",
                "switch the {room} lights on",
                "light up the {room}",
                "lights on in the {room}",
                on="on",
            ),
            *say(
                "turn off the lights in the {room}",
                "switch the {room} lights off",
                "make the {room} dark",
                "lights off in the {room}",
                on="off",
            ),
        ),
    ),
    Intent(
        "heating",
        (("degrees", "degrees"),),
        (
            ToolForm("set_heat", "Set the thermostat", (Param("degrees", "degrees", "integer"),)),
            ToolForm("thermostat", "Room temperature", (Param("degrees", "target", "integer"),)),
        ),
        say(
            "set the heating to {degrees} degrees",
            "make it {degrees} degrees in here",
            "heat the house to {degrees}",
            "change the temperature to {degrees} degrees",
        ),
    ),
    Intent(
        "music",
        (("artist", "artist"),),
        (
            ToolForm("play_music", "Play an artist", (Param("artist", "artist"),)),
            ToolForm("music", "Start songs", (Param("artist", "band"),)),
        ),
        say(
            "play {artist}",
            "play something by {artist}",
            "put on some {artist}",
            "i want to hear {artist}",
            "play songs by {artist}",
        ),
    ),
    Intent(
        "message",
        (("person", "person"), ("text", "text")),
        (
            ToolForm("send_message", "Text someone", (Param("person", "to"), Param("text", "text"))),
            ToolForm("message", "Send a text", (Param("person", "person"), Param("text", "body"))),
        ),
        say(
            "text {person} that {text}",
            "send {person} a message saying {text}",
            "tell {person} {text}",
            "message {person}: {text}",
            "write to {person} that {text}",
        ),
        open_end=True,
    ),
    Intent(
        "call",
        (("person", "person"),),
        (
            ToolForm("call", "Phone someone", (Param("person", "contact"),)),
            ToolForm("dial", "Make a phone call", (Param("person", "whom"),)),
        ),
        say(
            "call {person}",
            "phone {person}",
            "give {person} a ring",
            "i want to talk to {person}",
            "get {person} on the phone",
        ),
    ),
    Intent(
        "note",
        (("text", "text"),),
        (
            ToolForm("add_note", "Save a note", (Param("text", "text"),)),
            ToolForm("write_down", "Keep a note", (Param("text", "note"),)),
        ),
        say(
            "make a note that {text}",
            "note down: {text}",
            "write down {text}",
            "take a note: {text}",
        ),
        open_end=True,
    ),
    Intent(
        "reminder",
        (("text", "text"), ("time", "clock")),
        (
            ToolForm("remind", "Set a reminder", (Param("text", "what"), Param("time", "time"))),
            ToolForm("reminder", "Remind later", (Param("text", "text"), Param("time", "when"))),
        ),
        say(
            "at {time} remind me: {text}",
            "remind me at {time}: {text}",
            "reminder for {time}: {text}",
        ),
        open_end=True,
    ),
    Intent(
        "weather",
        (("city", "city"),),
        (
            ToolForm("get_weather", "Show the forecast", (Param("city", "city"),)),
            ToolForm("forecast", "Weather in a town", (Param("city", "place"),)),
        ),
        say(
            "what is the weather in {city}",
            "will it rain in {city}",
            "how warm is it in {city}",
            "forecast for {city}",
            "do i need a coat in {city}",
        ),
    ),
    Intent(
        "navigate",
        (("place", "place"),),
        (
            ToolForm("navigate", "Show the way", (Param("place", "destination"),)),
            ToolForm("route", "Find directions", (Param("place", "to"),)),
        ),
        say(
            "navigate to {place}",
            "take me to {place}",
            "how do i get to {place}",
            "show me the way to {place}",
            "directions to {place}",
        ),
    ),
    Intent(
        "workout",
        (("sport", "sport"),),
        (
            ToolForm("start_workout", "Track a sport", (Param("sport", "sport"),)),
            ToolForm("workout", "Record exercise", (Param("sport", "kind"),)),
        ),
        say(
            "start a {sport} workout",
            "track my {sport}",
            "begin a {sport} session",
            "i am going {sport} now",
        ),
    ),
    Intent(
        "volume",
        (("percent", "percent"),),
        (
            ToolForm("set_volume", "Set loudness", (Param("percent", "level", "integer"),)),
            ToolForm("volume", "Change the sound", (Param("percent", "percent", "integer"),)),
        ),
        say(
            "set the volume to {percent}",
            "volume at {percent} percent",
            "make it {percent} percent loud",
            "change the sound to {percent}",
        ),
    ),
    Intent(
        "shopping",
        (("item", "item"),),
        (
            ToolForm("add_item", "Add to the shopping list", (Param("item", "item"),)),
            ToolForm("shopping", "Groceries to buy", (Param("item", "product"),)),
        ),
        say(
            "add {item} to the shopping list",
            "put {item} on my list",
            "we need to buy {item}",
            "i have to get {item} at the store",
        ),
    ),
    Intent(
        "lock",
        (("door", "door"),),
        (
            ToolForm(
                "lock_door",
                "Lock or open a door",
                (Param("door", "door"), Param("locked", "locked", "boolean")),
            ),
            ToolForm(
                "door",
                "Door locks",
                (Param("door", "which"), Param("locked", "lock", "boolean")),
            ),
        ),
        (
            *say(
                "lock the {door} door",
                "close the lock of the {door} door",
                "is the {door} door open? lock it",
                locked=True,
            ),
            *say(
                "unlock the {door} door",
                "open the {door} door",
                "let him in by the {door} door",
                locked=False,
            ),
        ),
    ),
    Intent(
        "stop",
        (),
        (
            ToolForm("stop_timer", "Cancel the timer"),
            ToolForm("cancel", "End a countdown"),
        ),
        say(
            "stop the timer",
            "cancel my timer",
            "end the countdown",
            "forget about the timer",
        ),
    ),
)
"""The intents of the first stage of training, from which the tokenizer was made."""

OFF_TOPIC: tuple[str, ...] = (
    "tell me a joke",
    "who wrote this song",
    "what is the capital of {city}",
    "how old are you",
    "why is the sky blue",
    "what does {person} like",
    "do you know {person}",
    "is {city} bigger than a village",
    "i like {artist}",
    "what is {minutes} plus {percent}",
    "good morning",
    "how tall is a giraffe",
    "translate {item} into french",
    "what is the meaning of life",
    "who is {person}",
    "thank you very much",
    "is {sport} good for me",
    "how many people live in {city}",
    "what is {percent} times {minutes}",
    "sing me a song",
    "can {item} go bad",
    "spell {person}",
    "who invented the {room}",
    "i am bored",
)
"""Queries that no tool serves; a slot here is named after its value pool."""
