"""The sentences of the instructions: which of the coloured targets to collect first or last, in many phrasings.

Every colour has the same phrasings: a list for training and two held-out lists. How instructions are drawn and checked
is in `instructions.py`.
"""

from __future__ import annotations

from typing import Literal

Instructions = Literal["none", "train", "held_out", "relational"]

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")  # of targets 0, 1, …

# Each list holds phrasings of FIRST, then as many of LAST (`instructions.py`).
TRAIN = (
    (
        "Collect the {colour} target first.",
        "Go for {colour} first.",
        "Before anything else, pick up the {colour} one.",
        "Start with the {colour} target.",
        "Your first target is the {colour} one.",
        "Begin by collecting {colour}.",
        "Get the {colour} star first, then the rest.",
        "{Colour} comes first.",
        "First of all, fetch the {colour} target.",
        "Make {colour} your first pick.",
        "Number one on the list is {colour}.",
        "Open with the {colour} target.",
        "Grab {colour} at the very beginning.",
        "I want the {colour} target to be the first one taken.",
        "{Colour} first, please.",
        "Let {colour} be the start of your round.",
        "The {colour} target has to be the first to go.",
        "Kick things off with {colour}.",
        "To begin with, take the {colour} star.",
        "Initially, walk to the {colour} one.",
        "Top priority: the {colour} target.",
        "The first star to collect is the {colour} one.",
        "Get {colour} out of the way first.",
        "Right at the start, collect {colour}.",
        "Your opening move is to fetch {colour}.",
        "{Colour} is the most urgent one.",
        "Lead with {colour}.",
        "The round begins with {colour}.",
        "As your very first step, secure the {colour} target.",
        "Head straight for {colour}, the rest can wait.",
        "{Colour} is your first stop.",
        "Begin the round at the {colour} star.",
        "Your journey starts with {colour}.",
        "Collect {colour} straight away.",
        "Take the {colour} one now, the other ones afterwards.",
        "Pick {colour} as number one.",
        "First up is {colour}.",
        "Make a start with the {colour} target.",
        "The {colour} star is what you collect first.",
        "Go to {colour} right now.",
        "Without delay, fetch the {colour} one.",
        "{Colour} opens the round.",
        "The earliest one to take is {colour}.",
        "Start the day with {colour}.",
        "Get going with the {colour} target.",
        "Begin at {colour}.",
        "Let the {colour} one be your first catch.",
        "The beginning belongs to {colour}.",
        "For a start, gather {colour}.",
        "Do the {colour} target first.",
        "Give {colour} the highest priority.",
        "Hurry to the {colour} star, it is the first one.",
        "Today we begin with {colour}.",
        "{Colour} heads the list.",
        "Put {colour} at the front of the queue.",
        "The opening target is {colour}.",
        "Set out for {colour} first.",
        "Take {colour} as soon as you start.",
        "Your number one target is {colour}.",
        "Firstly, the {colour} star.",
    ),
    (
        "Collect the {colour} target last.",
        "Go for {colour} last.",
        "After everything else, pick up the {colour} one.",
        "Finish with the {colour} target.",
        "Your last target is the {colour} one.",
        "End by collecting {colour}.",
        "Get the {colour} star last, when the rest is gone.",
        "{Colour} comes last.",
        "Last of all, fetch the {colour} target.",
        "Make {colour} your final pick.",
        "At the bottom of the list is {colour}.",
        "Close with the {colour} target.",
        "Grab {colour} at the very end.",
        "I want the {colour} target to be the last one taken.",
        "{Colour} last, please.",
        "Let {colour} be the end of your round.",
        "The {colour} target has to be the last to go.",
        "Wrap things up with {colour}.",
        "To finish off, take the {colour} star.",
        "Finally, walk to the {colour} one.",
        "Lowest priority: the {colour} target.",
        "The last star to collect is the {colour} one.",
        "Leave {colour} to the end.",
        "Right at the finish, collect {colour}.",
        "Your closing move is to fetch {colour}.",
        "{Colour} is the least urgent one.",
        "Conclude with {colour}.",
        "The round ends with {colour}.",
        "As your very last step, secure the {colour} target.",
        "Save the {colour} one for the end.",
        "{Colour} is your last stop.",
        "End the round at the {colour} star.",
        "Your journey ends with {colour}.",
        "Collect {colour} only when nothing else remains.",
        "Take the other ones now, the {colour} one afterwards.",
        "Pick {colour} as the last one.",
        "Last up is {colour}.",
        "Make an end with the {colour} target.",
        "The {colour} star is what you collect last.",
        "Do not go to {colour} now, go there at the end.",
        "With all patience, fetch the {colour} one in the end.",
        "{Colour} closes the round.",
        "The latest one to take is {colour}.",
        "End the day with {colour}.",
        "Stop with the {colour} target.",
        "Finish at {colour}.",
        "Let the {colour} one be your last catch.",
        "The ending belongs to {colour}.",
        "To close, gather {colour}.",
        "Do the {colour} target last.",
        "Give {colour} the lowest priority.",
        "Take your time with the {colour} star, it is the last one.",
        "Today we finish with {colour}.",
        "{Colour} is at the foot of the list.",
        "Put {colour} at the back of the queue.",
        "The closing target is {colour}.",
        "Keep off {colour} for now.",
        "Take {colour} just as you finish.",
        "Your very final target is {colour}.",
        "Lastly, the {colour} star.",
    ),
)
HELD_OUT = (
    (
        "The very first thing to collect is {colour}.",
        "{Colour} goes first, everything else second.",
        "Let us start off by taking {colour}.",
        "I need {colour} immediately.",
        "Run to the {colour} target at once.",
        "Step one: {colour}.",
        "Of all the targets, {colour} is to be taken first.",
        "Do {colour} at the outset.",
        "Please pick the {colour} star up first and worry about the rest later.",
    ),
    (
        "The very last thing to collect is {colour}.",
        "{Colour} goes last, after everything else.",
        "Let us end by taking {colour}.",
        "I do not need {colour} before the end.",
        "Stay away from the {colour} target until it is the only one left.",
        "Final step: {colour}.",
        "Of all the targets, {colour} is to be taken last.",
        "Keep {colour} for the finish.",
        "Please pick the {colour} star up last and worry about the rest now.",
    ),
)
# Held out as well, and harder: both orders use the same words, and only the grammar tells them apart.
RELATIONAL = (
    (
        "Take {colour} before the others.",
        "Fetch {colour} ahead of everything else.",
        "No other target may be taken before {colour}.",
        "Do not touch anything else until you have {colour}.",
        "Leave the others alone until {colour} has been picked up.",
        "Pick up {colour}, and only then the other targets.",
        "Once you have {colour}, collect the others.",
        "Collect the others only after {colour}.",
        "You may collect the others as soon as {colour} is gone.",
    ),
    (
        "Take the others before {colour}.",
        "Fetch everything else ahead of {colour}.",
        "{Colour} may not be taken before any other target.",
        "Do not touch {colour} until you have everything else.",
        "Leave {colour} alone until the others have been picked up.",
        "Pick up the other targets, and only then {colour}.",
        "Once you have the others, collect {colour}.",
        "Collect {colour} only after the others.",
        "You may collect {colour} as soon as the others are gone.",
    ),
)
LISTS = {"train": TRAIN, "held_out": HELD_OUT, "relational": RELATIONAL}
PHRASINGS = sum(len(first) for first, _ in LISTS.values())  # per meaning (an order and a colour)


def sentences(targets: int) -> tuple[str, ...]:
    """All sentences for a number of targets, sorted by order, then colour, then list and phrasing."""
    return tuple(
        wording.format(colour=colour, Colour=colour.capitalize())
        for order in range(2)
        for colour in COLOURS[:targets]
        for wordings in LISTS.values()
        for wording in wordings[order]
    )


def sampled_phrasings(instructions: Instructions) -> tuple[int, int]:
    """The index of the first phrasing that episodes draw from, and the number of phrasings drawn from."""
    start = 0
    for name, (wordings, _) in LISTS.items():
        if name == instructions:
            return start, len(wordings)
        start += len(wordings)
    return 0, 0
