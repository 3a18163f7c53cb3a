"""Twelve passages that a model is scored on. Written for kvplan, so that no model has learnt them by heart.

Of a text that it knows by heart a model is sure of every token, and a coarser cache then moves nothing.
Prose, speech, code, a table, a calculation and two other languages, each more than 160 tokens in the
vocabularies in use; their order and wording are part of what two measurements have in common.
"""

from __future__ import annotations

from typing import Final

PROSE: Final = (
    """The ferry left Harnvik at a quarter past six, before the fog had made up its mind. On the upper
deck a woman in a yellow coat counted the crates that were lashed along the rail, wrote a number in a
notebook, and counted them again. There had been thirty-one in the evening and there were thirty-two
now. She did not tell the mate, who was busy with the radio, nor the two students who slept against each
other under a tarpaulin. Instead she walked along the row and laid her palm on every lid. Most of them
were cold and a little wet. The one behind the lifebelt was warm. She put her ear to the wood and heard
something that was not quite a clock: it ticked four times, waited, and ticked three times more, as if
somebody inside were practising how to count. When the engine changed its note near the lighthouse, the
ticking stopped, and she noticed that the students were awake and were watching her with great
attention.""",
    """Peat is what is left when plants die in a place that is too wet to let them rot. Without oxygen
the fungi and most bacteria that would take a stem apart cannot work, so each summer adds a layer about
as thick as a coin, and after some thousand years the ground beneath a bog is a slow archive of
everything that ever blew into it. Pollen tells which trees stood on the hills, soot tells when they
burned, and a thin grey line tells of a volcano whose name nobody in the valley had heard. Drain the bog
and the archive begins to breathe: air gets in, the microbes wake, and carbon that was put away before
there were cities leaves within a few decades. That is why people who once dug ditches are now paid to
fill them. The water has to come back slowly, because a dam that is too high drowns the moss that makes
the peat, and a dam that is too low only feeds the nettles.""",
    """"You said Tuesday," Oren began, without sitting down. "I said the first dry Tuesday," said his
aunt, and went on sorting screws into jam jars. "It has rained on every one of them since March." He
looked at the roof of the workshop, where a sheet of plastic moved like a lung. "Then we will never mend
it." "We will mend it on a Thursday, if a Thursday is dry. I only said Tuesday because you like to have
a day to complain about." He laughed in spite of himself, and took the jar with the longest screws out
of her hands. "These are the wrong thread." "They are the right thread for the old hinges." "We threw
the old hinges away." "You threw them away," she answered, and pulled open a drawer, and there they lay
in a row, oiled and wrapped in newspaper. "I fetched them back the same night. One day you will throw
something away that I do not hear fall into the bin." """,
    """Any resident of the building may reserve the common room for a private occasion, provided that
the request reaches the caretaker in writing no later than ten days before the date in question. A
reservation is valid for one evening and ends at eleven, or at midnight on days that are followed by a
public holiday. The person who signs the form answers for the condition of the furniture, the kitchen
and the piano, and pays a deposit, which is returned within a week after the room has been inspected.
Music must not be audible on the third floor after ten. If two requests are received for the same
evening, the earlier one is granted; if both were received on the same day, lots are drawn in the
presence of both parties. The council of the building can withdraw a reservation for urgent repairs, in
which case the deposit is returned at once and another evening is offered. Nothing in these rules
prevents residents from using the room together without a reservation.""",
    """To bake the flat loaf of the island you need a stone, a bucket and patience. Mix four cups of
coarse flour with two of water on the evening before and leave the bowl where the cat cannot reach it.
In the morning the dough should smell of apples; if it smells of paint, begin again. Work in a spoon of
salt and as much fat as sits on two fingers, fold it six times, and let it rest while the fire burns
down. The stone is ready when a drop of water runs across it instead of staying where it fell. Press the
dough flat with wet hands until you could read a large headline through it, prick it with a fork, and
lay it on the stone without letting it hang. It takes as long as it takes to sing the song about the
bishop, including the verse that is left out at weddings. Turn it once. Wrap it in a cloth while it is
hot, for the steam makes it soft enough to fold, and eat it with the sour cream that you forgot to buy.""",
    """The committee met for the ninth time on the question of the bridge, and for the ninth time it was
agreed that the bridge was old. An engineer from the coast explained, with a model made of balsa, that
the eastern pier had moved by eleven millimetres in a year and by four in the year before, which meant
that it was in a hurry. The treasurer asked whether a thing of that weight could be said to be in a
hurry. The engineer said that it could, if it had started at nought. There followed a discussion about
the word nought, then a discussion about tolls, and a motion by the school to name the new bridge after
a goat that had once stopped the traffic there for an afternoon. The motion was carried with two
abstentions. Money for the bridge itself was put off until spring, when the river would be higher and,
as the treasurer remarked, the matter clearer.""",
    """Dear Ms Abara, thank you for the two boxes of slides, which arrived on Friday in good order
except for number 214, whose glass has a crack from corner to corner. I have laid it aside and have not
put it through the scanner. You asked whether the colours can be brought back. In most of them the cyan
layer has faded and the rest has held, so the pictures look as if everyone had dined too well; that can
be put right by calculation, and I enclose a print of number 37 before and after, so that you can judge
whether the sky is the sky you remember. In about twenty slides, all from the same year, the damage is
of another kind: small round spots that eat into the gelatine. That is a fungus, it is still alive, and
I should like your permission to clean them before anything else is done. It costs nine a slide and
takes a fortnight. The scans would be ready at the end of the month if I hear from you by Wednesday.
With kind regards, T. Lindqvist.""",
    """A tide mill has a door that opens only one way. When the sea comes in, it pushes the gate aside
and fills the pond behind the wall; when the sea goes out, the pond leans on the gate and shuts it, and
from then on the only way back is through the wheel. So the miller keeps the hours of the moon. He
grinds for about five hours, twice in a day, and each day the work begins some fifty minutes later than
on the day before, which is why his neighbours, who keep the hours of the sun, think of him as a man who
is never at the same place at the same time. At the neaps, when sun and moon pull across each other, the
pond fills only to the second mark and the stones turn so slowly that he can hear each of the grains. At
the springs the water stands to the lip of the wall, and he has to open the side sluice, or the wheel
would run away with him.""",
)
"""Passages whose sentences also make the haystack of the needle test."""

PASSAGES: Final = (
    *PROSE,
    '''import heapq
from collections import defaultdict


class Timetable:
    """Departures between stops, each with a line and a duration in minutes."""

    def __init__(self):
        self._from = defaultdict(list)

    def add(self, start, end, departs_at, minutes, line):
        if minutes <= 0:
            raise ValueError(f"{line}: a ride takes time, {minutes} is none")
        self._from[start].append((departs_at, minutes, end, line))

    def earliest_arrival(self, start, goal, ready_at, change_minutes=3):
        """The earliest time at `goal`, and the lines that lead there; None if nothing does."""
        queue = [(ready_at, start, ())]
        best = {start: ready_at}
        while queue:
            now, stop, lines = heapq.heappop(queue)
            if stop == goal:
                return now, lines
            for departs_at, minutes, end, line in self._from[stop]:
                wait = 0 if not lines or lines[-1] == line else change_minutes
                if departs_at < now + wait:
                    continue
                arrival = departs_at + minutes
                if arrival < best.get(end, float("inf")):
                    best[end] = arrival
                    heapq.heappush(queue, (arrival, end, (*lines, line)))
        return None
''',
    """station,opened,platforms,elevation_m,passengers_2019,passengers_2023,step_free
Aldermoor,1871,2,14,182400,169850,yes
Bracken Halt,1904,1,96,8120,11275,no
Cold Ferry,1866,3,4,441900,398010,yes
Dunmere Junction,1859,6,22,1290350,1334700,yes
Eskwater,1888,2,131,27640,30115,no
Fallow Green,1931,2,57,96310,104480,yes
Garth Road,1967,2,49,203775,188020,yes
Hollin Bridge,1874,1,188,5930,9005,no

Of the eight stations in the table four had more passengers in 2023 than the rest of the line would lead
one to expect: Bracken Halt, Eskwater, Fallow Green and Hollin Bridge grew although the line as a whole
shrank. All four lie above fifty metres, where the bus was withdrawn in the winter of 2021. Dunmere
Junction grew by 44350 passengers, which is 3.4 percent, and Cold Ferry lost 43890, which is 9.9
percent. The total fell from 2256425 to 2245455, that is by 10970, or by half a percent.
""",
    """Als die alte Uhrmacherin ihr Geschäft aufgab, hinterließ sie dem Lehrling keine Werkzeuge,
sondern eine Liste von Fragen. Die erste lautete: Wer hat die Uhr zuletzt aufgezogen, und warum hat er
damit aufgehört? Die zweite: Steht sie, weil etwas fehlt, oder weil etwas zu viel ist? Erst die siebte
Frage handelte von Rädern. Der Lehrling hielt das für eine Laune, bis ihm im Herbst ein Bauer eine
Standuhr brachte, die jeden Abend um zehn stehen blieb. Er zerlegte sie zweimal und fand nichts. Dann
fragte er, wie auf der Liste stand, was sich im Haus verändert habe, und erfuhr, dass der Bauer seit dem
Sommer um zehn Uhr den Ofen schloss. Die Diele zog sich zusammen, das Gehäuse neigte sich um einen
halben Grad, und das Pendel streifte die Rückwand. Ein Stück Karton unter dem linken Fuß kostete nichts,
und der Lehrling schrieb unter die letzte Frage eine neue.""",
    """La recette du calcul est simple. Un bassin contient 1 240 litres ; une pompe en retire 35 par
minute pendant qu'une source en ajoute 4. La perte nette est donc de 31 litres par minute, et le bassin
est vide après 1 240 / 31 = 40 minutes. Si l'on arrête la pompe au bout de 25 minutes, il reste 1 240 -
25 x 31 = 465 litres, et la source met (1 240 - 465) / 4 = 193,75 minutes pour remplir le bassin de
nouveau, soit un peu moins de trois heures et quart. Supposons maintenant que la source donne moitié
moins en été. La perte devient 33 litres par minute, le bassin est vide après 37,6 minutes, et le
remplissage depuis 465 litres dure 387,5 minutes. On voit que la pompe change peu de chose à la durée de
la vidange, mais que la source décide de tout le reste : en divisant son débit par deux, on double
exactement le temps d'attente.""",
)
