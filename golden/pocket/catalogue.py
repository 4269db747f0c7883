"""The commands of the pocket ladder: what can be asked, and the tools that can be offered for it.

Each intent can be offered under more than one form (tool name, description, parameter names), so
that a right call has to be read off the offered schema rather than remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["INTENTS", "OFF_TOPIC", "Intent", "Param", "Phrasing", "ToolForm"]

JsonType = Literal["string", "integer", "boolean"]


@dataclass(frozen=True)
class Param:
    """One parameter of an offered tool.

    Attributes:
        slot: the slot of the phrasing that fills it.
        name: its name in the schema.
        type: its JSON type.
    """

    slot: str
    name: str
    type: JsonType = "string"


@dataclass(frozen=True)
class ToolForm:
    """One way of offering an intent as a tool."""

    name: str
    description: str
    params: tuple[Param, ...] = ()

    def schema(self) -> dict[str, object]:
        """Return the tool as the JSON object that a prompt shows."""
        params = {param.name: {"type": param.type} for param in self.params}
        return {"name": self.name, "description": self.description, "parameters": params}


@dataclass(frozen=True)
class Phrasing:
    """A sentence with ``{slot}`` places, and the slots whose value the wording itself decides."""

    text: str
    fixed: tuple[tuple[str, str | bool], ...] = ()


@dataclass(frozen=True)
class Intent:
    """Something a user can ask for.

    Attributes:
        name: a stable key.
        slots: slot name and value pool (a key of ``pools.POOLS``) of every drawn slot.
        forms: the tools it can be offered as.
        phrasings: how users say it.
    """

    name: str
    slots: tuple[tuple[str, str], ...]
    forms: tuple[ToolForm, ...]
    phrasings: tuple[Phrasing, ...]


def _say(*texts: str, **fixed: str | bool) -> tuple[Phrasing, ...]:
    return tuple(Phrasing(text, tuple(fixed.items())) for text in texts)


INTENTS: tuple[Intent, ...] = (
    Intent(
        "timer",
        (("minutes", "minutes"),),
        (
            ToolForm("set_timer", "Start a countdown", (Param("minutes", "minutes", "integer"),)),
            ToolForm("countdown", "Run a timer", (Param("minutes", "length", "integer"),)),
        ),
        _say(
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
        _say(
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
            *_say(
                "turn on the lights in the {room}",
                "switch the {room} lights on",
                "light up the {room}",
                "lights on in the {room}",
                on="on",
            ),
            *_say(
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
        _say(
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
        _say(
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
        _say(
            "text {person} that {text}",
            "send {person} a message saying {text}",
            "tell {person} {text}",
            "message {person}: {text}",
            "write to {person} that {text}",
        ),
    ),
    Intent(
        "call",
        (("person", "person"),),
        (
            ToolForm("call", "Phone someone", (Param("person", "contact"),)),
            ToolForm("dial", "Make a phone call", (Param("person", "whom"),)),
        ),
        _say(
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
        _say(
            "make a note that {text}",
            "note down: {text}",
            "write down {text}",
            "take a note: {text}",
        ),
    ),
    Intent(
        "reminder",
        (("text", "text"), ("time", "clock")),
        (
            ToolForm("remind", "Set a reminder", (Param("text", "what"), Param("time", "time"))),
            ToolForm("reminder", "Remind later", (Param("text", "text"), Param("time", "when"))),
        ),
        _say(
            "at {time} remind me: {text}",
            "remind me at {time}: {text}",
            "reminder for {time}: {text}",
        ),
    ),
    Intent(
        "weather",
        (("city", "city"),),
        (
            ToolForm("get_weather", "Show the forecast", (Param("city", "city"),)),
            ToolForm("forecast", "Weather in a town", (Param("city", "place"),)),
        ),
        _say(
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
        _say(
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
        _say(
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
        _say(
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
        _say(
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
            *_say(
                "lock the {door} door",
                "close the lock of the {door} door",
                "is the {door} door open? lock it",
                locked=True,
            ),
            *_say(
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
        _say(
            "stop the timer",
            "cancel my timer",
            "end the countdown",
            "forget about the timer",
        ),
    ),
)
"""Every intent of the catalogue."""

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
