"""Commands that training never sees: their tool names, descriptions and parameter names are their own."""

from __future__ import annotations

from golden.pocket.intents import Intent, Param, ToolForm, said, say

__all__ = ["UNSEEN"]

UNSEEN: tuple[Intent, ...] = (
    Intent(
        "garage",
        (),
        (ToolForm("garage_gate", "Car gate", (Param("open", "opened", "boolean"),)),),
        (
            *say("open the garage", "let the car out", "garage up", open=True),
            *say("close the garage", "shut the garage", "garage down", open=False),
        ),
    ),
    Intent(
        "stopwatch",
        (),
        (ToolForm("stopwatch", "Time laps", (Param("do", "action", choices=("start", "stop", "reset")),)),),
        said(
            "do",
            start=("start the stopwatch", "begin timing laps"),
            stop=("stop the stopwatch", "halt timing laps"),
            reset=("reset the stopwatch", "stopwatch back to zero"),
        ),
    ),
    Intent(
        "snooze",
        (("minutes", "minutes"),),
        (ToolForm("snooze", "Sleep a bit more", (Param("minutes", "delay", "integer"),)),),
        say(
            "snooze for {minutes} minutes", "let me sleep {minutes} more minutes", "snooze {minutes} minutes"
        ),
    ),
    Intent(
        "podcast",
        (("item", "item"),),
        (ToolForm("play_podcast", "Talk shows", (Param("item", "topic"),)),),
        say("play a podcast about {item}", "i want a podcast on {item}", "find a podcast about {item}"),
    ),
    Intent(
        "window",
        (("percent", "percent"),),
        (ToolForm("car_window", "Lower a pane", (Param("percent", "gap", "integer"),)),),
        say(
            "open the car window to {percent} percent",
            "car window at {percent}",
            "lower the window by {percent}",
        ),
    ),
    Intent(
        "location",
        (("person", "person"),),
        (ToolForm("share_position", "Tell where I am", (Param("person", "friend"),)),),
        say("send {person} my position", "share where i am with {person}", "let {person} see where i am"),
    ),
    Intent(
        "tip",
        (("amount", "kg"),),
        (ToolForm("split_tip", "Work out a tip", (Param("amount", "bill", "number"),)),),
        say("what is the tip for {amount}", "tip on a bill of {amount}", "how much tip for {amount}"),
    ),
    Intent(
        "ride",
        (("place", "place"),),
        (ToolForm("order_taxi", "Get a cab", (Param("place", "drop_off"),)),),
        say("get me a taxi to {place}", "order a cab to {place}", "i need a taxi to {place}"),
    ),
)
"""Intents of the tools that are new to a trained ladder."""
