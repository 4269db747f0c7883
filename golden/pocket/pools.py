"""Pools of values that fill the command templates, each split by value.

Whether a value belongs to training or to the test is a property of the value alone (a checksum of
its text), so no seed, order or pool size can carry a held-out value into training.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["POOLS", "Split", "draw", "split_of"]

Split = Literal["train", "test"]

_HELD_OUT_PERCENT = 20
_MADE_UP_SHARE = 0.6
_MODIFIED_SHARE = 0.6


def _pool(text: str) -> tuple[str, ...]:
    """Read a pool written in one line of text."""
    return tuple(text.split("|"))


_NAMES = _pool(
    "Adam|Aisha|Alex|Alice|Amara|Amir|Ana|Andre|Anika|Anna|Arjun|Astrid|Ava|Ben|Bianca|"
    "Boris|Carla|Carlos|Cara|Chen|Chloe|Clara|Dana|Daniel|David|Diego|Dina|Elena|Elias|"
    "Ella|Emil|Emma|Erik|Esra|Eva|Farah|Felix|Fiona|Frank|Freya|Gabriel|Gina|Grace|Greta|"
    "Hana|Hannah|Hassan|Hugo|Ibrahim|Ida|Ines|Ingrid|Irene|Isaac|Ivan|Jack|Jana|Javier|"
    "Jonas|Julia|Kai|Karim|Kate|Kofi|Lars|Laura|Lea|Leo|Lena|Liam|Lila|Lina|Lucas|Lucia|"
    "Luis|Magnus|Maja|Marco|Maria|Marta|Max|Maya|Mei|Mia|Mila|Milan|Mina|Mohamed|Nadia|"
    "Naomi|Nia|Nico|Nina|Noah|Nora|Olga|Oliver|Omar|Oscar|Paula|Pedro|Petra|Priya|Rahul|"
    "Rania|Ravi|Rosa|Ruth|Sam|Sara|Sasha|Selma|Simon|Sofia|Stefan|Stella|Tara|Theo|Thomas|"
    "Tina|Tom|Vera|Victor|Wei|Yara|Yusuf|Zara|Zoe"
)

_CITIES = _pool(
    "Accra|Amsterdam|Athens|Austin|Bangkok|Barcelona|Bergen|Berlin|Bogota|Boston|Bristol|"
    "Brussels|Cairo|Chicago|Copenhagen|Dakar|Delhi|Denver|Dublin|Edinburgh|Geneva|Hamburg|"
    "Hanoi|Helsinki|Istanbul|Jakarta|Kyoto|Lagos|Leeds|Lima|Lisbon|London|Lyon|Madrid|Manila|"
    "Marseille|Melbourne|Miami|Milan|Montreal|Munich|Nairobi|Naples|Nice|Oslo|Ottawa|Paris|"
    "Perth|Porto|Prague|Quito|Riga|Rome|Santiago|Seattle|Seoul|Seville|Shanghai|Sofia|"
    "Stockholm|Sydney|Tallinn|Tokyo|Toronto|Tunis|Turin|Valencia|Venice|Vienna|Vilnius|Warsaw|"
    "Zagreb|Zurich|New York|Cape Town|San Diego|Hong Kong|Buenos Aires|Tel Aviv"
)

_PLACES = _pool(
    "airport|train station|library|pharmacy|office|gym|museum|harbour|bridge|city park|hospital|bakery|"
    "market|stadium|bus stop|town hall|university|cinema|zoo|lake|north gate|petrol station|post office|"
    "swimming pool|book shop|castle|beach|ferry terminal|hotel|school|dentist|garage|opera|farm|river|"
    "church|restaurant|cafe|supermarket|tower|police station|theatre|garden centre|car park|embassy"
)

_STREETS = _pool(
    "Oak|Mill|Church|Station|High|Park|River|King|Queen|Garden|Hill|Bridge|Market|Forest|"
    "Lake|North|South|Castle|Harbour|School|Rose|Maple|Cedar|Elm|Victoria|Albert|Spring|"
    "Meadow"
)
_STREET_KINDS = ("Street", "Road", "Lane")

_ADJECTIVES = _pool(
    "silver|golden|quiet|electric|broken|velvet|hidden|northern|frozen|gentle|wild|hollow|burning|"
    "distant|lonely|purple|painted|restless|sunny|little|big|small|old|new|red|blue|green|yellow|"
    "black|white|grey|brown|warm|cold|dry|wet|clean|dirty|heavy|light|soft|hard|long|short|round|"
    "flat|empty|full|open|sweet|salty|fresh|strong|simple|strange|happy|sad|angry|busy|late|early|"
    "cheap|rich|bright|dark|loud|slow|quick|wooden|plastic|paper|glass|metal|upper|lower|left|right|"
    "main|second|last|private|public|spare|modern|ancient|foreign|local|secret|gentle|narrow|wide"
)
_NOUNS = _pool(
    "fox|river|lion|shadow|bird|engine|mountain|dreamer|wolf|ocean|garden|king|ghost|star|train|horse|"
    "winter|radio|bell|pilot|sailor|flower|stone|cloud|table|chair|lamp|carpet|curtain|mirror|bottle|"
    "basket|ladder|hammer|drill|bucket|brush|towel|pillow|blanket|jacket|shirt|shoe|boot|scarf|glove|"
    "hat|ring|watch|camera|printer|laptop|tablet|charger|cable|battery|candle|torch|ticket|passport|"
    "wallet|letter|parcel|stamp|folder|pencil|notebook|novel|map|poster|ball|kite|drum|guitar|piano|"
    "violin|trumpet|whistle|tent|boat|canoe|bicycle|scooter|truck|bus|taxi|tram|plane|rocket|bridge|"
    "tower|castle|church|farm|barn|fence|gate|roof|window|cellar|kettle|oven|fridge|toaster|spoon|fork|"
    "knife|plate|bowl|cup|glass|pan|pot|cake|pie|soup|salad|sandwich|cheese|butter|milk|bread|rice|"
    "pasta|tomato|onion|carrot|potato|garlic|lemon|apple|banana|orange|grape|cherry|peach|melon|pepper|"
    "spinach|mushroom|lentil|bean|honey|sugar|flour|salt|vinegar|coffee|tea|juice|yoghurt|chicken|"
    "salmon|sausage|cereal|noodle|ginger|almond|walnut|soap|shampoo|napkin|sponge|nail|screw|rope|"
    "tape|glue|paint|puppy|kitten|rabbit|hamster|turtle|parrot|goat|sheep|donkey|tiger|monkey|whale|"
    "doctor|plumber|teacher|neighbour|driver|painter|baker|lawyer|nurse|farmer|dentist|singer|manager|"
    "meeting|lesson|party|wedding|concert|game|movie|exam|trip|holiday|project|report|budget|contract|"
    "invoice|message|password|recipe|problem|answer|question|story|secret|plan|price|number|address"
)
_VERBS = _pool(
    "buy|sell|bring|return|clean|wash|repair|paint|check|open|close|find|send|order|book|cancel|pack|"
    "move|count|measure|charge|borrow|collect|deliver|print|sign|read|write|finish|start|watch|visit|"
    "feed|walk|water|cut|cook|bake|taste|share|hide|lock|carry|fold|iron|fill|empty|test|study|record"
)
_STATES = _pool(
    "ready|broken|lost|late|early|empty|full|closed|open|cheap|gone|asleep|here|on the table|under the bed|"
    "in the car|at the door|too loud|very good|not working|almost done|for sale|on fire|out of order"
)
_WHEN = _pool(
    "today|tomorrow|tonight|on monday|on tuesday|on friday|on sunday|next week|at noon|after lunch|"
    "before dinner|in the morning|in the evening|every day|right away|this summer|at school|at home"
)
_SENTENCES = _pool(
    "i am running late|call me back|happy birthday|i am on my way|thanks for the help|good luck|"
    "i will be home soon|see you soon|lunch is on me|i miss you|well done|no problem|sleep well|"
    "have a good trip|where are you|what time is it|are you coming|let me know|i am at the station"
)

_ROOMS = _pool(
    "kitchen|bedroom|bathroom|hallway|garage|office|living room|dining room|basement|attic|garden|"
    "nursery|study|balcony|porch|laundry room|guest room|cellar|library|workshop|corridor|pantry|"
    "lounge|lobby|closet|staircase|terrace|shed|gym|studio"
)

_DOORS = _pool(
    "front|back|side|garage|cellar|garden|balcony|kitchen|office|patio|porch|shed|barn|attic|gate|hall"
)

_SPORTS = _pool(
    "running|walking|cycling|swimming|yoga|rowing|hiking|boxing|dancing|climbing|skiing|pilates|"
    "strength|skating|surfing|tennis|fencing|judo|golf|football|volleyball|badminton|karate|sailing"
)
_WAYS = _pool(
    "trail|indoor|outdoor|morning|evening|night|beach|mountain|water|team|speed|street|lake|winter|summer"
)

_ONSETS = _pool("b|br|c|ch|d|dr|f|fl|g|gr|h|j|k|kr|l|m|n|p|pr|r|s|sh|st|t|tr|v|w|y|z")
_VOWELS = _pool("a|e|i|o|u|ai|ea|ie|oo")
_CODAS = ("", "", "l", "m", "n", "r", "s", "t", "nd", "rk", "x")


def split_of(value: str | int) -> Split:
    """Return the split that owns ``value``.

    Args:
        value: a value as it is written in a query.

    Returns:
        ``"test"`` for about a fifth of all values, else ``"train"``.
    """
    held_out = zlib.crc32(f"pocket:{value}".encode()) % 100 < _HELD_OUT_PERCENT
    return "test" if held_out else "train"


def _made_up_name(rng: random.Random) -> str:
    """Spell a pronounceable name, so that copying cannot be learnt as a list of known names."""
    syllables = [
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((1, 2, 2)))
    ]
    return "".join(syllables).capitalize()


def _person(rng: random.Random) -> str:
    if rng.random() < _MADE_UP_SHARE:
        return _made_up_name(rng)
    return rng.choice(_NAMES)


def _city(rng: random.Random) -> str:
    if rng.random() < _MADE_UP_SHARE:
        return _made_up_name(rng)
    return rng.choice(_CITIES)


def _place(rng: random.Random) -> str:
    kind = rng.randrange(3)
    if kind == 0:
        return f"{rng.choice(_STREETS)} {rng.choice(_STREET_KINDS)}"
    if kind == 1:
        return f"{rng.randint(2, 199)} {rng.choice(_STREETS)} {rng.choice(_STREET_KINDS)}"
    return f"the {_described(rng, rng.choice(_PLACES))}"


def _described(rng: random.Random, noun: str, words: tuple[str, ...] = _ADJECTIVES) -> str:
    """Put a word before a noun, more often than not: pools of pairs cannot be learnt by heart."""
    if rng.random() < _MODIFIED_SHARE:
        return f"{rng.choice(words)} {noun}"
    return noun


def _artist(rng: random.Random) -> str:
    if rng.random() < _MADE_UP_SHARE / 2:
        return _made_up_name(rng)
    return f"{rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}s"


def _clock(rng: random.Random) -> str:
    return f"{rng.randint(0, 23)}:{rng.randrange(0, 60, 5):02d}"


def _text(rng: random.Random) -> str:
    """A short free text: a common sentence, or one put together from words."""
    noun = _described(rng, rng.choice(_NOUNS))
    forms = (
        f"{rng.choice(_VERBS)} the {noun}",
        f"{rng.choice(_VERBS)} the {noun} {rng.choice(_WHEN)}",
        f"the {noun} is {rng.choice(_STATES)}",
        f"we need a {noun}",
        f"my {noun} is {rng.choice(_STATES)}",
        rng.choice(_SENTENCES),
    )
    return rng.choice(forms)


def _item(rng: random.Random) -> str:
    return _described(rng, rng.choice(_NOUNS))


def _room(rng: random.Random) -> str:
    return _described(rng, rng.choice(_ROOMS))


def _door(rng: random.Random) -> str:
    return _described(rng, rng.choice(_DOORS))


def _sport(rng: random.Random) -> str:
    return _described(rng, rng.choice(_SPORTS), _WAYS)


POOLS: dict[str, Callable[[random.Random], str]] = {
    "artist": _artist,
    "city": _city,
    "clock": _clock,
    "degrees": lambda rng: str(rng.randint(10, 30)),
    "door": _door,
    "item": _item,
    "kg": lambda rng: f"{rng.randint(400, 1509) / 10}",
    "km": lambda rng: f"{rng.randint(10, 429) / 10}",
    "mhz": lambda rng: f"{rng.randint(875, 1080) / 10}",
    "ml": lambda rng: str(10 * rng.randint(5, 99)),
    "minutes": lambda rng: str(rng.randint(1, 120)),
    "oven": lambda rng: str(rng.randint(100, 250)),
    "percent": lambda rng: str(rng.randint(1, 100)),
    "person": _person,
    "phone": lambda rng: "".join(rng.choices("0123456789", k=rng.randint(5, 7))),
    "place": _place,
    "room": _room,
    "sport": _sport,
    "steps": lambda rng: str(100 * rng.randint(10, 250)),
    "text": _text,
}
"""Value sources by slot kind; each returns the text of one value of either split."""


def draw(kind: str, split: Split, rng: random.Random) -> str:
    """Draw a value of ``kind`` that ``split`` owns.

    Args:
        kind: a key of ``POOLS``.
        split: which side of the split the value must belong to.
        rng: the source of randomness; the only state that is advanced.

    Returns:
        The value's text as it is written in a query.

    Raises:
        KeyError: if ``kind`` names no pool.
    """
    source = POOLS[kind]
    while True:
        value = source(rng)
        if split_of(value) == split:
            return value
