"""More commands to a watch, a phone, a home and a car, with enumerations, numbers and truth values."""

from __future__ import annotations

from golden.pocket.catalogue import FIRST
from golden.pocket.intents import Intent, Param, ToolForm, said, say

__all__ = ["INTENTS"]

_COLOURS = ("red", "green", "blue", "white")
_SPEEDS = ("low", "high", "off")
_AIR = ("heat", "cool", "off")

_HOME: tuple[Intent, ...] = (
    Intent(
        "brightness",
        (("room", "room"), ("percent", "percent")),
        (
            ToolForm("dim", "Dim lamps", (Param("room", "room"), Param("percent", "level", "integer"))),
            ToolForm(
                "brightness",
                "Set light level",
                (Param("percent", "percent", "integer"), Param("room", "where")),
            ),
        ),
        say(
            "dim the {room} lights to {percent} percent",
            "set the lamp in the {room} to {percent}",
            "brightness {percent} in the {room}",
            "i want {percent} percent light in the {room}",
        ),
    ),
    Intent(
        "colour",
        (("room", "room"),),
        (
            ToolForm(
                "light_color", "Colour a lamp", (Param("room", "room"), Param("c", "color", choices=_COLOURS))
            ),
            ToolForm("tint", "Lamp colour", (Param("c", "tone", choices=_COLOURS), Param("room", "room"))),
        ),
        tuple(
            phrasing
            for colour in _COLOURS
            for phrasing in say(
                f"make the {{room}} lights {colour}",
                f"{colour} light in the {{room}}",
                f"turn the lamp in the {{room}} {colour}",
                c=colour,
            )
        ),
    ),
    Intent(
        "air",
        (),
        (
            ToolForm("air_mode", "Air conditioner", (Param("mode", "mode", choices=_AIR),)),
            ToolForm("climate", "Heat or cool", (Param("mode", "state", choices=_AIR),)),
        ),
        said(
            "mode",
            heat=("warm up the house", "i am cold", "switch the air to heating"),
            cool=("cool down the house", "i am too warm", "switch the air to cooling"),
            off=("turn off the air", "no more cold air", "stop the air conditioner"),
        ),
    ),
    Intent(
        "blinds",
        (("room", "room"),),
        (
            ToolForm(
                "blinds", "Move blinds", (Param("room", "room"), Param("up", "move", choices=("up", "down")))
            ),
            ToolForm(
                "shade", "Window shades", (Param("room", "where"), Param("up", "to", choices=("up", "down")))
            ),
        ),
        said(
            "up",
            up=("open the blinds in the {room}", "raise the {room} blinds", "let light into the {room}"),
            down=(
                "close the blinds in the {room}",
                "lower the {room} blinds",
                "keep the sun out of the {room}",
            ),
        ),
    ),
    Intent(
        "vacuum",
        (("room", "room"),),
        (
            ToolForm("vacuum", "Clean a room", (Param("room", "room"),)),
            ToolForm("clean", "Run the robot", (Param("room", "area"),)),
        ),
        say(
            "vacuum the {room}",
            "clean the {room}",
            "send the robot to the {room}",
            "the {room} is dirty",
        ),
    ),
    Intent(
        "oven",
        (("heat", "oven"), ("minutes", "minutes")),
        (
            ToolForm(
                "oven",
                "Bake food",
                (Param("heat", "heat", "integer"), Param("minutes", "minutes", "integer")),
            ),
            ToolForm(
                "bake", "Heat the oven", (Param("minutes", "time", "integer"), Param("heat", "at", "integer"))
            ),
        ),
        say(
            "bake at {heat} degrees for {minutes} minutes",
            "oven to {heat} for {minutes} minutes",
            "run the oven {minutes} minutes at {heat} degrees",
        ),
    ),
    Intent(
        "fan",
        (),
        (
            ToolForm("set_fan", "Fan speed", (Param("speed", "speed", choices=_SPEEDS),)),
            ToolForm("fan", "Run the fan", (Param("speed", "power", choices=_SPEEDS),)),
        ),
        said(
            "speed",
            low=("run the fan slow", "fan on low", "put the fan on the low setting"),
            high=("run the fan fast", "fan at full speed", "set the fan to high"),
            off=("stop the fan", "turn the fan off", "no more fan"),
        ),
    ),
    Intent(
        "security",
        (),
        (
            ToolForm("arm", "House alarm", (Param("armed", "armed", "boolean"),)),
            ToolForm("guard", "Secure the house", (Param("armed", "on", "boolean"),)),
        ),
        (
            *say("arm the house", "secure the house", "turn on the house alarm", armed=True),
            *say(
                "disarm the house", "i am home, turn off the house alarm", "stop the house alarm", armed=False
            ),
        ),
    ),
    Intent(
        "channel",
        (("channel", "percent"),),
        (
            ToolForm("channel", "Switch the tv", (Param("channel", "number", "integer"),)),
            ToolForm("watch_tv", "Show a tv channel", (Param("channel", "channel", "integer"),)),
        ),
        say(
            "switch to channel {channel}",
            "put on channel {channel}",
            "show channel {channel} on the tv",
            "i want to watch channel {channel}",
        ),
    ),
    Intent(
        "sprinkler",
        (("minutes", "minutes"), ("room", "door")),
        (
            ToolForm(
                "sprinkle", "Water plants", (Param("room", "zone"), Param("minutes", "minutes", "integer"))
            ),
            ToolForm(
                "water", "Run sprinklers", (Param("minutes", "length", "integer"), Param("room", "area"))
            ),
        ),
        say(
            "water the {room} plants for {minutes} minutes",
            "run the {room} sprinklers for {minutes} minutes",
            "give the {room} plants water for {minutes} minutes",
        ),
    ),
)

_CAR: tuple[Intent, ...] = (
    Intent(
        "charge",
        (("percent", "percent"),),
        (
            ToolForm("charge", "Charge the car", (Param("percent", "limit", "integer"),)),
            ToolForm("car_power", "Car battery", (Param("percent", "target", "integer"),)),
        ),
        say(
            "charge the car to {percent} percent",
            "fill the car battery to {percent}",
            "stop charging at {percent} percent",
        ),
    ),
    Intent(
        "parking",
        (("place", "place"),),
        (
            ToolForm("park", "Find parking", (Param("place", "near"),)),
            ToolForm("find_parking", "Where to park", (Param("place", "place"),)),
        ),
        say(
            "where can i park near {place}",
            "find parking at {place}",
            "i need to park by {place}",
        ),
    ),
    Intent(
        "traffic",
        (("place", "place"),),
        (
            ToolForm("traffic", "Road state", (Param("place", "road"),)),
            ToolForm("travel_time", "Time to arrive", (Param("place", "to"),)),
        ),
        say(
            "how is the traffic to {place}",
            "how long is the drive to {place}",
            "is the road to {place} full",
        ),
    ),
    Intent(
        "radio",
        (("station", "mhz"),),
        (
            ToolForm("radio", "Tune the radio", (Param("station", "station", "number"),)),
            ToolForm("tune", "Radio station", (Param("station", "mhz", "number"),)),
        ),
        say(
            "tune the radio to {station}",
            "radio {station}",
            "put on {station} on the radio",
            "listen to the station at {station}",
        ),
    ),
    Intent(
        "track",
        (),
        (
            ToolForm("skip", "Change the song", (Param("to", "to", choices=("next", "back")),)),
            ToolForm("song", "Other song", (Param("to", "way", choices=("next", "back")),)),
        ),
        said(
            "to",
            next=("next song", "skip this song", "i do not like this song"),
            back=("play the last song again", "go back a song", "one song back"),
        ),
    ),
)

_BODY: tuple[Intent, ...] = (
    Intent(
        "drink",
        (("ml", "ml"),),
        (
            ToolForm("log_water", "Record drinks", (Param("ml", "ml", "integer"),)),
            ToolForm("drink", "Water intake", (Param("ml", "amount", "integer"),)),
        ),
        say(
            "i drank {ml} ml of water",
            "add {ml} ml of water",
            "record {ml} ml to drink",
        ),
    ),
    Intent(
        "weight",
        (("kg", "kg"),),
        (
            ToolForm("log_weight", "Record weight", (Param("kg", "kg", "number"),)),
            ToolForm("weight", "Body weight", (Param("kg", "value", "number"),)),
        ),
        say(
            "i weigh {kg} kilos",
            "my weight is {kg}",
            "record {kg} kilos of weight",
        ),
    ),
    Intent(
        "steps",
        (("steps", "steps"),),
        (
            ToolForm("step_goal", "Set daily steps", (Param("steps", "steps", "integer"),)),
            ToolForm("goal", "Steps to walk", (Param("steps", "count", "integer"),)),
        ),
        say(
            "set my step goal to {steps}",
            "i want to walk {steps} steps a day",
            "my goal is {steps} steps",
        ),
    ),
    Intent(
        "run",
        (("km", "km"),),
        (
            ToolForm("start_run", "Run a distance", (Param("km", "km", "number"),)),
            ToolForm("run", "Track a run", (Param("km", "distance", "number"),)),
        ),
        say(
            "start a run of {km} kilometres",
            "i am going to run {km} kilometres",
            "track {km} km of running",
        ),
    ),
    Intent(
        "pulse",
        (),
        (ToolForm("heart_rate", "Measure the pulse"), ToolForm("pulse", "Heart rate")),
        say(
            "what is my pulse",
            "measure my heart rate",
            "how fast is my heart",
            "check my pulse",
        ),
    ),
)

_PHONE: tuple[Intent, ...] = (
    Intent(
        "quiet",
        (),
        (
            ToolForm("mute", "Silence the phone", (Param("quiet", "on", "boolean"),)),
            ToolForm("quiet", "Quiet mode", (Param("quiet", "quiet", "boolean"),)),
        ),
        (
            *say("do not disturb me", "mute the phone", "quiet please", quiet=True),
            *say("let calls come in again", "turn the sound of the phone on", "end quiet mode", quiet=False),
        ),
    ),
    Intent(
        "photo",
        (),
        (
            ToolForm("photo", "Take a picture", (Param("side", "camera", choices=("front", "back")),)),
            ToolForm("camera", "Take photos", (Param("side", "side", choices=("front", "back")),)),
        ),
        said(
            "side",
            front=("take a selfie", "take a picture of me", "photo with the front camera"),
            back=("take a picture of this", "photo with the back camera", "take a photo of the view"),
        ),
    ),
    Intent(
        "event",
        (("item", "item"), ("time", "clock")),
        (
            ToolForm("add_event", "Calendar", (Param("item", "title"), Param("time", "time"))),
            ToolForm("plan", "Plan the day", (Param("time", "when"), Param("item", "what"))),
        ),
        say(
            "put {item} in my calendar at {time}",
            "plan {item} for {time}",
            "at {time} i have {item}",
        ),
    ),
    Intent(
        "contact",
        (("person", "person"), ("phone", "phone")),
        (
            ToolForm("add_contact", "Save a number", (Param("person", "name"), Param("phone", "phone"))),
            ToolForm("contact", "New contact", (Param("phone", "number"), Param("person", "person"))),
        ),
        say(
            "save {phone} as the number of {person}",
            "the number of {person} is {phone}",
            "add {person} with the number {phone}",
        ),
    ),
    Intent(
        "torch",
        (),
        (
            ToolForm("torch", "Phone light", (Param("on", "on", "boolean"),)),
            ToolForm("flash", "Turn the torch", (Param("on", "lit", "boolean"),)),
        ),
        (
            *say("turn on the torch", "i need a light, torch on", "torch on", on=True),
            *say("turn off the torch", "torch off", "no more light from the phone", on=False),
        ),
    ),
)

INTENTS: tuple[Intent, ...] = (*FIRST, *_HOME, *_CAR, *_BODY, *_PHONE)
"""Every intent that training sees."""
